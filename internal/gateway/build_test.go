package gateway_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

var update = flag.Bool("update", false, "write the result of Build into testdata")

// read parses documents into Objects: Tailplane's kinds as they are, and other kinds in the form
// of Build's input structs.
func read(t *testing.T, text []byte) gateway.Objects {
	t.Helper()
	o := gateway.Objects{
		Namespace: "tailscale-gateway-system", ClusterDomain: "cluster.local", Controller: "envoy",
		Namespaces: map[string]map[string]string{}, KubeServices: map[gateway.Name]bool{}, Roots: map[gateway.Name]string{},
	}
	r := utilyaml.NewYAMLReader(bufioReader(text))
	for {
		doc, err := r.Read()
		if err == io.EOF {
			return o
		} else if err != nil {
			t.Fatal(err)
		}
		var head struct{ Kind string }
		if err := yaml.Unmarshal(doc, &head); err != nil {
			t.Fatalf("%s: %v", doc, err)
		}
		strict := func(into any) {
			if err := yaml.UnmarshalStrict(doc, into); err != nil {
				t.Fatalf("%s: %v", doc, err)
			}
		}
		switch head.Kind {
		case "Objects": // settings
			var s struct {
				Kind                     string
				Addresses                bool
				ProxyNamespaces, LeftOut []string
			}
			strict(&s)
			o.Addresses, o.ProxyNamespaces = s.Addresses, s.ProxyNamespaces
			o.Unreadable = map[string]bool{}
			for _, namespace := range s.LeftOut {
				o.Unreadable[namespace] = true
			}
		case "TailscaleTailnet":
			o.Tailnets = append(o.Tailnets, decodeInto(strict, &gatewayv1alpha1.TailscaleTailnet{}))
		case "TailscaleProxyGroup":
			o.Groups = append(o.Groups, decodeInto(strict, &gatewayv1alpha1.TailscaleProxyGroup{}))
		case "TailscaleService":
			s := decodeInto(strict, &gatewayv1alpha1.TailscaleService{})
			s.Spec.Type = cmp.Or(s.Spec.Type, gatewayv1alpha1.Egress)
			o.Services = append(o.Services, s)
		case "TailscaleGateway":
			g := decodeInto(strict, &gatewayv1alpha1.TailscaleGateway{})
			for i := range g.Spec.Tailnets {
				if d := &g.Spec.Tailnets[i].ServiceDiscovery; d.Patterns == nil {
					d.Patterns = []string{"svc:*"}
				}
			}
			o.Attachments = append(o.Attachments, g)
		case "TailscaleRoutePolicy":
			o.Policies = append(o.Policies, decodeInto(strict, &gatewayv1alpha1.TailscaleRoutePolicy{}))
		case "Gateway":
			var g struct {
				Kind string
				gateway.GatewayObject
			}
			strict(&g)
			g.Controller = cmp.Or(g.Controller, "envoy")
			o.Gateways = append(o.Gateways, g.GatewayObject)
		case "HTTPRoute", "GRPCRoute":
			var route gateway.RouteObject
			strict(&route)
			for i, rule := range route.Rules {
				for j, b := range rule.Backends {
					b.Name.Namespace = cmp.Or(b.Name.Namespace, route.Name.Namespace)
					if b.Kind == "TailscaleService" {
						b.Group = gatewayv1alpha1.Group
					}
					route.Rules[i].Backends[j] = b
				}
				for j, p := range rule.Paths { // in the terms of the Gateway API
					route.Rules[i].Paths[j] = gateway.RoutePath(string(p.Kind), p.Text)
				}
			}
			o.Routes = append(o.Routes, route)
		case "ReferenceGrant":
			var g struct {
				Kind string
				gateway.GrantObject
			}
			strict(&g)
			o.Grants = append(o.Grants, g.GrantObject)
		case "Namespace":
			var n struct {
				Kind, Name string
				Labels     map[string]string
			}
			strict(&n)
			o.Namespaces[n.Name] = n.Labels
		case "Service", "ConfigMap":
			var s struct {
				Kind, Roots string
				gateway.Name
			}
			strict(&s)
			if s.Kind == "Service" {
				o.KubeServices[s.Name] = true
			} else {
				o.Roots[s.Name] = s.Roots
			}
		default:
			t.Fatalf("unknown kind of %s", doc)
		}
	}
}

func decodeInto[T any](strict func(any), object *T) *T {
	strict(object)
	return object
}

func bufioReader(text []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(text)) }

