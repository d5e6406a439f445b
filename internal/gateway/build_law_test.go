package gateway_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// randomObjects returns random objects with random references, allowed or not, existing or not. There are
// few names, so that many references match.
func randomObjects(r *rand.Rand) gateway.Objects {
	pick := func(words ...string) string { return words[r.IntN(len(words))] }
	spaces := []string{"ops", "a", "b"}
	space := func() string { return pick(spaces...) }
	selector := func() gatewayv1alpha1.NamespaceSelector {
		switch r.IntN(3) {
		case 0:
			return gatewayv1alpha1.NamespaceSelector{From: gatewayv1alpha1.NamespacesAll}
		case 1:
			return gatewayv1alpha1.NamespaceSelector{From: gatewayv1alpha1.NamespacesSame}
		}
		return gatewayv1alpha1.NamespaceSelector{From: gatewayv1alpha1.NamespacesSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"name": space()}}}
	}
	meta := func(ns, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(ns + name), CreationTimestamp: metav1.NewTime(time.Unix(int64(r.IntN(3)), 0))}
	}
	o := gateway.Objects{
		Namespace: "ops", ClusterDomain: "cluster.local", Controller: "envoy", Addresses: r.IntN(2) == 0, ProxyNamespaces: []string{"a"},
		Namespaces: map[string]map[string]string{}, KubeServices: map[gateway.Name]bool{}, Roots: map[gateway.Name]string{}, Relays: map[gateway.Name][]netip.Addr{},
	}
	for _, ns := range spaces {
		o.Namespaces[ns] = map[string]string{"name": ns}
	}
	for _, name := range []string{"t1", "t2"} {
		t := &gatewayv1alpha1.TailscaleTailnet{ObjectMeta: meta("", name)}
		t.Spec.AllowedNamespaces = selector()
		t.Status.TailnetInfo = &gatewayv1alpha1.TailnetInfo{Name: name + ".ts.net"}
		if r.IntN(3) == 0 {
			t.Annotations = map[string]string{gatewayv1alpha1.DefaultAnnotation: "true"}
		}
		o.Tailnets = append(o.Tailnets, t)
	}
	tailnet := func() *gatewayv1alpha1.TailnetReference {
		if r.IntN(4) == 0 {
			return nil
		}
		return &gatewayv1alpha1.TailnetReference{Name: pick("t1", "t2", "t3")}
	}
	for _, ns := range spaces {
		if r.IntN(2) == 0 {
			g := &gatewayv1alpha1.TailscaleProxyGroup{ObjectMeta: meta(ns, "g")}
			g.Spec.Type, g.Spec.TailnetRef, g.Spec.Consumers = gatewayv1alpha1.Egress, tailnet(), selector()
			o.Groups = append(o.Groups, g)
		}
		for _, name := range []string{"s1", "s2", "s3"} {
			s := &gatewayv1alpha1.TailscaleService{ObjectMeta: meta(ns, name)}
			s.Spec.Type, s.Spec.TailnetRef = gatewayv1alpha1.Egress, tailnet()
			s.Spec.Ports = []gatewayv1alpha1.ServicePort{{Port: 80, TargetPort: int32(80 + r.IntN(2))}, {Port: 53, Protocol: gatewayv1alpha1.UDP}}
			switch r.IntN(5) {
			case 0:
				s.Spec.Target = &gatewayv1alpha1.ServiceTarget{IP: pick("100.64.0.1", "10.0.0.1", "100.100.100.100")}
			case 1:
				s.Spec.Target = &gatewayv1alpha1.ServiceTarget{FQDN: pick("x.t1.ts.net", "x.t2.ts.net", "x.evil.net")}
			default:
				s.Spec.Target = &gatewayv1alpha1.ServiceTarget{ServiceName: pick("svc:w1", "w2")}
			}
			if r.IntN(3) == 0 {
				s.Spec.ProxyGroupRef = &gatewayv1alpha1.ObjectReference{Name: "g", Namespace: space()}
			}
			o.Relays[gateway.Name{Namespace: ns, Name: name}] = []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.1")}
			o.Services = append(o.Services, s)
		}
		o.Gateways = append(o.Gateways, gateway.GatewayObject{
			Name: gateway.Name{Namespace: ns, Name: "eg"}, Controller: pick("envoy", "envoy", "other"), Private: r.IntN(2) == 0,
			Listeners: []gateway.ListenerObject{{Name: "http", HTTP: true}, {Name: "x", Hostname: "*.x.org", HTTP: true}},
		})
		for i := range r.IntN(3) {
			a := &gatewayv1alpha1.TailscaleGateway{ObjectMeta: meta(ns, fmt.Sprint("tg", i))}
			a.Spec.TargetRef = gatewayv1alpha1.GatewayReference{Name: "eg", SectionName: pick("", "", "http")}
			for _, t := range []string{"t1", "t2"} {
				at := gatewayv1alpha1.AttachedTailnet{TailnetRef: gatewayv1alpha1.TailnetReference{Name: t}}
				at.ServiceDiscovery.Patterns = []string{"svc:*"}
				if r.IntN(2) == 0 {
					at.RouteGeneration.Egress = &gatewayv1alpha1.EgressRoutes{Hostnames: []string{pick("*", "a.x.org")}}
				}
				a.Spec.Tailnets = append(a.Spec.Tailnets, at)
			}
			o.Attachments = append(o.Attachments, a)
		}
		for _, name := range []string{"r1", "r2"} {
			route := gateway.RouteObject{Kind: "HTTPRoute", Name: gateway.Name{Namespace: ns, Name: name}}
			for range 1 + r.IntN(2) {
				route.Parents = append(route.Parents, gateway.ParentObject{Gateway: gateway.Name{Namespace: space(), Name: "eg"}})
			}
			for range 1 + r.IntN(2) {
				rule := gateway.RuleObject{Paths: []gateway.Path{gateway.RoutePath("PathPrefix", pick("/", "/a", "/a/b"))}}
				for range r.IntN(3) {
					b := gateway.BackendObject{Group: gatewayv1alpha1.Group, Kind: "TailscaleService", Name: gateway.Name{Namespace: space(), Name: pick("s1", "s2", "s9")}, Port: 80, Weight: uint32(r.IntN(3))}
					if r.IntN(3) == 0 {
						b = gateway.BackendObject{Kind: "Service", Name: gateway.Name{Namespace: ns, Name: "web"}, Port: 80, Weight: 1}
					}
					rule.Backends = append(rule.Backends, b)
				}
				route.Rules = append(route.Rules, rule)
			}
			o.Routes = append(o.Routes, route)
		}
		for _, name := range []string{"p1", "p2"} {
			p := &gatewayv1alpha1.TailscaleRoutePolicy{ObjectMeta: meta(ns, name)}
			p.Spec.TargetRef = gatewayv1alpha1.PolicyTargetReference{Kind: pick("HTTPRoute", "HTTPRoute", "Gateway"), Name: pick("r1", "r2", "eg")}
			if p.Spec.TargetRef.Kind == "Gateway" {
				p.Spec.Access = &gatewayv1alpha1.GatewayAccess{From: gatewayv1alpha1.AccessTailnet}
			} else {
				p.Spec.TailnetRef = tailnet()
				p.Spec.TailscaleTarget = &gatewayv1alpha1.PolicyTarget{ServicePattern: pick("svc:*", "svc:w1")}
				p.Spec.RouteRules = []gatewayv1alpha1.RouteRule{
					{Match: gatewayv1alpha1.RouteMatch{Path: pick("/a/*", "/a", "/b*")}, Backend: gatewayv1alpha1.RuleBackend{ServiceName: pick("svc:w1", "svc:w2"), Port: int32(80 + r.IntN(3))}},
				}
			}
			o.Policies = append(o.Policies, p)
		}
		if r.IntN(2) == 0 {
			o.Grants = append(o.Grants, gateway.GrantObject{
				Namespace: ns, From: []gateway.GrantFrom{{Group: "gateway.networking.k8s.io", Kind: "HTTPRoute", Namespace: space()}},
				To: []gateway.GrantTo{{Group: gatewayv1alpha1.Group, Kind: "TailscaleService", Name: pick("", "s1")}},
			})
		}
	}
	return o
}

