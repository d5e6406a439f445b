package install

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// To restart workloads the webhook needs rights on all of them. The chart adds these rights, the flag and the Lease
// only when the administrator enables restarts.
func TestRestartsAreOptIn(t *testing.T) {
	const list, patch = "[] [pods] [list]", "[apps] [deployments statefulsets daemonsets] [get list patch]"
	for _, on := range []bool{false, true} {
		var rules []string
		flag, lease := false, false
		for _, u := range objects(t, render(t, profileValues(t, "inject"), "--set", fmt.Sprintf("inject.autoRestart=%v", on))) {
			switch u.GetKind() + " " + u.GetName() {
			case "ClusterRole tailplane-inject":
				for _, r := range as[rbacv1.ClusterRole](t, u).Rules {
					rules = append(rules, fmt.Sprint(r.APIGroups, " ", r.Resources, " ", r.Verbs))
				}
			case "Role tailplane-inject":
				for _, r := range as[rbacv1.Role](t, u).Rules {
					lease = lease || slices.Contains(r.ResourceNames, "tailplane-inject-restarts")
				}
			case "Lease tailplane-inject-restarts":
				if !on {
					t.Error("there is a Lease without auto-restart")
				}
			case "Deployment tailplane-inject":
				flag = slices.ContainsFunc(as[appsv1.Deployment](t, u).Spec.Template.Spec.Containers[0].Args, func(a string) bool { return strings.HasPrefix(a, "--auto-restart=") })
			}
		}
		switch got := slices.ContainsFunc(rules, func(r string) bool { return r == patch }); {
		case got != on:
			t.Errorf("requested: got = %v, want %v", got, on)
		case flag != on:
			t.Errorf("requested: flag = %v, want %v", flag, on)
		case lease != on:
			t.Errorf("requested: lease = %v, want %v", lease, on)
		case slices.Contains(rules, list) != on:
			t.Errorf("requested: slices.Contains(rules, list) = %v, want %v", slices.Contains(rules, list), on)
		}
	}
}
