package gossip

import (
	"crypto/ed25519"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// believed returns all visible state of a view, as text.
func (v *View) believed() string {
	var b strings.Builder
	for _, node := range slices.Sorted(maps.Keys(maps.Collect(v.entries.All()))) {
		e, _ := v.entries.Get(node)
		fmt.Fprintf(&b, "%s %v firsthand=%t conflict=%t verified=%t %x\n", node, e.Order, e.FirstHand, e.Conflict, v.Verified(e), e.Signed.Signature[:4])
	}
	m := v.memory(0)
	fmt.Fprint(&b, m.Nodes, m.Clusters, v.tombs.Len())
	return b.String()
}

// TestMergeIsAJoin: the view is the same for every order, repetition and grouping of messages (DSC-13). The messages contain honest records
// first and second hand, old ones, replays, forgeries, tombstoned and unknown nodes.
func TestMergeIsAJoin(t *testing.T) {
	seeds := uint64(12)
	if *long {
		seeds = 2000
	}
	now := simEpoch
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 9))
		s := newSim(t, seed, 6, Settings{})
		buried := s.nodes[5]
		// A forgery about a node that was never met may displace hearsay until the node itself sends a record. So in seeds with forgeries,
		// all nodes were met before.
		memory, forgeries := Memory{Nodes: map[string]string{}, Clusters: map[string]httpapi.PublicKey{}}, seed%2 == 0
		for _, n := range s.nodes {
			if forgeries {
				memory.Nodes[n.facts.Node], memory.Clusters[n.facts.ClusterID] = n.facts.ClusterID, n.facts.Key
			}
		}
		start := NewView(Rules{Self: "nSELF", Key: httpapi.PublicKey{9}, Settings: Settings{MaxMembers: 100}}, memory)
		start = Forget(func() *View {
			r, _ := Open(forge(t, buried.facts, Order{47, 1}, buried.key))
			v, _ := Merge(start, Delivery{buried.facts.Node, []*Record{r}, s.netmap}, now)
			return v
		}(), []string{buried.facts.Node}, now)
		var deliveries []Delivery
		for range 8 {
			d := Delivery{From: s.nodes[rng.IntN(6)].facts.Node, Netmap: s.netmap}
			for range 1 + rng.IntN(4) {
				n := s.nodes[rng.IntN(6)]
				f, key := n.facts, n.key
				o := Order{uint64(47 + rng.IntN(4)), uint64(1 + rng.IntN(2))}
				f.Labels = map[string]string{"o": fmt.Sprint(o.Generation, ".", o.Version)}
				switch rng.IntN(8) {
				case 0: // with another node's key, as hearsay
					if d.From == f.Node || !forgeries {
						continue
					}
					key = s.nodes[(n.index+1)%6].key
					f.ClusterID = "forged-" + f.ClusterID
					o.Generation += 1000
				case 1:
					f.Node = "nUNKNOWN"
				case 2:
					f.APIEndpoint = "https://127.0.0.1:6443"
				}
				r, err := Open(forge(t, f, o, key))
				if err != nil {
					t.Fatal(err)
				}
				d.Records = append(d.Records, r)
			}
			deliveries = append(deliveries, d)
		}
		// Every node is met directly at some time, so the order of first contact decides nothing.
		for _, n := range s.nodes {
			f := n.facts
			f.Labels = map[string]string{"o": "48.1"}
			r, _ := Open(forge(t, f, Order{48, 1}, n.key))
			deliveries = append(deliveries, Delivery{n.facts.Node, []*Record{r}, s.netmap})
		}
		merge := func(v *View, ds ...Delivery) *View {
			for _, d := range ds {
				before := v.believed()
				next, _ := Merge(v, d, now)
				if v.believed() != before {
					t.Fatalf("seed %d: Merge changed its input", seed)
				}
				if again, changes := Merge(next, d, now); again.believed() != next.believed() {
					t.Fatalf("seed %d: a message twice changes %+v", seed, changes)
				}
				v = next
			}
			return v
		}
		want := merge(start, deliveries...).believed()
		for range 6 {
			shuffled := slices.Clone(deliveries)
			rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			if got := merge(start, shuffled...).believed(); got != want {
				t.Fatalf("seed %d: another order gives\n%s\nand not\n%s", seed, got, want)
			}
		}
		var split []Delivery // one record at a time
		for _, d := range deliveries {
			for _, r := range d.Records {
				split = append(split, Delivery{d.From, []*Record{r}, d.Netmap})
			}
		}
		if got := merge(start, split...).believed(); got != want {
			t.Fatalf("seed %d: one at a time gives\n%s\nand not\n%s", seed, got, want)
		}
	}
}

