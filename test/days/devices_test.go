package days

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// Two users of the operating system share the sign-in of their device, because the device is the identity: each can end what the other
// began. A second device of the same person has its own.
func TestDay_TwoUsersTwoDevices(t *testing.T) { inEachWorld(t, twoUsersTwoDevices) }

func twoUsersTwoDevices(t *testing.T, w *world) {
	laptop, tablet, bob := w.device(t, "laptop", alice), w.device(t, "tablet", alice), w.device(t, "bob-laptop", w.bob)
	guest, err := laptop.User("guest")
	if err != nil {
		t.Fatal(err)
	}
	onLaptop, onTablet, bobs := row(alice, "laptop", "-", "view"), row(alice, "tablet", "-", "view"), row(w.bob, "bob-laptop", "-", "view")
	edits := row(alice, "laptop", "shell", "edit")

	// The second user of the device sees the sign-in of the first, and has no kubeconfig until a login of their own.
	run(t, laptop, 0, "tka login --use")
	run(t, bob, 0, "tka login --use")
	shows(t, guest, "tka status", `^east +alice@example.com +view`)
	run(t, guest, 1, "kubectl get pods -n shop")
	run(t, guest, 0, "tka login --use")
	run(t, guest, 0, "kubectl get pods -n shop")
	w.sees(t, "two users of a device", []string{onLaptop, bobs}, nil)

	// An elevated terminal of one is a session of the device. The other's kubectl stays as it was.
	elevated := open(t, guest, "tka", "shell", "--role", "edit", "--", "sh")
	elevated.do(0, "kubectl create configmap from-guest -n shop")
	w.sees(t, "elevated by the second user", []string{onLaptop, edits, bobs}, nil)
	shows(t, laptop, "tka status", `^east +alice@example.com +view`, `^east +shell-\w+ +alice@example.com +edit`)
	matches(t, "kubectl of the first user", run(t, laptop, 1, "kubectl create configmap from-first -n shop"), "forbidden")

	// The second device has a sign-in of its own, and sees nothing of the first.
	run(t, tablet, 0, "tka login --use")
	w.sees(t, "two devices", []string{onLaptop, edits, onTablet, bobs}, nil)
	if out := run(t, tablet, 0, "tka status"); strings.Contains(out, "shell-") {
		t.Errorf("the tablet sees a session of the laptop:\n%s", out)
	}

	// Each user of the device ends the shared sign-in, and the other notices. The elevated terminal is a session of its own.
	run(t, guest, 0, "tka logout")
	w.sees(t, "after a logout of the second user", []string{edits, onTablet, bobs}, nil)
	refused(t, laptop, "kubectl get pods -n shop")
	elevated.do(0, "kubectl get pods -n shop")
	run(t, tablet, 0, "kubectl get pods -n shop")
	run(t, laptop, 0, "tka login --use")
	w.sees(t, "after another login of the first user", []string{onLaptop, edits, onTablet, bobs}, nil)
	shows(t, laptop, "tka logout --all", `^Signed out of east\.`, `^Signed out of east, session shell-`)
	w.sees(t, "after a logout of everything by the first user", []string{onTablet, bobs}, nil)
	elevated.do(1, "kubectl create configmap too-late -n shop")
	elevated.exit()
	run(t, tablet, 0, "kubectl get pods -n shop")

	// The other direction: what the tablet ends is the tablet's.
	run(t, laptop, 0, "tka login --use")
	run(t, tablet, 0, "tka login --cluster west")
	shows(t, tablet, "tka logout --all", `^Signed out of east\.`, `^Signed out of west\.`)
	w.sees(t, "after a logout of the tablet", []string{onLaptop, bobs}, nil)
	refused(t, tablet, "kubectl --context tka-east get pods -n shop")
	run(t, laptop, 0, "kubectl get pods -n shop")

	// An administrator ends the sign-ins of all devices of the person, in this cluster only.
	run(t, tablet, 0, "tka login --use")
	run(t, tablet, 0, "tka login --cluster west")
	admin := "tka revoke --yes " + alice + " --kubeconfig " + w.east.Cluster.Kubeconfig
	shows(t, bob, admin, `^Ended .* of alice@example.com on laptop`, `^Ended .* of alice@example.com on tablet`)
	w.becomes(t, "after revoke", []string{bobs}, []string{onTablet})
	refused(t, laptop, "kubectl get pods -n shop")
	refused(t, tablet, "kubectl --context tka-east get pods -n shop")
	run(t, tablet, 0, "kubectl --context tka-west get pods -n shop")
	run(t, bob, 0, "kubectl get pods -n shop")

	run(t, tablet, 0, "tka logout --all")
	run(t, bob, 0, "tka logout --all")
	w.sees(t, "at night", nil, nil)
}

// refused fails the test unless kubectl is refused: by the API server, or by tka because the device is not signed in.
func refused(t *testing.T, p *testenv.Person, kubectl string) {
	t.Helper()
	matches(t, kubectl, run(t, p, 1, kubectl), "forbidden|Unauthorized|must be logged in|[Nn]ot signed in|no configuration|was refused|does not exist")
}
