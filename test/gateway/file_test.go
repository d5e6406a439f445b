//go:build linux

package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/xds"
)

// An extension is the extension server in this process, with a record of its calls.
type extension struct {
	*xds.Server
	at xds.Address

	stop func() // stops it; may be called again

	mu      sync.Mutex
	calls   []xds.Call
	reports []gateway.TranslationReport
}

// startExtension starts a server on a Unix socket.
func startExtension(t testing.TB) *extension {
	t.Helper()
	return runExtension(t, xds.Address{Network: "unix", Addr: filepath.Join(t.TempDir(), "x.sock")}, nil)
}

// runExtension starts a server that stops with the test. It listens only after a snapshot is published.
func runExtension(t testing.TB, at xds.Address, config *tls.Config) *extension {
	t.Helper()
	x := &extension{at: at}
	x.Server = &xds.Server{Deadline: 2 * time.Second, MaxMessage: 64 << 20, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		Measure: func(c xds.Call) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.calls = append(x.calls, c)
		},
		Report: func(r gateway.TranslationReport) {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.reports = append(x.reports, r)
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx, x.at, config) }()
	x.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		x.stop()
		if t.Failed() {
			t.Logf("hooks called: %v; reports: %+v", x.called(), x.reports)
		}
	})
	return x
}

// called returns how often each hook was called.
func (x *extension) called() map[xds.Hook]int {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := map[xds.Hook]int{}
	for _, c := range x.calls {
		n[c.Hook]++
	}
	return n
}

// translations returns the reports of all translations so far.
func (x *extension) translations() []gateway.TranslationReport {
	x.mu.Lock()
	defer x.mu.Unlock()
	return slices.Clone(x.reports)
}

// last returns the last report of a Gateway.
func (x *extension) last(name gateway.Name) (r gateway.TranslationReport) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, each := range x.reports {
		if each.Gateway == name {
			r = each
		}
	}
	return r
}

var eg = gateway.Name{Namespace: "infra", Name: "eg"}

// relayed returns the cluster in a snapshot for a service behind a relay at an address.
func relayed(name string, relay netip.AddrPort, health uint16) gateway.Cluster {
	return gateway.Cluster{Name: "tailscale-cluster-" + name, StatName: "tailscale-cluster-" + name, Host: name + ".relays.svc.cluster.local", Port: relay.Port(),
		Endpoints: []netip.AddrPort{relay}, HealthPort: health, HealthPath: "/readyz/" + name, Protocol: gateway.HTTP1}
}

// revisionPolicy returns the object with which the operator makes Envoy Gateway translate again.
func revisionPolicy(revision string) string {
	return fmt.Sprintf(`apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleRoutePolicy
metadata: {name: eg-tailnets-revision, namespace: infra}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: eg}
  revision: %q
`, revision)
}

// custom is an HTTPRoute whose only backend is a TailscaleService.
const custom = `apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: billing, namespace: infra}
spec: {target: {fqdn: billing.tail8eff9.ts.net}, ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: billing, namespace: infra}
spec:
  parentRefs: [{name: eg}]
  hostnames: ["billing.example.com"]
  rules:
  - backendRefs: [{group: gateway.tailscale.com, kind: TailscaleService, name: billing, port: 80}]
`