// A mergeEnv is a view and records to merge into it.
type mergeEnv struct {
	t *testing.T
	s *sim
	v *View
}

func newMergeEnv(t *testing.T, rules Rules) *mergeEnv {
	rules.Self, rules.Key, rules.MaxMembers = "nSELF", httpapi.PublicKey{9}, 100
	return &mergeEnv{t, newSim(t, 1, 4, Settings{}), NewView(rules, Memory{})}
}

// record merges a record from a node and returns the change.
func (c *mergeEnv) record(from *simNode, s Signed) Change {
	c.t.Helper()
	r, err := Open(s)
	if err != nil {
		c.t.Fatal(err)
	}
	v, changes := Merge(c.v, Delivery{from.facts.Node, []*Record{r}, c.s.netmap}, simEpoch)
	c.v = v
	if len(changes) == 0 {
		return Change{}
	}
	return changes[0]
}

func (c *mergeEnv) verified(n *simNode) bool {
	e, ok := c.v.entries.Get(n.facts.Node)
	return ok && c.v.Verified(e)
}

// TestBinding: which records have authority (DSC-10, GO-01, GO-03).
func TestBinding(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b := c.s.nodes[0], c.s.nodes[1]
	switch ch := c.record(b, forge(t, a.facts, Order{1, 1}, a.key)); {
	case ch.Entry == nil:
		t.Fatal("hearsay of a node that was not met: ch.Entry is nil")
	case ch.Pinned:
		t.Fatalf("hearsay of a node that was not met: ch.Pinned is true; %+v", ch)
	case c.verified(a):
		t.Fatalf("hearsay of a node that was not met: c.verified(a) is true; %+v", ch)
	}
	if ch := c.record(a, forge(t, a.facts, Order{1, 1}, a.key)); !ch.Pinned || !c.verified(a) {
		t.Fatalf("from the node itself: %+v", ch)
	}
	if ch := c.record(b, forge(t, a.facts, Order{1, 2}, a.key)); ch.Entry == nil || !c.verified(a) {
		t.Fatalf("hearsay that fits the pins: %+v", ch)
	}
	if ch := c.record(b, forge(t, a.facts, Order{9, 9}, b.key)); ch.Entry != nil || ch.Reason != Binding {
		t.Fatalf("hearsay by another key: %+v", ch)
	}
	stolen := a.facts
	stolen.ClusterID = "another"
	if ch := c.record(b, forge(t, stolen, Order{9, 9}, a.key)); ch.Entry != nil {
		t.Fatalf("hearsay of another cluster: %+v", ch)
	}
	// The key is lost: the node itself sends a record with another key. It is listed but not trusted.
	switch ch := c.record(a, forge(t, a.facts, Order{9, 9}, b.key)); {
	case ch.Entry == nil:
		t.Fatal("another key, from the node itself: ch.Entry is nil")
	case !ch.Entry.Conflict:
		t.Fatalf("another key, from the node itself: ch.Entry.Conflict is false; %+v", ch)
	case c.verified(a):
		t.Fatalf("another key, from the node itself: c.verified(a) is true; %+v", ch)
	}
	if ch := c.record(b, forge(t, a.facts, Order{1, 3}, a.key)); ch.Entry != nil {
		t.Fatalf("a replayed old record replaces the node's record: %+v", ch)
	}
	// A restart does not forget.
	again := NewView(*c.v.rules, c.v.memory(0))
	c.v = again
	if ch := c.record(b, forge(t, a.facts, Order{1, 1}, a.key)); ch.Entry == nil || !c.verified(a) {
		t.Fatalf("after a restart: %+v", ch)
	}
	if ch := c.record(b, forge(t, a.facts, Order{9, 9}, b.key)); ch.Entry != nil {
		t.Fatalf("after a restart, by another key: %+v", ch)
	}
}

