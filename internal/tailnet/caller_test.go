package tailnet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tailscale.com/client/local"
	"tailscale.com/client/tailscale/apitype"
	"tailscale.com/ipn"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

const testCap = tailcfg.PeerCapability("tailplane.dev/cap/access")

// person returns a complete WhoIs response for a person's device; tests remove parts of it.
func person() *apitype.WhoIsResponse {
	return &apitype.WhoIsResponse{
		Node:        &tailcfg.Node{ID: 7, StableID: "n7CNTRL", Name: "laptop.tiny.ts.net.", User: 3},
		UserProfile: &tailcfg.UserProfile{ID: 3, LoginName: "alice@example.com", DisplayName: "Alice A."},
		CapMap:      tailcfg.PeerCapMap{testCap: {`{"role":"view","period":"8h"}`}},
	}
}

func tagged() *apitype.WhoIsResponse {
	who := person()
	who.Node.Name, who.Node.Tags = "ci.tiny.ts.net.", []string{"tag:ci", "tag:build"}
	who.UserProfile = &tailcfg.UserProfile{ID: 1 << 40, LoginName: taggedDevices, DisplayName: "Tagged Devices"}
	return who
}

func rules(rs ...string) []json.RawMessage {
	out := []json.RawMessage{}
	for _, r := range rs {
		out = append(out, json.RawMessage(r))
	}
	return out
}

