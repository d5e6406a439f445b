package gossip

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/attacktest"
)

// top is the largest order that a record may have.
var top = gossip.Order{Generation: 1<<53 - 1, Version: 1<<31 - 1}

// GO-01. Only a cluster itself can make statements about it, whichever server carries the message. Statements by
// others are counted and shown nowhere.
//
// Guard: gossip.(*View).checkPins, which checks the pins; and gossip.Open, which checks the signature.
func TestGO01_OnlyTheOwnerSpeaks(t *testing.T) {
	east, west := twoClusters(t)
	r := newRogue(t, east, "go01")
	r.introduce(t)
	evil := func(f gossip.Facts) gossip.Facts {
		f.APIEndpoint, f.Labels, f.CAHash = "https://evil.example:6443", map[string]string{"evil": "yes"}, "sha256:"+strings.Repeat("0", 64)
		return f
	}
	for _, at := range []struct {
		server *attacktest.Env
		victim string
	}{{east, "west"}, {west, "east"}} {
		node := nodeOf(t, at.server, at.victim)
		genuine := r.learn(t, at.server)[node]
		if genuine == nil {
			t.Fatal("the record was not relayed")
		}
		must := func(s gossip.Signed, err error) gossip.Signed {
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		spoilt := genuine.Signed
		spoilt.Payload = bytes.Replace(spoilt.Payload, []byte(`"env":"demo"`), []byte(`"env":"evil"`), 1)
		ours := evil(genuine.Facts) // at the rogue's own address
		ours.Host, ours.IPs, ours.URL = r.facts.Host, r.facts.IPs, r.facts.URL
		moved := evil(r.facts) // a record of the rogue's own cluster that names the victim's node
		moved.Node = genuine.Node
		handover := evil(genuine.Facts)
		handover.PrevKey, handover.PrevSig = genuine.Key, ed25519.Sign(r.key, gossip.RekeyMessage(genuine.ClusterID, r.facts.Key))
		before, _ := clusterOf(t, at.server, at.victim)
		pins := pinsOf(t, at.server)
		m := at.server.Mark(t)
		for _, tt := range []struct {
			name string
			why  gossip.Reason
			body string
		}{
			{"the greatest order", gossip.Binding, message(r.claim(), must(r.sealed(evil(genuine.Facts), top, gossip.Up)))},
			{"it has left", gossip.Binding, message(r.claim(), must(r.sealed(genuine.Facts, top, gossip.Left)))},
			{"at the rogue's address", gossip.Binding, message(r.claim(), must(r.sealed(ours, top, gossip.Up)))},
			{"of the rogue's cluster", gossip.Binding, message(r.claim(), must(r.sealed(moved, top, gossip.Up)))},
			{"a handover that the old key did not sign", gossip.Binding, message(r.claim(), must(r.sealed(handover, top, gossip.Up)))},
			{"version MaxUint64", gossip.Malformed, message(r.claim(), r.signed(strings.Replace(string(genuine.Signed.Payload), `"version":`, `"version":18446744073709551615,"was":`, 1)))},
			{"the greatest numbers in a digest", gossip.Heartbeat, message(fmt.Sprintf("[%q,%d,%d,%d]", node, genuine.Generation, uint64(1<<53-1), 1<<31-1))},
			// Last, because the server then backs off from the sender.
			{"other bytes under its signature", gossip.Signature, message(r.claim(), spoilt)},
		} {
			counted := rejectedBy(t, at.server, tt.why)
			r.taken(t, at.server, tt.body)
			if n := rejectedBy(t, at.server, tt.why); n <= counted {
				t.Errorf("%s of %s: not counted as %s", tt.name, at.victim, tt.why)
			}
			unmoved(t, at.server, tt.name, before)
		}
		r.forgiven(t, at.server)
		// The same as an answer to a request of the server.
		counted, asked := rejectedBy(t, at.server, gossip.Binding), r.count(&r.asked)
		r.says(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, message(r.claim(), must(r.sealed(evil(genuine.Facts), top, gossip.Up)), r.own()))
		})
		attacktest.Eventually(t, attacktest.Long, "the server sent a request and rejected the response", func() bool { return rejectedBy(t, at.server, gossip.Binding) > counted && r.count(&r.asked) > asked })
		r.says(nil)
		unmoved(t, at.server, "as an answer", before)
		for _, c := range clustersOf(t, at.server) {
			switch {
			case strings.Contains(c.APIEndpoint, "evil"):
				t.Errorf("listed: c.APIEndpoint = %q contains %q", c.APIEndpoint, "evil")
			case c.Labels["evil"] != "":
				t.Errorf(`listed: c.Labels["evil"] = %q, want none`, c.Labels["evil"])
			case c.Labels["env"] == "evil":
				t.Errorf(`listed: c.Labels["env"] = %q`, c.Labels["env"])
			case c.ID == before.ID && c.Key != before.Key:
				t.Errorf("listed: c.ID == before.ID && c.Key != before.Key; %+v", c)
			}
		}
		if now := pinsOf(t, at.server); !reflect.DeepEqual(now, pins) {
			t.Errorf("the pins are %v, and were %v", now, pins)
		}
		idleSince(t, m)
	}
	if res := shows(t, east, west.Server(), "clusters", "--all", "-o", "wide"); strings.Contains(res.Stdout, "evil") {
		t.Errorf("tka clusters: %s %s", res.Stdout, res.Stderr)
	}
}

