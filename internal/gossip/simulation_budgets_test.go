package gossip

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"
)

// With -long, the simulations run 100 seeds and up to 2,000 nodes: hours of virtual time, and minutes of CPU time.
var (
	long  = flag.Bool("long", false, "run the long simulations")
	seeds = flag.Int("seeds", 100, "of each long simulation")
)

// A figure is the expected result for a number of members, from a design simulation of the protocol. The implementation must not need more
// than 1.5 times as much.
type figure struct {
	n                               int
	kB, budget                      float64 // sent per node and second
	join, change, death, lossyDeath time.Duration
}

var figures = []figure{
	{10, 6.4, 15, 1000 * time.Millisecond, 400 * time.Millisecond, 3300 * time.Millisecond, 5100 * time.Millisecond},
	{20, 11.6, 25, 1000 * time.Millisecond, 500 * time.Millisecond, 3700 * time.Millisecond, 6500 * time.Millisecond},
	{40, 22.1, 50, 1300 * time.Millisecond, 600 * time.Millisecond, 3700 * time.Millisecond, 6500 * time.Millisecond},
	{100, 53, 120, 1500 * time.Millisecond, 800 * time.Millisecond, 3800 * time.Millisecond, 6600 * time.Millisecond},
	{300, 70, 120, 4500 * time.Millisecond, 2000 * time.Millisecond, 6600 * time.Millisecond, 14400 * time.Millisecond},
	{1000, 73, 120, 16 * time.Second, 5500 * time.Millisecond, 17600 * time.Millisecond, 0},
}

// settled returns a simulation in which all nodes know and have verified all others and see them alive.
func settled(t testing.TB, seed uint64, n int, set Settings) *sim {
	t.Helper()
	s := newSim(t, seed, n, set)
	s.startAll()
	s.settle(time.Minute)
	return s
}

func (s *sim) settle(limit time.Duration) {
	s.t.Helper()
	if _, ok := s.until(limit, func() bool { return s.allKnowAll() && s.allAlive() }); !ok {
		s.t.Fatalf("%d nodes have not found each other after %v", len(s.nodes), limit)
	}
}

func (s *sim) reset() {
	for _, n := range s.nodes {
		n.bytes, n.sent = 0, 0
		n.stats = newStats()
		clear(n.deaths)
	}
}

// idle returns the average that each node sent per second during d, in which nothing happened.
func (s *sim) idle(d time.Duration) (kB, messages float64) {
	s.reset()
	s.run(d)
	var bytes, sent uint64
	for _, n := range s.nodes {
		bytes, sent = bytes+n.bytes, sent+n.sent
	}
	per := d.Seconds() * float64(len(s.nodes))
	return float64(bytes) / per / 1000, float64(sent) / per
}

func (f figure) check(t testing.TB, what string, got, expected time.Duration) {
	t.Helper()
	// Half a round is the resolution of the clock and the randomness.
	if limit := expected + expected/2 + 150*time.Millisecond; got > limit {
		t.Errorf("%d members: %s took %v, and 1.5 times the expected %v is %v", f.n, what, got, expected, limit)
	}
}