// buildWithPorts gives every group the ports that Build demands, as the controllers do, and builds again.
func buildWithPorts(o gateway.Objects) (gateway.Objects, gateway.Result) {
	r := gateway.Build(o)
	o.Ports = map[gateway.Name]gateway.PortTable{}
	for group, keys := range r.RequiredPorts {
		o.Ports[group], _, _ = gateway.PortTable{}.Allocate(keys, time.Time{})
	}
	return o, gateway.Build(o)
}

// render returns a Result as sorted text and YAML.
func render(r gateway.Result) []byte {
	var b bytes.Buffer
	for _, g := range r.Snapshot.Sorted() {
		text, err := yaml.Marshal(g)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(&b, "Gateway %s\n%s\n", g.Name, indent(text))
	}
	condition := func(name string, v conditions.Condition) {
		if !v.IsTrue() && v.Reason != "" {
			fmt.Fprintf(&b, "  %s: %s: %s\n", name, v.Reason, v.Message)
		} else if v.IsTrue() {
			fmt.Fprintf(&b, "  %s\n", name)
		}
	}
	left := func(is bool, namespaces ...string) {
		if is {
			fmt.Fprintf(&b, "  left out: %s\n", strings.Join(namespaces, " "))
		}
	}
	for _, n := range sorted(r.Groups) {
		fmt.Fprintf(&b, "TailscaleProxyGroup %s\n", n)
		condition("Accepted", r.Groups[n].Accepted)
		left(r.Groups[n].Unreadable, n.Namespace)
	}
	for _, n := range sorted(r.Services) {
		s := r.Services[n]
		fmt.Fprintf(&b, "TailscaleService %s\n", n)
		condition("Accepted", s.Accepted)
		condition("ResolvedRefs", s.ResolvedRefs)
		if s.Group != (gateway.Name{}) {
			fmt.Fprintf(&b, "  in %s by %s\n", s.Tailnet, s.Group)
		}
		left(s.Unreadable, s.Group.Namespace)
	}
	for _, n := range sorted(r.Attachments) {
		a := r.Attachments[n]
		fmt.Fprintf(&b, "TailscaleGateway %s: %d tailnets\n", n, a.TailnetCount)
		condition("Accepted", a.Accepted)
		condition("ResolvedRefs", a.ResolvedRefs)
		condition("Programmed", a.Programmed)
		left(len(a.Unreadable) > 0, a.Unreadable...)
		for _, s := range a.Routed {
			fmt.Fprintf(&b, "  %s of %s: %s -> %s -> %s: %s\n", s.Name, s.Tailnet, s.Path, s.Route, s.Cluster, s.State)
		}
	}
	for _, n := range sorted(r.Policies) {
		p := r.Policies[n]
		fmt.Fprintf(&b, "TailscaleRoutePolicy %s\n", n)
		condition("Accepted", p.Accepted)
		condition("ResolvedRefs", p.ResolvedRefs)
		condition("Programmed", p.Programmed)
		for _, s := range p.Rules {
			fmt.Fprintf(&b, "  rule %d: %s\n", s.Index, s.State)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(r.DesiredGroups)) {
		text, _ := json.Marshal(r.DesiredGroups[n])
		fmt.Fprintf(&b, "wanted %s\n", text)
	}
	for _, n := range sorted(r.RequiredPorts) {
		fmt.Fprintf(&b, "demanded of %s:", n)
		for _, k := range r.RequiredPorts[n] {
			fmt.Fprintf(&b, " %s/%s/%d", k.Service, k.Protocol, k.TargetPort)
		}
		fmt.Fprintln(&b)
	}
	return b.Bytes()
}

func sorted[V any](m map[gateway.Name]V) []gateway.Name {
	return slices.SortedFunc(maps.Keys(m), gateway.Name.Compare)
}

func indent(text []byte) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n", "\n  ")
}

// GTW-27: the results of Build for objects in files.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 6 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in, out := -1, -1
			for i, f := range a.Files {
				switch f.Name {
				case "in.yaml":
					in = i
				case "out":
					out = i
				}
			}
			if in < 0 {
				t.Fatal("no in.yaml")
			}
			_, r := buildWithPorts(read(t, a.Files[in].Data))
			got := render(r)
			if *update {
				if out < 0 {
					a.Files = append(a.Files, txtar.File{Name: "out"})
					out = len(a.Files) - 1
				}
				a.Files[out].Data = got
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if out < 0 || !bytes.Equal(a.Files[out].Data, got) {
				t.Errorf("Build returns:\n%s", got)
			}
		})
	}
}

