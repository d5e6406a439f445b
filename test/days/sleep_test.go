package days

import (
	"regexp"
	"testing"
	"time"
)

// The laptop sleeps while sign-ins end: first that of an elevated terminal, then over night the one of the morning. In the evening one
// command ends the rest, on both clusters.
func TestDay_TheLaptopSleeps(t *testing.T) { inEachWorld(t, theLaptopSleeps) }

func theLaptopSleeps(t *testing.T, w *world) {
	laptop, tablet, bob := w.device(t, "laptop", alice), w.device(t, "tablet", alice), w.device(t, "bob-laptop", w.bob)
	// The cache would hold tokens until the ends that they had before pass changed them.
	run(t, laptop, 0, "tka config credentialCache none")
	run(t, laptop, 0, "tka login --use")
	run(t, laptop, 0, "tka login --cluster west")
	run(t, tablet, 0, "tka login --use")
	run(t, bob, 0, "tka login --use")
	elevated := open(t, laptop, "tka", "shell", "--cluster", "east", "--role", "edit", "--for", "30m", "--", "sh")
	elevated.do(0, "kubectl create configmap before-sleep -n shop")
	onLaptop, onTablet, bobs := row(alice, "laptop", "-", "view"), row(alice, "tablet", "-", "view"), row(w.bob, "bob-laptop", "-", "view")
	w.sees(t, "before the sleep", []string{onLaptop, row(alice, "laptop", "shell", "edit"), onTablet, bobs}, []string{onLaptop})

	// The elevated terminal's time is over while the laptop sleeps. The sleep itself ends nothing.
	w.wants(t, laptop, false)
	w.pass(t, w.east, "laptop", "shell")
	w.becomes(t, "asleep", []string{onLaptop, row(alice, "laptop", "shell", "Expired"), onTablet, bobs}, []string{onLaptop})
	run(t, tablet, 0, "kubectl get pods -n shop")
	run(t, bob, 0, "kubectl get pods -n shop")
	w.wants(t, laptop, true)
	matches(t, "kubectl in the elevated terminal", elevated.do(1, "kubectl create configmap after-sleep -n shop"), "[Nn]ot signed in|has ended", `tka login --cluster east --session shell-`)
	run(t, laptop, 0, "kubectl get pods -n shop")
	run(t, laptop, 0, "kubectl --context tka-west get pods -n shop")
	shows(t, laptop, "tka status", `^east +alice@example.com +view .*ready`, `^west +alice@example.com +view .*ready`)
	run(t, laptop, 1, "kubectl create configmap from-other -n shop")

	// refresh elevates the same terminal again, and no other.
	elevated.do(0, "tka refresh --for 20m")
	elevated.do(0, "kubectl create configmap after-sleep -n shop")
	w.sees(t, "after refresh", []string{onLaptop, row(alice, "laptop", "shell", "edit"), onTablet, bobs}, []string{onLaptop})
	matches(t, "kubectl in the other terminal", run(t, laptop, 1, "kubectl create configmap from-other -n shop"), "forbidden")
	elevated.exit()
	w.sees(t, "after the elevated terminal", []string{onLaptop, onTablet, bobs}, []string{onLaptop})

	// Over night, the day in east ends. The one in west does not.
	w.wants(t, laptop, false)
	w.pass(t, w.east, "laptop", "-")
	w.becomes(t, "at night", []string{row(alice, "laptop", "-", "Expired"), onTablet, bobs}, []string{onLaptop})
	w.wants(t, laptop, true)
	matches(t, "kubectl in the morning", run(t, laptop, 1, "kubectl get pods -n shop"), "[Nn]ot signed in|has ended", "tka login --cluster east")
	run(t, laptop, 0, "kubectl --context tka-west get pods -n shop")
	run(t, tablet, 0, "kubectl get pods -n shop")
	shows(t, laptop, "tka status", `^east .*(ended|none)`, `^west .*ready`)
	run(t, laptop, 0, "tka login --use")
	w.sees(t, "in the morning", []string{onLaptop, onTablet, bobs}, []string{onLaptop})
	until := regexp.MustCompile(`"until": "([^"]+)"`).FindStringSubmatch(run(t, laptop, 0, "tka status --cluster east -o json"))
	if until == nil {
		t.Fatal("no end")
	}
	if end, err := time.Parse(time.RFC3339, until[1]); err != nil || time.Until(end) < 8*time.Hour-patience {
		t.Errorf("the sign-in of the morning ends at %s (%v), want a whole day of 8 hours", until[1], err)
	}

	// Evening: one command ends everything of this device, also an elevated session whose terminal was forgotten.
	run(t, laptop, 0, "tka login --cluster west --role edit")
	w.sees(t, "in the evening", []string{onLaptop, onTablet, bobs}, []string{onLaptop, row(alice, "laptop", "edit", "edit")})
	shows(t, laptop, "tka logout --all", `^Signed out of east\.`, `^Signed out of west\.`, `^Signed out of west, session edit\.`)
	w.sees(t, "after logout", []string{onTablet, bobs}, nil)
	run(t, tablet, 0, "kubectl get pods -n shop")
	run(t, tablet, 0, "tka logout --all")
	shows(t, laptop, "tka logout --all", "Was not signed in to east", "Was not signed in to west")
	run(t, bob, 0, "tka logout --all")
	w.sees(t, "at the end", nil, nil)
}
