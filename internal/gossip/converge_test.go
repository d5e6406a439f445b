package gossip

import (
	"testing"
	"time"
)

// TestThreeNodes: with three servers, all know all at once, and idle rounds
// carry digests only (DSC-02).
func TestThreeNodes(t *testing.T) {
	s := newSim(t, 1, 3, Settings{})
	s.startAll()
	took, ok := s.until(3*time.Second, func() bool { return s.allKnowAll() && s.allAlive() })
	if !ok {
		t.Fatal("three nodes do not know each other after 3 s")
	}
	t.Logf("all know all after %v", took)
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
