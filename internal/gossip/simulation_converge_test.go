package gossip

import (
	"fmt"
	"testing"
	"time"
)

// TestMeet: after one exchange of two messages, two nodes that had not met have each other's record first-hand. The next exchange contains
// no record (DSC-02). Red without introduced in request.
func TestMeet(t *testing.T) {
	s := newSim(t, 2, 2, Settings{})
	a, b := s.nodes[0], s.nodes[1]
	s.start(a)
	s.start(b)
	for _, records := range []int{2, 0} {
		calls := a.engine.tick(s.netmap, a.wall())
		if len(calls) != 1 {
			t.Fatalf("%d are asked", len(calls))
		}
		b.netmap = s.netmap
		answer, err := b.handleRequest(a.self, calls[0].body, b.wall())
		if err != nil {
			t.Fatal(err)
		}
		if third := a.handleResponse(b.self, answer, a.wall()); third != nil {
			t.Errorf("unexpected third message of %d bytes", len(third))
		}
		for _, n := range []*simNode{a, b} {
			for _, m := range n.list {
				if !m.firstHand || !m.verified {
					t.Errorf("node %d does not know %s by its own word", n.index, m.id)
				}
			}
		}
		if len(a.list) != 1 || len(b.list) != 1 {
			t.Errorf("the nodes know %d and %d others", len(a.list), len(b.list))
		}
		if got := a.stats.Messages[kindDelta] + b.stats.Messages[kindDelta]; got != uint64(records) {
			t.Errorf("%d messages with records, want %d", got, records)
		}
		a.stats, b.stats = newStats(), newStats()
		s.now += s.set.Interval
	}
}

// TestThreeNodes: with three servers, every node knows all others at once, and idle rounds carry digests only (DSC-02).
func TestThreeNodes(t *testing.T) {
	s := newSim(t, 1, 3, Settings{})
	s.startAll()
	took, ok := s.until(3*time.Second, func() bool { return s.allKnowAll() && s.allAlive() })
	if !ok {
		t.Fatal("some of three nodes do not know all others after 3 s")
	}
	t.Logf("all nodes know each other after %v", took)
	s.run(3 * time.Second) // until all are verified
	for _, n := range s.nodes {
		for _, m := range n.list {
			if !m.verified {
				t.Errorf("node %d has not verified %s", n.index, m.id)
			}
		}
		n.stats = newStats()
	}
	s.run(10 * time.Second)
	for _, n := range s.nodes {
		if d := n.stats.Messages[kindDelta]; d != 0 {
			t.Errorf("node %d sent %d messages with records in idle rounds", n.index, d)
		}
	}
}

// BenchmarkExchange measures an idle exchange: the work of both ends without the network. A node begins three of them in each round and
// responds to three more.
func BenchmarkExchange(b *testing.B) {
	for _, n := range []int{10, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := settled(b, 3, n, Settings{})
			s.run(20 * time.Second)
			x, y := s.nodes[0], s.nodes[1]
			to := x.peer(y.self, x.wall())
			sent := x.stats.BytesOut + y.stats.BytesOut
			b.ReportAllocs()
			for b.Loop() {
				s.now += s.set.Interval
				x.heartbeat++
				to.busy++
				answer, err := y.handleRequest(x.self, x.request(y.self, x.wall()), y.wall())
				if err != nil {
					b.Fatal(err)
				}
				if third := x.handleResponse(y.self, answer, x.wall()); third != nil {
					b.Fatal("an idle exchange has a third message")
				}
			}
			b.ReportMetric(float64(x.stats.BytesOut+y.stats.BytesOut-sent)/float64(b.N), "bytes-sent/op")
		})
	}
}
