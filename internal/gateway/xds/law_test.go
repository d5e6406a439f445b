package xds

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/envoyproxy/gateway/proto/extension"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
)

// checkResponse checks an answer of Translation. All resources of other owners must be present, in order
// and unchanged, except for the rules with a policy or backend of Tailplane. All added resources
// must be valid and lead to a cluster.
func checkResponse(in *extension.PostTranslateModifyRequest, out *extension.PostTranslateModifyResponse) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if out == nil {
		return errors.New("no answer")
	}
	if !equal(in.Secrets, out.Secrets) || !equal(in.Listeners, out.Listeners) {
		wrong("secrets or listeners changed")
	}
	if len(out.Clusters) < len(in.Clusters) || !equal(in.Clusters, out.Clusters[:len(in.Clusters)]) {
		wrong("foreign clusters changed")
		return errors.Join(errs...)
	}
	names := map[string]bool{missingCluster: true}
	for _, c := range in.Clusters {
		names[c.GetName()] = true
	}
	for _, c := range out.Clusters[len(in.Clusters):] {
		if err := c.ValidateAll(); err != nil {
			wrong("cluster %s: %v", c.Name, err)
		}
		if names[c.Name] {
			wrong("duplicate cluster %s", c.Name)
		}
		names[c.Name] = true
	}
	if len(in.Routes) != len(out.Routes) {
		wrong("%d route configurations of %d", len(out.Routes), len(in.Routes))
		return errors.Join(errs...)
	}
	rules := fullSnapshot().Gateways[testGateway]
	for i, was := range in.Routes {
		now := out.Routes[i]
		if len(was.GetVirtualHosts()) != len(now.GetVirtualHosts()) {
			wrong("%s: %d virtual hosts of %d", was.GetName(), len(now.GetVirtualHosts()), len(was.GetVirtualHosts()))
			continue
		}
		if !proto.Equal(withoutOwnRoutes(was), withoutOwnRoutes(now)) {
			wrong("%s changed outside its routes", was.GetName())
		}
		for j, vh := range was.GetVirtualHosts() {
			before := foreignRoutes(vh.GetRoutes())
			after := foreignRoutes(now.GetVirtualHosts()[j].GetRoutes())
			if len(before) != len(after) {
				wrong("%s: %d routes of %d", vh.GetName(), len(after), len(before))
				continue
			}
			for k, r := range before {
				key, ok := ruleOf(r.GetName())
				if ok {
					_, ok = rules.Rule(key)
				}
				if !ok && !proto.Equal(r, after[k]) || r.GetName() != after[k].GetName() || !proto.Equal(r.GetMatch(), after[k].GetMatch()) {
					wrong("route %s changed: %v", r.GetName(), after[k])
				}
			}
			for _, r := range now.GetVirtualHosts()[j].GetRoutes() {
				if !isOwnRoute(r) || in.Routes[i] == now {
					continue
				}
				if err := r.ValidateAll(); err != nil {
					wrong("route %s: %v", r.Name, err)
				}
				for _, c := range destinations(r) {
					if !names[c] {
						wrong("route %s refers to the missing cluster %s", r.Name, c)
					}
				}
			}
		}
	}
	return errors.Join(errs...)
}

func equal[M proto.Message](a, b []M) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !proto.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}

func withoutOwnRoutes(rc *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	out := proto.CloneOf(rc)
	for _, vh := range out.GetVirtualHosts() {
		vh.Routes = nil
	}
	return out
}

func foreignRoutes(all []*routev3.Route) (rest []*routev3.Route) {
	for _, r := range all {
		if !isOwnRoute(r) {
			rest = append(rest, r)
		}
	}
	return rest
}

// translate calls Translation and fails the test if the answer is not lawful.
func translate(t testing.TB, s *Server, in *extension.PostTranslateModifyRequest) *extension.PostTranslateModifyResponse {
	t.Helper()
	before := proto.CloneOf(in)
	out, err := s.PostTranslateModify(t.Context(), in)
	if err != nil {
		t.Fatal("an error, after which Envoy Gateway never tries again:", err)
	}
	if !proto.Equal(before, in) {
		t.Error("the request was changed")
	}
	if err := checkResponse(in, out); err != nil {
		t.Error(err)
	}
	return out
}

func bytesOf(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := deterministicCodec{}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b.Materialize()
}

// GTW-29: the same request and the same snapshot give the same bytes. The final result does not
// depend on whether the hooks for virtual hosts and routes are called before Translation.
func TestGTW29_SameBytesThroughEveryHook(t *testing.T) {
	request := func(lean bool) []byte {
		s, calls := newServer(t, fullSnapshot())
		vh := example()
		for _, r := range vh.Routes {
			withFilter(r, "corp")
		}
		for i, r := range vh.Routes { // the order of Envoy Gateway: routes, virtual hosts, translation
			if lean {
				break
			}
			out, err := s.PostRouteModify(t.Context(), &extension.PostRouteModifyRequest{Route: r})
			if err != nil {
				t.Fatal(err)
			}
			vh.Routes[i] = out.Route
		}
		if !lean {
			out, err := s.PostVirtualHostModify(t.Context(), &extension.PostVirtualHostModifyRequest{VirtualHost: vh})
			if err != nil {
				t.Fatal(err)
			}
			vh = out.VirtualHost
		}
		out := translate(t, s, translationOf("00000000000000aa", vh))
		for _, c := range calls() {
			if c.Result != Changed && c.Hook != RouteHook {
				t.Errorf("%+v", c)
			}
		}
		return bytesOf(t, out)
	}
	first := request(false)
	for i := range 20 {
		if got := request(i%2 == 0); !bytes.Equal(got, first) {
			a, b := new(extension.PostTranslateModifyResponse), new(extension.PostTranslateModifyResponse)
			if err := errors.Join(proto.Unmarshal(first, a), proto.Unmarshal(got, b)); err != nil {
				t.Fatal(err)
			}
			t.Fatalf("try %d gave other bytes:\n%v\n%v", i, a.Routes, b.Routes)
		}
	}
}