// ID-02, ID-03, ID-13: The caller of a response. An incomplete response has no caller.
func TestCallerOf(t *testing.T) {
	alice := access.Caller{
		Login: "alice@example.com", DisplayName: "Alice A.", UserID: "3", Device: access.Device{ID: "n7CNTRL", Name: "laptop.tiny.ts.net"},
		Tailnet: "example.com", Via: access.ViaTailnet, Rules: rules(`{"role":"view","period":"8h"}`),
	}
	with := func(f func(*access.Caller)) access.Caller { c := alice; f(&c); return c }
	ci := with(func(c *access.Caller) {
		c.Login, c.UserID, c.Tags = "", "", []access.Tag{"tag:ci", "tag:build"}
		c.Device.Name, c.DisplayName = "ci.tiny.ts.net", "ci.tiny.ts.net"
	})
	for _, tt := range []struct {
		why  string
		who  func() *apitype.WhoIsResponse
		want access.Caller
		err  string // part of the error; "": no error
	}{
		{"a person", person, alice, ""},
		{"a tagged node is itself, never the shared profile", tagged, ci, ""},
		{"a tagged node with a person's profile still has no person", func() *apitype.WhoIsResponse {
			who := tagged()
			who.UserProfile = person().UserProfile
			return who
		}, ci, ""},
		{"an expired node", func() *apitype.WhoIsResponse { who := person(); who.Node.Expired = true; return who },
			with(func(c *access.Caller) { c.Expired = true }), ""},
		{"a node without routes", func() *apitype.WhoIsResponse {
			who := person()
			who.Node.Addresses = []netip.Prefix{netip.MustParsePrefix("100.64.0.7/32"), netip.MustParsePrefix("fd7a:115c:a1e0::7/128")}
			who.Node.AllowedIPs = slices.Clone(who.Node.Addresses)
			return who
		}, alice, ""},
		{"a subnet router", func() *apitype.WhoIsResponse {
			who := person()
			who.Node.Addresses = []netip.Prefix{netip.MustParsePrefix("100.64.0.7/32")}
			who.Node.AllowedIPs = []netip.Prefix{netip.MustParsePrefix("100.64.0.7/32"), netip.MustParsePrefix("10.0.0.0/8")}
			return who
		}, with(func(c *access.Caller) { c.Router = true }), ""},
		{"a device of another tailnet's user", func() *apitype.WhoIsResponse {
			who := person()
			who.Node.Hostinfo = (&tailcfg.Hostinfo{ShareeNode: true}).View()
			return who
		}, with(func(c *access.Caller) { c.Shared = true }), ""},
		{"a machine that another tailnet shared with ours", func() *apitype.WhoIsResponse { who := person(); who.Node.Sharer = 9; return who },
			with(func(c *access.Caller) { c.Shared = true }), ""},
		{"a shared device may have no name; its id is one", func() *apitype.WhoIsResponse {
			who := person()
			who.Node.Name, who.Node.Sharer = "", 9
			return who
		}, with(func(c *access.Caller) { c.Shared, c.Device.Name = true, "n7CNTRL" }), ""},
		{"a node of Funnel", func() *apitype.WhoIsResponse { who := person(); who.Node.UnsignedPeerAPIOnly = true; return who },
			with(func(c *access.Caller) { c.Via = access.ViaFunnel }), ""},
		{"no grant", func() *apitype.WhoIsResponse { who := person(); who.CapMap = nil; return who },
			with(func(c *access.Caller) { c.Rules = rules() }), ""},
		{"a grant without values", func() *apitype.WhoIsResponse { who := person(); who.CapMap[testCap] = nil; return who },
			with(func(c *access.Caller) { c.Rules = rules() }), ""},
		{"another capability, another case, a slash more (ID-04)", func() *apitype.WhoIsResponse {
			who := person()
			r := who.CapMap[testCap]
			who.CapMap = tailcfg.PeerCapMap{"example.com/cap/access": r, "tailplane.dev/cap/Access": r, testCap + "/": r, testCap + " ": r}
			return who
		}, with(func(c *access.Caller) { c.Rules = rules() }), ""},
		{"rules word for word: case, repeated keys, odd numbers, nonsense (ID-05)", func() *apitype.WhoIsResponse {
			who := person()
			who.CapMap[testCap] = []tailcfg.RawMessage{"{\n\t\"Role\": \"a b\",\n\t\"role\": 1e0, \"role\": null}", "null", "[]", "{"}
			return who
		}, with(func(c *access.Caller) { c.Rules = rules(`{"Role":"a b","role":1e0,"role":null}`, "null", "[]", "{") }), ""},
		{"logins are never cut", func() *apitype.WhoIsResponse { who := person(); who.UserProfile.LoginName = "alice@github"; return who },
			with(func(c *access.Caller) { c.Login = "alice@github" }), ""},

		{"nothing", func() *apitype.WhoIsResponse { return nil }, access.Caller{}, "an empty answer"},
		{"no node", func() *apitype.WhoIsResponse { who := person(); who.Node = nil; return who }, access.Caller{}, "without a node"},
		{"no profile", func() *apitype.WhoIsResponse { who := person(); who.UserProfile = nil; return who }, access.Caller{}, "without a user profile"},
		{"no profile of a tagged node", func() *apitype.WhoIsResponse { who := tagged(); who.UserProfile = nil; return who }, access.Caller{}, "without a user profile"},
		{"no stable id", func() *apitype.WhoIsResponse { who := person(); who.Node.StableID = ""; return who }, access.Caller{}, "stable id"},
		{"no login", func() *apitype.WhoIsResponse { who := person(); who.UserProfile.LoginName = ""; return who }, access.Caller{}, "login is empty"},
		{"two @", func() *apitype.WhoIsResponse {
			who := person()
			who.UserProfile.LoginName = "x@a.com@b.com"
			return who
		}, access.Caller{}, "more than one @"},
		{"a control character", func() *apitype.WhoIsResponse {
			who := person()
			who.UserProfile.LoginName = "alice\n@example.com"
			return who
		}, access.Caller{}, "U+000A"},
		{"an invisible one", func() *apitype.WhoIsResponse {
			who := person()
			who.UserProfile.LoginName = "alice\u200b@example.com"
			return who
		}, access.Caller{}, "U+200B"},
		{"300 characters", func() *apitype.WhoIsResponse {
			who := person()
			who.UserProfile.LoginName = strings.Repeat("a", 300) + "@example.com"
			return who
		}, access.Caller{}, "bytes"},
		{"the shared profile without tags", func() *apitype.WhoIsResponse { who := tagged(); who.Node.Tags = nil; return who }, access.Caller{}, "profile of tagged nodes"},
		{"a tagged node without a name", func() *apitype.WhoIsResponse { who := tagged(); who.Node.Name = "."; return who }, access.Caller{}, "without a name"},
		{"a tag that is none", func() *apitype.WhoIsResponse { who := tagged(); who.Node.Tags = []string{""}; return who }, access.Caller{}, "tag"},
	} {
		got, err := callerOf(tt.who(), testCap, "example.com")
		switch {
		case tt.err == "" && err != nil:
			t.Errorf("%s: %v", tt.why, err)
		case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
			t.Errorf("%s: error %v, want %q", tt.why, err, tt.err)
		case !reflect.DeepEqual(got, tt.want):
			t.Errorf("%s:\n got %+v\nwant %+v", tt.why, got, tt.want)
		}
	}
}

