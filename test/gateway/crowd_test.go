//go:build linux

package gateway

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// A world returns the objects that the operator of a Gateway infra/eg reads: one tailnet, with the services that
// discovery found.
func world(services int, host string) gateway.Objects {
	corp := &gatewayv1alpha1.TailnetReference{Name: "corp"}
	tailnet := &gatewayv1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: "corp"}}
	tailnet.Spec.AllowedNamespaces.From = gatewayv1alpha1.NamespacesAll
	attachment := &gatewayv1alpha1.TailscaleGateway{ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: "eg-tailnets", UID: "u"}}
	attachment.Spec.TargetRef.Name = "eg"
	attachment.Spec.Tailnets = []gatewayv1alpha1.AttachedTailnet{{
		TailnetRef:       *corp,
		ServiceDiscovery: gatewayv1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}},
		RouteGeneration:  gatewayv1alpha1.RouteGeneration{Egress: &gatewayv1alpha1.EgressRoutes{Hostnames: []string{host}}},
	}}
	o := gateway.Objects{
		Namespace: "ops", ClusterDomain: "cluster.local", Controller: "envoy",
		Tailnets: []*gatewayv1alpha1.TailscaleTailnet{tailnet}, Attachments: []*gatewayv1alpha1.TailscaleGateway{attachment},
		Gateways: []gateway.GatewayObject{{Name: eg, Controller: "envoy", Listeners: []gateway.ListenerObject{{Name: "http", HTTP: true}}}},
	}
	owner := []metav1.OwnerReference{{APIVersion: "gateway.tailscale.com/v1alpha1", Kind: "TailscaleGateway", Name: "eg-tailnets", UID: "u"}}
	for i := range services {
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
	}
	return o
}

// settle assigns the requested ports to the services.
func settle(o gateway.Objects) (gateway.Objects, gateway.Result) {
	r := gateway.Build(o)
	o.Ports = map[gateway.Name]gateway.PortTable{}
	for group, keys := range r.RequiredPorts {
		o.Ports[group], _, _ = gateway.PortTable{}.Allocate(keys, time.Time{})
	}
	return o, gateway.Build(o)
}

// policy sends some requests of an HTTPRoute to a service.
func policy(route, path, service string) *gatewayv1alpha1.TailscaleRoutePolicy {
	p := &gatewayv1alpha1.TailscaleRoutePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "infra", Name: route}}
	p.APIVersion, p.Kind = gatewayv1alpha1.GroupVersion.String(), "TailscaleRoutePolicy"
	p.Spec.TargetRef = gatewayv1alpha1.PolicyTargetReference{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute", Name: route}
	p.Spec.RouteRules = []gatewayv1alpha1.RouteRule{{Match: gatewayv1alpha1.RouteMatch{Path: path}, Backend: gatewayv1alpha1.RuleBackend{ServiceName: service, Port: 8080}}}
	return p
}

// crowd returns objects with n routes. Half of them are injected, one for each discovered service. The other half are
// HTTPRoutes with two backends, one of which is a tailnet service. Every 100th HTTPRoute has a policy.
func crowd(n int) gateway.Objects {
	o := world(n/2, "*")
	for i := range n / 2 {
		name := gateway.Name{Namespace: "infra", Name: fmt.Sprintf("r%05d", i)}
		o.Routes = append(o.Routes, gateway.RouteObject{
			Kind: "HTTPRoute", Name: name, Parents: []gateway.ParentObject{{Gateway: eg}}, Hostnames: []string{name.Name + ".example.com"},
			Rules: []gateway.RuleObject{{Paths: []gateway.Path{gateway.RoutePath("PathPrefix", "/")}, Backends: []gateway.BackendObject{
				{Group: gatewayv1alpha1.Group, Kind: "TailscaleService", Name: gateway.Name{Namespace: "infra", Name: o.Services[i].Name}, Port: 80, Weight: 20}, {Kind: "Service", Name: name, Port: 80, Weight: 80}}}},
		})
		if i%100 == 0 {
			p := policy(name.Name, "/api/*", "svc:s00001")
			p.Spec.TailscaleTarget = &gatewayv1alpha1.PolicyTarget{ServicePattern: fmt.Sprintf("svc:s%03d*", i/100)}
			o.Policies = append(o.Policies, p)
		}
	}
	return o
}

// A shape is the input of Envoy Gateway's translation: a number of routes, and as many clusters of HTTPRoutes with
// plain Services, on one host or each on its own host.
type shape struct {
	routes   int
	ownHosts bool
}

func (s shape) String() string {
	if s.ownHosts {
		return fmt.Sprintf("%d routes on separate hosts", s.routes)
	}
	return fmt.Sprintf("%d routes on one host", s.routes)
}

const (
	perRoute = 16 // maximum number of rules, or hosts, of an HTTPRoute
	injected = 20 // services with an injected route, on one host
)

// translated returns the gateway's objects for a shape, and its HTTPRoutes as manifests. The first HTTPRoute has a
// policy.
func (s shape) translated() (gateway.Objects, []string) {
	hosts := func(int) []string { return []string{"shop.example.com"} }
	rules := perRoute
	if s.ownHosts {
		rules = 1
		hosts = func(i int) (all []string) {
			for j := range perRoute {
				all = append(all, fmt.Sprintf("h%d-%d.example.com", i, j))
			}
			return all
		}
	}
	o := world(injected, hosts(0)[0])
	var documents []string
	for i := range (s.routes + perRoute - 1) / perRoute {
		r := gateway.RouteObject{Kind: "HTTPRoute", Name: gateway.Name{Namespace: "infra", Name: fmt.Sprintf("r%05d", i)}, Parents: []gateway.ParentObject{{Gateway: eg}}, Hostnames: hosts(i)}
		text := fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: %s, namespace: infra, labels: {crowd: \"yes\"}}\nspec:\n  parentRefs: [{name: eg}]\n  hostnames: [%s]\n  rules:\n",
			r.Name.Name, strings.Join(r.Hostnames, ", "))
		for j := range rules {
			path := fmt.Sprintf("/%s/%d", r.Name.Name, j)
			r.Rules = append(r.Rules, gateway.RuleObject{Paths: []gateway.Path{gateway.RoutePath("PathPrefix", path)}, Backends: []gateway.BackendObject{{Kind: "Service", Name: gateway.Name{Namespace: "infra", Name: "plain"}, Port: 80, Weight: 1}}})
			text += fmt.Sprintf("  - {matches: [{path: {type: PathPrefix, value: %s}}], backendRefs: [{name: plain, port: 80}]}\n", path)
		}
		o.Routes, documents = append(o.Routes, r), append(documents, text)
		if i == 0 {
			o.Policies = append(o.Policies, policy(r.Name.Name, "/"+r.Name.Name+"/0/api/*", "svc:s00001"))
		}
	}
	return o, documents
}