// GTW-27: the result does not depend on the order of objects, and Build modifies none of them.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 3))
		o, first := buildWithPorts(randomObjects(r))
		before := text(t, o)
		want := append(render(first), text(t, first.Snapshot.Sorted())...)
		for range 3 {
			shuffle(r, o.Tailnets)
			shuffle(r, o.Groups)
			shuffle(r, o.Services)
			shuffle(r, o.Attachments)
			shuffle(r, o.Policies)
			shuffle(r, o.Gateways)
			shuffle(r, o.Routes)
			shuffle(r, o.Grants)
			for _, route := range o.Routes {
				shuffle(r, route.Parents)
			}
			for _, relays := range o.Relays {
				shuffle(r, relays)
			}
			given := text(t, o)
			again := gateway.Build(o)
			if !bytes.Equal(text(t, o), given) {
				t.Fatalf("seed %d: Build changed its objects", seed)
			}
			if got := append(render(again), text(t, again.Snapshot.Sorted())...); !bytes.Equal(got, want) {
				t.Fatalf("seed %d:\n%s\nand after shuffling:\n%s", seed, want, got)
			}
			for name, g := range again.Snapshot.Gateways {
				if g.Revision != first.Snapshot.Gateways[name].Revision || g.Revision == "" {
					t.Fatalf("seed %d: revisions differ", seed)
				}
			}
		}
		if len(before) == 0 {
			t.Fatal("no objects")
		}
	}
}