// TestForgeryBeforeContact: a forgery about a node that was not met ends when the node itself sends a record, whatever the order of the
// forgery is.
func TestForgeryBeforeContact(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b := c.s.nodes[0], c.s.nodes[1]
	c.record(b, forge(t, a.facts, Order{maxGeneration, maxVersion}, b.key))
	if c.verified(a) {
		t.Fatal("a forgery is verified")
	}
	if ch := c.record(a, forge(t, a.facts, Order{1, 1}, a.key)); !ch.Pinned || !c.verified(a) {
		t.Fatalf("the node itself: %+v", ch)
	}
	if e, _ := c.v.entries.Get(a.facts.Node); e.Order != (Order{1, 1}) {
		t.Errorf("its order is %v", e.Order)
	}
}

// TestRekey: pins follow a key only if the old key handed over to it (DSC-10).
func TestRekey(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b := c.s.nodes[0], c.s.nodes[1]
	c.record(a, forge(t, a.facts, Order{1, 1}, a.key))
	c.record(b, forge(t, b.facts, Order{1, 1}, b.key))
	fresh := ed25519.NewKeyFromSeed(make([]byte, 32))
	public := httpapi.PublicKey(fresh.Public().(ed25519.PublicKey))
	f := a.facts
	f.PrevKey = a.facts.Key
	f.PrevSig = ed25519.Sign(b.key, RekeyMessage(f.ClusterID, public))
	if ch := c.record(b, forge(t, f, Order{2, 1}, fresh)); ch.Entry != nil {
		t.Fatalf("handed over by a stranger: %+v", ch)
	}
	f.PrevSig = ed25519.Sign(a.key, RekeyMessage("another", public))
	if ch := c.record(b, forge(t, f, Order{2, 1}, fresh)); ch.Entry != nil {
		t.Fatalf("of another cluster: %+v", ch)
	}
	f.PrevSig = ed25519.Sign(a.key, RekeyMessage(f.ClusterID, public))
	if ch := c.record(b, forge(t, f, Order{2, 1}, fresh)); !ch.Rekey || !c.verified(a) {
		t.Fatalf("handed over: %+v", ch)
	}
	if ch := c.record(b, forge(t, a.facts, Order{3, 1}, a.key)); ch.Entry != nil {
		t.Fatalf("by the old key: %+v", ch)
	}
	// The administrator returns to the old key in the same way. Replaying the earlier handover changes nothing.
	again := forge(t, f, Order{2, 1}, fresh)
	back := a.facts
	back.PrevKey = public
	back.PrevSig = ed25519.Sign(fresh, RekeyMessage(back.ClusterID, back.Key))
	if ch := c.record(a, forge(t, back, Order{4, 1}, a.key)); !ch.Rekey || !c.verified(a) {
		t.Fatalf("handed back: %+v", ch)
	}
	switch ch := c.record(b, again); {
	case ch.Rekey:
		t.Fatalf("a handover of before: ch.Rekey is true; %+v, %v", ch, c.verified(a))
	case ch.Reason != Old:
		t.Fatalf("a handover of before: ch.Reason = %q, want %q", ch.Reason, Old)
	case !c.verified(a):
		t.Fatalf("a handover of before: c.verified(a) is false; %+v, %v", ch, c.verified(a))
	}
}

