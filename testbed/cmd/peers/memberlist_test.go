package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/tailplane/tailplane/testkit/gossiptest"
)

// The command sets a scenario and reads the results from a file.
var (
	simArgs = flag.String("sim", "N=10 LOSS=0.2 SECONDS=5", "the scenario of TestMemberlist")
	simFile = flag.String("sim.file", "", "where TestMemberlist writes its result, as JSON")
)

// TestMemberlist runs one scenario with members of hashicorp/memberlist in its default configuration for a local
// network, without tuning and encryption. Its random source cannot be seeded, so two runs differ.
func TestMemberlist(t *testing.T) {
	sc, err := gossiptest.Parse(strings.Fields(*simArgs))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var r gossiptest.Result
	synctest.Test(t, func(t *testing.T) { r = runMemberlist(t, sc) })
	r.Took = time.Since(began)
	if *simFile == "" {
		switch {
		case r.Join == 0:
			t.Errorf("a mild scenario ends: r.Join = %v", r.Join)
		case r.Death == 0:
			t.Errorf("a mild scenario ends: r.Death = %v", r.Death)
		case r.Messages == 0:
			t.Errorf("a mild scenario ends: r.Messages = %v", r.Messages)
		case r.Bytes == 0:
			t.Errorf("a mild scenario ends: r.Bytes = %v", r.Bytes)
		}
		if err := gossiptest.Print(t.Output(), sc, []gossiptest.Result{r}); err != nil {
			t.Error(err)
		}
		return
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*simFile, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// member is a memberlist member that counts the deaths that it has detected.
type member struct {
	*memberlist.Memberlist
	name string

	mu     sync.Mutex
	deaths map[string]int
}

// Of the events, only a death matters: no member leaves in a scenario.
func (m *member) NotifyJoin(*memberlist.Node)   {}
func (m *member) NotifyUpdate(*memberlist.Node) {}
func (m *member) NotifyLeave(n *memberlist.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deaths[n.Name]++
}

// NodeMeta returns as many bytes as fit, because a record of Tailplane has about 700 bytes.
func (m *member) NodeMeta(limit int) []byte {
	return []byte(strings.Repeat(m.name+" ", limit))[:limit]
}
func (m *member) NotifyMsg([]byte)                {}
func (m *member) GetBroadcasts(int, int) [][]byte { return nil }
func (m *member) LocalState(bool) []byte          { return nil }
func (m *member) MergeRemoteState([]byte, bool)   {}

// runMemberlist runs in a synctest bubble with its own clock.
func runMemberlist(t *testing.T, sc gossiptest.Scenario) gossiptest.Result {
	r := gossiptest.Result{Protocol: "memberlist"}
	n := newNetwork(sc)
	var all []*member
	var addrs []string
	for i := range sc.N {
		m := &member{name: fmt.Sprintf("node-%04d", i), deaths: map[string]int{}}
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 7946)
		c := memberlist.DefaultLANConfig()
		c.Name, c.Transport, c.Events, c.Delegate = m.name, n.listen(addr), m, m
		c.Logger = log.New(io.Discard, "", 0)
		var err error
		if m.Memberlist, err = memberlist.Create(c); err != nil {
			t.Fatal(err)
		}
		all, addrs = append(all, m), append(addrs, addr.String())
	}
	defer func() {
		for _, m := range all {
			if err := m.Shutdown(); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Minute) // until all running operations have reached their deadlines
	}()

	for i, m := range all { // all know three of the first members, and contact them until one responds
		seeds := slices.Clone(addrs[:min(4, sc.N)])
		if self := slices.Index(seeds, addrs[i]); self >= 0 {
			seeds = slices.Delete(seeds, self, self+1)
		}
		seeds = seeds[:min(3, len(seeds))]
		go func() {
			for began := time.Now(); time.Since(began) < gossiptest.Limit; time.Sleep(time.Second) {
				if k, _ := m.Join(seeds); k > 0 {
					return
				}
			}
		}()
	}
	await := func(ok func(*member) bool) time.Duration {
		for began := time.Now(); time.Since(began) < gossiptest.Limit; time.Sleep(50 * time.Millisecond) {
			if !slices.ContainsFunc(all, func(m *member) bool { return !ok(m) }) {
				return time.Since(began)
			}
		}
		return 0
	}
	r.Join = await(func(m *member) bool { return m.NumMembers() == sc.N })

	bytes, messages := n.sent()
	time.Sleep(sc.Watch)
	bytesThen, messagesThen := n.sent()
	per := sc.Watch.Seconds() * float64(sc.N)
	r.Bytes, r.Messages = float64(bytesThen-bytes)/per, float64(messagesThen-messages)/per

	x := all[sc.N/2]
	r.False = deaths(all, x.name)
	if err := x.Shutdown(); err != nil {
		t.Fatal(err)
	}
	r.Death = await(func(m *member) bool {
		return m == x || !slices.ContainsFunc(m.Members(), func(o *memberlist.Node) bool { return o.Name == x.name })
	})
	for _, m := range all {
		if m != x {
			r.False += deaths(all, m.name)
		}
	}
	return r
}

// deaths counts how often any member detected the death of the named member.
func deaths(all []*member, name string) (sum int) {
	for _, m := range all {
		m.mu.Lock()
		sum += m.deaths[name]
		m.mu.Unlock()
	}
	return sum
}
