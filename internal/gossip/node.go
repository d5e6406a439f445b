package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Config holds the dependencies of a Node. Every field except Merged and Recalled is required.
type Config struct {
	Settings Settings
	ID       string // stable node id of this server
	Key      httpapi.PublicKey
	Sign     func(message []byte) []byte // with the cluster's key
	// Facts returns what this server announces about itself, or false while that is unknown. The node calls it in each round. It must not
	// modify a value that it has returned.
	Facts func() (Facts, bool)
	// Netmap returns the current nodes of our tailnet with a required tag.
	Netmap func() *Netmap
	// Exchange sends a message to a peer and returns the response. It must verify that the other end is that peer before it sends a byte,
	// and must end with its context. Package gossiphttp implements it.
	Exchange func(context.Context, Peer, []byte) ([]byte, error)
	// Load and Save store what must survive a restart. The node does not gossip before Load has succeeded: without its pins it would trust
	// every cluster at first contact again.
	Load   func(context.Context) (Memory, error)
	Save   func(context.Context, Memory) error
	Report func(Event) // for the audit log; it must not block
	Log    *slog.Logger
	Now    func() time.Time
	Rand   rand.Source

	Merged func(time.Duration) // receives how long each message took to process
	// Recalled receives statements about audit logs that this node signed in an earlier run and that a peer has returned. It must not block.
	// It is optional.
	Recalled func([]audit.SignedHead)
}

// A Node is this server as a member of the gossip network. Its methods are safe for concurrent use, also before and after Run.
type Node struct {
	cfg Config

	mu       sync.Mutex // guards the engine; never held during I/O
	engine   *engine    // nil until Run has loaded the memory
	leaving  bool
	reported *Facts // the facts of the last announcement, successful or not

	members atomic.Pointer[Members]
}

// New returns a node that does not gossip yet.
func New(cfg Config) (*Node, error) {
	switch {
	case !isNode(cfg.ID):
		return nil, fmt.Errorf("gossip: %q is not a node id", cfg.ID)
	case cfg.Key.IsZero(), cfg.Sign == nil, cfg.Facts == nil, cfg.Netmap == nil, cfg.Exchange == nil, cfg.Load == nil, cfg.Save == nil,
		cfg.Report == nil, cfg.Log == nil, cfg.Now == nil, cfg.Rand == nil:
		return nil, errors.New("gossip: a required field is missing")
	}
	set, err := cfg.Settings.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("gossip: %w", err)
	}
	cfg.Settings = set
	n := &Node{cfg: cfg}
	n.members.Store(&Members{At: cfg.Now()})
	return n, nil
}

const retryStore = 5 * time.Second

// Run gossips until ctx ends. It returns when all goroutines that it started have ended.
func (n *Node) Run(ctx context.Context) error {
	var begun sync.WaitGroup
	defer begun.Wait()
	memory, err := n.load(ctx)
	if err != nil {
		return nil // ctx has ended
	}
	set := n.cfg.Settings
	chance := rand.New(n.cfg.Rand)
	n.mu.Lock()
	n.engine = newEngine(Rules{n.cfg.ID, n.cfg.Key, set}, memory, n.cfg.Sign, rand.New(rand.NewPCG(chance.Uint64(), chance.Uint64())), n.cfg.Now())
	n.mu.Unlock()
	saving, tryAgain := make(chan error, 1), time.Time{}
	idle := true // no save is under way
	for {
		calls, unsaved := n.round()
		for _, c := range calls {
			begun.Go(func() { n.exchange(ctx, c) })
		}
		if unsaved && idle && !n.cfg.Now().Before(tryAgain) {
			memory := n.takeMemory()
			idle = false
			begun.Go(func() { saving <- n.cfg.Save(ctx, memory) })
		}
		next := time.NewTimer(set.Interval*9/10 + time.Duration(chance.Int64N(int64(set.Interval/5))))
	wait:
		for {
			select {
			case <-next.C:
				break wait
			case err := <-saving:
				idle = true
				tryAgain = n.cfg.Now().Add(retryStore) // limits how often peers can cause a save
				if err != nil && ctx.Err() == nil {
					n.cfg.Log.Warn("saving the gossip pins failed; after a restart this server would pin clusters again on first contact", "err", err)
					n.mu.Lock()
					n.engine.unsaved = true
					n.mu.Unlock()
				}
			case <-ctx.Done():
				next.Stop()
				return nil
			}
		}
	}
}

// load waits until Load succeeds or ctx ends.
func (n *Node) load(ctx context.Context) (Memory, error) {
	for reported := false; ; reported = true {
		m, err := n.cfg.Load(ctx)
		if err == nil {
			return m, nil
		}
		if !reported && ctx.Err() == nil {
			n.cfg.Log.Warn("gossip waits for its stored pins", "err", err)
		}
		if err := retry.Sleep(ctx, time.Second); err != nil {
			return Memory{}, err
		}
	}
}

