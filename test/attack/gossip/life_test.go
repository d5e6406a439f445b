package gossip

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/testkit/attacktest"
)

// stateOf returns the state that a server reports for a cluster.
func stateOf(t *testing.T, s *attacktest.Env, cluster string) gossip.State {
	t.Helper()
	c, _ := clusterOf(t, s, cluster)
	return c.State
}

// availableTo reports whether the default list shows the cluster.
func availableTo(t *testing.T, s *attacktest.Env, cluster string) bool {
	t.Helper()
	c, ok := clusterOf(t, s, cluster)
	return ok && c.Available()
}

// GO-04. A message of a third party never makes a server dead, and the affected server need not refute it. A server
// that was suspended doubts itself before it doubts the others.
//
// Guard: gossip.(detector).recordClaim, which updates a heartbeat and never a state; (*View).take, which checks the
// signature of a leave message; (*engine).review, which resets the timers of all members after a late round.
func TestGO04_HearsayDeclaresNoDeath(t *testing.T) {
	east, west := twoClusters(t)
	r := newRogue(t, east, "go04")
	r.introduce(t)
	node := nodeOf(t, east, "west")
	m := east.Mark(t)

	t.Run("one member reports it", func(t *testing.T) {
		genuine := r.learn(t, east)[node]
		var others []gossip.Signed // records in west's name, signed with the rogue's key
		for _, status := range []gossip.Status{gossip.Left, "dead", "suspect"} {
			record, err := r.sealed(genuine.Facts, gossip.Order{Generation: genuine.Generation, Version: genuine.Version + 1}, status)
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, record)
		}
		sent := func() float64 { return sumOf(t, east, `tailplane_gossip_messages_total{direction="out"`) }
		inOneOf(t, "west is dead on one member's word", func() error {
			m := east.Mark(t)
			before, began, n := sent(), time.Now(), 0
			for time.Since(began) < 5*time.Second { // longer than the time after which a server is marked dead
				for _, said := range []string{
					message(r.claim() + fmt.Sprintf(",[%q,%d,0,%d],[%q,0,0,0]", node, genuine.Generation, genuine.Version, "nNobody")),
					message(r.claim(), others...),
					fmt.Sprintf(`{"v":1,"net":"default","d":[%s],"dead":[%q],"suspect":[%q]}`, r.claim(), node, node),
				} {
					r.taken(t, east, said)
					n++
				}
				if state := stateOf(t, east, "west"); state == gossip.Dead || state == gossip.Gone {
					return fmt.Errorf("west is %s", state)
				}
				time.Sleep(200 * time.Millisecond) // a peer may send 20 requests a second
			}
			// In each round the server itself sends at most fanout + 1 messages, each with a third part of the
			// exchange, and answers each of west's.
			perSecond := (sent() - before - float64(n)) / time.Since(began).Seconds()
			t.Logf("%d false messages; in addition to the responses, the server sent %.1f messages a second", n, perSecond)
			if perSecond > 50 {
				t.Errorf("the server sent %.1f messages a second", perSecond)
			}
			if told := append(toldSince(t, m, gossip.EventDeath, node), toldSince(t, m, gossip.EventLeave, node)...); len(told) > 0 {
				return fmt.Errorf("recorded: %+v", told)
			}
			return nil
		})
	})
	t.Run("one that was held up", func(t *testing.T) {
		inOneOf(t, "the delayed server declares others dead", func() error {
			w, late := west.Mark(t), west.Metrics(t, west.Access)[`tailplane_gossip_rounds_total{result="late"}`]
			if err := west.Access.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			// Control: the server is silent for that long.
			took := attacktest.Eventually(t, attacktest.Long, "west is dead", func() bool { return stateOf(t, east, "west") == gossip.Dead })
			if err := west.Access.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			t.Logf("called dead after %v", took.Round(time.Millisecond))
			took = attacktest.Eventually(t, attacktest.Long, "all are alive again", func() bool { return aliveTo(t, east, "west") && aliveTo(t, west, "east") && aliveTo(t, west, "go04") })
			t.Logf("alive again after %v", took.Round(time.Millisecond))
			if now := west.Metrics(t, west.Access)[`tailplane_gossip_rounds_total{result="late"}`]; now <= late {
				t.Error("it did not notice that it was held up")
			}
			if told := toldSince(t, w, gossip.EventDeath, ""); len(told) > 0 {
				return fmt.Errorf("recorded: %+v", told)
			}
			return nil
		})
	})
	idleSince(t, m)
}