// TB-09, GTW-35: Envoy Gateway with the file provider calls our server. Its configuration contains our routes and
// clusters. A real Envoy carries requests from a client to the address of a relay.
func TestEnvoyCarriesToTheRelay(t *testing.T) {
	needsNamespaces(t)
	// This must run before Envoy reads the resolver configuration.
	resolve(t, map[string][]string{"wiki.relays.svc.cluster.local.": {"10.244.0.20", "10.244.0.21"}})
	web := startRelay(t, "10.244.0.10", "web")
	billing := startRelay(t, "10.244.0.11", "billing")

	x := startExtension(t)
	g := startFileGateway(t, x.at, false)
	sole := relayed("billing", billing.at, billing.health)
	sole.Name = "httproute/infra/billing/rule/0"
	x.Publish(&gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{eg: {
		Name: eg, Revision: "00000000000000a1",
		Routes: []gateway.Route{
			{Name: "tailscale-svc-web", Hosts: []string{"*"}, Prefix: "/svc/web", Cluster: "tailscale-cluster-web"},
			{Name: "tailscale-svc-bare", Hosts: []string{"plain.example.com"}, Prefix: "/bare", Strip: true, HostRewrite: "web.tail8eff9.ts.net", Cluster: "tailscale-cluster-web"},
		},
		Clusters: []gateway.Cluster{relayed("web", web.at, web.health)},
		Rules:    []gateway.Rule{{Key: gateway.RuleKey{Kind: "HTTPRoute", Route: gateway.Name{Namespace: "infra", Name: "billing"}}, Sole: &sole}},
	}}})
	g.put(t, "20-ours.yaml", revisionPolicy("00000000000000a1")+"---\n"+custom)

	served := readADS(t, g.certs, "infra/eg")
	await(t, "Tailplane's route, cluster and backend in the served configuration", func() bool {
		c := served.cluster("httproute/infra/billing/rule/0")
		return served.route("tailscale-svc-web") != nil && served.cluster("tailscale-cluster-web") != nil && c.GetType() == clusterv3.Cluster_STATIC
	})
	calls := x.called()
	for _, h := range []xds.Hook{xds.RouteHook, xds.VirtualHostHook, xds.ListenerHook, xds.ClusterHook, xds.TranslationHook} {
		if calls[h] == 0 {
			t.Errorf("the hook %s was never called: %v", h, calls)
		}
	}
	switch r := x.last(eg); {
	case r.Rendered != "00000000000000a1":
		t.Errorf("the last report: r.Rendered = %q, want %q", r.Rendered, "00000000000000a1")
	case r.Requested != r.Rendered:
		t.Errorf("the last report: r.Requested = %q, want %q", r.Requested, r.Rendered)
	case !r.VirtualHosts:
		t.Errorf("the last report: r.VirtualHosts is false; %+v", r)
	case r.Routes != 3:
		t.Errorf("the last report: r.Routes = %v, want 3", r.Routes)
	}
	for _, m := range served.managers() {
		if len(m.GetEarlyHeaderMutationExtensions()) != 1 {
			t.Error("a connection manager keeps a client's Tailscale-* headers")
		}
	}

	if g.envoy == "" {
		envoyVerdict = "SKIP it is not available"
		t.Skip("SKIP envoy: there is no real Envoy here: the test checked the served configuration and sent no request")
	}
	for _, tc := range []struct{ host, path, want string }{
		{"plain.example.com", "/svc/web/x?y=1", "web GET plain.example.com /svc/web/x?y=1"},
		{"plain.example.com", "/svc/web", "web GET plain.example.com /svc/web"},
		{"plain.example.com", "/bare//a/b", "web GET web.tail8eff9.ts.net /a/b"},
		{"plain.example.com", "/bare", "web GET web.tail8eff9.ts.net /"},
		{"billing.example.com", "/", "billing GET billing.example.com /"},
		{"billing.example.com", "/svc/web/", "web GET billing.example.com /svc/web/"},
	} {
		var got string
		await(t, tc.host+tc.path, func() bool {
			got = get(t, "", tc.host, tc.path)
			return strings.HasPrefix(got, "200 ")
		})
		if want := "200 " + tc.want; got != want {
			t.Errorf("%s%s: %q, want %q", tc.host, tc.path, got, want)
		}
	}
	if got := get(t, "", "plain.example.com", "/svc/webmail"); strings.Contains(got, "web ") {
		t.Errorf("/svc/webmail went to web: %s", got)
	}

	// Names resolve to every relay. Envoy verifies a TLS service, and its health checks use no TLS. A share of 20
	// percent gets that share of the requests.
	const port, health = 10000, 9002
	startRelayAt(t, "10.244.0.20", "wiki", "one", port, health, nil)
	two := startRelayAt(t, "10.244.0.21", "wiki", "two", port, health, nil)
	certificate, roots := certificateFor(t, "vault.tail8eff9.ts.net")
	vault := startRelayAt(t, "10.244.0.22", "vault", "vault", port, health, &certificate)
	named := relayed("wiki", netip.AddrPortFrom(netip.Addr{}, port), health)
	named.Endpoints = nil
	safe, wrong := relayed("vault", vault.at, health), relayed("wrong", vault.at, health)
	safe.TLS, wrong.TLS = &gateway.TLS{ServerName: "vault.tail8eff9.ts.net", Roots: roots}, &gateway.TLS{ServerName: "other.tail8eff9.ts.net", Roots: roots}
	wrong.HealthPath = safe.HealthPath
	second := gateway.Gateway{
		Name: eg, Revision: "00000000000000b2",
		Routes: []gateway.Route{
			{Name: "tailscale-svc-vault", Hosts: []string{"*"}, Prefix: "/svc/vault", Cluster: "tailscale-cluster-vault"},
			{Name: "tailscale-svc-wrong", Hosts: []string{"*"}, Prefix: "/svc/wrong", Cluster: "tailscale-cluster-wrong"},
			{Name: "tailscale-svc-wiki", Hosts: []string{"*"}, Prefix: "/svc/wiki", Cluster: "tailscale-cluster-wiki"},
		},
		Clusters: []gateway.Cluster{safe, relayed("web", web.at, web.health), named, wrong},
		Rules: []gateway.Rule{{Key: gateway.RuleKey{Kind: "HTTPRoute", Route: gateway.Name{Namespace: "infra", Name: "billing"}},
			Default: []gateway.WeightedCluster{{Cluster: "tailscale-cluster-web", Weight: 20}, {Cluster: "tailscale-cluster-vault", Weight: 80}}}},
	}
	publish(t, x, g, second)
	const host = "plain.example.com"
	await(t, "both relays by their name", func() bool {
		return get(t, "", host, "/svc/wiki") == "200 one GET "+host+" /svc/wiki" && get(t, "", host, "/svc/wiki") == "200 two GET "+host+" /svc/wiki"
	})
	await(t, "a service over TLS", func() bool { return get(t, "", host, "/svc/vault") == "200 vault GET "+host+" /svc/vault" })
	if got := get(t, "", host, "/svc/wrong"); !strings.HasPrefix(got, "503 ") {
		t.Errorf("a service with a wrong certificate: %s", got)
	}
	const requests = 4000
	few := 0
	for range requests {
		if strings.HasPrefix(get(t, "", "billing.example.com", "/"), "200 web ") {
			few++
		}
	}
	// Three percent of this number of requests are nearly five standard deviations.
	if few < requests*17/100 || few > requests*23/100 {
		t.Errorf("%d of %d requests went to the share of 20 of 100", few, requests)
	}
	two.stop()
	await(t, "the other relay alone", func() bool {
		for range 10 {
			if get(t, "", host, "/svc/wiki") != "200 one GET "+host+" /svc/wiki" {
				return false
			}
		}
		return true
	})

	// While the server is away, Envoy keeps its configuration. Envoy Gateway calls the server again when it is back.
	x.stop()
	third := second
	third.Revision = "00000000000000c3"
	third.Listeners = []gateway.Listener{{Section: "http", Restrict: true, ProxyProtocol: true, Allow: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}}}
	g.put(t, "20-ours.yaml", revisionPolicy(third.Revision)+"---\n"+custom)
	for range 20 {
		if got := get(t, "", host, "/svc/vault"); !strings.HasPrefix(got, "200 vault ") {
			t.Fatalf("while the server is unavailable: %s", got)
		}
	}
	back := runExtension(t, x.at, nil)
	back.Publish(&gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{eg: &third}})
	await(t, "a client without a tailnet address is refused", func() bool { return !strings.HasPrefix(get(t, "", host, "/svc/vault"), "200 ") })

	// The address in the PROXY header decides about access; a forwarded header does not.
	await(t, "a client from the tailnet is admitted", func() bool {
		return get(t, "100.64.0.7", host, "/svc/vault") == "200 vault GET "+host+" /svc/vault"
	})
	for _, from := range []string{"192.0.2.1", "100.128.0.1", ""} {
		if got := get(t, from, host, "/svc/vault"); strings.HasPrefix(got, "200 ") {
			t.Errorf("a client from %q was admitted: %s", from, got)
		}
	}
	envoyVerdict = "real " + g.envoy
}

// publish puts a Gateway into the snapshot that Envoy Gateway gets at its next call.
func publish(t testing.TB, x *extension, f *fileGateway, g gateway.Gateway) {
	t.Helper()
	x.Publish(&gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{g.Name: &g}})
	f.put(t, "20-ours.yaml", revisionPolicy(g.Revision)+"---\n"+custom)
}

// get sends a request to Envoy and returns status and body, or the error. If from is not empty, a PROXY header gives
// it as the caller's address.
func get(t testing.TB, from, host, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8888"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	req.Header.Set("Tailscale-User-Login", "mallory@example.com")
	req.Header.Set("X-Forwarded-For", "100.64.0.7")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil || from == "" {
			return c, err
		}
		_, err = c.Write(proxyHeader(netip.MustParseAddr(from)))
		return c, err
	}}}
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, b)
}

// proxyHeader returns a PROXY protocol header, version 2, for a TCP connection over IPv4.
func proxyHeader(from netip.Addr) []byte {
	b := []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c")
	b = append(b, from.AsSlice()...)
	return append(b, 127, 0, 0, 1, 0x30, 0x39, 0x22, 0xb8)
}
