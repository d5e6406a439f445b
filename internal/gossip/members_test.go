package gossip

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func member1(f Facts, state State, change func(*Member)) Member {
	m := Member{Record: &Record{Facts: f, Order: Order{1, 1}, Status: Up}, State: state, Verified: true, LastSeen: simEpoch.Add(400 * time.Millisecond)}
	if change != nil {
		change(&m)
	}
	return m
}

// TestClusters: one entry per cluster with the best state, and a separate entry for a member that contests it (DSC-10, DSC-11).
func TestClusters(t *testing.T) {
	s := newSim(t, 1, 6, Settings{})
	f := func(i int) Facts { return s.nodes[i].facts }
	replica := f(1)
	replica.ClusterID, replica.ClusterName, replica.Key = f(0).ClusterID, f(0).ClusterName, f(0).Key
	thief := f(5)
	thief.ClusterID, thief.ClusterName = f(0).ClusterID, f(0).ClusterName
	all := &Members{List: []Member{
		member1(f(0), Dead, nil), member1(replica, Suspect, nil),
		member1(thief, Alive, func(m *Member) { m.Verified, m.Conflict = false, true }),
		member1(f(2), Dead, nil), member1(f(3), Gone, nil), member1(f(4), Unknown, func(m *Member) { m.Verified = false; m.LastSeen = time.Time{} }),
	}}
	brief, hidden := all.Clusters(false)
	var got []string
	for _, c := range brief {
		got = append(got, fmt.Sprintf("%s %s members=%d verified=%t conflict=%t %s", c.Name, c.State, len(c.Members), c.Verified, c.Conflict, c.URL))
	}
	slices.Sort(got)
	want := []string{
		"prod-0 alive members=1 verified=false conflict=true " + thief.URL,
		"prod-0 suspect members=2 verified=true conflict=false " + replica.URL,
		"prod-4 unknown members=1 verified=false conflict=false " + f(4).URL,
	}
	if !slices.Equal(got, want) || hidden != 2 {
		t.Errorf("%d hidden, and\n%s", hidden, strings.Join(got, "\n"))
	}
	if full, hidden := all.Clusters(true); len(full) != 5 || hidden != 0 {
		t.Errorf("all: %d, %d hidden", len(full), hidden)
	}
}