// aRunningNode returns a node whose backend answers WhoIs with ask.
func aRunningNode(t testing.TB, ask func(context.Context, string) (*apitype.WhoIsResponse, error)) *Node {
	n, err := New(goodConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	n.publish(&Status{State: ipn.Running.String(), Names: []string{"tka.tiny.ts.net"}, Tailnet: "example.com"})
	n.queryWhoIs = func(ctx context.Context, addr string, _ tailcfg.ServiceName) (*apitype.WhoIsResponse, error) {
		return ask(ctx, addr)
	}
	n.queryStatus = func(context.Context) (*ipnstate.Status, error) {
		return &ipnstate.Status{BackendState: ipn.Running.String()}, nil
	}
	return n
}

func aRequest(n *Node, c net.Conn) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api/v1alpha1/whoami", nil)
	r.RemoteAddr = "100.64.0.7:4242"
	return r.WithContext(n.ConnContext(r.Context(), c))
}

// ID-02: Missing data is never filled in, nothing is cached, and the node recovers without a
// restart.
func TestIdentifyRefusals(t *testing.T) {
	var answer *apitype.WhoIsResponse
	var fails error
	requested := 0
	n := aRunningNode(t, func(_ context.Context, addr string) (*apitype.WhoIsResponse, error) {
		if requested++; addr != "100.64.0.7:4242" {
			t.Errorf("query for %q", addr)
		}
		return answer, fails
	})
	want := func(why string, code problem.Code) {
		t.Helper()
		c, err := n.Identify(aRequest(n, nil))
		if problem.CodeOf(err) != code {
			t.Fatalf("%s: %v (code %s), want %s", why, err, problem.CodeOf(err), code)
		}
		if err == nil {
			return
		}
		if p := problem.From(err); p.Cause() == nil || p.Code == problem.IdentityUnavailable && p.RetryAfter == 0 {
			t.Errorf("%s: %+v has no cause or no Retry-After", why, p)
		}
		if !reflect.DeepEqual(c, access.Caller{}) {
			t.Errorf("%s: a caller nonetheless: %+v", why, c)
		}
	}
	answer = person()
	want("well", "")
	fails = local.ErrPeerNotFound
	want("unknown peer", problem.NoIdentity)
	fails = errors.New("backend on fire")
	want("failure", problem.IdentityUnavailable)
	fails = nil
	want("recovered", "")
	for why, hollow := range map[string]*apitype.WhoIsResponse{
		"nothing": nil, "no node": {UserProfile: answer.UserProfile}, "no profile": {Node: answer.Node},
	} {
		answer = hollow
		want(why, problem.NoIdentity)
	}
	before := requested
	answer = person()
	n.publish(&Status{State: ipn.NeedsLogin.String()})
	want("not running", problem.IdentityUnavailable)
	if requested != before {
		t.Error("a node that is not Running got a query")
	}
	n.publish(&Status{State: ipn.Running.String()})
	want("running again", "")

	r := aRequest(n, nil)
	if _, err := n.Identify(r.WithContext(context.Background())); problem.CodeOf(err) != problem.Internal {
		t.Errorf("a server without ConnContext: %v", err)
	}
}

