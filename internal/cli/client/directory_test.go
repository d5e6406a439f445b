package client_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/httpapi"
)

const server = "https://tka.tail1234.ts.net"

// newCluster returns a cluster that is not excluded, with change applied.
func newCluster(name string, change ...func(*gossip.Cluster)) gossip.Cluster {
	c := gossip.Cluster{Name: name, ID: "id-" + name, URL: "https://tka-" + name + ".tail1234.ts.net", State: gossip.Alive, Verified: true, Key: httpapi.PublicKey{1}}
	for _, f := range change {
		f(&c)
	}
	return c
}

// address is how settings without servers resolve a URL.
func address(u string) (string, error) { return dialpolicy.ParseURL(u, true) }

func directoryOf(clusters ...gossip.Cluster) client.Directory {
	return client.NewDirectory(server, "own", clusters, address)
}

// Law 5, GO-03: for every possible entry, tka signs in only to a cluster that is verified, uncontested, available and in our tailnet.
func TestExclusions(t *testing.T) {
	states := append(gossip.States(), "", "ALIVE", "running")
	urls := map[string]bool{"https://tka-a.tail1234.ts.net": true, "https://evil.example": false, "": false}
	n := 0
	for _, state := range states {
		for _, verified := range []bool{true, false} {
			for _, conflict := range []bool{true, false} {
				for _, key := range []httpapi.PublicKey{{1}, {}} {
					for u, inTailnet := range urls {
						c := newCluster("a", func(c *gossip.Cluster) {
							c.State, c.Verified, c.Conflict, c.Key, c.URL = state, verified, conflict, key, u
						})
						d := directoryOf(c)
						want := verified && !conflict && !key.IsZero() && inTailnet && (state == gossip.Alive || state == gossip.Suspect)
						e, err := d.Resolve("a")
						switch {
						case (err == nil) != want:
							t.Errorf("(err == nil) != want; %+v, %+v, %v", c, e, err)
						case want && !slices.Equal(e.ServerURLs, []string{u}):
							t.Errorf("want && !slices.Equal(e.ServerURLs, []string{u}); %+v, %+v, %v", c, e, err)
						case (len(d.Names()) > 0) != want:
							t.Errorf("(len(d.Names()) > 0) != want; %+v, %+v, %v", c, e, err)
						}
						if f, ok := errors.AsType[*output.Error](err); !want && (!ok || len(f.Advice) == 0 || f.Code != output.ExitRefused && f.Code != output.ExitUnreachable) {
							t.Errorf("%+v: %v has no advice", c, err)
						}
						if want {
							n++
						}
					}
				}
			}
		}
	}
	if n != 2 {
		t.Errorf("%d clusters are certain, want 2: one alive, one suspect", n)
	}
}

// GO-07, signin.md 7.4: which hosts are in our tailnet.
func TestTailnetScope(t *testing.T) {
	for _, tt := range []struct {
		why, server, self, url string
		want                   bool
	}{
		{"a node of the tailnet", server, "", "https://tka-us.tail1234.ts.net", true},
		{"with a port", server, "", "https://tka-us.tail1234.ts.net:8443", true},
		{"in capitals, with a final dot", server, "", "https://TKA-US.Tail1234.ts.net.", true},
		{"an address of tailnets", server, "", "https://100.64.0.9", true},
		{"the other family", server, "", "https://[fd7a:115c:a1e0::9]", true},
		{"another tailnet", server, "", "https://tka-us.tail9999.ts.net", false},
		{"what all tailnets have in common", "https://tail1234.ts.net", "", "https://evil.ts.net", false},
		{"that, by a server that has it for a suffix", "https://tka.ts.net", "https://tka.ts.net", "https://evil.ts.net", false},
		{"a suffix without a dot between", server, "", "https://eviltail1234.ts.net", false},
		{"our suffix inside another", server, "", "https://tka.tail1234.ts.net.evil.example", false},
		{"elsewhere", server, "", "https://evil.example", false},
		{"a private address", server, "", "https://10.0.0.1", false},
		{"the metadata service", server, "", "https://169.254.169.254", false},
		{"one that lies in the tailnet's range", server, "", "https://100.100.100.200", false},
		{"this machine", server, "", "https://127.0.0.1", false},
		{"this machine, by a name", server, "", "https://localhost", false},
		{"this machine, told by it", "https://127.0.0.1:8443", "", "https://127.0.0.1:8444", true},
		{"this machine as IPv4 in IPv6", server, "", "https://[::ffff:127.0.0.1]", false},
		{"a single label", server, "", "https://tka-us", false},
		{"http, because the key of the record proves it", server, "", "http://tka-us.tail1234.ts.net", true},
		{"http elsewhere", server, "", "http://evil.example", false},
		{"a user", server, "", "https://a:b@tka-us.tail1234.ts.net", false},
		{"a path", server, "", "https://tka-us.tail1234.ts.net/x", false},
		{"a number for a name", server, "", "https://0x7f000001", false},
		{"a short name tells by what the server says of itself", "https://tka", "https://tka.tail1234.ts.net", "https://tka-us.tail1234.ts.net", true},
		{"and not otherwise", "https://tka", "", "https://tka-us.tail1234.ts.net", false},
		{"its address, too", "https://100.64.0.7", "https://tka.tail1234.ts.net", "https://tka-us.tail1234.ts.net", true},
		{"but a full name is not overruled", server, "https://tka.evil.example", "https://x.evil.example", false},
		{"a control server of one's own", "https://tka.net.example.com", "", "https://tka-us.net.example.com", true},
		{"with a domain of one label", "https://tka.example", "https://tka.example", "https://evil.example", false},
	} {
		list := []gossip.Cluster{newCluster("us", func(c *gossip.Cluster) { c.URL = tt.url })}
		if tt.self != "" {
			list = append(list, newCluster("own", func(c *gossip.Cluster) { c.URL, c.Self = tt.self, true }))
		}
		d := client.NewDirectory(tt.server, "own", list, address)
		if _, err := d.Resolve("us"); (err == nil) != tt.want {
			t.Errorf("%s: %s by %s: %v", tt.why, tt.url, tt.server, err)
		}
	}
}