// TestBudgets measures one life of a network of each size (DSC-02, DSC-03, DSC-05).
func TestBudgets(t *testing.T) {
	for _, f := range figures {
		seeds := *seeds
		switch {
		case !*long && f.n > 100:
			continue
		case !*long:
			seeds = max(1, 20/f.n)
		case f.n > 100:
			seeds = 1
		}
		t.Run(fmt.Sprint(f.n), func(t *testing.T) {
			var worst struct {
				kB, messages                    float64
				join, change, death, lossyDeath time.Duration
			}
			for seed := range uint64(seeds) {
				s := newSim(t, seed+1, f.n, Settings{})
				s.startAll()
				join, ok := s.until(time.Minute, s.allKnowAll)
				if !ok {
					t.Fatalf("seed %d: some nodes do not know all others after a minute", s.seed)
				}
				s.settle(time.Minute)
				s.run(time.Duration(min(f.n/10, 30)) * time.Second) // until all nodes have met
				kB, messages := s.idle(2 * time.Second)
				for _, n := range s.nodes {
					if d := n.stats.Messages[kindDelta]; d != 0 && f.n <= 100 {
						t.Errorf("seed %d: node %d sent %d messages with records though nothing had changed", s.seed, n.index, d)
					}
				}
				x := s.nodes[s.rng.IntN(f.n)]
				facts := x.facts
				facts.Labels = map[string]string{"env": "test"}
				s.announce(x, facts, Up)
				change, ok1 := s.until(time.Minute, s.allKnowAll)
				s.reset()
				death, ok2 := s.death(x)
				lossyDeath, ok3 := time.Duration(0), true
				if f.lossyDeath > 0 {
					s.loss = .5
					lossyDeath, ok3 = s.death(s.nodes[(x.index+1)%f.n])
				}
				switch {
				case !ok1:
					t.Fatalf("seed: ok1 is false; %d, %t, %t, %t", s.seed, ok1, ok2, ok3)
				case !ok2:
					t.Fatalf("seed: ok2 is false; %d, %t, %t, %t", s.seed, ok1, ok2, ok3)
				case !ok3:
					t.Fatalf("seed: ok3 is false; %d, %t, %t, %t", s.seed, ok1, ok2, ok3)
				}
				worst.kB, worst.messages = max(worst.kB, kB), max(worst.messages, messages)
				worst.join, worst.change = max(worst.join, join), max(worst.change, change)
				worst.death, worst.lossyDeath = max(worst.death, death), max(worst.lossyDeath, lossyDeath)
				if death > 10*time.Second && f.n <= 100 || lossyDeath > 15*time.Second && f.n <= 100 {
					t.Errorf("seed %d: a death was seen by all after %v, at 50 %% loss after %v", s.seed, death, lossyDeath)
				}
			}
			t.Logf("FIGURES n=%d seeds=%d: %.1f kB/s, %.1f messages/s, join %v, change %v, death %v, at 50 %% loss %v",
				f.n, seeds, worst.kB, worst.messages, worst.join, worst.change, worst.death, worst.lossyDeath)
			switch {
			case worst.kB > 1.5*f.kB:
				t.Errorf("each sends: worst.kB = %v, want at most %v", worst.kB, 1.5*f.kB)
			case worst.kB > f.budget:
				t.Errorf("each sends: worst.kB = %v, want at most %v", worst.kB, f.budget)
			case worst.messages > 50:
				t.Errorf("each sends: worst.messages = %v, want at most 50", worst.messages)
			}
			f.check(t, "the join", worst.join, f.join)
			f.check(t, "a change", worst.change, f.change)
			f.check(t, "a death", worst.death, f.death)
			f.check(t, "a death at 50 % loss", worst.lossyDeath, f.lossyDeath)
		})
	}
}

// death stops a node and returns when all others see it dead.
func (s *sim) death(x *simNode) (time.Duration, bool) {
	s.stop(x)
	return s.until(time.Minute, func() bool { return s.everywhere(x, Dead) })
}

// TestNoZombie: a dead node becomes alive only by a heartbeat that it sent (DSC-03, GO-10). Red when claim takes a heartbeat that is not
// higher.
func TestNoZombie(t *testing.T) {
	lives, sizes := uint64(1), []int{10}
	if *long {
		lives, sizes = uint64(*seeds), []int{10, 20, 40, 100}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			for seed := range lives {
				zombie(t, n, 100+seed)
				if (seed+1)%10 == 0 {
					t.Logf("%d of %d seeds", seed+1, lives) // for long runs
				}
			}
		})
	}
}

func zombie(t *testing.T, n int, seed uint64) {
	s := settled(t, seed, n, Settings{})
	x := s.nodes[n/2]
	if _, ok := s.death(x); !ok {
		t.Fatalf("seed %d: they do not see a death in a minute", s.seed)
	}
	s.loss, s.jitter, s.dup = .3, 300*time.Millisecond, .1
	end := s.now + 5*time.Minute
	for s.now < end {
		s.run(time.Second)
		if !s.everywhere(x, Dead) {
			t.Fatalf("seed %d: the dead is alive somewhere %v before the end", s.seed, end-s.now)
		}
	}
	for _, o := range s.living() {
		if d := o.deaths[x.self]; d > 1 {
			t.Errorf("seed %d: node %d saw it die %d times", s.seed, o.index, d)
		}
	}
}

// TestNoFlap: no live node is declared dead at 50 % loss with 300 ms of jitter, reordering and duplicates (DSC-04, GO-09).
func TestNoFlap(t *testing.T) {
	lives, sizes := uint64(3), []int{10, 20}
	if *long {
		lives, sizes = uint64(*seeds), []int{10, 20, 40, 100}
	}
	for _, n := range sizes {
		for seed := range lives {
			s := settled(t, 200+seed, n, Settings{})
			s.reset()
			s.loss, s.jitter, s.dup = .5, 300*time.Millisecond, .1
			s.run(30 * time.Second)
			if d := s.deathsSeen(); d != 0 {
				t.Errorf("seed %d: %d nodes: %d false deaths", s.seed, n, d)
			}
		}
		t.Logf("%d members, %d seeds", n, lives)
	}
}

