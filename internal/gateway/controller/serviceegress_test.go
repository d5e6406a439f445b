//go:build unix

package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

func egressService(ns, serviceName, tailnet, groupNS, group string) *v1alpha1.TailscaleService {
	return &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: serviceName}, Spec: v1alpha1.TailscaleServiceSpec{
		TailnetRef: &v1alpha1.TailnetReference{Name: tailnet}, ProxyGroupRef: &v1alpha1.ObjectReference{Name: group, Namespace: groupNS},
		Target: &v1alpha1.ServiceTarget{ServiceName: "svc:" + serviceName},
		Ports:  []v1alpha1.ServicePort{{Name: "http", Port: 80, TargetPort: 8080, AppProtocol: v1alpha1.AppHTTP}, {Port: 53, Protocol: v1alpha1.UDP}},
	}}
}

// GTW-19, GTW-03, GTW-04: the lifecycle of an egress service, object by object.
func TestServiceEgress(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-egress", true)
	p.tailnet("egress", "tail1.ts.net", nil)
	g := p.group("relays", "egress", v1alpha1.Egress)
	s := egressService(p.shop, "billing", "egress", p.ns, "relays")
	p.must(p.admin.Create(t.Context(), s))
	key := p.shop + ".billing"
	serviceName := gateway.GroupServiceName(gateway.Name{Namespace: p.shop, Name: "billing"})

	// Without ports there are no Services and endpoints.
	o := p.condition(s, v1alpha1.ConditionProgrammed, "False/Pending")
	if len(o.Finalizers) != 0 || o.Status.Egress.Service != "" {
		t.Errorf("there is nothing to clean up, but %v, %+v", o.Finalizers, o.Status.Egress)
	}
	http := v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.TCP, TargetPort: 8080, MatchPort: 10000}
	dns := v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.UDP, TargetPort: 53, MatchPort: 10001}
	p.ports(g, http, dns)
	o = p.condition(s, v1alpha1.ConditionProgrammed, "True/Programmed")
	p.condition(s, v1alpha1.ConditionReady, "False/NoReadyEndpoints")
	if len(o.Finalizers) != 1 { // Kubernetes does not garbage-collect objects in other namespaces
		t.Errorf("finalizers %v", o.Finalizers)
	}
	front, alias := p.service(p.ns, serviceName), p.service(p.shop, "billing")
	switch {
	case front.Spec.Type != corev1.ServiceTypeClusterIP:
		t.Errorf("front: front.Spec.Type = %q, want %q", front.Spec.Type, corev1.ServiceTypeClusterIP)
	case len(front.Spec.Selector) != 0:
		t.Errorf("front: len(front.Spec.Selector) = %v, want 0", len(front.Spec.Selector))
	case len(front.OwnerReferences) != 0:
		t.Errorf("front: len(front.OwnerReferences) = %v, want 0", len(front.OwnerReferences))
	case front.Labels[v1alpha1.ProxyGroupLabel] != "relays":
		t.Errorf("front: front.Labels[v1alpha1.ProxyGroupLabel] = %q, want %q", front.Labels[v1alpha1.ProxyGroupLabel], "relays")
	}
	var got []string
	for _, port := range front.Spec.Ports {
		got = append(got, fmt.Sprint(port.Name, " ", port.Protocol, " ", port.Port, " ", port.TargetPort.IntVal))
	}
	if want := []string{"http TCP 80 10000", "udp-53 UDP 53 10001", "health TCP 9002 9002"}; !reflect.DeepEqual(got, want) {
		t.Errorf("ports %q", got)
	}
	switch {
	case alias.Spec.Type != corev1.ServiceTypeExternalName:
		t.Errorf("alias: alias.Spec.Type = %q, want %q", alias.Spec.Type, corev1.ServiceTypeExternalName)
	case alias.Spec.ExternalName != serviceName+"."+p.ns+".svc.cluster.local":
		t.Errorf("alias: alias.Spec.ExternalName = %q, want %q", alias.Spec.ExternalName, serviceName+"."+p.ns+".svc.cluster.local")
	case len(alias.OwnerReferences) != 1:
		t.Errorf("alias: len(alias.OwnerReferences) = %v, want 1", len(alias.OwnerReferences))
	case alias.OwnerReferences[0].UID != s.UID:
		t.Errorf("alias: alias.OwnerReferences[0].UID = %q, want %q", alias.OwnerReferences[0].UID, s.UID)
	}
	for name := range front.Labels {
		if strings.HasPrefix(name, "tailscale.com/") {
			t.Errorf("a label of Tailscale's operator: %s", name)
		}
	}

	// A relay becomes an endpoint when it is ready and has reported the ports itself.
	first, second := p.pod(g, 0, "10.77.0.1", "fd77::1"), p.pod(g, 1, "10.77.0.2")
	tcp, udp := config.Port{Protocol: config.TCP, Match: 10000, Target: 8080}, config.Port{Protocol: config.UDP, Match: 10001, Target: 53}
	p.setRelayStatus("relays-0", string(first.UID), carryingStatus(key, tcp))
	await := func(what string, want map[int32][]string) {
		t.Helper()
		p.until(what, func() error {
			got, all := p.endpoints(serviceName)
			if !reflect.DeepEqual(got, want) {
				return fmt.Errorf("%v in %d slices", got, len(all))
			}
			return nil
		})
	}
	a4, a6, b4 := "relays-0@10.77.0.1", "relays-0@fd77::1", "relays-1@10.77.0.2"
	await("one port of one relay", map[int32][]string{10000: {a4, a6}, 9002: {a4, a6}})
	p.condition(s, v1alpha1.ConditionReady, "False/NoReadyEndpoints") // a relay that carries only some ports does not count
	p.setRelayStatus("relays-0", string(first.UID), carryingStatus(key, tcp, udp))
	await("both", map[int32][]string{10000: {a4, a6}, 10001: {a4, a6}, 9002: {a4, a6}})
	o = p.condition(s, v1alpha1.ConditionReady, "True/Ready")
	switch {
	case o.Status.Egress.Endpoints != (v1alpha1.EndpointCount{Ready: 1, Total: 2}):
		t.Errorf("status: o.Status.Egress.Endpoints = %v, want %v", o.Status.Egress.Endpoints, (v1alpha1.EndpointCount{Ready: 1, Total: 2}))
	case o.Status.Egress.ExternalName != "billing":
		t.Errorf("status: o.Status.Egress.ExternalName = %q, want %q", o.Status.Egress.ExternalName, "billing")
	case o.Status.Egress.Group != p.ns+"/relays":
		t.Errorf("status: o.Status.Egress.Group = %q, want %q", o.Status.Egress.Group, p.ns+"/relays")
	case o.Status.Egress.Service != p.ns+"/"+serviceName:
		t.Errorf("status: o.Status.Egress.Service = %q, want %q", o.Status.Egress.Service, p.ns+"/"+serviceName)
	}
	for _, tt := range []struct {
		why  string
		uid  string
		says config.Status
	}{
		{"another target", string(second.UID), carryingStatus(key, config.Port{Protocol: config.TCP, Match: 10000, Target: 8081}, config.Port{Protocol: config.UDP, Match: 10000, Target: 53})},
		{"another service", string(second.UID), carryingStatus(p.shop+".other", tcp, udp)},
		{"of a former pod", "of a former pod", carryingStatus(key, tcp, udp)},
	} {
		p.setRelayStatus("relays-1", tt.uid, tt.says)
		p.trigger(s, 2)
		p.awaitIdle()
		if got, _ := p.endpoints(serviceName); !reflect.DeepEqual(got[10000], []string{a4, a6}) {
			t.Errorf("%s: %v", tt.why, got)
		}
	}
	p.setRelayStatus("relays-1", string(second.UID), carryingStatus(key, tcp, udp))
	all := map[int32][]string{10000: {a4, a6, b4}, 10001: {a4, a6, b4}, 9002: {a4, a6, b4}}
	await("both relays", all)
	p.condition(s, v1alpha1.ConditionReady, "True/Ready")
	p.ready(second, false)
	await("one is not ready", map[int32][]string{10000: {a4, a6}, 10001: {a4, a6}, 9002: {a4, a6}})
	p.ready(second, true)
	await("it is back", all)
	if _, list := p.endpoints(serviceName); len(list) != 2 || list[0].Labels["endpointslice.kubernetes.io/managed-by"] != "gateway.tailscale.com" {
		t.Errorf("%d slices: %+v", len(list), list)
	}

	// Without changes nothing is written.
	p.awaitIdle()
	before := p.writes.Load()
	p.trigger(s, 10)
	p.awaitIdle()
	if n := p.writes.Load() - before; n != 0 {
		t.Errorf("%d writes in ten reconciles\n%s", n, p.log.Tail())
	}
	out, stderr, code := kubetest.Kubectl(t.Context(), p.cluster.Kubeconfig, "-n", p.shop, "get", "tssvc", "billing", "--no-headers")
	if code != 0 || !strings.HasPrefix(strings.Join(strings.Fields(out), " "), "billing egress egress svc:billing 2 True") {
		t.Errorf("kubectl get: %q %s", out, stderr)
	}
	if _, stderr, code := kubetest.Kubectl(t.Context(), p.cluster.Kubeconfig, "-n", p.shop, "wait", "--for=condition=Ready", "--timeout=60s", "tssvc/billing"); code != 0 {
		t.Error(stderr)
	}

	// Manual changes to the operator's objects are reverted.
	p.must(p.admin.Delete(t.Context(), alias))
	p.must(p.admin.Delete(t.Context(), front))
	p.until("both Services exist again and have endpoints", func() error {
		for ns, serviceName := range map[string]string{p.ns: serviceName, p.shop: "billing"} {
			o := &corev1.Service{}
			if err := p.admin.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: serviceName}, o); err != nil || o.UID == front.UID || o.UID == alias.UID {
				return fmt.Errorf("%s: %v", serviceName, err)
			}
		}
		_, list := p.endpoints(serviceName)
		if now := p.service(p.ns, serviceName).UID; len(list) != 2 || list[0].OwnerReferences[0].UID != now {
			return fmt.Errorf("%d slices", len(list))
		}
		return nil
	})
	front = p.service(p.ns, serviceName)
	front.Spec.Ports[0].TargetPort.IntVal = 22
	p.must(p.admin.Update(t.Context(), front))
	p.until("the port is right again", func() error {
		if n := p.service(p.ns, serviceName).Spec.Ports[0].TargetPort.IntVal; n != 10000 {
			return fmt.Errorf("it is %d", n)
		}
		return nil
	})

	// The spec changes: first to another name, then to none.
	o = p.get(s)
	o.Spec.ClusterService = &v1alpha1.ClusterService{Name: "money"}
	p.must(p.admin.Update(t.Context(), o))
	p.awaitGone(p.service(p.shop, "billing"))
	p.until("the new name", func() error {
		return p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.shop, Name: "money"}, &corev1.Service{})
	})
	p.must(p.admin.Delete(t.Context(), s))
	p.awaitGone(s)
	p.awaitGone(front)
	p.until("the EndpointSlices are deleted", func() error {
		if _, list := p.endpoints(serviceName); len(list) > 0 {
			return fmt.Errorf("%d slices", len(list))
		}
		return nil
	})
	money := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.shop, Name: "money"}}
	p.awaitGone(money) // by the garbage collector
}

