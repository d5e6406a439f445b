package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// A meshEnv carries the messages of real Nodes in memory.
type meshEnv struct {
	sim    *sim // for facts and keys
	netmap *Netmap

	mu     sync.Mutex
	nodes  map[string]*Node
	events map[EventKind]int
}

func newMeshEnv(t *testing.T, n int) *meshEnv {
	s := newSim(t, 1, n, Settings{})
	return &meshEnv{sim: s, netmap: s.netmap, nodes: map[string]*Node{}, events: map[EventKind]int{}}
}

func (m *meshEnv) config(i int, set Settings) Config {
	n := m.sim.nodes[i]
	return Config{Settings: set, ID: n.facts.Node, Key: n.facts.Key, Sign: n.sign,
		Facts: func() (Facts, bool) { return n.facts, true }, Netmap: func() *Netmap { return m.netmap },
		Exchange: func(ctx context.Context, p Peer, body []byte) ([]byte, error) {
			return m.exchange(ctx, n.facts.Node, p, body)
		},
		Load: func(context.Context) (Memory, error) { return Memory{}, nil },
		Save: func(context.Context, Memory) error { return nil },
		Report: func(e Event) {
			m.mu.Lock()
			m.events[e.Kind]++
			m.mu.Unlock()
		},
		Log: slog.New(slog.DiscardHandler), Now: time.Now, Rand: rand.NewPCG(1, uint64(i))}
}

func (m *meshEnv) exchange(ctx context.Context, from string, p Peer, body []byte) ([]byte, error) {
	m.mu.Lock()
	to := m.nodes[p.ID]
	m.mu.Unlock()
	if to == nil {
		return nil, errors.New("connection refused")
	}
	t := time.NewTimer(5 * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return to.Handle(from, body)
}

// start runs node i. stop ends it and returns when Run has returned.
func (m *meshEnv) start(t *testing.T, i int, set Settings) (n *Node, stop func() error) {
	t.Helper()
	n, err := New(m.config(i, set))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	m.mu.Lock()
	m.nodes[n.cfg.ID] = n
	m.mu.Unlock()
	go func() { ended <- n.Run(ctx) }()
	return n, func() error {
		cancel()
		err := <-ended
		m.mu.Lock()
		delete(m.nodes, n.cfg.ID)
		m.mu.Unlock()
		return err
	}
}

func (m *meshEnv) report(k EventKind) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.events[k]
}

// TestRun: after A-B, B-C and A-C all nodes know all, and each responds with the full list.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeshEnv(t, 3)
		var nodes []*Node
		for i := range 3 {
			n, stop := m.start(t, i, Settings{})
			nodes = append(nodes, n)
			defer stop()
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		for i, n := range nodes {
			clusters, hidden := n.Members().Clusters(false)
			if len(clusters) != 3 || hidden != 0 {
				t.Fatalf("node %d lists %d clusters, %d hidden", i, len(clusters), hidden)
			}
			for _, c := range clusters {
				switch {
				case c.State != Alive:
					t.Errorf("node: c.State = %q, want %q", c.State, Alive)
				case !c.Verified:
					t.Errorf("node: c.Verified is false; %d, %+v", i, c)
				case c.Self != (c.Name == fmt.Sprint("prod-", i)):
					t.Errorf("node: c.Self = %v, want %v", c.Self, (c.Name == fmt.Sprint("prod-", i)))
				case c.LastSeen.IsZero():
					t.Errorf("node: c.LastSeen.IsZero() is true; %d, %+v", i, c)
				}
			}
			switch st := n.Stats(); {
			case st.Rounds == 0:
				t.Errorf("node: st.Rounds = %v; %d", st.Rounds, i)
			case st.BytesOut == 0:
				t.Errorf("node: st.BytesOut = %v; %d", st.BytesOut, i)
			case st.BytesIn == 0:
				t.Errorf("node: st.BytesIn = %v; %d", st.BytesIn, i)
			case len(st.Rejected) != 0:
				t.Errorf("node: len(st.Rejected) = %v, want 0; %d", len(st.Rejected), i)
			}
		}
		if m.report(EventJoin) != 6 || m.report(EventPin) != 6 {
			t.Errorf("joins %d, pins %d", m.report(EventJoin), m.report(EventPin))
		}
		if err := nodes[2].Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		clusters, hidden := nodes[0].Members().Clusters(false)
		switch {
		case len(clusters) != 2:
			t.Errorf("after one node has left: len(clusters) = %v, want 2", len(clusters))
		case hidden != 1:
			t.Errorf("after one node has left: hidden = %v, want 1", hidden)
		case m.report(EventLeave) != 2:
			t.Errorf("after one node has left: m.report(EventLeave) != 2; %d, hidden = %d, %d", len(clusters), hidden, m.report(EventLeave))
		}
	})
}

