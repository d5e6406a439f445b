//go:build unix

package kube

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/tailplane/tailplane/testkit/planekubetest"
)

// newWriterEnv returns an environment whose account has exactly the rights of this package. Its namespace is that of the sign-ins.
func newWriterEnv(t *testing.T) *planekubetest.Env {
	t.Helper()
	return planekubetest.New(t, nil, planekubetest.Rights{
		Here:       []rbacv1.PolicyRule{{APIGroups: []string{"tailplane.dev"}, Resources: []string{"tkasignins"}, Verbs: []string{"get", "delete"}}},
		Everywhere: []rbacv1.PolicyRule{{APIGroups: []string{"tailplane.dev"}, Resources: []string{"runnerenrollments", "runnerholds"}, Verbs: []string{"get", "create", "patch", "delete"}}},
	})
}