// sumOf adds up the metrics of the access server whose name and labels start with prefix.
func sumOf(t *testing.T, s *attacktest.Env, prefix string) (sum float64) {
	t.Helper()
	for name, v := range s.Metrics(t, s.Access) {
		if strings.HasPrefix(name, prefix) {
			sum += v
		}
	}
	return sum
}

// GO-09. Others mark a disconnected server dead, and recover without an administrator when it is reconnected. No
// decision depends on another machine's clock. The simulator tests of the package cover loss, jitter, reordering and
// partitions of minutes.
//
// Guard: gossip.(*engine).pickPeers, which also contacts dead members; (*detector).heard; gossip.Order, which is compared
// only within one node; the maximum age of connections in (*discovery).stand, which makes a cut effective.
func TestGO09_PartitionAndHeal(t *testing.T) {
	east, west := twoClusters(t)
	m, w := east.Mark(t), west.Mark(t)
	// No server can reach another; all other nodes keep their access.
	const all, others = `{"src": ["*"], "dst": ["tag:tailplane", "tag:other"]`, `{"src": ["autogroup:member", "tag:other"], "dst": ["tag:tailplane", "tag:other"]`
	before := east.Net.Policy()
	if !strings.Contains(before, all) {
		t.Fatal("the policy has changed")
	}
	if err := east.Net.SetPolicy(strings.Replace(before, all, others, 1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { east.Net.SetPolicy(before) })
	// A tailnet's filter does not close existing connections. They end at an age of one minute, and new ones are
	// refused.
	node := nodeOf(t, east, "west")
	began := time.Now()
	attacktest.Eventually(t, attacktest.Long, "each is dead to the other, or alone", func() bool {
		return stateOf(t, east, "west") == gossip.Dead && !availableTo(t, east, "west") && stateOf(t, west, "east") == gossip.Dead
	})
	t.Logf("called dead %v after it was cut off", time.Since(began).Round(time.Millisecond))
	failed := func(s *attacktest.Env) float64 {
		return s.Metrics(t, s.Access)["tailplane_gossip_exchange_failures_total"]
	}
	tried := [2]float64{failed(east), failed(west)}
	attacktest.Always(t, 3*time.Second, "neither comes back", func() bool { return !availableTo(t, east, "west") && !availableTo(t, west, "east") })
	// Control.
	attacktest.Eventually(t, attacktest.Long, "both try all the while", func() bool { return failed(east) > tried[0] && failed(west) > tried[1] })
	if err := east.Net.SetPolicy(before); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	for s, other := range map[*attacktest.Env]string{east: "west", west: "east"} {
		attacktest.Eventually(t, attacktest.Long, "each sees the other", func() bool { return aliveTo(t, s, other) })
	}
	t.Logf("alive on both sides %v after it was there again", time.Since(began).Round(time.Millisecond))

	// Clocks ten minutes slow and ten minutes fast: a node's numbers are compared only with its own.
	for host, offset := range map[string]time.Duration{"go09-slow": -10 * time.Minute, "go09-fast": 10 * time.Minute} {
		r := newRogue(t, east, host, func(r *rogueMember) { r.order.Generation = uint64(time.Now().Add(offset).Unix()) })
		r.introduce(t)
		r.facts.Labels = map[string]string{"clock": "wrong"}
		r.renew(t)
		for _, s := range []*attacktest.Env{east, west} {
			r.taken(t, s, message(r.claim(), r.own()))
			switch c, _ := clusterOf(t, s, host); {
			case c.Labels["clock"] != "wrong":
				t.Errorf(`c.Labels["clock"] = %q, want %q; host = %s`, c.Labels["clock"], "wrong", host)
			case !c.Verified:
				t.Errorf("c.Verified is false; host = %s, %+v", host, c)
			case time.Since(c.LastSeen).Abs() > offset.Abs()/2:
				t.Errorf("time.Since(c.LastSeen).Abs() > offset.Abs()/2; host = %s, %+v", host, c)
			}
		}
	}
	inOneOf(t, "a member flaps", func() error {
		attacktest.Eventually(t, attacktest.Long, "all are alive", func() bool {
			return aliveTo(t, east, "west") && aliveTo(t, west, "east") && aliveTo(t, east, "go09-slow") && aliveTo(t, east, "go09-fast")
		})
		healed := [2]attacktest.LogMark{east.Mark(t), west.Mark(t)}
		for began := time.Now(); time.Since(began) < 2*time.Second; time.Sleep(50 * time.Millisecond) {
			for s, others := range map[*attacktest.Env][]string{east: {"west", "go09-slow", "go09-fast"}, west: {"east", "go09-slow", "go09-fast"}} {
				for _, other := range others {
					if c, ok := clusterOf(t, s, other); !ok || !c.Available() {
						return fmt.Errorf("%s lists %s as %+v", s.Server(), other, c)
					}
				}
			}
		}
		for _, h := range healed {
			if told := toldSince(t, h, gossip.EventDeath, ""); len(told) > 0 {
				return fmt.Errorf("after it had healed: %+v", told)
			}
		}
		return nil
	})
	if told := toldSince(t, m, gossip.EventDeath, node); len(told) == 0 {
		t.Error("the death is not recorded")
	}
	for _, at := range []attacktest.LogMark{m, w} {
		idleSince(t, at)
	}
}

// GO-10. A crashed server is gone within seconds, and old messages of others do not bring it back. A server that
// restarts with other labels is listed with the new labels. The simulator tests of the package cover 20 nodes and
// ties.
//
// Guard: gossip.(detector).state and claim; gossip.generationAt.
func TestGO10_CrashAndRestart(t *testing.T) {
	east, west := twoClusters(t)
	r := newRogue(t, east, "go10")
	r.introduce(t)
	node := nodeOf(t, east, "west")
	last := r.learn(t, east)[node]
	m := east.Mark(t)
	west.Access.Kill()
	second.there = false
	began := time.Now()
	took := attacktest.Eventually(t, attacktest.Long, "west is gone", func() bool { return stateOf(t, east, "west") == gossip.Dead && !availableTo(t, east, "west") })
	t.Logf("gone %v after it crashed", took.Round(time.Millisecond))
	if c, _ := clusterOf(t, east, "west"); c.LastSeen.After(began.Add(took / 2)) {
		t.Errorf("it was seen at %v, crashed at %v and was gone %v later", c.LastSeen, began, took)
	}
	// A zombie: another node repeats the last record of the crashed server.
	claim := fmt.Sprintf("[%q,%d,1,%d]", node, last.Generation, last.Version)
	r.says(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, message(r.claim()+","+claim, last.Signed, r.own()))
	})
	attacktest.Always(t, 3*time.Second, "it remains absent", func() bool {
		r.taken(t, east, message(r.claim()+","+claim, last.Signed))
		time.Sleep(200 * time.Millisecond)
		return !availableTo(t, east, "west")
	})
	deaths := func() []audit.Entry { return toldSince(t, m, gossip.EventDeath, node) }
	attacktest.Eventually(t, attacktest.Long, "its death is recorded", func() bool { return len(deaths()) > 0 })
	if told := append(deaths(), toldSince(t, m, gossip.EventJoin, node)...); len(told) != 1 {
		t.Errorf("recorded: %+v", told)
	}

	west.Set("cluster.labels", "{env: prod, region: eu}")
	t.Cleanup(func() { west.Set("cluster.labels", "{env: demo}") })
	began = time.Now()
	east, west = twoClusters(t)
	for _, s := range []*attacktest.Env{east, west} {
		attacktest.Eventually(t, attacktest.Long, "the new labels are there", func() bool {
			c, _ := clusterOf(t, s, "west")
			return c.State == gossip.Alive && c.Verified && maps.Equal(c.Labels, map[string]string{"env": "prod", "region": "eu"})
		})
	}
	t.Logf("new labels at both %v after the start", time.Since(began).Round(time.Millisecond))
	if now := r.learn(t, east)[node]; now.Generation <= last.Generation {
		t.Errorf("its generation was %d and is %d", last.Generation, now.Generation)
	}
	if told := toldSince(t, m, gossip.EventConflict, ""); len(told) > 0 {
		t.Errorf("recorded: %+v", told)
	}
	idleSince(t, m)
}

