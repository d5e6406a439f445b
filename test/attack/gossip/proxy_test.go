package gossip

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/attacktest"
)

// proxyOfAnotherCluster is the part of GO-07 for access proxies: a server's own record cannot announce the access proxy
// of another cluster, or another access server as a proxy. Beside a public API server it claims nothing: the record is listed
// without the proxy. The cluster that has the proxy stays listed as it was.
func proxyOfAnotherCluster(t *testing.T) {
	east, west := twoClusters(t)
	suffix := "." + east.Net.Suffix()
	owner := newRogue(t, east, "go07-owner", func(r *rogueMember) {
		r.facts.APIEndpoint, r.facts.APIPort, r.facts.Proxy = "https://10.9.9.9:6443", 6443, "https://go07-owner-api"+suffix
	})
	for _, s := range owner.servers() {
		owner.taken(t, s, message(owner.claim(), owner.own()))
		attacktest.Eventually(t, attacktest.Long, s.Server()+" lists the proxy", func() bool { return aliveTo(t, s, "go07-owner") })
		if c, _ := clusterOf(t, s, "go07-owner"); c.APIEndpoint != owner.facts.Proxy || c.APIPort != 443 {
			t.Errorf("%s lists %+v, want the API server %s", s.Server(), c, owner.facts.Proxy)
		}
	}
	thief := newRogue(t, east, "go07-thief", mute)
	for what, edit := range map[string]func(*gossip.Facts){
		"the proxy of another":                     func(f *gossip.Facts) { f.Proxy = owner.facts.Proxy },
		"the proxy of another, in capitals":        func(f *gossip.Facts) { f.Proxy = strings.Replace(owner.facts.Proxy, "go07-owner", "GO07-Owner", 1) },
		"the proxy of another, at another port":    func(f *gossip.Facts) { f.Proxy = owner.facts.Proxy + ":6443" },
		"an access server":                         func(f *gossip.Facts) { f.Proxy = west.Server() },
		"an address":                               func(f *gossip.Facts) { f.Proxy = "https://" + owner.facts.IPs[0].String() },
		"the cluster of another, with another key": func(f *gossip.Facts) { f.Proxy, f.ClusterID = owner.facts.Proxy, owner.facts.ClusterID },
		"a name without a dot":                     func(f *gossip.Facts) { f.Proxy = "https://go07-api" },
	} {
		f := thief.facts
		f.APIEndpoint, f.APIPort = "https://10.9.9.9:6443", 6443
		edit(&f)
		record, err := thief.sealed(f, thief.next(), gossip.Up)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		counted := rejectedBy(t, east, gossip.Endpoint)
		thief.taken(t, east, message(`["`+string(thief.id)+`",1,1,1]`, record))
		if n := rejectedBy(t, east, gossip.Endpoint); n <= counted {
			t.Errorf("%s is not counted", what)
		}
		if c, ok := clusterOf(t, east, "go07-thief"); ok {
			t.Errorf("%s is listed: %+v", what, c)
		}
	}
	public := thief.facts
	public.Proxy = owner.facts.Proxy
	record, err := thief.sealed(public, thief.next(), gossip.Up)
	if err != nil {
		t.Fatal(err)
	}
	thief.taken(t, east, message(`["`+string(thief.id)+`",1,1,1]`, record))
	if c, ok := clusterOf(t, east, "go07-thief"); !ok {
		t.Error("a cluster with a public API server is not listed")
	} else if c.Proxy != "" || c.APIEndpoint != public.APIEndpoint {
		t.Errorf("beside a public API server: %+v, want no proxy", c)
	}
	c, _ := clusterOf(t, east, "go07-owner")
	if c.APIEndpoint != owner.facts.Proxy {
		t.Errorf("the owner is listed with %s, want %s", c.APIEndpoint, owner.facts.Proxy)
	}
	if !c.Verified || c.Conflict {
		t.Errorf("the owner is listed as %+v", c)
	}
}