// GO-02. An old record of a cluster never replaces a newer one, whoever sends it and to whichever server.
//
// Guard: gossip.(*View).compareEntries, with gossip.(Order).Compare.
func TestGO02_NothingOldComesBack(t *testing.T) {
	east, west := twoClusters(t)
	r := newRogue(t, east, "go02")
	r.introduce(t)
	node := nodeOf(t, east, "west")
	old := []*gossip.Record{r.learn(t, east)[node]}
	if err := west.Access.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	second.there = false
	left := func() bool { c, _ := clusterOf(t, east, "west"); return c.State == gossip.Gone }
	attacktest.Eventually(t, attacktest.Long, "west has left", left)
	old = append(old, r.learn(t, east)[node]) // its latest record
	if old[1].Status != gossip.Left {
		t.Fatalf("its last word is %+v", old[1])
	}
	west.Set("cluster.labels", "{tier: gold}")
	t.Cleanup(func() { west.Set("cluster.labels", "{env: demo}") })
	began := time.Now()
	east, west = twoClusters(t)
	fewer := func(s *attacktest.Env) bool {
		c, _ := clusterOf(t, s, "west")
		return c.State != gossip.Gone && c.Verified && maps.Equal(c.Labels, map[string]string{"tier": "gold"})
	}
	attacktest.Eventually(t, attacktest.Long, "west's new labels are there", func() bool {
		return fewer(east) && fewer(west) && aliveTo(t, east, "west") && aliveTo(t, west, "west")
	})
	t.Logf("new labels %v after the restart began", time.Since(began).Round(time.Millisecond))
	now := r.learn(t, east)[node]
	for _, record := range old {
		for _, s := range []*attacktest.Env{east, west} {
			counted := rejectedBy(t, east, gossip.Old)
			r.taken(t, s, message(fmt.Sprintf("[%q,%d,%d,%d]", node, record.Generation, uint64(1<<40), record.Version), record.Signed))
			if s == east && rejectedBy(t, east, gossip.Old) != counted+1 {
				t.Error("it is not counted as old")
			}
		}
	}
	r.says(func(w http.ResponseWriter, _ *http.Request) { // and in answer to every request
		io.WriteString(w, message(r.claim(), old[0].Signed, old[1].Signed, r.own()))
	})
	asked := r.count(&r.asked)
	attacktest.Eventually(t, attacktest.Long, "both have sent a request", func() bool { return r.count(&r.asked) >= asked+8 })
	for _, s := range []*attacktest.Env{east, west} {
		if !fewer(s) {
			c, _ := clusterOf(t, s, "west")
			t.Errorf("%s lists %+v", s.Server(), c)
		}
		if got := r.learn(t, s)[node]; !reflect.DeepEqual(got.Signed, now.Signed) {
			t.Errorf("%s relays %s, and the latest is %s", s.Server(), got.Signed.Payload, now.Signed.Payload)
		}
	}
}

