//go:build linux

package gateway

import (
	"crypto/tls"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/xds"
)

// GTW-33: a real Envoy Gateway without a certificate for the extension server, or with the certificate of another
// client, gets no answer. It connects again and again and serves no configuration. With the right certificate
// everything is served.
func TestGTW33_ClientCertificate(t *testing.T) {
	needsNamespaces(t)
	p, own := provide(t, "stranger"), t.TempDir()
	p.serve(t, own)
	config, err := (&xds.Certificates{Dir: own}).Config()
	if err != nil {
		t.Fatal(err)
	}
	var knocks atomic.Int32
	inner := config.GetConfigForClient
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		knocks.Add(1)
		return inner(hello)
	}
	x := runExtension(t, xds.Address{Network: "tcp", Addr: wholeExtension}, config)
	c := gateway.Cluster{Name: "tailscale-cluster-web", StatName: "tailscale-cluster-web", Host: "web.relays.svc.cluster.local", Port: 10000, HealthPort: 9002, HealthPath: "/readyz/web", Protocol: gateway.HTTP1}
	x.Publish(&gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{eg: {Name: eg, Revision: "00000000000000a1", Clusters: []gateway.Cluster{c},
		Routes: []gateway.Route{{Name: "tailscale-svc-web", Hosts: []string{"*"}, Prefix: "/svc/web", Cluster: c.Name}}}}})
	apply(t, p.Cluster, plainGateway, plainRoute("shop", "shop.example.com"), revisionPolicy("00000000000000a1"))
	served := readADS(t, p.proxy, kubernetesXDS)
	with := p.configured(t, x.at, false)
	without := strings.Join(slices.DeleteFunc(strings.Split(with, "\n"), func(line string) bool { return strings.Contains(line, "clientCertificateRef") }), "\n")
	if with == without {
		t.Fatal("the configuration has no certificate of Envoy Gateway")
	}
	other, good := certify(t).client, p.client

	var g *process
	for _, stranger := range []struct {
		why, config string
		client      map[string][]byte
	}{
		{"no certificate", without, good},
		{"a certificate of another authority", with, other},
		{"a certificate of the authority, for another name", with, p.stranger},
	} {
		if g != nil {
			g.stop()
		}
		p.client = stranger.client
		p.place(t, p.Cluster)
		before := knocks.Load()
		g = p.startConfigured(t, stranger.config)
		// A third connection proves that two were refused.
		await(t, stranger.why+": Envoy Gateway connects again", func() bool { return knocks.Load() >= before+3 })
		if n := x.called(); len(n) > 0 {
			t.Errorf("%s: calls were answered: %v", stranger.why, n)
		}
		if served.route("httproute/infra/shop/rule/0/match/0/shop_example_com") != nil || served.route("tailscale-svc-web") != nil {
			t.Errorf("%s: something was served", stranger.why)
		}
	}
	p.client = good // the running Envoy Gateway reads its Secret for each connection
	p.place(t, p.Cluster)
	await(t, "everything, with the right certificate", func() bool {
		return served.route("tailscale-svc-web") != nil && served.cluster(c.Name) != nil && served.route("httproute/infra/shop/rule/0/match/0/shop_example_com") != nil
	})
	t.Logf("%d connections; then these calls: %v", knocks.Load(), x.called())
}