// GW-02, GTW-19: the operator does not touch objects of other owners, and does not write to
// namespaces without permission.
func TestEgressConflicts(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-conflicts", true)
	p.tailnet("conflicts", "tail1.ts.net", nil)
	g := p.group("relays", "conflicts", v1alpha1.Egress)
	foreign := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.shop, Name: "billing"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	p.must(p.admin.Create(t.Context(), foreign))
	s := egressService(p.shop, "billing", "conflicts", p.ns, "relays")
	p.must(p.admin.Create(t.Context(), s))
	key := p.shop + ".billing"
	p.ports(g, v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.TCP, TargetPort: 8080, MatchPort: 10000}, v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.UDP, TargetPort: 53, MatchPort: 10001})
	p.condition(s, v1alpha1.ConditionReady, "False/ServiceNameConflict")
	p.must(p.admin.Delete(t.Context(), s))
	p.awaitGone(s)
	if now := p.service(p.shop, "billing"); now.UID != foreign.UID || now.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("another owner's Service was changed: %+v", now)
	}

	// The name becomes free.
	s = egressService(p.shop, "billing", "conflicts", p.ns, "relays")
	p.must(p.admin.Create(t.Context(), s))
	p.condition(s, v1alpha1.ConditionProgrammed, "False/ServiceNameConflict")
	p.must(p.admin.Delete(t.Context(), foreign))
	p.condition(s, v1alpha1.ConditionProgrammed, "True/Programmed")

	// Another owner has the name of the front.
	serviceName := gateway.GroupServiceName(gateway.Name{Namespace: p.shop, Name: "other"})
	foreign = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: serviceName, Labels: map[string]string{v1alpha1.ManagedLabel: "true"}}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	p.must(p.admin.Create(t.Context(), foreign))
	other := egressService(p.shop, "other", "conflicts", p.ns, "relays")
	p.must(p.admin.Create(t.Context(), other))
	of := func(m v1alpha1.MappedPort, service string, match int32) v1alpha1.MappedPort {
		m.Service, m.MatchPort = service, match
		return m
	}
	p.ports(g, append(g.Status.Ports, of(g.Status.Ports[0], p.shop+".other", 10002), of(g.Status.Ports[1], p.shop+".other", 10003))...)
	p.condition(other, v1alpha1.ConditionProgrammed, "False/ServiceNameConflict")
	if now := p.service(p.ns, serviceName); now.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("another owner's Service was changed: %+v", now)
	}

	// If the namespace may no longer use the tailnet, all endpoints are removed immediately.
	pod := p.pod(g, 0, "10.77.1.1")
	p.setRelayStatus("relays-0", string(pod.UID), carryingStatus(key, config.Port{Protocol: config.TCP, Match: 10000, Target: 8080}, config.Port{Protocol: config.UDP, Match: 10001, Target: 53}))
	p.condition(s, v1alpha1.ConditionReady, "True/Ready")
	tailnet := &v1alpha1.TailscaleTailnet{}
	p.must(p.admin.Get(t.Context(), client.ObjectKey{Name: "conflicts"}, tailnet))
	tailnet.Spec.AllowedNamespaces.From = v1alpha1.NamespacesSame
	p.must(p.admin.Update(t.Context(), tailnet))
	p.condition(s, v1alpha1.ConditionReady, "False/TailnetNotPermitted")
	if got, list := p.endpoints(gateway.GroupServiceName(gateway.Name{Namespace: p.shop, Name: "billing"})); len(list) != 0 {
		t.Errorf("it still leads to %v", got)
	}
}

