package e2e

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/internal/access"
)

// The grants of admin import-rbac, from a real API server with the real kubectl, give what the bindings give.
func TestImportRBAC(t *testing.T) {
	r := start(t)
	admin := person(t, r, "rbac-admin", "alice@example.com")
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	group := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "import-test"}}
	role := func(name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
	}
	everywhere := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "import-test"}, RoleRef: role("view"), Subjects: group}
	if _, err := k.RbacV1().ClusterRoleBindings().Create(t.Context(), everywhere, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer deleteAll(t, k)
	somewhere := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "import-test"}, RoleRef: role("edit"), Subjects: group}
	if _, err := k.RbacV1().RoleBindings("shop").Create(t.Context(), somewhere, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var out struct {
		Grants []struct {
			Src []string
			App map[string][]json.RawMessage
		}
	}
	got := run(t, admin, 0, "tka admin import-rbac -o json --kubeconfig "+r.Cluster.Kubeconfig)
	if err := json.Unmarshal([]byte(got.Stdout), &out); err != nil {
		t.Fatalf("%v: %s", err, got.Stdout)
	}
	var binds []string
	for _, g := range out.Grants {
		if !cmp.Equal(g.Src, []string{"group:import-test"}) {
			continue
		}
		for _, raw := range g.App["tailplane.dev/cap/access"] {
			rule, err := access.ParseGrant(raw)
			if err != nil {
				t.Fatal(err)
			}
			binds = append(binds, rule.Binds.String())
		}
	}
	if diff := cmp.Diff([]string{"edit in shop, view in the whole cluster"}, binds); diff != "" {
		t.Errorf("binds (-want +got):\n%s\n%s", diff, got.Stdout)
	}
}

// deleteAll deletes the bindings of the test.
func deleteAll(t *testing.T, k kubernetes.Interface) {
	if err := k.RbacV1().ClusterRoleBindings().Delete(t.Context(), "import-test", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if err := k.RbacV1().RoleBindings("shop").Delete(t.Context(), "import-test", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