// TestSoak: an hour at 30 % loss (DSC-04).
func TestSoak(t *testing.T) {
	d := 2 * time.Minute
	if *long {
		d = time.Hour
	}
	s := settled(t, 300, 10, Settings{})
	s.reset()
	s.loss, s.jitter, s.dup = .3, 100*time.Millisecond, .05
	s.run(d)
	if n := s.deathsSeen(); n != 0 {
		t.Errorf("%d false deaths", n)
	}
}

// TestSampledDigests: above 128 members, digests are samples (DSC-07). Every run tests 200 members.
func TestSampledDigests(t *testing.T) {
	s := newSim(t, 400, 200, Settings{})
	s.startAll()
	took, ok := s.until(20*time.Second, s.allKnowAll)
	if !ok {
		t.Fatal("some of 200 nodes do not know all others after 20 s")
	}
	s.run(time.Second)
	kB, messages := s.idle(time.Second)
	t.Logf("200 members: all know all after %v; %.1f kB/s, %.1f messages/s", took, kB, messages)
	if kB > 120 || messages > 50 {
		t.Error("that is more than the budget of 120 kB/s and 50 messages/s")
	}
	for _, n := range s.nodes {
		for _, m := range n.list {
			if m.state == Dead {
				t.Fatalf("node %d sees %s dead", n.index, m.id)
			}
		}
	}
}

// TestThousands: the limits hold at 1,000 and 2,000 members (DSC-07).
func TestThousands(t *testing.T) {
	if !*long {
		t.Skip("SKIP 1,000 and 2,000 members: only with -long")
	}
	for _, n := range []int{1000, 2000} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			factor := time.Duration(n / 1000)
			began := time.Now()
			s := newSim(t, uint64(n), n, Settings{})
			x := s.nodes[n/2]
			s.startAll()
			join, ok := s.until(60*factor*time.Second, s.allKnowAll)
			if !ok {
				t.Fatalf("some nodes do not know all others after %v", join)
			}
			t.Logf("join %v, in %v", join, time.Since(began).Round(time.Second)) // the next part takes long
			s.run(5 * time.Second)
			before := s.deathsSeen()
			kB, messages := s.idle(5 * time.Second)
			t.Logf("%.1f kB/s, %.1f messages/s", kB, messages)
			if kB > 120*float64(factor) || messages > 50 {
				t.Error("each sends more than its budget")
			}
			wrong := s.deathsOf(x)
			death, ok := s.deathWithin(x, 30*factor*time.Second)
			if !ok {
				t.Errorf("a death is not seen by all after %v", death)
			}
			s.run(time.Minute - s.now) // at 1,000 members this may take two minutes of CPU time
			wrong += before + s.deathsSeen() - s.deathsOf(x)
			if !s.everywhere(x, Dead) {
				t.Error("the dead is alive somewhere")
			}
			t.Logf("FIGURES n=%d: %.1f kB/s, %.1f messages/s, join %v, death %v, false deaths %d of %d pairs; %v of virtual time in %v",
				n, kB, messages, join, death, wrong, n*(n-1), s.now, time.Since(began).Round(time.Second))
			if wrong > n*(n-1)/100_000 { // a design simulation measured one in 10^6 for this phi
				t.Errorf("%d false deaths", wrong)
			}
		})
	}
}

func (s *sim) deathWithin(x *simNode, limit time.Duration) (time.Duration, bool) {
	s.stop(x)
	return s.until(limit, func() bool { return s.everywhere(x, Dead) })
}

// TestSameSeedSameTrace: a failure can be reproduced from its seed.
func TestSameSeedSameTrace(t *testing.T) {
	var traces []uint64
	for range 2 {
		s := settled(t, 500, 12, Settings{})
		s.loss, s.jitter, s.dup = .2, 100*time.Millisecond, .1
		s.run(10 * time.Second)
		traces = append(traces, s.trace)
	}
	if traces[0] != traces[1] {
		t.Error("two runs of one seed differ")
	}
	if other := settled(t, 501, 12, Settings{}); slices.Contains(traces, other.trace) {
		t.Error("the trace does not depend on the seed")
	}
}
