package tailnettest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"
)

func TestMain(m *testing.M) {
	Quiet()
	os.Exit(m.Run())
}

const capAccess tailcfg.PeerCapability = "tailplane.dev/cap/access"

const testPolicy = `{
	// who works here
	"groups": {"group:dev": ["alice@example.com"]},
	"tagOwners": {"tag:tka": ["autogroup:admin"], "tag:ci": ["alice@example.com"], "tag:ingress": []},
	"grants": [
		{"src": ["*"], "dst": ["*"], "ip": ["*"]},
		{"src": ["group:dev"], "dst": ["tag:tka"], "app": {"tailplane.dev/cap/access": [{"role": "admin"}]}},
		{"src": ["tag:ci"], "dst": ["tag:tka"], "app": {"tailplane.dev/cap/access": [{"role": "ci"}]}},
	],
	"nodeAttrs": [{"target": ["tag:tka"], "attr": ["funnel"]}],
}`

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func ready(t testing.TB, n *Net, nodes ...*tsnet.Server) {
	t.Helper()
	if err := n.Ready(within(t, 2*time.Minute), nodes...); err != nil {
		t.Fatal(err)
	}
}

func id(t testing.TB, n *Net, s *tsnet.Server) tailcfg.StableNodeID {
	t.Helper()
	out, err := n.ID(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually waits for a condition of the real system, not for a fixed time.
func eventually(t testing.TB, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > 3*time.Minute {
			t.Fatalf("not within three minutes: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
	return time.Since(start)
}

// seen is the node's WhoIs result about a caller.
type seen struct {
	Login, Node string
	Tags        []string
	Roles       []string
	Expired     bool
	Sharee      bool
}

// serveWhoIs responds to every request on addr of s with the WhoIs result of the caller.
func serveWhoIs(t testing.TB, s *tsnet.Server, addr string) {
	t.Helper()
	ln, err := s.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, s)
}

func serve(t testing.TB, ln net.Listener, s *tsnet.Server) {
	t.Helper()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out, err := whois(r.Context(), s, r.RemoteAddr)
		if err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		json.NewEncoder(w).Encode(out)
	})}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
}

func whois(ctx context.Context, s *tsnet.Server, addr string) (out seen, err error) {
	lc, err := s.LocalClient()
	if err != nil {
		return out, err
	}
	who, err := lc.WhoIs(ctx, addr)
	if err != nil {
		return out, err
	}
	rules, err := tailcfg.UnmarshalCapJSON[struct{ Role string }](who.CapMap, capAccess)
	out = seen{Login: who.UserProfile.LoginName, Node: who.Node.ComputedName, Tags: who.Node.Tags,
		Expired: who.Node.Expired, Sharee: who.Node.Hostinfo.ShareeNode()}
	for _, x := range rules {
		out.Roles = append(out.Roles, x.Role)
	}
	return out, err
}

func get(ctx context.Context, s *tsnet.Server, url string) (out seen, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return out, err
	}
	res, err := s.HTTPClient().Do(req)
	if err != nil {
		return out, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return out, err
	}
	if res.StatusCode != http.StatusOK {
		return out, fmt.Errorf("%s: %s", res.Status, b)
	}
	return out, json.Unmarshal(b, &out)
}

func ask(t testing.TB, s *tsnet.Server, url string) seen {
	t.Helper()
	out, err := get(within(t, 2*time.Minute), s, url)
	if err != nil {
		t.Fatalf("%s asks %s: %v", s.Hostname, url, err)
	}
	return out
}

// refused checks that a connection gets no response.
func refused(t testing.TB, s *tsnet.Server, addr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if c, err := s.Dial(ctx, "tcp", addr); err == nil {
		c.Close()
		t.Errorf("%s reached %s", s.Hostname, addr)
	}
}