// GO-03. A server that claims a cluster which is already known by another key is listed separately from the verified
// one. A claim without proof for its node is marked. People are sent to neither of them.
//
// Guard: gossip.(*View).checkPins and (*View).Verified, client.exclusionOf.
func TestGO03_TwoClaimOneCluster(t *testing.T) {
	east, west := twoClusters(t)
	of := func(s *attacktest.Env, name string) (c gossip.Cluster) {
		t.Helper()
		c, ok := clusterOf(t, s, name)
		if !ok {
			t.Fatalf("%s does not list %s", s.Server(), name)
		}
		return c
	}
	before := map[string]gossip.Cluster{"east": of(east, "east"), "west": of(east, "west")}
	m := east.Mark(t)
	refuses := func(r *rogueMember, cluster, why string) {
		t.Helper()
		for name, why := range map[string]string{cluster: why, r.facts.ClusterID + "x": "no cluster with that name"} {
			// Or that the other server is away.
			attacktest.Eventually(t, attacktest.Long, "tka login --cluster "+name+" is refused: "+why, func() bool {
				res := runTKA(t, east, "login", "--cluster", name)
				if res.Exit == 0 {
					t.Fatalf("tka login --cluster %s: %s %s", name, res.Stdout, res.Stderr)
				}
				return strings.Contains(res.Stderr, why)
			})
		}
		if n := r.count(&r.knocks); n > 0 {
			t.Errorf("tka knocked at %s %d times", r.facts.Host, n)
		}
	}

	for claimed, host := range map[string]string{"west": "go03", "east": "go03b"} {
		counted := rejectedBy(t, east, gossip.Binding)
		r := newRogue(t, east, host, func(r *rogueMember) { r.facts.ClusterID, r.facts.ClusterName = before[claimed].ID, "rival-of-"+claimed })
		r.taken(t, east, message(r.claim(), r.own()))
		c := of(east, "rival-of-"+claimed)
		switch {
		case !c.Conflict:
			t.Errorf("the rival is listed: c.Conflict is false; %+v", c)
		case c.Verified:
			t.Errorf("the rival is listed: c.Verified is true; %+v", c)
		case c.Self:
			t.Errorf("the rival is listed: c.Self is true; %+v", c)
		case c.ID != before[claimed].ID:
			t.Errorf("the rival is listed: c.ID = %q, want %q", c.ID, before[claimed].ID)
		case c.Key != r.facts.Key:
			t.Errorf("the rival is listed: c.Key = %v, want %v", c.Key, r.facts.Key)
		}
		unmoved(t, east, "with a rival", before[claimed])
		conflicts := func() []audit.Entry { return toldSince(t, m, gossip.EventConflict, string(r.id)) }
		attacktest.Eventually(t, attacktest.Long, "it is recorded", func() bool { return len(conflicts()) > 0 })
		if told := conflicts(); len(told) != 1 || told[0].Args["cluster"] != before[claimed].ID {
			t.Errorf("recorded: %+v", told)
		}
		if rejectedBy(t, east, gossip.Binding) <= counted {
			t.Error("it is not counted")
		}
		refuses(r, c.Name, "another server is known as this cluster")
		if pins := pinsOf(t, east); pins.Clusters[c.ID] != before[claimed].Key.String() || pins.Nodes[string(r.id)] != "" {
			t.Errorf("the pins are %v", pins)
		}
	}
	attacktest.Eventually(t, attacktest.Long, "people are shown both", func() bool {
		res := runTKA(t, east, "clusters", "-o", "wide")
		return res.Exit == 0 && strings.Count(res.Stdout, "conflict") == 2 && strings.Contains(res.Stderr, "tka does not sign in to rival-of-west")
	})

	// Hearsay: a record of a node that has sent none itself.
	silent, liar := newRogue(t, east, "go03c", mute), newRogue(t, east, "go03d")
	liar.introduce(t)
	said := silent.facts
	said.ClusterName = "hearsay"
	about, err := liar.sealed(said, gossip.Order{Generation: silent.order.Generation, Version: 1 << 20}, gossip.Up)
	if err != nil {
		t.Fatal(err)
	}
	liar.taken(t, east, message(liar.claim()+fmt.Sprintf(",[%q,%d,1,1]", silent.id, silent.order.Generation), about))
	switch c := of(east, "hearsay"); {
	case c.Verified:
		t.Errorf("hearsay is listed: c.Verified is true; %+v", c)
	case c.Conflict:
		t.Errorf("hearsay is listed: c.Conflict is true; %+v", c)
	case c.State == gossip.Alive:
		t.Errorf("hearsay is listed: c.State = %q", c.State)
	}
	refuses(silent, "hearsay", "has not contacted it yet")
	asked := silent.count(&silent.asked)
	attacktest.Eventually(t, attacktest.Long, "the node itself gets a request", func() bool { return silent.count(&silent.asked) > asked })
	if c := of(east, "hearsay"); c.Verified {
		t.Errorf("without a response of the node, the relayed record is listed as %+v", c)
	}
	silent.says(nil)
	attacktest.Eventually(t, attacktest.Long, "the node's own record is accepted, although its order is lower", func() bool { return aliveTo(t, east, "go03c") })
	if _, ok := clusterOf(t, east, "hearsay"); ok {
		t.Error("hearsay is still listed")
	}

	// Two valid clusters with the same name.
	control := west.Mark(t) // before the twin exists, because the servers query it without a request
	attacktest.Eventually(t, attacktest.Long, "tka login --cluster west, the control", func() bool {
		return runTKA(t, east, "login", "--cluster", "west", "--dry-run").Exit == 0 && len(control.Entries(t)) > 0
	})
	twin := newRogue(t, east, "go03e", func(r *rogueMember) { r.facts.ClusterName = "west" })
	twin.taken(t, east, message(twin.claim(), twin.record))
	refuses(twin, "west", "several clusters with the name west")
	idleSince(t, m)
}