// GO-11. A server that others have forgotten comes back without a restart: it gets its own buried record back and raises
// its generation. Others cannot raise the generation of a server, and a stolen record does not raise the dead. The
// simulator tests of the package cover hours and days, pauses and halves.
//
// Guard: gossip.(*engine).supersedeOwn and (*View).mergeRecord, which verify the signature; (*engine).buried; (Tombstone).rejects.
func TestGO11_ForgottenAndBack(t *testing.T) {
	_, west := twoClusters(t)
	restart := func(forgetAfter string) {
		if err := west.Access.Stop(attacktest.Long); err != nil {
			t.Error(err)
		}
		second.there = false
		west.Set("gossip.forgetAfter", forgetAfter)
	}
	restart("1m")
	t.Cleanup(func() { restart("24h") })
	east, west := twoClusters(t)
	r, thief := newRogue(t, east, "go11"), newRogue(t, east, "go11-thief")
	r.introduce(t)
	thief.introduce(t)
	m := east.Mark(t)

	t.Run("a server gets its own record", func(t *testing.T) {
		node, began := nodeOf(t, west, "east"), time.Now()
		own := r.learn(t, east)[node]
		raised := func() uint64 { return r.learn(t, east)[node].Generation - own.Generation }
		const top = 1<<53 - 1
		forged, err := r.sealed(own.Facts, gossip.Order{Generation: top, Version: 1}, gossip.Up)
		if err != nil {
			t.Fatal(err)
		}
		number := fmt.Sprintf(",[%q,%d,%d,%d]", node, top, top, 1)
		for _, said := range []string{message(r.claim(), forged), message(r.claim() + number), message(r.claim()+number, forged)} {
			r.taken(t, east, said)
			r.says(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, said) })
			asked := r.count(&r.asked)
			attacktest.Eventually(t, attacktest.Long, "it has sent a request", func() bool { return r.count(&r.asked) >= asked+2 })
		}
		r.says(nil)
		if got := raised(); got != 0 {
			t.Errorf("forged records raise its generation by %d", got)
		}
		// Control: its own record, again and again.
		for range 20 {
			r.taken(t, east, message(r.claim(), r.learn(t, east)[node].Signed))
		}
		if got, most := raised(), 1+uint64(time.Since(began)/(10*time.Second)); got == 0 || got > most {
			t.Errorf("its own record raises its generation by %d, want 1 to %d", got, most)
		}
		attacktest.Eventually(t, attacktest.Long, "that is recorded", func() bool { return len(toldSince(t, m, gossip.EventRaised, node)) > 0 })
		attacktest.Eventually(t, attacktest.Long, "it is alive", func() bool { return aliveTo(t, west, "east") })
	})
	t.Run("a server has forgotten another", func(t *testing.T) {
		last, listed := r.own(), func() bool { _, ok := clusterOf(t, west, "go11"); return ok }
		r.says(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		attacktest.Eventually(t, attacktest.Long, "it is forgotten", func() bool { return !listed() })
		returned := func(by *rogueMember, said string) (out []gossip.Signed) {
			var answer struct{ R []struct{ P, S []byte } }
			attacktest.Decode(t, by.taken(t, west, said).Body, &answer)
			for _, x := range answer.R {
				if record, err := gossip.Open(gossip.Signed{Payload: x.P, Signature: x.S}); err == nil && record.Node == string(r.id) {
					out = append(out, record.Signed)
				}
			}
			return out
		}
		counted := rejectedBy(t, west, gossip.Buried)
		if got := returned(thief, message(thief.claim()+","+r.claim(), last)); len(got) > 0 {
			t.Error("another server gets the buried record")
		}
		if got := rejectedBy(t, west, gossip.Buried); got <= counted {
			t.Error("the stolen record is not counted")
		}
		want := []gossip.Signed{last}
		if diff := cmp.Diff(want, returned(r, message(r.claim(), last))); diff != "" {
			t.Errorf("the server itself gets (-want +got):\n%s", diff)
		}
		if listed() {
			t.Error("an old record raises the dead")
		}
		r.mu.Lock()
		r.order.Generation++
		r.mu.Unlock()
		r.renew(t)
		r.says(nil)
		r.introduce(t)
	})
	idleSince(t, m)
}