// Choosing a cluster by a name or an id.
func TestResolve(t *testing.T) {
	other := func(c *gossip.Cluster) { c.ID, c.Key = "id-other", httpapi.PublicKey{2} }
	suspect := func(c *gossip.Cluster) { c.State, c.URL = gossip.Suspect, "https://second.tail1234.ts.net" }
	claim := func(c *gossip.Cluster) {
		c.Conflict, c.Verified, c.Key, c.URL = true, false, httpapi.PublicKey{9}, "https://evil.tail1234.ts.net"
	}
	for _, tt := range []struct {
		why  string
		list []gossip.Cluster
		name string
		id   string // of the chosen cluster
		code int
		word string
	}{
		{"by name", []gossip.Cluster{newCluster("a"), newCluster("b")}, "b", "id-b", 0, ""},
		{"by id", []gossip.Cluster{newCluster("a"), newCluster("b")}, "id-b", "id-b", 0, ""},
		{"none", []gossip.Cluster{newCluster("prod-us")}, "prod-su", "", output.ExitRefused, "Did you mean prod-us?"},
		{"an empty list", nil, "a", "", output.ExitRefused, "serves the cluster own, not a,"},
		{"two of a name", []gossip.Cluster{newCluster("a"), newCluster("a", other)}, "a", "", output.ExitUsage, "--cluster id-other   (a, by https://tka-a.tail1234.ts.net)"},
		{"two of a name, by id", []gossip.Cluster{newCluster("a"), newCluster("a", other)}, "id-other", "id-other", 0, ""},
		{"two of a name stay two when one is suspect", []gossip.Cluster{newCluster("a", suspect), newCluster("a", other)}, "a", "", output.ExitUsage, "several clusters"},
		{"a namesake of one that is dead", []gossip.Cluster{newCluster("a", func(c *gossip.Cluster) { c.State = gossip.Dead }), newCluster("a", other)}, "a", "", output.ExitUsage, "several clusters"},
		{"a namesake of one that has left", []gossip.Cluster{newCluster("a", func(c *gossip.Cluster) { c.State = gossip.Gone }), newCluster("a", other)}, "a", "", output.ExitUsage, "several clusters"},
		{"a namesake of one that nobody hears", []gossip.Cluster{newCluster("a", func(c *gossip.Cluster) { c.State = gossip.Unknown }), newCluster("a", other)}, "a", "", output.ExitUsage, "several clusters"},
		{"a name like the id of one that is dead", []gossip.Cluster{newCluster("a", func(c *gossip.Cluster) { c.State = gossip.Dead }), newCluster("id-a", other)}, "id-a", "", output.ExitUsage, "several clusters"},
		{"a name that is another's id", []gossip.Cluster{newCluster("a"), newCluster("id-a", other)}, "id-a", "", output.ExitUsage, "several clusters"},
		{"one id with two keys", []gossip.Cluster{newCluster("a"), newCluster("a", func(c *gossip.Cluster) { c.Key = httpapi.PublicKey{2} })}, "a", "", output.ExitUsage, "several clusters"},
		{"alive before suspect", []gossip.Cluster{newCluster("a", suspect), newCluster("a")}, "a", "id-a", 0, "https://tka-a"},
		{"suspect before alive elsewhere", []gossip.Cluster{newCluster("a", suspect), newCluster("a", func(c *gossip.Cluster) { c.URL = "https://evil.example" })}, "a", "id-a", 0, "https://second"},
		{"who contests a cluster does not hide it", []gossip.Cluster{newCluster("a", claim), newCluster("a")}, "a", "id-a", 0, "https://tka-a"},
		{"only a claim", []gossip.Cluster{newCluster("a", claim)}, "a", "", output.ExitRefused, "tka does not sign in to a: another server is known as this cluster"},
		{"a refusal is said before an absence", []gossip.Cluster{newCluster("a", func(c *gossip.Cluster) { c.State = gossip.Dead }), newCluster("a", claim)}, "a", "", output.ExitRefused, "another server"},
		{"a word of a shell for an id", []gossip.Cluster{newCluster("a", func(c *gossip.Cluster) { c.ID = "$(x)" }), newCluster("a", other)}, "a", "", output.ExitUsage, "--cluster '$(x)'"},
	} {
		for range 2 { // in any order of the entries
			e, err := directoryOf(tt.list...).Resolve(tt.name)
			text := fmt.Sprint(err, e.ServerURLs)
			if f, ok := errors.AsType[*output.Error](err); ok {
				text += strings.Join(f.Advice, "\n")
			}
			switch {
			case output.ExitCode(err) != tt.code:
				t.Errorf("%s: output.ExitCode(err) != tt.code, %q, %d, text = %s", tt.why, e.ID, output.ExitCode(err), text)
			case e.ID != tt.id:
				t.Errorf("%s: e.ID = %q, want %q", tt.why, e.ID, tt.id)
			case !strings.Contains(text, tt.word):
				t.Errorf("%s: text = %q does not contain %q", tt.why, text, tt.word)
			}
			slices.Reverse(tt.list)
		}
	}
	d := directoryOf(newCluster("a", claim), newCluster("a"), newCluster("b"))
	for _, e := range d.Entries {
		if want := e.Name == "a"; d.HasConflict(e) != want {
			t.Errorf("%s is contested: %v", e.Name, !want)
		}
	}
}