func shuffle[T any](r *rand.Rand, list []T) {
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
}

func text(t *testing.T, v any) []byte {
	t.Helper()
	if o, ok := v.(gateway.Objects); ok { // maps with Name keys have no JSON encoding
		v = []any{o.Tailnets, o.Groups, o.Services, o.Attachments, o.Policies, o.Gateways, o.Routes, o.Grants, o.Namespaces, fmt.Sprint(o.Relays)}
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// GTW-27, GW-01, GW-02, GW-07: a Snapshot contains nothing without an allowed reference. The test
// implements the rules a second time, as simply as possible.
func TestNothingWithoutAnAllowedReference(t *testing.T) {
	clusters, routes, mixed, paths := 0, 0, 0, 0
	for seed := range uint64(1000) {
		o, result := buildWithPorts(randomObjects(rand.New(rand.NewPCG(seed, 4))))
		l := oracle{o, result}
		for _, g := range result.Snapshot.Sorted() {
			fail := func(format string, args ...any) {
				t.Fatalf("seed %d, %s: %s", seed, g.Name, fmt.Sprintf(format, args...))
			}
			if i := slices.IndexFunc(o.Gateways, func(x gateway.GatewayObject) bool { return x.Name == g.Name && x.Controller == "envoy" }); i < 0 {
				fail("is not a Gateway of this controller")
			}
			for _, c := range g.Clusters {
				clusters++
				if why := l.validate(c); why != "" {
					fail("cluster %s: %s", c.Name, why)
				}
			}
			used := map[string]bool{}
			get := func(name string) gateway.Cluster {
				c, ok := g.Cluster(name)
				if !ok {
					fail("there is no cluster %s", name)
				}
				used[name] = true
				return c
			}
			for _, route := range g.Routes {
				routes++
				if s := l.serviceOf(get(route.Cluster)); s.Namespace != g.Attachment.Namespace || g.Attachment.Name == "" {
					fail("route %s goes to a service of %s", route.Name, s.Namespace)
				}
			}
			for _, rule := range g.Rules {
				i := slices.IndexFunc(o.Routes, func(x gateway.RouteObject) bool { return x.Kind == rule.Key.Kind && x.Name == rule.Key.Route })
				if !slices.ContainsFunc(o.Routes[i].Parents, func(p gateway.ParentObject) bool { return p.Gateway == g.Name }) {
					fail("has a rule of %s, which it has not accepted", rule.Key.Route)
				}
				if rule.Sole != nil {
					if why := l.validate(*rule.Sole); why != "" || !l.granted(rule.Key.Route.Namespace, l.serviceOf(*rule.Sole)) {
						fail("%v: %s", rule.Key, why)
					}
				}
				for _, m := range rule.Mixed {
					mixed++
					if s := l.serviceOf(get(m.Cluster)); !l.granted(rule.Key.Route.Namespace, s) {
						fail("%v goes to %s/%s", rule.Key, s.Namespace, s.Name)
					}
				}
				names := []string{}
				for _, p := range rule.Paths {
					paths++
					names = append(names, p.Cluster)
				}
				for _, d := range rule.Default {
					names = append(names, d.Cluster)
				}
				if len(names) > 0 && len(rule.Policies) != 1 {
					fail("%v has %v", rule.Key, rule.Policies)
				}
				for _, name := range names {
					s, from := l.serviceOf(get(name)), rule.Policies[0].Namespace
					if from != rule.Key.Route.Namespace || s.Namespace != from && s.Namespace != g.Attachment.Namespace || !l.allows(l.tailnet(s), from) {
						fail("%v: a policy of %s goes to %s/%s in %s", rule.Key, from, s.Namespace, s.Name, l.tailnet(s))
					}
				}
			}
			if len(used) != len(g.Clusters) {
				fail("%d clusters, %d are used", len(g.Clusters), len(used))
			}
			for _, listener := range g.Listeners {
				private := slices.ContainsFunc(o.Gateways, func(x gateway.GatewayObject) bool { return x.Name == g.Name && x.Private })
				if listener.Restrict && !private && len(listener.Allow) > 0 {
					fail("a Gateway that others reach admits connections")
				}
			}
		}
	}
	switch {
	case clusters < 300:
		t.Errorf("the environments are empty: clusters = %v, want at least 300", clusters)
	case routes < 100:
		t.Errorf("the environments are empty: routes = %v, want at least 100", routes)
	case mixed < 30:
		t.Errorf("the environments are empty: mixed = %v, want at least 30", mixed)
	case paths < 50:
		t.Errorf("the environments are empty: paths = %v, want at least 50", paths)
	}
}

// An oracle is a second implementation of the rules.
type oracle struct {
	o gateway.Objects
	r gateway.Result
}

// serviceOf returns the TailscaleService behind a cluster.
func (l oracle) serviceOf(c gateway.Cluster) *gatewayv1alpha1.TailscaleService {
	for _, s := range l.o.Services {
		if c.HealthPath == "/readyz/"+s.Namespace+"."+s.Name {
			return s
		}
	}
	panic("no service has " + c.HealthPath)
}

func (l oracle) tailnet(s *gatewayv1alpha1.TailscaleService) string {
	return l.r.Services[gateway.Name{Namespace: s.Namespace, Name: s.Name}].Tailnet
}

func (l oracle) selects(s gatewayv1alpha1.NamespaceSelector, home, ns string) bool {
	return s.From == gatewayv1alpha1.NamespacesAll || s.From == gatewayv1alpha1.NamespacesSame && home == ns || s.Selector != nil && s.Selector.MatchLabels["name"] == ns
}

func (l oracle) allows(tailnet, ns string) bool {
	return slices.ContainsFunc(l.o.Tailnets, func(t *gatewayv1alpha1.TailscaleTailnet) bool {
		return t.Name == tailnet && l.selects(t.Spec.AllowedNamespaces, "ops", ns)
	})
}

func (l oracle) granted(from string, s *gatewayv1alpha1.TailscaleService) bool {
	return from == s.Namespace || slices.ContainsFunc(l.o.Grants, func(g gateway.GrantObject) bool {
		return g.Namespace == s.Namespace && g.From[0].Namespace == from && (g.To[0].Name == "" || g.To[0].Name == s.Name)
	})
}

// validate returns the error of a cluster, or "".
func (l oracle) validate(c gateway.Cluster) string {
	s := l.serviceOf(c)
	tailnet := l.tailnet(s)
	if s.Spec.TailnetRef != nil && s.Spec.TailnetRef.Name != tailnet {
		return "it is in another tailnet than requested"
	}
	if !l.allows(tailnet, s.Namespace) {
		return "its namespace may not use the tailnet " + tailnet
	}
	if t := s.Spec.Target; t.IP != "" && t.IP != "100.64.0.1" || t.FQDN != "" && t.FQDN != "x."+tailnet+".ts.net" {
		return "its target is forbidden: " + t.IP + t.FQDN
	}
	group, _, _ := strings.Cut(c.Host, ".svc.cluster.local")
	name, ns, _ := strings.Cut(group, ".")
	if ref := s.Spec.ProxyGroupRef; ref != nil {
		i := slices.IndexFunc(l.o.Groups, func(g *gatewayv1alpha1.TailscaleProxyGroup) bool {
			return g.Name == ref.Name && g.Namespace == ref.Namespace
		})
		if i < 0 || ns != ref.Namespace || name != ref.Name || !l.selects(l.o.Groups[i].Spec.Consumers, ns, s.Namespace) || ns != "ops" && ns != "a" ||
			l.r.Groups[gateway.Name{Namespace: ns, Name: name}].Tailnet != tailnet {
			return "it may not use the group " + group
		}
	} else if w := l.r.DesiredGroups[name]; ns != "ops" || w.Tailnet != tailnet || !slices.Contains(w.Consumers, s.Namespace) {
		return "it has the group " + group
	}
	if c.Port < 10000 || c.Port > 10999 {
		return fmt.Sprint("it has the port ", c.Port)
	}
	return ""
}

// If a field of an object is invalid, only this object is left out.
func TestHostileObjects(t *testing.T) {
	a := randomObjects(rand.New(rand.NewPCG(7, 7)))
	for _, s := range a.Services {
		s.Spec.Target = &gatewayv1alpha1.ServiceTarget{ServiceName: "svc:../../x"}
	}
	for _, p := range a.Policies {
		p.Spec.RouteRules = []gatewayv1alpha1.RouteRule{{Match: gatewayv1alpha1.RouteMatch{Path: "/a/../b"}, Backend: gatewayv1alpha1.RuleBackend{ServiceName: "x\x00"}}}
		if p.Spec.Access != nil {
			p.Spec.Access.CIDRs = []string{"nonsense"}
		}
	}
	for _, tn := range a.Tailnets {
		tn.Status.TailnetInfo.Name = "a..b"
		tn.Spec.AllowedNamespaces = gatewayv1alpha1.NamespaceSelector{From: gatewayv1alpha1.NamespacesSelector, Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "///", Operator: "Mystery"}}}}
	}
	_, r := buildWithPorts(a)
	for _, g := range r.Snapshot.Sorted() {
		if len(g.Clusters) != 0 || len(g.Routes) != 0 {
			t.Errorf("%s has %v and %v", g.Name, g.Clusters, g.Routes)
		}
		for _, l := range g.Listeners {
			if l.Restrict && len(l.Allow) != 0 {
				t.Errorf("%s admits %v", g.Name, l.Allow)
			}
		}
	}
}