// GW-02: a service takes its tailnet from the group that it names. Its message is the same if the
// namespace may not use the group and its tailnet, and if the group does not exist.
func TestGroupsOfOthersReadAsMissing(t *testing.T) {
	tailnet := &gatewayv1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: "corp"}}
	group := &gatewayv1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "private"}}
	group.Spec.Type, group.Spec.TailnetRef, group.Spec.Consumers.From = gatewayv1alpha1.Egress, &gatewayv1alpha1.TailnetReference{Name: "corp"}, gatewayv1alpha1.NamespacesSame
	o := gateway.Objects{Namespace: "ops", ClusterDomain: "cluster.local", Tailnets: []*gatewayv1alpha1.TailscaleTailnet{tailnet}, Groups: []*gatewayv1alpha1.TailscaleProxyGroup{group}}
	for _, name := range []string{"private", "nobody"} {
		s := &gatewayv1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: "thief", Name: "of-" + name}}
		s.Spec.Type, s.Spec.ProxyGroupRef = gatewayv1alpha1.Egress, &gatewayv1alpha1.ObjectReference{Namespace: "ops", Name: name}
		s.Spec.Target, s.Spec.Ports = &gatewayv1alpha1.ServiceTarget{ServiceName: "svc:web"}, []gatewayv1alpha1.ServicePort{{Port: 80}}
		o.Services = append(o.Services, s)
	}
	r := gateway.Build(o)
	if !r.Groups[gateway.Name{Namespace: "ops", Name: "private"}].Accepted.IsTrue() {
		t.Fatal("the group itself is refused")
	}
	foreign, missing := r.Services[gateway.Name{Namespace: "thief", Name: "of-private"}], r.Services[gateway.Name{Namespace: "thief", Name: "of-nobody"}]
	if foreign != missing || foreign.Accepted.IsTrue() {
		t.Errorf("%+v for an existing group, %+v for a missing one", foreign, missing)
	}
	o.Groups[0].Spec.Consumers.From, o.Tailnets[0].Spec.AllowedNamespaces.From = gatewayv1alpha1.NamespacesAll, gatewayv1alpha1.NamespacesAll
	if got := gateway.Build(o).Services[gateway.Name{Namespace: "thief", Name: "of-private"}]; !got.Accepted.IsTrue() || got.Tailnet != "corp" {
		t.Errorf("of a group that it may use: %+v", got)
	}
}

// GW-03, law 7: addresses that were known before the rights were lost stay. A DNS name replaces
// only an empty list, and only in a namespace that the operator cannot read.
func TestUnreadableAddresses(t *testing.T) {
	a, err := txtar.ParseFile("testdata/unreadable.txtar")
	if err != nil {
		t.Fatal(err)
	}
	o, _ := buildWithPorts(read(t, a.Files[0].Data))
	endpoints := func() (exists, here []netip.AddrPort) {
		t.Helper()
		rules := gateway.Build(o).Snapshot.Sorted()[0].Rules
		switch {
		case len(rules) != 2:
			t.Fatalf("len(rules) = %v, want 2", len(rules))
		case rules[0].Sole.HealthPath != "/readyz/infra.there":
			t.Fatalf("rules[0].Sole.HealthPath = %q, want %q", rules[0].Sole.HealthPath, "/readyz/infra.there")
		case rules[1].Sole.HealthPath != "/readyz/infra.here":
			t.Fatalf("rules[1].Sole.HealthPath = %q, want %q", rules[1].Sole.HealthPath, "/readyz/infra.here")
		}
		return rules[0].Sole.Endpoints, rules[1].Sole.Endpoints
	}
	switch exists, here := endpoints(); {
	case exists != nil:
		t.Errorf("without read access: exists = %v, want nil", exists)
	case here == nil:
		t.Error("without read access: here is nil")
	case len(here) != 0:
		t.Errorf("without read access: len(here) = %v, want 0", len(here))
	}
	o.Relays = map[gateway.Name][]netip.Addr{{Namespace: "infra", Name: "there"}: {netip.MustParseAddr("10.0.0.7")}}
	if exists, _ := endpoints(); fmt.Sprint(exists) != "[10.0.0.7:10000]" {
		t.Errorf("the known objects are %v", exists)
	}
	o.Relays, o.Unreadable = nil, nil
	if exists, _ := endpoints(); exists == nil || len(exists) != 0 {
		t.Errorf("when the rights are back there are %v", exists)
	}
}