// GTW-29: the law holds for requests that are damaged at any place. The fuzz test below searches
// longer, but its compilation takes minutes, because all of Envoy's types are instrumented.
func TestGTW29_EchoOfDamagedRequests(t *testing.T) {
	s, _ := newServer(t, fullSnapshot())
	seed, err := proto.Marshal(translationOf("", example(), virtualHost("*", foreignRoute("plain", "/svc/web"), foreignRoute("plain", "/"))))
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(6, 29))
	for requests := 0; requests < 200; {
		damaged := bytes.Clone(seed)
		for range 1 + random.IntN(3) {
			damaged[random.IntN(len(damaged))] = byte(random.Uint32())
		}
		in := new(extension.PostTranslateModifyRequest)
		if proto.Unmarshal(damaged, in) != nil {
			continue
		}
		requests++
		if translate(t, s, in); t.Failed() {
			t.Fatalf("requested %v", in)
		}
	}
}

// GTW-29: for any request of Envoy Gateway, all resources of other owners come back unchanged. The
// answer is never empty and never an error, always valid, and always has the same bytes.
func FuzzEcho(f *testing.F) {
	seed := translationOf("00000000000000aa", example(), virtualHost("*", foreignRoute("plain", "/svc/web"), foreignRoute("plain", "/")))
	seed.Secrets = []*tlsv3.Secret{{Name: "s"}}
	seed.Listeners = []*listenerv3.Listener{{Name: "infra/eg/http"}}
	for _, in := range []*extension.PostTranslateModifyRequest{
		seed, {}, translationOf(""), translationOf("x", virtualHost("example.com")),
		{Clusters: []*clusterv3.Cluster{{Name: "tailscale-cluster-web"}, {Name: "tailscale-cluster-web"}}, Routes: seed.Routes},
		{Routes: []*routev3.RouteConfiguration{{}, {VirtualHosts: []*routev3.VirtualHost{{}, {Metadata: objectMetadata("Gateway", "infra", "eg", ""), Routes: []*routev3.Route{{}, {Name: "httproute/shop/mixed/rule/0"}}}}}}},
	} {
		b, err := proto.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	s, _ := newServer(f, fullSnapshot())
	f.Fuzz(func(t *testing.T, b []byte) {
		in := new(extension.PostTranslateModifyRequest)
		if proto.Unmarshal(b, in) != nil {
			t.Skip()
		}
		out := translate(t, s, in)
		again, err := s.PostTranslateModify(t.Context(), in)
		if err != nil || !bytes.Equal(bytesOf(t, out), bytesOf(t, again)) {
			t.Errorf("a repeated request gives other bytes, or %v", err)
		}
		if len(out.Clusters) < len(in.Clusters) || len(out.Routes) != len(in.Routes) {
			t.Error("the response has less than the request")
		}
		for _, rc := range in.Routes {
			for _, vh := range rc.GetVirtualHosts() {
				host, err := s.PostVirtualHostModify(t.Context(), &extension.PostVirtualHostModifyRequest{VirtualHost: vh})
				switch {
				case err != nil:
					t.Errorf("virtual host: %v", err)
				case host.GetVirtualHost() == nil:
					t.Error("virtual host: host.GetVirtualHost() is nil")
				case len(foreignRoutes(host.VirtualHost.Routes)) != len(foreignRoutes(vh.Routes)):
					t.Errorf("virtual host: len(foreignRoutes(host.VirtualHost.Routes)) != len(foreignRoutes(vh.Routes)); %v, host = %v, %v",
						vh, host, err)
				}
				for _, r := range vh.GetRoutes() {
					if out, err := s.PostRouteModify(t.Context(), &extension.PostRouteModifyRequest{Route: r}); err != nil || out.GetRoute().GetName() != r.GetName() {
						t.Errorf("route %v: %v, %v", r, out, err)
					}
				}
			}
		}
		for _, c := range in.Clusters {
			if out, err := s.PostClusterModify(t.Context(), &extension.PostClusterModifyRequest{Cluster: c}); err != nil || out.GetCluster().GetName() != c.GetName() {
				t.Errorf("cluster %v: %v, %v", c, out, err)
			}
		}
		for _, l := range in.Listeners {
			if out, err := s.PostHTTPListenerModify(t.Context(), &extension.PostHTTPListenerModifyRequest{Listener: l, PostListenerContext: &extension.PostHTTPListenerExtensionContext{
				ExtensionResources: []*extension.ExtensionResource{revisionOf("")}}}); err != nil || out.GetListener().GetName() != l.GetName() {
				t.Errorf("listener %v: %v, %v", l, out, err)
			}
		}
	})
}
