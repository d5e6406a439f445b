package days

import (
	"regexp"
	"strings"
	"testing"
)

// A person's day on one laptop: sign in, work on a second cluster, elevate in one of two terminals, sign out. Each step
// checks what the other terminal, the other cluster, the person's other device and another person see.
func TestDay_TwoTerminalsTwoClusters(t *testing.T) { inEachWorld(t, twoTerminalsTwoClusters) }

func twoTerminalsTwoClusters(t *testing.T, w *world) {
	laptop := w.device(t, "laptop", alice)
	tablet := w.device(t, "tablet", alice)
	bob := w.device(t, "bob-laptop", w.bob)
	see := func(when string, inEast, inWest []string) {
		t.Helper()
		w.sees(t, when, inEast, inWest)
	}
	until := func() string {
		t.Helper()
		m := regexp.MustCompile(`"until": "([^"]+)"`).FindStringSubmatch(run(t, laptop, 0, "tka status --context tka-east -o json"))
		if m == nil {
			t.Fatal("no end")
		}
		return m[1]
	}
	alices, onTablet, bobs := row(alice, "laptop", "-", "view"), row(alice, "tablet", "-", "view"), row(w.bob, "bob-laptop", "-", "view")

	// Morning: all people sign in.
	run(t, laptop, 0, "tka login")
	run(t, tablet, 0, "tka login")
	run(t, bob, 0, "tka login")
	see("in the morning", []string{alices, onTablet, bobs}, nil)
	end := until()

	// Work on a second cluster. From now on, it is the one that commands are about.
	run(t, laptop, 0, "tka login --cluster west --use")
	run(t, laptop, 0, "kubectl get pods -n shop")
	shows(t, laptop, "tka status", `^east .*view.*ready`, `^west .*view.*ready.*this terminal`)
	shows(t, laptop, "tka why get pods", `serves west`)

	// Elevate in one of two terminals.
	elevated := open(t, laptop, "tka", "shell", "--cluster", "east", "--role", "edit", "--for", "30m", "--", "sh")
	matches(t, "the elevated terminal", elevated.do(0, "tka status"), `^east +shell-\w+ +alice@example.com +edit +shop .*this terminal`, `^east +alice@example.com +view`, `^west `)
	elevated.do(0, "kubectl create configmap from-elevated -n shop")
	see("elevated", []string{alices, row(alice, "laptop", "shell", "edit"), onTablet, bobs}, []string{alices})
	for _, p := range []struct {
		who     string
		command string
	}{
		{"the other terminal", "kubectl --context tka-east create configmap from-other -n shop"},
		{"the other terminal on the other cluster", "kubectl create configmap from-other -n shop"},
	} {
		if out := run(t, laptop, 1, p.command); !strings.Contains(out, "forbidden") {
			t.Errorf("%s: %s", p.who, out)
		}
	}
	if out := run(t, tablet, 1, "kubectl create configmap from-tablet -n shop"); !strings.Contains(out, "forbidden") {
		t.Errorf("the tablet: %s", out)
	}
	shows(t, tablet, "tka status", `^east +alice@example.com +view +all +ready`)
	if out := run(t, tablet, 0, "tka status"); strings.Contains(out, "shell-") {
		t.Errorf("the tablet sees the session of the laptop:\n%s", out)
	}
	matches(t, "why in the elevated terminal", elevated.do(0, "tka why create configmaps -n shop"), `^create configmaps in shop: allowed`)
	elevated.do(0, "tka refresh --for 20m")
	matches(t, "the end of the elevated terminal", elevated.exit(), `Signed out\.`)
	see("after the elevated terminal", []string{alices, onTablet, bobs}, []string{alices})
	if got := until(); got != end {
		t.Errorf("the sign-in of the first terminal ends at %s, and ended at %s before the other one", got, end)
	}
	run(t, laptop, 0, "kubectl --context tka-east get pods -n shop")

	// With the same role, a shorter shell shortens nothing.
	short := open(t, laptop, "tka", "shell", "--cluster", "east", "--for", "15m", "--", "sh")
	short.do(0, "kubectl get pods -n shop")
	short.exit()
	if got := until(); got != end {
		t.Errorf("after a shell of 15 minutes, the sign-in ends at %s, and ended at %s before", got, end)
	}

	// A shell that signs out by itself ends only its own session.
	own := open(t, laptop, "tka", "shell", "--cluster", "east", "--", "sh")
	matches(t, "logout in a shell", own.do(0, "tka logout"), `Signed out of east, session shell-`)
	own.do(1, "kubectl get pods -n shop")
	own.exit()
	see("after a logout in a shell", []string{alices, onTablet, bobs}, []string{alices})

	// Evening: logout is about the current cluster, and names what is left; --all ends the rest of this device.
	shows(t, laptop, "tka logout", `^Signed out of west\.`)
	see("after logout", []string{alices, onTablet, bobs}, nil)
	shows(t, laptop, "tka logout", `^Signed out of east\.`, `the only cluster that this machine is signed in to`)
	run(t, laptop, 0, "tka login --role edit")
	run(t, laptop, 0, "tka login --cluster west")
	shows(t, laptop, "tka logout --all", `^Signed out of east, session edit\.`, `^Signed out of west\.`)
	see("in the evening", []string{onTablet, bobs}, nil)
	run(t, tablet, 0, "kubectl get pods -n shop")
	run(t, tablet, 0, "tka logout")
	run(t, bob, 0, "tka logout")
	see("at night", nil, nil)
}