// The other servers of a cluster come after the one in its record.
func TestServerURLs(t *testing.T) {
	c := newCluster("a", func(c *gossip.Cluster) {
		c.URL += ":8443"
		for i, state := range []gossip.State{gossip.Alive, gossip.Suspect, gossip.Dead, gossip.Gone, gossip.Unknown} {
			c.Members = append(c.Members, gossip.ClusterMember{Host: fmt.Sprintf("m%d.tail1234.ts.net", i), State: state})
		}
		c.Members = append(c.Members, gossip.ClusterMember{Host: "evil.example", State: gossip.Alive}, gossip.ClusterMember{Host: "tka-a.tail1234.ts.net", State: gossip.Alive},
			gossip.ClusterMember{Host: "x@m9.tail1234.ts.net", State: gossip.Alive})
	})
	want := []string{"https://tka-a.tail1234.ts.net:8443", "https://m0.tail1234.ts.net:8443", "https://m1.tail1234.ts.net:8443"}
	if got := directoryOf(c).Entries[0].ServerURLs; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestFilter(t *testing.T) {
	in := func(state gossip.State, labels string) func(*gossip.Cluster) {
		return func(c *gossip.Cluster) {
			c.State, c.Labels = state, map[string]string{}
			for _, pair := range strings.Fields(labels) {
				k, v, _ := strings.Cut(pair, "=")
				c.Labels[k] = v
			}
		}
	}
	d := directoryOf(newCluster("a", in(gossip.Alive, "env=prod")), newCluster("b", in(gossip.Dead, "env=prod")), newCluster("c", in(gossip.Gone, "env=test")),
		newCluster("d", in(gossip.Unknown, "env=")), newCluster("e", in(gossip.Suspect, "x.example/tier=1 env=Test.1")))
	for _, tt := range []struct {
		selector string
		all      bool
		want     string
		hidden   int
	}{
		{"", false, "ade", 2}, {"", true, "abcde", 0}, {"env=prod", false, "a", 1}, {"env==prod", true, "ab", 0}, {"env!=prod", true, "cde", 0},
		{"env", true, "abcde", 0}, {"!x.example/tier", true, "abcd", 0}, {"env=,!none", true, "d", 0}, {"x.example/tier=1,env=Test.1", true, "e", 0},
		{"env=prod,env=test", true, "", 0}, {"none!=x", true, "abcde", 0}, {"env!=", true, "abce", 0},
	} {
		s, err := client.ParseSelector(tt.selector)
		if err != nil {
			t.Errorf("%q: %v", tt.selector, err)
		}
		shown, hidden := d.Filter(tt.all, s)
		got := ""
		for _, e := range shown {
			got += e.Name
		}
		if got != tt.want || hidden != tt.hidden {
			t.Errorf("%q, all %v: %q and %d hidden, want %q and %d", tt.selector, tt.all, got, hidden, tt.want, tt.hidden)
		}
	}
	for _, bad := range []string{",", "a=b,", "=x", "!", "!=x", "a b", "env in (a,b)", "a=b=c", "\x1b", "a=\x1b[2J", "A.example/x/y", strings.Repeat("a", 64)} {
		if s, err := client.ParseSelector(bad); err == nil {
			t.Errorf("%q is %+v", bad, s)
		}
	}
}
