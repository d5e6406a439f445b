package tailnettest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/tsnet"
)

// clientOf returns an HTTPS client that connects through dial and trusts only the tailnet's CA.
func clientOf(t testing.TB, rootsPEM []byte, dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(rootsPEM) {
		t.Fatal("EnableHTTPS returned no certificate")
	}
	tr := &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Timeout: time.Minute, Transport: tr}
}

func body(t testing.TB, c *http.Client, url string) (string, error) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// TB-04: certificates come from the authority through DNS-01. Funnel requests can be detected, although WhoIs of them
// succeeds and returns the ingress node.
func TestTLSAndFunnel(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	roots := n.EnableHTTPS()
	tka, alice, edge := n.Node("tka", "", "tag:tka"), n.Node("alice", "alice@example.com"), n.Node("ingress", "", "tag:ingress")
	ready(t, n, tka, alice, edge)

	ln, err := tka.ListenTLS("tcp", ":8443")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, tka)
	hc := clientOf(t, roots, alice.Dial)
	start := time.Now()
	got, err := body(t, hc, "https://tka.tiny.ts.net:8443/")
	if err != nil || !strings.Contains(got, `"Login":"alice@example.com"`) {
		t.Fatalf("ListenTLS: %q %v", got, err)
	}
	t.Logf("first request over TLS, certificate included: %v", time.Since(start).Round(time.Millisecond))
	if _, err := body(t, clientOf(t, roots, alice.Dial), "https://tka:8443/"); err == nil {
		t.Error("the certificate is good for another name")
	}

	if !n.SetIngress(id(t, n, edge)) {
		t.Fatal("no ingress")
	}
	fl, err := tka.ListenFunnel("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := whois(r.Context(), tka, r.RemoteAddr)
		fc, _ := r.Context().Value(tka).(*ipn.FunnelConn)
		if fc == nil {
			fmt.Fprintf(w, "tailnet %s %v", who.Login, err)
			return
		}
		fmt.Fprintf(w, "funnel src=%s target=%s whois=%s %v", fc.Src, fc.Target, who.Node, err)
	}), ConnContext: func(ctx context.Context, c net.Conn) context.Context {
		if tc, ok := c.(*tls.Conn); ok {
			if fc, ok := tc.NetConn().(*ipn.FunnelConn); ok {
				return context.WithValue(ctx, tka, fc)
			}
		}
		return ctx
	}}
	go srv.Serve(fl)
	t.Cleanup(func() { srv.Close() })
	outside := clientOf(t, roots, func(ctx context.Context, _, addr string) (net.Conn, error) {
		return n.FunnelDial(ctx, edge, addr, "203.0.113.9:4444")
	})
	// The ingress capability reaches the node with the next map.
	eventually(t, "Funnel", func() bool { got, err = body(t, outside, "https://tka.tiny.ts.net/"); return err == nil })
	if want := "funnel src=203.0.113.9:4444 target=tka.tiny.ts.net:443 whois=ingress <nil>"; got != want {
		t.Errorf("over Funnel: %q, want %q", got, want)
	}
	if got, err = body(t, hc, "https://tka.tiny.ts.net/"); err != nil || got != "tailnet alice@example.com <nil>" {
		t.Errorf("the same listener from the tailnet: %q %v", got, err)
	}
	if _, err := n.FunnelDial(within(t, time.Minute), edge, "alice:443", "203.0.113.9:4444"); err == nil {
		t.Error("a node without Funnel took a connection")
	}
}

// Without HTTPS on the tailnet there is no certificate.
func TestNoHTTPS(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	tka := n.Node("tka", "", "tag:tka")
	ready(t, n, tka)
	if ln, err := tka.ListenTLS("tcp", ":8443"); err == nil {
		ln.Close()
		t.Error("ListenTLS works without EnableHTTPS")
	}
	if _, err := tka.ListenFunnel("tcp", ":443"); err == nil {
		t.Error("ListenFunnel works without EnableHTTPS")
	}
}

// TB-04: a service's own address. Only headers identify the caller.
func TestService(t *testing.T) {
	t.Parallel()
	n := Start(t, `{
		"tagOwners": {"tag:tka": []},
		"grants": [{"src": ["alice@example.com"], "dst": ["svc:web"], "ip": ["tcp:80"]}],
	}`)
	host, alice, bob := n.Node("svc-host", "", "tag:tka"), n.Node("alice", "alice@example.com"), n.Node("bob", "bob@example.com")
	ready(t, n, host, alice, bob)
	vip := netip.MustParseAddr("100.100.1.1")
	if n.ApproveService(id(t, n, alice), "svc:web", vip) {
		t.Error("a person's node was approved as a service's host")
	}
	if !n.ApproveService(id(t, n, host), "svc:web", vip) {
		t.Fatal("not approved")
	}
	for _, s := range []*tsnet.Server{alice, bob} {
		lc, err := s.LocalClient()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lc.EditPrefs(t.Context(), &ipn.MaskedPrefs{RouteAllSet: true, Prefs: ipn.Prefs{RouteAll: true}}); err != nil {
			t.Fatal(err)
		}
	}
	var sl *tsnet.ServiceListener
	eventually(t, "the host reports its role", func() bool {
		var err error
		sl, err = host.ListenService("svc:web", tsnet.ServiceModeHTTP{Port: 80})
		return err == nil
	})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := whois(r.Context(), host, r.RemoteAddr)
		fmt.Fprintf(w, "login=%s whois=%v", r.Header.Get("Tailscale-User-Login"), err)
	})}
	go srv.Serve(sl)
	t.Cleanup(func() { srv.Close() })
	hc := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: alice.Dial}}
	var got string
	eventually(t, "the service answers alice", func() bool {
		var err error
		got, err = body(t, hc, "http://"+sl.FQDN+"/")
		return err == nil && strings.HasPrefix(got, "login=")
	})
	if !strings.HasPrefix(got, "login=alice@example.com whois=") || strings.HasSuffix(got, "<nil>") {
		t.Errorf("a service gets the caller from a header, and WhoIs of the connection finds no node: %q", got)
	}
	refused(t, alice, "svc-host:80") // the grant names the service, not its host
	refused(t, bob, vip.String()+":80")
}