// GTW-26: an additional tailnet changes no route of the other tailnets, whatever its services are.
// Changes that are not rendered do not change the revision.
func TestAdditionalTailnetChangesNothing(t *testing.T) {
	moved := 0
	for seed := range uint64(1000) {
		o, with := buildWithPorts(randomObjects(rand.New(rand.NewPCG(seed, 5))))
		less := o
		less.Attachments = nil
		for _, a := range o.Attachments {
			a = a.DeepCopy()
			a.Spec.Tailnets = a.Spec.Tailnets[:1]
			less.Attachments = append(less.Attachments, a)
		}
		without := gateway.Build(less)
		for _, g := range without.Snapshot.Sorted() {
			for _, route := range g.Routes {
				moved++
				now := with.Snapshot.Gateways[g.Name]
				if !slices.ContainsFunc(now.Routes, func(r gateway.Route) bool {
					return r.Name == route.Name && r.Prefix == route.Prefix && r.Cluster == route.Cluster
				}) {
					t.Fatalf("seed %d: %s moved or disappeared", seed, route.Name)
				}
				before, _ := g.Cluster(route.Cluster)
				if after, ok := now.Cluster(route.Cluster); !ok || string(text(t, before)) != string(text(t, after)) {
					t.Fatalf("seed %d: cluster %s was %+v and is %+v", seed, route.Cluster, before, after)
				}
			}
		}
		for _, tailnet := range o.Tailnets {
			tailnet.Status.DeviceCount++
			tailnet.Status.Conditions = []metav1.Condition{{Type: gatewayv1alpha1.ConditionReady, Status: "True"}}
		}
		for _, s := range o.Services {
			s.Status.ObservedGeneration++
		}
		for name, g := range gateway.Build(o).Snapshot.Gateways {
			if g.Revision != with.Snapshot.Gateways[name].Revision {
				t.Fatalf("seed %d: a status changed the revision of %s", seed, name)
			}
		}
	}
	if moved < 50 {
		t.Errorf("only %d routes were checked", moved)
	}
}