// TestChurn: after many nodes have come and gone (1,000 with -long), the number of goroutines and the memory are as before (DSC-15).
func TestChurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		batch, batches := 50, 3
		if *long {
			batches = 20
		}
		set := Settings{Interval: time.Second, ForgetAfter: time.Minute}
		m := newMeshEnv(t, 3+batch*batches)
		var nodes []*Node
		for i := range 3 {
			n, stop := m.start(t, i, set)
			nodes = append(nodes, n)
			defer stop()
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		goroutines := runtime.NumGoroutine()
		joined := 0
		for b := range batches {
			var guests []*Node
			var stops []func() error
			for i := range batch {
				n, stop := m.start(t, 3+b*batch+i, set)
				guests, stops = append(guests, n), append(stops, stop)
			}
			time.Sleep(3 * time.Second)
			synctest.Wait()
			joined = max(joined, len(nodes[0].Members().List))
			var left sync.WaitGroup
			for _, n := range guests {
				left.Go(func() {
					if err := n.Leave(t.Context()); err != nil {
						t.Errorf("leave: %v", err)
					}
				})
			}
			left.Wait()
			for _, stop := range stops {
				if err := stop(); err != nil {
					t.Errorf("run: %v", err)
				}
			}
		}
		if joined < batch {
			t.Errorf("at most %d members were seen at once", joined)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if n := runtime.NumGoroutine(); n > goroutines+3 { // one exchange of each node may be under way
			t.Errorf("%d goroutines, and %d before", n, goroutines)
		}
		for _, n := range nodes {
			n.mu.Lock()
			switch {
			case len(n.engine.members) != 2:
				t.Errorf("len(n.engine.members) = %v, want 2", len(n.engine.members))
			case len(n.engine.list) != 2:
				t.Errorf("len(n.engine.list) = %v, want 2", len(n.engine.list))
			case n.engine.view.entries.Len() != 2:
				t.Errorf("n.engine.view.entries.Len() = %v, want 2", n.engine.view.entries.Len())
			case n.engine.view.tombs.Len() > maxTombstones:
				t.Errorf("n.engine.view.tombs.Len() = %v, want at most %v", n.engine.view.tombs.Len(), maxTombstones)
			}
			n.mu.Unlock()
		}
	})
}

// TestRunEnds: Run returns at once, whatever its peers do (DSC-15).
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeshEnv(t, 4)
		cfg := m.config(0, Settings{})
		queried := make(chan struct{}, 100)
		cfg.Exchange = func(ctx context.Context, _ Peer, _ []byte) ([]byte, error) {
			queried <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		<-queried
		cancelled := time.Now()
		cancel()
		if err := <-ended; err != nil || time.Since(cancelled) > time.Second {
			t.Errorf("after %v: %v", time.Since(cancelled), err)
		}
	})
}

// TestMemory: a node does not gossip before the pins are loaded. It saves what it learns, and saves again after a failure.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeshEnv(t, 2)
		_, stop := m.start(t, 1, Settings{})
		defer stop()
		cfg := m.config(0, Settings{})
		var mu sync.Mutex
		var saved []Memory
		loads := 0
		cfg.Load = func(context.Context) (Memory, error) {
			mu.Lock()
			defer mu.Unlock()
			if loads++; loads < 4 {
				return Memory{}, errors.New("the API server is away")
			}
			return Memory{Generation: 1 << 40}, nil
		}
		cfg.Save = func(_ context.Context, memory Memory) error {
			mu.Lock()
			defer mu.Unlock()
			if saved = append(saved, memory); len(saved) == 1 {
				return errors.New("the API server is away")
			}
			return nil
		}
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Handle(m.sim.nodes[1].facts.Node, []byte(`{}`)); problem.CodeOf(err) != problem.Unavailable {
			t.Errorf("before it runs: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- n.Run(ctx) }()
		time.Sleep(2500 * time.Millisecond)
		if st := n.Stats(); st.Rounds != 0 || len(n.Members().List) != 0 {
			t.Errorf("it gossips without its memory: %+v", st)
		}
		time.Sleep(20 * time.Second)
		cancel()
		<-ended
		last := saved[len(saved)-1]
		switch {
		case last.Generation != 1<<40+1:
			t.Errorf("saved: last.Generation = %v, want %v", last.Generation, 1<<40+1)
		case len(last.Nodes) != 2:
			t.Errorf("saved: len(last.Nodes) = %v, want 2", len(last.Nodes))
		case len(last.Clusters) != 2:
			t.Errorf("saved: len(last.Clusters) = %v, want 2", len(last.Clusters))
		case len(saved) > 4:
			t.Errorf("saved: len(saved) = %v, want at most 4", len(saved))
		}
	})
}

// TestFactsChange: new facts of a server are everywhere at once, and it does not announce facts that others would refuse.
func TestFactsChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeshEnv(t, 2)
		cfg := m.config(0, Settings{})
		var mu sync.Mutex
		facts := m.sim.nodes[0].facts
		facts.Labels = map[string]string{}
		cfg.Facts = func() (Facts, bool) {
			mu.Lock()
			defer mu.Unlock()
			return facts, true
		}
		n, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		m.nodes[cfg.ID] = n
		go func() { ended <- n.Run(ctx) }()
		other, stop := m.start(t, 1, Settings{})
		defer stop()
		labels := func() map[string]string {
			for _, c := range other.Members().List {
				if c.Node == cfg.ID {
					return c.Labels
				}
			}
			return nil
		}
		mu.Lock()
		facts.Labels = map[string]string{} // another map with the same content
		mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		n.mu.Lock()
		if v := n.engine.own.Version; v != 1 {
			t.Errorf("nothing changed, and its version is %d", v)
		}
		n.mu.Unlock()
		for _, want := range []string{"prod", "test", "<bad>"} {
			mu.Lock()
			facts.Labels = map[string]string{"env": want}
			mu.Unlock()
			time.Sleep(3 * time.Second)
			synctest.Wait()
			got := labels()["env"]
			if want == "<bad>" {
				want = "test"
			}
			if got != want {
				t.Errorf("env is %q, not %q", got, want)
			}
		}
		cancel()
		<-ended
	})
}

func TestNewRefuses(t *testing.T) {
	m := newMeshEnv(t, 1)
	for name, change := range map[string]func(*Config){
		"no id":       func(c *Config) { c.ID = "" },
		"no key":      func(c *Config) { c.Key = [32]byte{} },
		"no exchange": func(c *Config) { c.Exchange = nil },
		"no memory":   func(c *Config) { c.Load = nil },
		"bad setting": func(c *Config) { c.Settings.Fanout = -1 },
	} {
		cfg := m.config(0, Settings{})
		change(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
