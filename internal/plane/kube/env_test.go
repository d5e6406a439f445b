//go:build unix

package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gossip/controller"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/planekubetest"
)

// env is an environment whose namespace is that of the sign-ins and of the plane. Its account may read what the plane shows, and write
// which drift is ignored.
type env struct{ *planekubetest.Env }

// newEnv uses the shared cluster if c is nil.
func newEnv(t *testing.T, c *kubetest.Cluster) *env {
	t.Helper()
	read := []string{"get", "list", "watch"}
	p := &env{planekubetest.New(t, c, planekubetest.Rights{
		Here: []rbacv1.PolicyRule{
			{APIGroups: []string{"tailplane.dev"}, Resources: []string{"tkasignins"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{controller.MembersConfigMap}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{ignoresConfigMap}, Verbs: append([]string{"update"}, read...)},
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
	p.Must(p.Admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: ignoresConfigMap}}))
	return p
}

// startWatch starts a Watch with config.
func (p *env) startWatch(config *rest.Config) *plane.Store {
	p.Helper()
	store, _ := p.startWatcher(config)
	return store
}

func (p *env) startWatcher(config *rest.Config) (*plane.Store, *Watcher) {
	p.Helper()
	store := plane.NewStore(time.Now)
	api, err := Connect(config, time.Now)
	p.Must(err)
	w := &Watcher{Config: config, Store: store, SigninNamespace: p.Namespace, SystemNamespace: p.Namespace, FleetNamespace: p.Namespace, DriftIgnores: api.DriftIgnores(p.Namespace, store), Version: "v1", Log: p.Logger(), Now: time.Now, ProbeEvery: 200 * time.Millisecond}
	done := make(chan error, 1)
	ctx := p.Context()
	go func() { done <- w.Run(ctx) }()
	p.Cleanup(func() {
		if err := <-done; err != nil {
			p.Error(err)
		}
	})
	return store, w
}

// sourceOf returns the source of a resource.
func sourceOf(b *plane.Store, resource string) plane.Source {
	for _, s := range b.Sources() {
		if s.Name == "kubernetes:"+resource {
			return s
		}
	}
	return plane.Source{}
}

func objectOf[T plane.Object](b *plane.Store, k plane.Kind, key string) (T, bool) {
	o, _ := b.Get(k, key)
	is, ok := o.(T)
	return is, ok
}