// TB-04: WhoIs returns the right person or tags. A change of the policy is visible in WhoIs without a reconnect.
func TestIdentityAndLivePolicy(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	tka, alice, bob, ci := n.Node("tka", "", "tag:tka"), n.Node("alice-laptop", "alice@example.com"), n.Node("bob-laptop", "bob@example.com"), n.Node("runner", "", "tag:ci")
	start := time.Now()
	ready(t, n, tka, alice, bob, ci)
	t.Logf("4 nodes ready after %v", time.Since(start).Round(time.Millisecond))
	serveWhoIs(t, tka, ":80")

	for _, c := range []struct {
		from        *tsnet.Server
		login, tags string
		roles       string
	}{
		{alice, "alice@example.com", "[]", "[admin]"},
		{bob, "bob@example.com", "[]", "[]"},
		{ci, "tagged-devices", "[tag:ci]", "[ci]"},
	} {
		for _, url := range []string{"http://tka/", "http://tka.tiny.ts.net/"} {
			got := ask(t, c.from, url)
			switch {
			case got.Login != c.login:
				t.Errorf("got.Login = %q, want %q; %s", got.Login, c.login, url)
			case fmt.Sprint(got.Tags) != c.tags:
				t.Errorf("fmt.Sprint(got.Tags) = %q, want %q; %s", fmt.Sprint(got.Tags), c.tags, url)
			case fmt.Sprint(got.Roles) != c.roles:
				t.Errorf("fmt.Sprint(got.Roles) = %q, want %q; %s", fmt.Sprint(got.Roles), c.roles, url)
			case got.Node != c.from.Hostname:
				t.Errorf("got.Node = %q, want %q; %s", got.Node, c.from.Hostname, url)
			}
		}
	}

	if err := n.SetPolicy(strings.Replace(testPolicy, "alice@example.com", "bob@example.com", 1)); err != nil {
		t.Fatal(err)
	}
	bobIP, _ := bob.TailscaleIPs()
	aliceIP, _ := alice.TailscaleIPs()
	took := eventually(t, "the new policy", func() bool {
		b, errB := whois(t.Context(), tka, bobIP.String())
		a, errA := whois(t.Context(), tka, aliceIP.String())
		return errA == nil && errB == nil && len(a.Roles) == 0 && slices.Equal(b.Roles, []string{"admin"})
	})
	t.Logf("WhoIs sees the new policy after %v", took.Round(time.Millisecond))

	// A policy that does not compile changes nothing.
	before := n.Policy()
	err := n.SetPolicy(`{"grants": [{"src": ["group:gone"], "dst": ["*"], "ip": ["*"]}]}`)
	if err == nil || !strings.Contains(err.Error(), `"group:gone" is not declared in groups`) {
		t.Errorf("a bad policy: %v", err)
	}
	if n.Policy() != before || !slices.Equal(ask(t, bob, "http://tka/").Roles, []string{"admin"}) {
		t.Error("a refused policy changed something")
	}
	if u := n.Unknown(); len(u) > 0 {
		t.Errorf("requests that the control server does not support: %v", u)
	}
}

// TB-04: the packet filter comes from the policy, and an app grant alone gives no access.
func TestPacketFilter(t *testing.T) {
	t.Parallel()
	n := Start(t, `{
		"tagOwners": {"tag:tka": []},
		"grants": [
			{"src": ["alice@example.com"], "dst": ["tag:tka"], "ip": ["tcp:80"]},
			{"src": ["bob@example.com"], "dst": ["tag:tka"], "app": {"tailplane.dev/cap/access": [{"role": "x"}]}},
			{"src": ["autogroup:member"], "dst": ["autogroup:self"], "ip": ["*"]},
		]}`)
	tka, a, b, a2 := n.Node("tka", "", "tag:tka"), n.Node("a", "alice@example.com"), n.Node("b", "bob@example.com"), n.Node("a2", "alice@example.com")
	ready(t, n, tka, a, b, a2)
	serveWhoIs(t, tka, ":80")
	serveWhoIs(t, tka, ":81")
	serveWhoIs(t, a2, ":80")
	ask(t, a, "http://tka/")
	refused(t, a, "tka:81")
	refused(t, b, "tka:80") // an app grant alone
	ask(t, a, "http://a2/") // autogroup:self: alice's other machine,
	refused(t, b, "a2:80")  // and only hers
	bIP, _ := b.TailscaleIPs()
	if got, err := whois(t.Context(), tka, bIP.String()); err != nil || !slices.Equal(got.Roles, []string{"x"}) {
		t.Errorf("WhoIs of the app grant: %+v %v", got, err)
	}
}
