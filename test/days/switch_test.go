package days

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// Two people take turns on one machine with `tailscale switch`: one home directory, one after the other's tailnet identity. Neither ever
// acts as the other, and neither ends what the other began.
func TestDay_TwoPeopleSwitch(t *testing.T) { inEachWorld(t, twoPeopleSwitch) }

func twoPeopleSwitch(t *testing.T, w *world) {
	byAlice := w.device(t, "laptop", alice)
	asBob := w.device(t, "laptop-b", w.bob)
	for _, p := range []*testenv.Person{byAlice, asBob} {
		if err := p.ServeTailscale(); err != nil {
			t.Fatal(err)
		}
	}
	byBob := byAlice.Switch(asBob)
	onAlices, onBobs := row(alice, "laptop", "-", "view"), row(w.bob, "laptop-b", "-", "view")
	// acts fails the test unless kubectl acts as the account of a login, or for "" does not act at all.
	acts := func(when string, p *testenv.Person, login string) {
		t.Helper()
		r, err := p.Run(t.Context(), "kubectl", "--context", "tka-east", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
		if err != nil {
			t.Fatal(err)
		}
		got, _ := strings.CutPrefix(r.Stdout, "system:serviceaccount:tailplane-signins:")
		if slug := strings.NewReplacer("@", "-", ".", "-").Replace(login); (login == "") != (got == "") || !strings.HasPrefix(got, slug) {
			t.Errorf("%s: kubectl acts as %q, want the account of %q\n%s", when, got, login, r.Stderr)
		}
	}

	run(t, byAlice, 0, "tka login --use")
	acts("after alice's login", byAlice, alice)
	run(t, byBob, 3, "tka status")
	acts("bob, before a login", byBob, "")
	w.sees(t, "after the first switch", []string{onAlices}, nil)

	run(t, byBob, 0, "tka login --use")
	acts("after bob's login", byBob, w.bob)
	w.sees(t, "both are signed in", []string{onAlices, onBobs}, nil)
	acts("alice again", byAlice, alice)
	acts("bob again", byBob, w.bob)
	shows(t, byAlice, "tka status", `^east +alice@example.com +view`)
	run(t, byAlice, 0, "tka logout --all")
	w.sees(t, "after alice's logout", []string{onBobs}, nil)

	run(t, byBob, 0, "tka login --use") // alice's logout took the entries of their kubeconfig
	acts("bob, after alice's logout", byBob, w.bob)
	run(t, byBob, 0, "tka logout --all")
	w.sees(t, "at night", nil, nil)
}
