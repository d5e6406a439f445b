package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// backendOf starts a server of the cluster. It answers each connection with the bytes that it received before the
// first line break, including a PROXY header.
func backendOf(t testing.TB) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b, err := io.ReadAll(c)
				if err == nil {
					_, _ = c.Write(b)
				}
			}()
		}
	}()
	return ln.Addr().String()
}

// through sends text from a node, closes its sending side and returns the answer.
func through(ctx context.Context, from *tsnet.Server, addr, text string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		return "", err
	}
	// Not with Dial: before the route is known, Dial would leave this machine.
	c, err := from.Sys().Dialer.Get().NetstackDialTCP(ctx, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	end, _ := ctx.Deadline()
	_ = c.SetDeadline(end)
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if h, ok := c.(interface{ CloseWrite() error }); !ok || h.CloseWrite() != nil {
		return "", errors.New("no half-close")
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

// GTW-23: a person's node connects through a tailnet service to a server of the cluster, which receives the person's
// own address. The person also connects to the relay's own node.
func TestIngress(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	tn := tailnettest.Start(t, policy)
	g := newGroup(t, c, tn, "in", "ingress", 1)
	alice := tn.Node("alice-laptop", "alice@example.com")
	if err := tn.Ready(within(t), alice); err != nil {
		t.Fatal(err)
	}
	lc, err := alice.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lc.EditPrefs(within(t), &ipn.MaskedPrefs{RouteAllSet: true, Prefs: ipn.Prefs{RouteAll: true}}); err != nil {
		t.Fatal(err)
	}
	backend := backendOf(t)
	ingress := func(ready bool) map[string]any {
		port := func(n int) []any {
			return []any{map[string]any{"protocol": "TCP", "port": n, "backend": backend}}
		}
		return map[string]any{"drainTimeout": "5s", "ingress": map[string]any{
			"shop.grafana": map[string]any{"vip": "svc:grafana", "ports": port(80), "proxyProtocol": true, "ready": ready},
			"shop.plain":   map[string]any{"ports": port(8080), "ready": true},
		}}
	}
	g.configure(t, nil, ingress(true))
	r := g.start(t, 0, "127.77.1.10", "uid-1")
	if err := r.AwaitReady(within(t), "/readyz"); err != nil {
		t.Fatal(err)
	}
	if err := tn.WaitPeer(within(t), alice, "in-0"); err != nil {
		t.Fatal(err)
	}
	if !tn.ApproveService(tailcfg.StableNodeID(g.secret(t, "in-0")["device_id"]), "svc:grafana", netip.MustParseAddr("100.127.9.9")) {
		t.Fatal("the relay cannot be a host of the service")
	}
	var got string
	eventually(t, "the service answers", func() (err error) { got, err = through(within(t), alice, "100.127.9.9:80", "hello"); return err })
	ip4, _ := alice.TailscaleIPs()
	switch {
	case len(got) != 28+len("hello"):
		t.Errorf("the server of the cluster: len(got) = %v, want %v", len(got), 28+len("hello"))
	case !strings.HasSuffix(got, "hello"):
		t.Errorf("the server of the cluster: got = %q does not end with %q", got, "hello")
	case got[13] != 0x11:
		t.Errorf("the server of the cluster: got[13] = %v, want 0x11", got[13])
	case netip.AddrFrom4([4]byte([]byte(got[16:20]))) != ip4:
		t.Errorf("the server of the cluster: netip.AddrFrom4([4]byte([]byte(got[16:20]))) != ip4; got = %q, %s", got, ip4)
	case netip.AddrFrom4([4]byte([]byte(got[20:24]))) != netip.MustParseAddr("100.127.9.9"):
		t.Errorf(`the server of the cluster: netip.AddrFrom4([4]byte([]byte(got[20:24]))) != netip.MustParseAddr("100.127.9.9"); got = %q, %s`,
			got, ip4)
	}
	var ips []string
	if err := json.Unmarshal([]byte(g.secret(t, "in-0")["device_ips"]), &ips); err != nil || len(ips) == 0 {
		t.Fatalf("device_ips: %v %v", ips, err)
	}
	own := ips[0]
	eventually(t, "the relay's own node answers, without a header", func() error {
		got, err := through(within(t), alice, own+":8080", "hello")
		if err == nil && got != "hello" {
			err = fmt.Errorf("got %q", got)
		}
		return err
	})
	// A port of the service that is not announced does not lead to the machine's port.
	if got, err := through(within(t), alice, "100.127.9.9:"+backend[strings.LastIndexByte(backend, ':')+1:], "x"); err == nil {
		t.Errorf("another port of the service answers %q", got)
	}
	var st struct {
		Exposed map[string]struct{ VIP string }
	}
	eventually(t, "the status lists the bound ports", func() error {
		if err := json.Unmarshal([]byte(g.secret(t, "in-0")["egress-services"]), &st); err != nil {
			return err
		}
		if st.Exposed["shop.grafana"].VIP != "svc:grafana" {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})

	// Without a ready backend the service is withdrawn; with one it comes back.
	g.configure(t, nil, ingress(false))
	eventually(t, "it is withdrawn", func() error {
		if got, err := through(within(t), alice, "100.127.9.9:80", "hello"); err == nil {
			return fmt.Errorf("it answers %q", got)
		}
		return nil
	})
	g.configure(t, nil, ingress(true))
	eventually(t, "it is back", func() error { _, err := through(within(t), alice, "100.127.9.9:80", "hello"); return err })
}