// ID-02: A hanging WhoIs query ends after two seconds.
func TestIdentifyTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := aRunningNode(t, func(ctx context.Context, _ string) (*apitype.WhoIsResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		begin := time.Now()
		_, err := n.Identify(aRequest(n, nil))
		if took := time.Since(begin); took != whoIsLimit || problem.CodeOf(err) != problem.IdentityUnavailable {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// ID-01: A request from the public internet is detected before any WhoIs query. This works at any
// depth of connection wrappers and for any value of the header.
func TestIdentifyFunnel(t *testing.T) {
	requested := false
	n := aRunningNode(t, func(context.Context, string) (*apitype.WhoIsResponse, error) {
		requested = true
		return person(), nil
	})
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	funnel := &ipn.FunnelConn{Conn: a}
	for why, c := range map[string]net.Conn{
		"plain": funnel, "TLS": tls.Server(funnel, &tls.Config{}), "TLS in TLS": tls.Server(tls.Server(funnel, &tls.Config{}), &tls.Config{}),
	} {
		got, err := n.Identify(aRequest(n, c))
		switch {
		case err != nil:
			t.Errorf("%s: %v", why, err)
		case requested:
			t.Errorf("%s: requested is true, got = %+v, %v, requested = %v", why, got, err, requested)
		case problem.CodeOf(access.Admit(got)) != problem.FunnelRefused:
			t.Errorf("%s: problem.CodeOf(access.Admit(got)) != problem.FunnelRefused, got = %+v, %v, requested = %v",
				why, got, err, requested)
		}
	}
	for _, value := range []string{"?1", "", "0", "false"} {
		r := aRequest(n, a)
		r.Header.Set("tailscale-funnel-request", value)
		got, err := n.Identify(r)
		switch {
		case err != nil:
			t.Errorf("header: %v; value = %q", err, value)
		case requested:
			t.Errorf("header: requested is true; value = %q, got = %+v, %v, requested = %v", value, got, err, requested)
		case problem.CodeOf(access.Admit(got)) != problem.FunnelRefused:
			t.Errorf("header: problem.CodeOf(access.Admit(got)) != problem.FunnelRefused; value = %q, got = %+v, %v, requested = %v",
				value, got, err, requested)
		}
	}
	switch got, err := n.Identify(aRequest(n, tls.Server(a, &tls.Config{}))); {
	case err != nil:
		t.Errorf("not Funnel: %v", err)
	case !requested:
		t.Errorf("not Funnel: requested is false; got = %+v, %v", got, err)
	case access.Admit(got) != nil:
		t.Errorf("not Funnel: access.Admit(got) is not nil; got = %+v, %v", got, err)
	}
}

// ID-07: No header identifies a caller or changes the address of the WhoIs query.
func TestIdentifyReadsNoHeader(t *testing.T) {
	n := aRunningNode(t, func(_ context.Context, addr string) (*apitype.WhoIsResponse, error) {
		if addr != "100.64.0.7:4242" {
			t.Errorf("query for %q", addr)
		}
		return person(), nil
	})
	plain, err := n.Identify(aRequest(n, nil))
	if err != nil {
		t.Fatal(err)
	}
	r := aRequest(n, nil)
	for _, name := range []string{
		"X-Remote-User", "X-Remote-Group", "X-Remote-Extra-Scopes", "Tailscale-User-Login", "Tailscale-User-Name", "Tailscale-App-Capabilities",
		"X-Tailscale-User", "X-Webauth-User", "X-Forwarded-For", "X-Forwarded-User", "Forwarded", "X-Real-Ip", "Impersonate-User", "Tailscale_User_Login",
	} {
		r.Header[name] = []string{"mallory@example.com", "100.64.0.9"}
	}
	forged, err := n.Identify(r)
	if err != nil || !reflect.DeepEqual(plain, forged) {
		t.Errorf("headers changed the caller: %+v %v", forged, err)
	}
}
