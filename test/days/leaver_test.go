package days

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// A person leaves: an administrator ends the sign-ins that the person has on any device in any cluster, and hears of each cluster that
// was not reached. No other person notices. Before that, the administrator checks the next policy at the servers of both clusters.
func TestDay_APersonLeaves(t *testing.T) { inEachWorld(t, aPersonLeaves) }

func aPersonLeaves(t *testing.T, w *world) {
	admin, laptop, phone := w.device(t, "laptop", alice), w.device(t, "bob-laptop", w.bob), w.device(t, "bob-phone", w.bob)
	run(t, admin, 0, "tka login")
	run(t, admin, 0, "tka login --cluster west")
	run(t, laptop, 0, "tka login")
	run(t, laptop, 0, "tka login --cluster west")
	run(t, laptop, 0, "tka login --cluster east --role edit")
	run(t, phone, 0, "tka login --cluster west")
	w.mayRevoke(t, w.east)
	w.mayRevoke(t, w.west)
	admins, bobs := row(alice, "laptop", "-", "view"), row(w.bob, "bob-laptop", "-", "view")
	inEast, inWest := []string{admins, bobs, row(w.bob, "bob-laptop", "edit", "edit")}, []string{admins, bobs, row(w.bob, "bob-phone", "-", "view")}
	w.sees(t, "at work", inEast, inWest)

	// The next policy, in which bob is missing, and one with a mistake.
	check := func(name, policy string, code int, patterns ...string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(admin.Home, name), []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
		matches(t, name, run(t, admin, code, "tka admin check-policy "+name), patterns...)
	}
	check("next.hujson", w.policy(w.people()[:1], w.people()[:1]), 0, "^east .* accepts", "^west .* accepts")
	check("mistake.hujson", `{"grants": [{"src": ["*"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [
		{"role": "view", "period": "8h", "namespace": "shop"}]}}]}`, 3, `^mistake.hujson:2: east refuses rule 1 of grant 1: .*"namespace"`, "^mistake.hujson:2: west refuses", "^east .* refuses 1 rule", "^west .* refuses 1 rule")
	w.sees(t, "after the checks", inEast, inWest)

	// Without a context for west, bob's sign-ins there stay, and the command says so.
	run(t, admin, 0, "kubectl config delete-context tka-west")
	matches(t, "revoke without west", run(t, admin, 1, "tka revoke --everywhere --yes "+w.bob), "^Ended .*: view of "+w.bob+" on .* in east", "^Ended .*: edit of "+w.bob+" on .* in east", "^Not reached west: ")
	w.becomes(t, "after east", []string{admins}, inWest)
	run(t, laptop, 1, "kubectl --context tka-east get pods -n shop")
	run(t, laptop, 0, "kubectl --context tka-west get pods -n shop")
	run(t, phone, 0, "kubectl --context tka-west get pods -n shop")

	run(t, admin, 0, "tka login --all")
	matches(t, "revoke", run(t, admin, 0, "tka revoke --everywhere --yes "+w.bob), "^Ended .* in west")
	w.becomes(t, "after west", []string{admins}, []string{admins})
	run(t, laptop, 1, "kubectl --context tka-west get pods -n shop")
	run(t, phone, 1, "kubectl --context tka-west get pods -n shop")
	run(t, admin, 0, "kubectl --context tka-east get pods -n shop")
	run(t, admin, 0, "kubectl --context tka-west get pods -n shop")
	matches(t, "nothing is left", run(t, admin, 1, "tka revoke --everywhere --yes "+w.bob), "No sign-in has that name or login")
	run(t, admin, 0, "tka logout --all")
	w.sees(t, "at night", nil, nil)
}

// mayRevoke binds tailplane-revoke to alice's account in a cluster.
func (w *world) mayRevoke(t *testing.T, env *testenv.Env) {
	t.Helper()
	for _, s := range stored(t, env) {
		if s.Spec.User.Login != alice {
			continue
		}
		manifest := fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: alice-revokes}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: tailplane-revoke}
subjects: [{kind: ServiceAccount, namespace: %s, name: %s}]
`, testenv.SigninNamespace, s.Status.ServiceAccount.Name)
		if err := env.Cluster.Apply(t.Context(), []byte(manifest)); err != nil {
			t.Fatal(err)
		}
	}
}