// round begins a round.
func (n *Node) round() (calls []call, unsaved bool) {
	facts, known := n.cfg.Facts()
	netmap := n.cfg.Netmap()
	now := n.cfg.Now()
	n.mu.Lock()
	e := n.engine
	var err error
	if known && !n.leaving && (n.reported == nil || !reflect.DeepEqual(*n.reported, facts)) {
		err = e.announce(facts, Up, now)
		n.reported = &facts
	}
	if !n.leaving {
		calls = e.tick(netmap, now)
	}
	events := n.publish(now)
	unsaved = e.unsaved
	n.mu.Unlock()
	if err != nil {
		n.cfg.Log.Warn("announcing this server failed", "err", err)
	}
	n.report(events)
	return calls, unsaved
}

// takeMemory returns the memory to save.
func (n *Node) takeMemory() Memory {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engine.unsaved = false
	return n.engine.view.memory(n.engine.floor)
}

// exchange carries out one exchange that this node began.
func (n *Node) exchange(ctx context.Context, c call) {
	defer func() { // the response comes from an untrusted peer
		if p := recover(); p != nil {
			n.cfg.Log.Error("a gossip exchange panicked", "node", c.to.ID, "panic", p, "stack", string(debug.Stack()))
			n.endExchange(c.to.ID, errors.New("panic"))
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, n.engine.deadline())
	defer cancel()
	answer, err := n.cfg.Exchange(ctx, c.to, c.body)
	if err != nil {
		n.cfg.Log.Debug("a gossip exchange failed", "node", c.to.ID, "err", err)
	}
	var third []byte
	n.withEngine(func(e *engine, now time.Time) {
		if err != nil {
			e.endExchange(c.to.ID, err, now)
		} else {
			third = e.handleResponse(c.to.ID, answer, now)
		}
	})
	if third != nil {
		_, err = n.cfg.Exchange(ctx, c.to, third)
		n.endExchange(c.to.ID, err)
	}
}

func (n *Node) endExchange(to string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.engine.endExchange(to, err, n.cfg.Now())
}

// withEngine processes a message under the lock and reports the resulting events.
func (n *Node) withEngine(do func(*engine, time.Time)) {
	now := n.cfg.Now()
	events := n.update(do, now)
	if n.cfg.Merged != nil {
		n.cfg.Merged(n.cfg.Now().Sub(now))
	}
	if n.cfg.Recalled != nil {
		n.mu.Lock()
		recalled := n.engine.statements
		n.engine.statements = nil
		n.mu.Unlock()
		if len(recalled) > 0 {
			n.cfg.Recalled(recalled)
		}
	}
	n.report(events)
}

func (n *Node) update(do func(*engine, time.Time), now time.Time) []Event {
	n.mu.Lock()
	defer n.mu.Unlock() // the HTTP server recovers a panic, and the next message must still be able to lock mu
	before := n.engine.view
	do(n.engine, now)
	if n.engine.view == before && len(n.engine.events) == 0 {
		return nil
	}
	return n.publish(now)
}

// publish makes the current view visible to readers and returns the pending events.
func (n *Node) publish(now time.Time) []Event {
	n.members.Store(n.engine.snapshot(now))
	events := n.engine.events
	n.engine.events = nil
	return events
}

func (n *Node) report(events []Event) {
	for _, ev := range events {
		n.cfg.Report(ev)
	}
}

// Handle responds to a message of the peer from, a stable node id that WhoIs returned. Refusals are problems.
func (n *Node) Handle(from string, body []byte) (answer []byte, err error) {
	n.mu.Lock()
	ready := n.engine != nil
	n.mu.Unlock()
	if !ready || !isNode(from) {
		return nil, errNotStarted()
	}
	n.withEngine(func(e *engine, now time.Time) { answer, err = e.handleRequest(from, body, now) })
	return answer, err
}

// leaveTime bounds Leave.
const leaveTime = time.Second

// Leave reports to three other members that this server leaves, within a second. From then on the node only responds to messages.
func (n *Node) Leave(ctx context.Context) error {
	now := n.cfg.Now()
	var calls []call
	var err error
	facts, known := n.cfg.Facts()
	n.mu.Lock()
	if e := n.engine; e != nil && e.own != nil && !n.leaving {
		n.leaving = true
		if !known {
			facts = e.own.Facts
		}
		calls, err = e.leave(facts, now)
		n.publish(now)
	}
	n.mu.Unlock()
	if err != nil || len(calls) == 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	next := make(chan call, len(calls))
	for _, c := range calls {
		next <- c
	}
	close(next)
	var reported sync.WaitGroup
	var heard atomic.Int32
	for range leaveTargets {
		reported.Go(func() {
			for c := range next { // until one member has received it
				if _, err := n.cfg.Exchange(ctx, c.to, c.body); err == nil {
					heard.Add(1)
					return
				}
			}
		})
	}
	reported.Wait()
	if heard.Load() == 0 {
		return errors.New("leave: no member received the message")
	}
	return nil
}

// Members returns the last published view. It never blocks.
func (n *Node) Members() *Members { return n.members.Load() }

// CountRejected counts a caller that the server rejected before it read the message.
func (n *Node) CountRejected(why Reason) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.engine != nil {
		n.engine.stats.Rejected[why]++
	}
}

// Stats returns counts since the start.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.engine == nil {
		return newStats()
	}
	return n.engine.stats.clone()
}
