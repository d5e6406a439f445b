package tailnettest

import (
	"slices"
	"testing"
	"time"
)

// lost is the delay after a lost first packet: WireGuard's retry interval.
const lost = 5 * time.Second

// TB-04: after Ready the first packet arrives, in each of sixty new tailnets.
func TestFirstRequest(t *testing.T) {
	starts := 60
	if testing.Short() {
		starts = 15
	}
	var up, first []time.Duration
	for range starts {
		t.Run("start", func(t *testing.T) {
			n := Start(t, testPolicy)
			tka, alice := n.Node("tka", "", "tag:tka"), n.Node("alice", "alice@example.com")
			begin := time.Now()
			ready(t, n, tka, alice)
			up = append(up, time.Since(begin))
			serveWhoIs(t, tka, ":80")
			begin = time.Now()
			ask(t, alice, "http://tka/")
			took := time.Since(begin)
			first = append(first, took)
			if took >= lost {
				t.Errorf("the first request took %v", took)
			}
		})
	}
	slices.Sort(up)
	slices.Sort(first)
	t.Logf("%d starts: ready after %v (median) and %v (worst); the first request took %v (median) and %v (worst)", starts,
		up[len(up)/2].Round(time.Millisecond), up[len(up)-1].Round(time.Millisecond), first[len(first)/2].Round(time.Millisecond), first[len(first)-1].Round(time.Millisecond))
}

// A node that joins later is also reached with the first packet. This matters for processes that the test does not
// start itself.
func TestWaitPeer(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	alice, late := n.Node("alice", "alice@example.com"), n.Node("late", "", "tag:tka")
	ready(t, n, alice)
	up := make(chan error, 1)
	ctx := within(t, time.Minute)
	go func() { _, err := late.Up(ctx); up <- err }()
	if err := n.WaitPeer(ctx, alice, "late.tiny.ts.net"); err != nil {
		t.Fatal(err)
	}
	if err := <-up; err != nil {
		t.Fatal(err)
	}
	serveWhoIs(t, late, ":80")
	begin := time.Now()
	ask(t, alice, "http://late/")
	if took := time.Since(begin); took >= lost {
		t.Errorf("the first request took %v", took)
	}
}
