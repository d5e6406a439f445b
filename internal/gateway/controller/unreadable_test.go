//go:build unix

package controller

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// unreadableRole are the rights of the gateway's ServiceAccount: for the whole cluster, and, by a
// RoleBinding, for one namespace.
const unreadableRole = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: left-out-wide}
rules:
- {apiGroups: [gateway.tailscale.com], resources: ["*"], verbs: ["*"]}
- {apiGroups: [gateway.networking.k8s.io], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [namespaces, services], verbs: [get, list, watch]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: left-out-there}
rules:
- {apiGroups: ["", apps, rbac.authorization.k8s.io, policy, networking.k8s.io, discovery.k8s.io, events.k8s.io], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: left-out-wide}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: left-out-wide}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: left-out}]
`

const unreadableBinding = `apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: left-out, namespace: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: left-out-there}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: left-out}]
`

// GW-03, law 7: a group namespace without a RoleBinding does not block the others. It is reported
// once, also on its groups, and included when the rights are granted. When they are revoked, the
// others continue.
func TestUnreadableNamespace(t *testing.T) {
	cluster := kubetest.Start(t)
	barred := cluster.Namespace(t)
	bind := func(namespace string) error {
		return cluster.Apply(t.Context(), fmt.Appendf(nil, unreadableBinding, namespace))
	}
	var c *Runner
	p := newTailnetEnv(t, func(now *Runner) {
		c = now
		for _, err := range []error{cluster.Apply(t.Context(), []byte(unreadableRole)), bind(c.Namespace)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		c.Config = rest.CopyConfig(c.Config)
		c.Config.Impersonate = rest.ImpersonationConfig{UserName: "left-out"}
		c.ProxyNamespaces, c.OperatorID, c.Release = []string{barred}, "tp-left-out", "test"
		c.Relays = workload.Settings{Image: "image.invalid/tailplaned:test"}
	})
	group := func(namespace string) *v1alpha1.TailscaleProxyGroup {
		g := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
			Spec: v1alpha1.TailscaleProxyGroupSpec{Type: v1alpha1.Egress, Replicas: new(int32(0)), TailnetRef: &v1alpha1.TailnetReference{Name: "nobody"}}}
		p.must(p.admin.Create(t.Context(), g))
		return g
	}
	awaitCondition := func(namespace, kind, want string) {
		t.Helper()
		g := &v1alpha1.TailscaleProxyGroup{}
		p.until("the group in "+namespace+" says "+kind+" "+want, func() bool {
			p.must(p.admin.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "web"}, g))
			now := meta.FindStatusCondition(g.Status.Conditions, kind)
			return now != nil && string(now.Status)+"/"+now.Reason == want && now.ObservedGeneration == g.Generation
		})
	}
	own := group(p.ns)
	group(barred)
	service := p.unreadableService(barred)
	saysService := func(want string) {
		t.Helper()
		s := &v1alpha1.TailscaleService{}
		p.until("the service reports Degraded "+want, func() bool {
			p.must(p.admin.Get(t.Context(), client.ObjectKeyFromObject(service), s))
			now := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionDegraded)
			return now != nil && string(now.Status)+"/"+now.Reason == want
		})
	}
	awaitCondition(p.ns, v1alpha1.ConditionAccepted, "False/TailnetNotPermitted")
	awaitCondition(barred, v1alpha1.ConditionDegraded, "True/NamespaceForbidden")
	awaitCondition(barred, v1alpha1.ConditionReady, "False/NamespaceForbidden")
	saysService("True/NamespaceForbidden")
	if n := c.UnreadableNamespaces(); n != 1 {
		t.Errorf("%d namespaces are skipped", n)
	}

	p.must(bind(barred))
	p.until("it is included", func() bool { return c.UnreadableNamespaces() == 0 })
	awaitCondition(barred, v1alpha1.ConditionDegraded, "False/AsExpected")
	awaitCondition(barred, v1alpha1.ConditionAccepted, "False/TailnetNotPermitted")
	saysService("False/AsExpected")
	for line, want := range map[string]int{"a namespace is skipped": 1, "may read again": 1} {
		if n := strings.Count(p.log.String(), line); n != want {
			t.Errorf("the log has %q %d times, want %d:\n%s", line, n, want, p.log.Tail())
		}
	}

	// The rights are revoked while the operator runs. The operator detects this although no object
	// changes and its watches continue, and all affected objects report it.
	p.must(p.admin.DeleteAllOf(t.Context(), binding(), client.InNamespace(barred)))
	p.until("the permissions are removed", func() bool {
		r := rest.CopyConfig(c.Config)
		as, err := client.New(r, client.Options{Scheme: p.admin.Scheme()})
		p.must(err)
		return as.List(t.Context(), &corev1.PodList{}, client.InNamespace(barred)) != nil
	})
	awaitCondition(barred, v1alpha1.ConditionDegraded, "True/NamespaceForbidden")
	saysService("True/NamespaceForbidden")
	if n := c.UnreadableNamespaces(); n != 1 {
		t.Errorf("%d namespaces are skipped", n)
	}
	for _, namespace := range []string{barred, p.ns} {
		g := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
		p.must(p.admin.Patch(t.Context(), g, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":1}}`))))
	}
	awaitCondition(barred, v1alpha1.ConditionDegraded, "True/NamespaceForbidden")
	awaitCondition(p.ns, v1alpha1.ConditionAccepted, "False/TailnetNotPermitted")
	// A request during the revocation may have been refused, and namespaces of other tests may end
	// in the meantime.
	all := p.log.String()
	for line := range strings.Lines(all[strings.LastIndex(all, "a namespace is skipped"):]) {
		if strings.Contains(line, "Reconciler error") && (strings.Contains(line, p.ns) || strings.Contains(line, barred)) {
			t.Errorf("a reconcile failed: %s", line)
		}
	}
	p.must(p.admin.Delete(t.Context(), own))
	p.must(bind(barred))
	awaitCondition(barred, v1alpha1.ConditionDegraded, "False/AsExpected")
	saysService("False/AsExpected")
	p.until("it is included again", func() bool { return c.UnreadableNamespaces() == 0 })
}

// unreadableService creates a service in the operator's namespace that a group in another namespace
// carries, on an unreachable tailnet.
func (p *tailnetEnv) unreadableService(elsewhere string) *v1alpha1.TailscaleService {
	p.t.Helper()
	tailnet := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: p.ns}, Spec: v1alpha1.TailscaleTailnetSpec{
		Tags: []string{"tag:k8s-operator"}, OAuthSecretName: "none", SyncInterval: fiveMinutes, AllowedNamespaces: v1alpha1.NamespaceSelector{From: v1alpha1.NamespacesAll}}}
	carrier := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: elsewhere, Name: "carrier"}, Spec: v1alpha1.TailscaleProxyGroupSpec{
		Type: v1alpha1.Egress, Replicas: new(int32(0)), TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}, Consumers: v1alpha1.NamespaceSelector{From: v1alpha1.NamespacesAll}}}
	s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "billing"}, Spec: v1alpha1.TailscaleServiceSpec{
		Type: v1alpha1.Egress, TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}, ProxyGroupRef: &v1alpha1.ObjectReference{Name: "carrier", Namespace: elsewhere},
		Target: &v1alpha1.ServiceTarget{IP: "100.100.1.2"}, Ports: []v1alpha1.ServicePort{{Port: 80}}}}
	for _, o := range []client.Object{tailnet, carrier, s} {
		p.must(p.admin.Create(p.t.Context(), o))
	}
	return s
}

func binding() client.Object {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding"}}
}
