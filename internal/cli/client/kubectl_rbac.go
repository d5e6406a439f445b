package client

import (
	"context"
	"encoding/json"

	"github.com/tailplane/tailplane/internal/cli/output"
)

// A RoleBinding is a RoleBinding or a ClusterRoleBinding of Kubernetes.
type RoleBinding struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Namespace string            `json:"namespace"`
		Name      string            `json:"name"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	RoleRef struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"roleRef"`
	Subjects []RoleSubject `json:"subjects"`
}

// A RoleSubject is a subject of a RoleBinding: a Group, a User or a ServiceAccount.
type RoleSubject struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// RoleBindings returns all RoleBindings and ClusterRoleBindings of the cluster.
func (c Kubectl) RoleBindings(ctx context.Context) ([]RoleBinding, error) {
	text, err := c.run(ctx, "get", "clusterrolebindings.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io", "--all-namespaces", "--output", "json")
	if err != nil {
		return nil, err
	}
	var list struct{ Items []RoleBinding }
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, output.Errorf(output.ExitFailed, "kubectl could not list the role bindings: %v", err).Because(err).Try("kubectl get clusterrolebindings,rolebindings -A")
	}
	return list.Items, nil
}
