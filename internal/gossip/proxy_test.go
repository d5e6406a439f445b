package gossip

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// withProxy returns the facts of a node whose API server has a private address, with a proxy.
func withProxy(n *simNode, proxy string) Facts {
	f := n.facts
	f.APIEndpoint, f.APIPort, f.Proxy = "https://10.0.0.1:6443", 6443, proxy
	return f
}

// TestProxies: the proxies that a record may announce (GO-07).
func TestProxies(t *testing.T) {
	own := newMergeEnv(t, Rules{}).s.nodes[0]
	_, tailnet, _ := strings.Cut(own.facts.Host, ".")
	for _, tt := range []struct {
		proxy string
		ok    bool
		why   string
	}{
		{"https://east-api." + tailnet, true, "a node of the tailnet"},
		{"https://east-api." + tailnet + ":8443", true, "another port"},
		{"https://k8s.prod.example", true, "a public name"},
		{"", false, "no proxy, and a private API server"},
		{"http://east-api." + tailnet, false, "not https"},
		{"https://east-api." + tailnet + "/s/other", false, "with a path"},
		{"https://user@east-api." + tailnet, false, "with a user"},
		{"https://a.b." + tailnet, false, "below a node"},
		{"https://" + tailnet, false, "the tailnet itself"},
		{"https://100.64.0.9", false, "an address"},
		{"https://localhost", false, "localhost"},
		{"https://east-api", false, "one label"},
	} {
		c := newMergeEnv(t, Rules{})
		a := c.s.nodes[0]
		ch := c.record(a, forge(t, withProxy(a, tt.proxy), Order{1, 1}, a.key))
		if got := ch.Entry != nil; got != tt.ok {
			t.Errorf("%s (%s): %+v", tt.proxy, tt.why, ch)
		}
		if tt.ok && !ch.Entry.Proxied {
			t.Errorf("%s: people are sent to the private address", tt.proxy)
		}
	}
}

// TestProxyOfAnother: no member announces the proxy, or the access server, of another cluster, now or after a restart (GO-07, law 6).
func TestProxyOfAnother(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b := c.s.nodes[0], c.s.nodes[1]
	_, tailnet, _ := strings.Cut(a.facts.Host, ".")
	proxy := "https://east-api." + tailnet
	if ch := c.record(a, forge(t, withProxy(a, proxy), Order{1, 1}, a.key)); !ch.Proxy || !c.verified(a) {
		t.Fatalf("the cluster's own proxy: %+v", ch)
	}
	refused := func(what string, ch Change, detail string) {
		t.Helper()
		if ch.Reason != Endpoint || !strings.Contains(ch.Detail, detail) {
			t.Errorf("%s: %+v, want %s and %q", what, ch, Endpoint, detail)
		}
	}
	refused("another's proxy", c.record(b, forge(t, withProxy(b, proxy), Order{1, 1}, b.key)), "is the proxy of the cluster "+a.facts.ClusterID)
	refused("another's proxy, at another port", c.record(b, forge(t, withProxy(b, "https://East-API."+tailnet+":8443"), Order{1, 2}, b.key)), "is the proxy of the cluster")
	refused("another's access server", c.record(b, forge(t, withProxy(b, "https://"+a.facts.Host), Order{1, 3}, b.key)), "is an access server of the cluster")

	stolen := withProxy(b, proxy) // b claims the cluster of a with its own key
	stolen.ClusterID = a.facts.ClusterID
	refused("another key", c.record(b, forge(t, stolen, Order{1, 4}, b.key)), "does not vouch")

	c.v = NewView(*c.v.rules, c.v.memory(0))
	refused("after a restart", c.record(b, forge(t, withProxy(b, proxy), Order{2, 1}, b.key)), "is the proxy of the cluster")
	if ch := c.record(a, forge(t, withProxy(a, "https://new-api."+tailnet), Order{2, 1}, a.key)); !ch.Proxy {
		t.Errorf("a cluster that renames its proxy: %+v", ch)
	}
	if ch := c.record(b, forge(t, withProxy(b, proxy), Order{2, 2}, b.key)); ch.Entry == nil {
		t.Errorf("a name that nobody has any more: %+v", ch)
	}
}

// TestProxyBesidePublicServer: no other member can take a cluster with a public API server off the list by announcing the name of its proxy first, and
// what such a cluster announces beside its API server claims no name (GO-07).
func TestProxyBesidePublicServer(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b := c.s.nodes[0], c.s.nodes[1]
	_, tailnet, _ := strings.Cut(a.facts.Host, ".")
	public := a.facts
	public.Proxy = "https://a-api." + tailnet
	if ch := c.record(b, forge(t, withProxy(b, public.Proxy), Order{1, 1}, b.key)); ch.Entry == nil {
		t.Fatalf("the rogue member: %+v", ch)
	}
	ch := c.record(a, forge(t, public, Order{1, 1}, a.key))
	if ch.Entry == nil || !c.verified(a) {
		t.Fatalf("the cluster with the public API server: %+v", ch)
	}
	if ch.Proxy || ch.Entry.Proxied {
		t.Errorf("it claims the name of the proxy: %+v", ch)
	}
}

// TestOwnProxy: a server keeps the name of its own proxy whoever announces it (GO-07).
func TestOwnProxy(t *testing.T) {
	c := newMergeEnv(t, Rules{Self: "nSELF", Key: httpapi.PublicKey{9}})
	a := c.s.nodes[0]
	_, tailnet, _ := strings.Cut(a.facts.Host, ".")
	proxy := "https://own-api." + tailnet
	c.v = c.v.withOwnPin(Facts{Node: "nSELF", ClusterID: "own", Key: httpapi.PublicKey{9}, Proxy: proxy})
	if ch := c.record(a, forge(t, withProxy(a, proxy), Order{1, 1}, a.key)); ch.Reason != Endpoint {
		t.Errorf("our proxy: %+v", ch)
	}
	if again := c.v.withOwnPin(Facts{Node: "nSELF", ClusterID: "own", Key: httpapi.PublicKey{9}, Proxy: proxy}); again != c.v {
		t.Error("the same facts change the view")
	}
}
