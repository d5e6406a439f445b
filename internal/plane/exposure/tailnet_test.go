package exposure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	os.Exit(m.Run())
}

// planeGrants is a tailnet policy in which vic has the rule VIC.
const planeGrants = `{
	"tagOwners": {"tag:tailplane": [], "tag:ci": []},
	"grants": [
		{"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:80"]},
		{"src": ["vic@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [VIC]}},
		{"src": ["mel@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "operator", "orgs": ["acme"]}]}},
		{"src": ["pat@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "platform-admin", "orgs": ["*"]}]}},
		{"src": ["tag:ci"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/plane": [{"role": "viewer", "orgs": ["*"], "tags": ["tag:ci"]}]}},
	],
}`

// PLANE-03: on a real tailnet, identity comes from WhoIs. A viewer of everything sees the upstream, which receives his login whatever he
// sends. Other people do not see it. His WebSocket ends when the policy takes his role away.
func TestPLANE03_OnATailnet(t *testing.T) {
	t.Parallel()
	tn := tailnettest.Start(t, strings.Replace(planeGrants, "VIC", `{"role": "viewer", "orgs": ["*"]}`, 1))
	ctx, cancel := context.WithTimeout(t.Context(), 2*long)
	defer cancel()
	node, err := tailnet.New(tailnet.Config{Hostname: "grafana", Tags: []string{"tag:tailplane"}, ControlURL: tn.ControlURL(), StateDir: t.TempDir(), Port: 80, InsecureHTTP: true,
		AuthKey: secret.New(tn.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})), Capability: policy.Capability, JoinTimeout: 2 * long, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	nodeCtx, leave := context.WithCancel(context.WithoutCancel(t.Context()))
	left := make(chan error, 1)
	go func() { left <- node.Run(nodeCtx) }()
	t.Cleanup(func() {
		leave()
		if err := <-left; err != nil {
			t.Errorf("the node: %v", err)
		}
	})
	ln, err := node.Listen(ctx)
	if err != nil {
		t.Fatal(err)
	}
	identify, err := identity.Whois{WhoIs: node.Identify}.Identifier(ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	up, h := newUpstream(t), &env{}
	h.serve(t, ln, grafana(t, up), httpapi.Server{Names: node.Names, Identify: identify}, node.ConnContext)

	dials := map[string]func(ctx context.Context, network, address string) (net.Conn, error){}
	for _, who := range []string{"vic", "mel", "pat", "mallory", "ci"} {
		login, tags := who+"@example.com", []string(nil)
		if who == "ci" {
			login, tags = "", []string{"tag:ci"}
		}
		s := tn.Node(who+"-laptop", login, tags...)
		if err := errors.Join(tn.Ready(ctx, s), tn.WaitPeer(ctx, s, "grafana")); err != nil {
			t.Fatal(err)
		}
		dials[who] = s.Dial
	}
	connect := func(who string) net.Conn {
		t.Helper()
		c, err := dials[who](ctx, "tcp", "grafana:80")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(long))
		return c
	}
	for _, tt := range []struct {
		who, request string
		want         problem.Code
		role         string
	}{
		{"vic", "GET /", "", "Viewer"},
		{"pat", "GET /", "", "Admin"},
		{"pat", "PUT /-/reload", "", "Admin"},
		{"vic", "PUT /-/reload", problem.Forbidden, ""},
		{"vic", "POST /api/v1/admin/tsdb/snapshot", problem.Forbidden, ""},
		{"mel", "GET /", problem.Forbidden, ""},
		{"mallory", "GET /", problem.NotAuthorized, ""},
		{"ci", "GET /", problem.TaggedNode, ""},
	} {
		c := connect(tt.who)
		fmt.Fprintf(c, "%s HTTP/1.1\r\nHost: grafana\r\nX-WEBAUTH-USER: pat@example.com\r\nx_webauth_user: pat@example.com\r\nX-WEBAUTH-ROLE: Admin\r\nTailscale-User-Login: pat@example.com\r\n"+
			"X-Forwarded-For: 100.64.0.1\r\nConnection: close, X-WEBAUTH-USER\r\n\r\n", tt.request)
		a := read(t, bufio.NewReader(c))
		requested := up.takeRequests()
		switch {
		case a.Code != tt.want || (tt.want == "") != (len(requested) == 1 && a.Status == http.StatusOK):
			t.Errorf("%s, %s: %+v, the upstream got %+v", tt.who, tt.request, a, requested)
		case tt.want == "":
			switch got := requested[0].Header; {
			case got.Get("X-Webauth-User") != tt.who+"@example.com":
				t.Errorf(`%s: got.Get("X-Webauth-User") != tt.who+"@example.com", %s, got = %v`, tt.who, tt.request, got)
			case got.Get("X-Webauth-Role") != tt.role:
				t.Errorf(`%s: got.Get("X-Webauth-Role") != tt.role, %s, got = %v`, tt.who, tt.request, got)
			case len(got["X-Webauth-User"]) != 1:
				t.Errorf(`%s: len(got["X-Webauth-User"]) = %v, want 1; %s`, tt.who, len(got["X-Webauth-User"]), tt.request)
			case got.Get("X-Forwarded-For") != "":
				t.Errorf(`%s: got.Get("X-Forwarded-For") != "", %s, got = %v`, tt.who, tt.request, got)
			case got.Get("Tailscale-User-Login") != "":
				t.Errorf(`%s: got.Get("Tailscale-User-Login") != "", %s, got = %v`, tt.who, tt.request, got)
			}
		}
	}

	up.answer(echo)
	c := openSocket(t, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dials["vic"](ctx, network, "grafana:80")
	}, nil)
	if err := tn.SetPolicy(strings.Replace(planeGrants, "VIC", `{"role": "viewer", "orgs": ["acme"]}`, 1)); err != nil {
		t.Fatal(err)
	}
	deleted := time.Now()
	waiting, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if _, b, err := c.Read(waiting); err == nil || waiting.Err() != nil {
		t.Errorf("the WebSocket went on: %q, %v", b, err)
	}
	t.Logf("cut %v after the policy changed", time.Since(deleted).Round(100*time.Millisecond))
	for _, e := range h.auditEntries(t) {
		if e.Actor.Via != access.ViaTailnet {
			t.Errorf("recorded %+v", e)
		}
	}
}
