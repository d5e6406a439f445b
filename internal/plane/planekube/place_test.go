//go:build unix

package planekube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gossip/gossipkube"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/planekubetest"
)

// place is an environment whose namespace is that of the sign-ins and of the plane. Its account may read what the plane shows, and write
// which drift is ignored.
type place struct{ *planekubetest.Env }

// newPlace uses the shared cluster if c is nil.
func newPlace(t *testing.T, c *kubetest.Cluster) *place {
	t.Helper()
	read := []string{"get", "list", "watch"}
	p := &place{planekubetest.New(t, c, planekubetest.Rights{
		Here: []rbacv1.PolicyRule{
			{APIGroups: []string{"tailplane.dev"}, Resources: []string{"tkasignins"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{gossipkube.MembersConfigMap}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{IgnoredConfigMap}, Verbs: append([]string{"update"}, read...)},
		},
		Everywhere: []rbacv1.PolicyRule{
			{APIGroups: []string{gatewayv1alpha1.Group}, Resources: []string{"tailscaletailnets", "tailscalegateways", "tailscaleroutepolicies", "tailscaleservices", "tailscaleproxygroups"}, Verbs: read},
			{APIGroups: []string{"tailplane.dev"}, Resources: []string{"runnerenrollments", "runnerpools", "runnerforges", "runnerholds"}, Verbs: read},
			{APIGroups: []string{gatewayapi.GroupName}, Resources: []string{"gateways", "httproutes"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"list"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{fleetLease}, Verbs: read},
			{APIGroups: []string{"actions.github.com"}, Resources: []string{"ephemeralrunners"}, Verbs: read},
		}})}
	p.Must(p.Admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: IgnoredConfigMap}}))
	return p
}

// watch starts a Watch with config.
func (p *place) watch(config *rest.Config) *plane.Board {
	p.Helper()
	board, _ := p.watching(config)
	return board
}

func (p *place) watching(config *rest.Config) (*plane.Board, *Watch) {
	p.Helper()
	board := plane.NewBoard(time.Now)
	ignores, err := NewIgnores(config, p.Namespace, board, time.Now)
	p.Must(err)
	w := &Watch{Config: config, Board: board, SigninNamespace: p.Namespace, SystemNamespace: p.Namespace, FleetNamespace: p.Namespace, Ignores: ignores, Version: "v1", Log: p.Logger(), Now: time.Now, ProbeEvery: 200 * time.Millisecond}
	done := make(chan error, 1)
	ctx := p.Context()
	go func() { done <- w.Run(ctx) }()
	p.Cleanup(func() {
		if err := <-done; err != nil {
			p.Error(err)
		}
	})
	return board, w
}

// source returns the source of a resource.
func source(b *plane.Board, resource string) plane.Source {
	for _, s := range b.Sources() {
		if s.Name == "kubernetes:"+resource {
			return s
		}
	}
	return plane.Source{}
}

func objectOf[T plane.Object](b *plane.Board, k plane.Kind, key string) (T, bool) {
	o, _ := b.Get(k, key)
	is, ok := o.(T)
	return is, ok
}