// In a team's namespace without write permission there is no Service of the operator. A group in
// the service's own namespace needs no finalizer.
func TestEgressWithoutConsumers(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-without", false)
	p.tailnet("without", "tail1.ts.net", nil)
	g := p.group("relays", "without", v1alpha1.Egress)
	far, near := egressService(p.shop, "billing", "without", p.ns, "relays"), egressService(p.ns, "near", "without", p.ns, "relays")
	p.must(p.admin.Create(t.Context(), far))
	p.must(p.admin.Create(t.Context(), near))
	var ports []v1alpha1.MappedPort
	for i, key := range []string{p.shop + ".billing", p.ns + ".near"} {
		ports = append(ports, v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.TCP, TargetPort: 8080, MatchPort: 10000 + int32(i)}, v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.UDP, TargetPort: 53, MatchPort: 10010 + int32(i)})
	}
	p.ports(g, ports...)
	o := p.condition(far, v1alpha1.ConditionProgrammed, "True/Programmed")
	if o.Status.Egress.ExternalName != "" {
		t.Errorf("%+v", o.Status.Egress)
	}
	if err := p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.shop, Name: "billing"}, &corev1.Service{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a Service in a forbidden namespace: %v", err)
	}
	o = p.condition(near, v1alpha1.ConditionProgrammed, "True/Programmed")
	if len(o.Finalizers) != 0 || o.Status.Egress.ExternalName != "near" {
		t.Errorf("finalizers %v, %+v", o.Finalizers, o.Status.Egress)
	}
}
