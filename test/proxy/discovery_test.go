package proxy

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// startProxyClusters starts two clusters with access proxies and private API servers in one tailnet. Their gossip.allowEndpoints is the
// default, so neither lists the address of the other's API server.
func startProxyClusters(t *testing.T) (east, west *testenv.Env) {
	t.Helper()
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	grants := strings.Replace(policy, `"grants": [`, `"grants": [{"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]},`, 1)
	for name, at := range map[string]**testenv.Env{"east": &east, "west": &west} {
		*at, err = testenv.Start(ctx, filepath.Join(dir, name), testenv.Options{ClusterName: name, Hostname: "tka-" + name, Beside: firstOf(east, west), Policy: grants,
			Settings: map[string]string{"api.limits": testenv.NoLimits, "access.modes": "[proxy]", "gossip.allowEndpoints": "[]"}})
		if err != nil {
			t.Fatal(err)
		}
		env := *at
		t.Cleanup(func() {
			if err := env.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := env.StartProxy(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return east, west
}

// firstOf returns the first environment that runs, or nil.
func firstOf(all ...*testenv.Env) *testenv.Env {
	for _, r := range all {
		if r != nil {
			return r
		}
	}
	return nil
}

// listed returns the clusters that the server of p lists, by name.
func listed(t *testing.T, p *testenv.Person) map[string]gossip.Cluster {
	t.Helper()
	var list struct{ Items []gossip.Cluster }
	if err := json.Unmarshal([]byte(run(t, p, 0, "tka", "clusters", "-o", "json").Stdout), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]gossip.Cluster{}
	for _, c := range list.Items {
		all[c.Name] = c
	}
	return all
}

// DSC-01, GO-07, PRX-02: two clusters in proxy mode find each other, although the address of each API server is private. A person who knows one
// of them signs in to the other by name, and kubectl uses the other's proxy. Another terminal and the first cluster see nothing of it.
func TestDSC01_ProxyClustersFindEachOther(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: this test needs two clusters")
	}
	east, west := startProxyClusters(t)
	people := map[*testenv.Env]*testenv.Person{}
	for r, host := range map[*testenv.Env]string{east: "alice-east", west: "alice-west"} {
		p, err := r.Person(t.Context(), host, "alice@example.com")
		if err != nil {
			t.Fatal(err)
		}
		for _, proxy := range []string{"east-api", "west-api"} {
			if err := r.Net.WaitPeer(t.Context(), p.Node, proxy); err != nil {
				t.Fatal(err)
			}
		}
		people[r] = p
	}
	for r, other := range map[*testenv.Env]string{east: "west", west: "east"} {
		until(t, r.Access.Output, func() bool { return listed(t, people[r])[other].State == gossip.Alive })
		c := listed(t, people[r])[other]
		if want := firstOf(map[string]*testenv.Env{"west": west, "east": east}[other]).ProxyServer(); c.APIEndpoint != want || c.APIPort != 443 {
			t.Errorf("%s is listed with the API server %s and port %d, want %s and 443", other, c.APIEndpoint, c.APIPort, want)
		}
		if !c.Verified {
			t.Errorf("%s is not verified: %+v", other, c)
		}
	}

	alice := people[east]
	run(t, alice, 0, "tka", "login", "--role", "view")
	run(t, alice, 0, "tka", "login", "--cluster", "west", "--role", "edit")
	if got := run(t, alice, 0, "kubectl", "--context", "tka-west-edit", "create", "configmap", "made-in-west"); !strings.Contains(got.Stdout, "created") {
		t.Errorf("create: %s", got.Both)
	}
	if got := run(t, alice, 1, "kubectl", "--context", "tka-east", "get", "configmap", "made-in-west"); !strings.Contains(got.Stderr, "not found") {
		t.Errorf("east has what was made in west: %s", got.Both)
	}
	other := people[west] // another device of the same person
	if got := run(t, other, 1, "kubectl", "--kubeconfig", alice.Kubeconfig(), "--context", "tka-west-edit", "get", "namespaces"); !strings.Contains(got.Stderr, "is not signed in to west") {
		t.Errorf("another terminal: %s", got.Both)
	}
	run(t, alice, 0, "tka", "logout", "--context", "tka-west-edit")
	run(t, alice, 0, "kubectl", "--context", "tka-east", "get", "namespaces")
}
