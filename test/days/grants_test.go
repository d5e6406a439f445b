package days

import (
	"testing"
)

// A grant is removed from the policy while two terminals work: first that of the elevated one, then all of the person's. Other
// people's sign-ins stay, on both clusters, and nothing returns by itself with the grant.
func TestDay_AGrantIsRemoved(t *testing.T) { inEachWorld(t, aGrantIsRemoved) }

func aGrantIsRemoved(t *testing.T, w *world) {
	laptop, tablet, bob := w.device(t, "laptop", alice), w.device(t, "tablet", alice), w.device(t, "bob-laptop", w.bob)
	all := w.policy(w.people(), w.people())
	t.Cleanup(func() {
		if err := w.east.Net.SetPolicy(all); err != nil {
			t.Error(err)
		}
	})
	for _, command := range []string{"tka login", "tka login --cluster west"} {
		run(t, laptop, 0, command)
		run(t, tablet, 0, command)
		run(t, bob, 0, command)
	}
	run(t, bob, 0, "tka login --cluster east --role edit")
	elevated := open(t, laptop, "tka", "shell", "--cluster", "east", "--role", "edit", "--", "sh")
	elevated.do(0, "kubectl create configmap from-elevated -n shop")
	elevated.do(0, "tka kubeconfig --token --out held-edit.yaml")
	run(t, laptop, 0, "tka kubeconfig --cluster east --token --out held-view.yaml")
	onLaptop, onTablet := row(alice, "laptop", "-", "view"), row(alice, "tablet", "-", "view")
	bobs, bobsEdit := row(w.bob, "bob-laptop", "-", "view"), row(w.bob, "bob-laptop", "edit", "edit")
	w.sees(t, "at work", []string{onLaptop, row(alice, "laptop", "shell", "edit"), onTablet, bobs, bobsEdit}, []string{onLaptop, onTablet, bobs})

	// Alice may no longer edit. Only the elevated terminal notices.
	w.set(t, w.policy(w.people(), w.people()[1:]), laptop, "view")
	w.becomes(t, "without edit", []string{onLaptop, onTablet, bobs, bobsEdit}, []string{onLaptop, onTablet, bobs})
	matches(t, "a held token", run(t, laptop, 1, "kubectl --kubeconfig held-edit.yaml create configmap held -n shop"), "forbidden|Unauthorized|must be logged in")
	elevated.do(1, "kubectl create configmap again -n shop")
	matches(t, "why in the elevated terminal", elevated.do(3, "tka why create configmaps -n shop"), "not allowed|not granted|not signed in")
	matches(t, "login in the elevated terminal", elevated.do(3, "tka login --role edit"), "edit")
	run(t, laptop, 0, "kubectl --context tka-east get pods -n shop")
	run(t, laptop, 0, "kubectl --kubeconfig held-view.yaml get pods -n shop")
	run(t, tablet, 0, "kubectl --context tka-east get pods -n shop")
	run(t, bob, 0, "kubectl --context tka-east-edit create configmap from-bob -n shop")
	elevated.exit()
	w.sees(t, "after the elevated terminal", []string{onLaptop, onTablet, bobs, bobsEdit}, []string{onLaptop, onTablet, bobs})

	// Alice has no grant at all. Both of her devices notice, on both clusters.
	w.set(t, w.policy(w.people()[1:], w.people()[1:]), laptop)
	w.becomes(t, "without any grant", []string{bobs, bobsEdit}, []string{bobs})
	for _, terminal := range []string{"kubectl --context tka-east get pods -n shop", "kubectl --context tka-west get pods -n shop"} {
		run(t, laptop, 1, terminal)
		run(t, tablet, 1, terminal)
		run(t, bob, 0, terminal)
	}
	matches(t, "a held token", run(t, laptop, 1, "kubectl --kubeconfig held-view.yaml get pods -n shop"), "forbidden|Unauthorized|must be logged in")
	run(t, laptop, 3, "tka status")
	matches(t, "login without a grant", run(t, laptop, 3, "tka login"), "grant")
	run(t, laptop, 3, "tka login --all")
	matches(t, "clusters without a grant", run(t, laptop, 3, "tka clusters"), "grant")
	shows(t, bob, "tka clusters", "^east .*ready .*view", "^west .*ready .*view")

	// With the grant, nothing returns by itself.
	w.set(t, all, laptop, "edit", "view")
	w.sees(t, "with the grant again", []string{bobs, bobsEdit}, []string{bobs})
	run(t, laptop, 0, "tka login --cluster east")
	w.sees(t, "after another login", []string{onLaptop, bobs, bobsEdit}, []string{bobs})
	run(t, tablet, 1, "kubectl --context tka-east get pods -n shop")

	run(t, laptop, 0, "tka logout --all")
	run(t, tablet, 0, "tka logout --all")
	run(t, bob, 0, "tka logout --all")
	w.sees(t, "at night", nil, nil)
}
