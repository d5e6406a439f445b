package gateway_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// crowd is a Gateway with n routes: half of them injected, one for each service
// that discovery found, and half of them HTTPRoutes with two backends of which one
// is a service. Every 100th HTTPRoute has a policy.
func crowd(n int) gateway.Objects {
	owner := []metav1.OwnerReference{{APIVersion: "gateway.tailscale.com/v1alpha1", Kind: "TailscaleGateway", Name: "eg", UID: "u"}}
	corp := &gatewayv1alpha1.TailnetReference{Name: "corp"}
	tailnet := &gatewayv1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: "corp"}}
	tailnet.Spec.AllowedNamespaces.From = gatewayv1alpha1.NamespacesAll
	eg := &gatewayv1alpha1.TailscaleGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "eg", UID: "u"}}
	eg.Spec.TargetRef.Name = "eg"
	eg.Spec.Tailnets = []gatewayv1alpha1.AttachedTailnet{{
		TailnetRef:       *corp,
		ServiceDiscovery: gatewayv1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}},
		RouteGeneration:  gatewayv1alpha1.RouteGeneration{Egress: &gatewayv1alpha1.EgressRoutes{Hostnames: []string{"*"}}},
	}}
	gw := gateway.Name{Namespace: "infra", Name: "eg"}
	o := gateway.Objects{
		Namespace: "ops", ClusterDomain: "cluster.local", Controller: "envoy",
		Tailnets: []*gatewayv1alpha1.TailscaleTailnet{tailnet}, Attachments: []*gatewayv1alpha1.TailscaleGateway{eg},
		Gateways: []gateway.GatewayObject{{Name: gw, Controller: "envoy", Listeners: []gateway.ListenerObject{{Name: "http", HTTP: true}}}},
	}
	for i := range n / 2 {
		s := &gatewayv1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{
			Namespace: "infra", Name: fmt.Sprintf("eg-s%05d", i), OwnerReferences: owner, Labels: map[string]string{gatewayv1alpha1.DiscoveredLabel: "true"}}}
		s.Spec.Type, s.Spec.TailnetRef = gatewayv1alpha1.Egress, corp
		s.Spec.Target = &gatewayv1alpha1.ServiceTarget{ServiceName: fmt.Sprintf("svc:s%05d", i)}
		s.Spec.Ports = []gatewayv1alpha1.ServicePort{{Port: 80}}
		o.Services = append(o.Services, s)
		g := &gatewayv1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ops", Name: fmt.Sprintf("s%05d-proxy-group", i), Labels: map[string]string{gatewayv1alpha1.ManagedLabel: "true"}}}
		g.Spec.Type, g.Spec.TailnetRef, g.Spec.TailnetTarget = gatewayv1alpha1.Egress, corp, &gatewayv1alpha1.TailnetTarget{ServiceName: fmt.Sprintf("s%05d", i), Ports: []gatewayv1alpha1.TargetPort{{Port: 80}}}
		o.Groups = append(o.Groups, g)
		name := gateway.Name{Namespace: "infra", Name: fmt.Sprintf("r%05d", i)}
		o.Routes = append(o.Routes, gateway.RouteObject{
			Kind: "HTTPRoute", Name: name, Parents: []gateway.ParentObject{{Gateway: gw}}, Hostnames: []string{name.Name + ".example.com"},
			Rules: []gateway.RuleObject{{Paths: []gateway.Path{gateway.RoutePath("PathPrefix", "/")}, Backends: []gateway.BackendObject{
				{Group: gatewayv1alpha1.Group, Kind: "TailscaleService", Name: gateway.Name{Namespace: "infra", Name: s.Name}, Port: 80, Weight: 20}, {Kind: "Service", Name: name, Port: 80, Weight: 80}}}},
		})
		if i%100 == 0 {
			p := &gatewayv1alpha1.TailscaleRoutePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: name.Name}}
			p.Spec.TargetRef = gatewayv1alpha1.PolicyTargetReference{Kind: "HTTPRoute", Name: name.Name}
			p.Spec.TailscaleTarget = &gatewayv1alpha1.PolicyTarget{ServicePattern: fmt.Sprintf("svc:s%03d*", i/100)}
			p.Spec.RouteRules = []gatewayv1alpha1.RouteRule{{Match: gatewayv1alpha1.RouteMatch{Path: "/api/*"}, Backend: gatewayv1alpha1.RuleBackend{ServiceName: "svc:s00001", Port: 8080}}}
			o.Policies = append(o.Policies, p)
		}
	}
	return o
}

// GTW-38: the budget of Build is 1 s for 10,000 routes.
func BenchmarkBuild10000Routes(b *testing.B) {
	o, r := settle(crowd(10_000))
	g := r.Snapshot.Gateways[gateway.Name{Namespace: "infra", Name: "eg"}]
	if len(g.Routes) != 5000 || len(g.Rules) != 5000 || len(g.Clusters) < 10_000 {
		b.Fatalf("%d routes, %d rules, %d clusters", len(g.Routes), len(g.Rules), len(g.Clusters))
	}
	b.ReportAllocs()
	for b.Loop() {
		gateway.Build(o)
	}
}
