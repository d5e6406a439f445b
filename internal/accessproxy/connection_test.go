package accessproxy_test

import (
	"context"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

// noAPI is an API server to which no test of this folder connects.
func noAPI() *proxytest.API {
	return &proxytest.API{URL: &url.URL{Scheme: "https", Host: "127.0.0.1:1"}, Roots: x509.NewCertPool()}
}

func newFront(t *testing.T) *proxytest.Front {
	f := proxytest.New(t, noAPI(), time.Now)
	f.Tailnet.Set("127.0.0.2", proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule))
	return f
}

// connect returns a request of a new connection from an address.
func connect(f *proxytest.Front, from string) *http.Request {
	r := httptest.NewRequest("GET", "/api", nil)
	r.RemoteAddr = from + ":1234"
	client, server := net.Pipe()
	client.Close()
	return f.Proxy.Connect(server, r)
}

// The tailnet is asked once for a connection, again after each change of the tailnet, and again after 30 s.
func TestIdentityOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t)
		r := connect(f, "127.0.0.2")
		queries := 0
		step := func(what string, asked int, login access.Login, code problem.Code) {
			t.Helper()
			c, permit, err := f.Proxy.IdentifyCaller(r)
			if got := f.Tailnet.Queries() - queries; got != asked {
				t.Errorf("%s: %d queries, want %d", what, got, asked)
			}
			queries = f.Tailnet.Queries()
			if c.Login != login || problem.CodeOf(err) != code {
				t.Errorf("%s: %q, %q, want %q, %q", what, c.Login, problem.CodeOf(err), login, code)
			}
			if (permit.Require(access.APIRequest, time.Now()) == nil) != (code == "") {
				t.Errorf("%s: the permit does not fit", what)
			}
		}
		step("first", 1, "alice@example.com", "")
		step("second", 0, "alice@example.com", "")
		f.Tailnet.Set("127.0.0.2", proxytest.Person("carol@example.com", "alice-laptop", proxytest.ViewRule))
		step("another owner", 1, "carol@example.com", "")
		f.Tailnet.Set("127.0.0.9", proxytest.Person("bob@example.com", "bob-laptop"))
		step("a change of another node", 1, "carol@example.com", "")
		f.Tailnet.SetSilently("127.0.0.2", proxytest.Person("carol@example.com", "alice-laptop"))
		time.Sleep(accessproxy.MaxIdentityAge - time.Second)
		step("after 29 s", 0, "carol@example.com", "")
		time.Sleep(time.Second)
		step("after 30 s", 1, "carol@example.com", problem.NoCapability)
		step("a known refusal is cheap", 0, "carol@example.com", problem.NoCapability)
		f.Tailnet.Remove("127.0.0.2")
		step("removed", 1, "", problem.NoIdentity)
		f.Tailnet.SetDown(true)
		step("still known", 0, "", problem.NoIdentity)
		time.Sleep(accessproxy.MaxIdentityAge)
		step("unavailable", 1, "", problem.IdentityUnavailable)
		step("unavailable is asked again", 1, "", problem.IdentityUnavailable)
		f.Tailnet.SetDown(false)
		f.Tailnet.Set("127.0.0.2", proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule))
		step("back", 1, "alice@example.com", "")
	})
}

// A change during a query is not missed.
func TestChangeDuringAQuery(t *testing.T) {
	f := newFront(t)
	r := connect(f, "127.0.0.2")
	f.Tailnet.During(func() {
		f.Tailnet.During(nil)
		f.Tailnet.Set("127.0.0.2", proxytest.Person("alice@example.com", "alice-laptop"))
	})
	if _, _, err := f.Proxy.IdentifyCaller(r); err != nil {
		t.Fatalf("the first query: %v", err)
	}
	if _, _, err := f.Proxy.IdentifyCaller(r); problem.CodeOf(err) != problem.NoCapability {
		t.Errorf("the second query: %v, want %s", err, problem.NoCapability)
	}
}

// Each connection has an identity of its own, and a request without the hook has none.
func TestConnectionsAreSeparate(t *testing.T) {
	f := newFront(t)
	f.Tailnet.Set("127.0.0.3", proxytest.Person("bob@example.com", "bob-laptop", proxytest.ViewRule))
	alice, bob := connect(f, "127.0.0.2"), connect(f, "127.0.0.3")
	for range 3 {
		for r, want := range map[*http.Request]access.Login{alice: "alice@example.com", bob: "bob@example.com"} {
			if c, _, err := f.Proxy.IdentifyCaller(r); err != nil || c.Login != want {
				t.Errorf("%q, %v, want %q", c.Login, err, want)
			}
		}
	}
	if _, _, err := f.Proxy.IdentifyCaller(httptest.NewRequestWithContext(context.Background(), "GET", "/api", nil)); problem.CodeOf(err) != problem.Internal {
		t.Errorf("without the hook: %v, want %s", err, problem.Internal)
	}
}

// A person's node with routes is refused. A tagged one is not, if a grant admits it.
func TestRouters(t *testing.T) {
	f := newFront(t)
	c := proxytest.Person("alice@example.com", "alice-laptop", proxytest.ViewRule)
	c.Router = true
	f.Tailnet.Set("127.0.0.2", c)
	if _, _, err := f.Proxy.IdentifyCaller(connect(f, "127.0.0.2")); problem.CodeOf(err) != problem.SubnetRouter {
		t.Errorf("a person's router: %v, want %s", err, problem.SubnetRouter)
	}
	for rule, code := range map[string]problem.Code{proxytest.ViewRule: problem.TaggedNode, `{"role": "view", "period": "8h", "allowTagged": true}`: ""} {
		c := proxytest.Person("", "router", rule)
		c.UserID, c.Tags, c.Router = "", []access.Tag{"tag:router"}, true
		f.Tailnet.Set("127.0.0.2", c)
		if _, _, err := f.Proxy.IdentifyCaller(connect(f, "127.0.0.2")); problem.CodeOf(err) != code {
			t.Errorf("a tagged router with %s: %v, want %q", rule, err, code)
		}
	}
}