// TestHearsayRemovesNoMember: a generation that another node invented does not keep out the node itself (GO-02, GO-04).
func TestHearsayRemovesNoMember(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a, b := c.s.nodes[0], c.s.nodes[1]
	stranger := ed25519.NewKeyFromSeed(make([]byte, 32))
	made := a.facts
	made.Key = httpapi.PublicKey(stranger.Public().(ed25519.PublicKey))
	if ch := c.record(b, forge(t, made, Order{maxGeneration, 1}, stranger)); ch.Entry == nil {
		t.Fatalf("hearsay: %+v", ch)
	}
	c.v = Forget(c.v, []string{a.facts.Node}, simEpoch)
	if ch := c.record(b, forge(t, made, Order{maxGeneration, 1}, stranger)); ch.Reason != Buried {
		t.Errorf("hearsay again: %+v", ch)
	}
	if ch := c.record(a, forge(t, a.facts, Order{1, 1}, a.key)); ch.Entry == nil || !c.verified(a) {
		t.Errorf("the node itself: %+v", ch)
	}
	c.v = Forget(c.v, []string{a.facts.Node}, simEpoch)
	if ch := c.record(a, forge(t, a.facts, Order{1, 1}, a.key)); ch.Reason != Buried {
		t.Errorf("its earlier record: %+v", ch)
	}
}

// TestPinnedPolicy: the pins of an administrator take precedence over first contact (DSC-10).
func TestPinnedPolicy(t *testing.T) {
	plain := newMergeEnv(t, Rules{})
	a, b := plain.s.nodes[0], plain.s.nodes[1]
	c := newMergeEnv(t, Rules{Settings: Settings{Pins: []Pin{{a.facts.ClusterID, a.facts.Key}}}})
	switch ch := c.record(a, forge(t, a.facts, Order{1, 1}, b.key)); {
	case ch.Entry == nil:
		t.Fatal("another key than pinned: ch.Entry is nil")
	case !ch.Entry.Conflict:
		t.Fatalf("another key than pinned: ch.Entry.Conflict is false; %+v", ch)
	case c.verified(a):
		t.Fatalf("another key than pinned: c.verified(a) is true; %+v", ch)
	}
	if ch := c.record(a, forge(t, a.facts, Order{2, 1}, a.key)); ch.Entry == nil || !c.verified(a) {
		t.Fatalf("the pinned key: %+v", ch)
	}
	if ch := c.record(b, forge(t, b.facts, Order{1, 1}, b.key)); !ch.Pinned {
		t.Fatalf("a cluster that is not pinned: %+v", ch)
	}
	only := newMergeEnv(t, Rules{Settings: Settings{PinnedOnly: true, Pins: []Pin{{a.facts.ClusterID, a.facts.Key}}}})
	if ch := only.record(b, forge(t, b.facts, Order{1, 1}, b.key)); ch.Entry != nil || ch.Reason != Binding {
		t.Fatalf("a cluster that is not pinned, where only pinned ones count: %+v", ch)
	}
	if ch := only.record(a, forge(t, a.facts, Order{1, 1}, a.key)); ch.Entry == nil || !only.verified(a) {
		t.Fatalf("the pinned one: %+v", ch)
	}
}

// TestRefusals: a record refused for its addresses is not requested repeatedly, but once more after a minute (GO-07).
func TestRefusals(t *testing.T) {
	c := newMergeEnv(t, Rules{})
	a := c.s.nodes[0]
	f := a.facts
	f.APIEndpoint = "https://10.0.0.1:6443"
	switch ch := c.record(a, forge(t, f, Order{1, 1}, a.key)); {
	case ch.Reason != Endpoint:
		t.Fatalf("ch.Reason = %q, want %q", ch.Reason, Endpoint)
	case c.v.refused.Len() != 1:
		t.Fatalf("c.v.refused.Len() = %v, want 1", c.v.refused.Len())
	case c.v.entries.Len() != 0:
		t.Fatalf("c.v.entries.Len() = %v, want 0", c.v.entries.Len())
	}
	if v := Forget(c.v, nil, simEpoch.Add(59*time.Second)); v.refused.Len() != 1 {
		t.Error("it is forgotten too early")
	}
	if v := Forget(c.v, nil, simEpoch.Add(61*time.Second)); v.refused.Len() != 0 {
		t.Error("it is never forgotten")
	}
	if ch := c.record(a, forge(t, a.facts, Order{1, 2}, a.key)); ch.Entry == nil || c.v.refused.Len() != 0 {
		t.Errorf("an accepted record: %+v, %d refusals", ch, c.v.refused.Len())
	}
}
