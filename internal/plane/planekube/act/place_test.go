//go:build unix

package act

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/tailplane/tailplane/testkit/planekubetest"
)

// newPlace returns an environment whose account has exactly the rights of this package. Its namespace is that of the sign-ins.
func newPlace(t *testing.T) *planekubetest.Env {
	t.Helper()
	return planekubetest.New(t, nil, planekubetest.Rights{
		Here:       []rbacv1.PolicyRule{{APIGroups: []string{"tailplane.dev"}, Resources: []string{"tkasignins"}, Verbs: []string{"get", "delete"}}},
		Everywhere: []rbacv1.PolicyRule{{APIGroups: []string{"tailplane.dev"}, Resources: []string{"runnerenrollments", "runnerholds"}, Verbs: []string{"get", "create", "patch", "delete"}}},
	})
}
