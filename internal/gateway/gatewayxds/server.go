// Package gatewayxds answers Envoy Gateway's extension hooks: it renders a gateway.Snapshot into Envoy's routes, clusters and
// listeners. It keeps the law of the last known good: no call is answered with an error, or with less than it asked about.
package gatewayxds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	"google.golang.org/protobuf/proto"

	"github.com/tailplane/tailplane/internal/gateway"
)

// Result says how a call was answered.
type Result string

const (
	Changed   Result = "changed"   // something of ours is in the answer
	Unchanged Result = "unchanged" // what was asked about came back as it was
	Fallback  Result = "fallback"  // the newest snapshot could not be rendered: the last good one was, or nothing
	Stale     Result = "stale"     // Envoy Gateway asked for a later revision than there is
)

// Results are all of them, for those who count.
func Results() []Result { return []Result{Changed, Unchanged, Fallback, Stale} }

// Hook is one of the six calls, by the name that Envoy Gateway's configuration has for it.
type Hook string

const (
	RouteHook       Hook = "Route"
	VirtualHostHook Hook = "VirtualHost"
	ListenerHook    Hook = "HTTPListener"
	ClusterHook     Hook = "Cluster"
	EndpointsHook   Hook = "Endpoints"
	TranslationHook Hook = "Translation"
)

// Hooks are all of them.
func Hooks() []Hook {
	return []Hook{RouteHook, VirtualHostHook, ListenerHook, ClusterHook, EndpointsHook, TranslationHook}
}

// A Call is what is measured of one.
type Call struct {
	Hook    Hook
	Result  Result
	Took    time.Duration
	In, Out int // bytes
}

// Server is the extension server. Fields without a remark are required.
type Server struct {
	Deadline   time.Duration // of one call, at most; a caller's own deadline may be nearer
	MaxMessage int           // bytes of a message either way; Envoy Gateway's maxMessageSize must agree
	Log        *slog.Logger
	Measure    func(Call)
	Report     func(Report) // optional: is told what each Translation came to; must not block

	Reflection bool // lets tools such as grpcurl ask what there is to call

	extension.UnimplementedEnvoyGatewayExtensionServer

	open    atomic.Bool
	once    sync.Once
	first   chan struct{} // closed by the first snapshot
	current atomic.Pointer[published]
	hosts   sync.Map // Names of Gateways whose virtual hosts were asked about since their last Translation
	good    sync.Map // of each gateway's Name, the last *gateway.Snapshot whose rendering was sound
}

// published is a snapshot, and the news that there is a later one.
type published struct {
	snapshot *gateway.Snapshot
	replaced chan struct{}
}

func (s *Server) check() error {
	switch {
	case s.Deadline <= 0:
		return errors.New("extension server: no deadline")
	case s.MaxMessage <= 0:
		return errors.New("extension server: no size of messages")
	case s.Log == nil || s.Measure == nil:
		return errors.New("extension server: nowhere to log or to measure")
	}
	return nil
}

// Ready is closed when the first snapshot is there.
func (s *Server) Ready() <-chan struct{} {
	s.once.Do(func() { s.first = make(chan struct{}) })
	return s.first
}

// Open says whether the server listens.
func (s *Server) Open() bool { return s.open.Load() }

// Publish makes a snapshot the one that calls are answered from. It must not be changed afterwards. One goroutine publishes.
func (s *Server) Publish(n *gateway.Snapshot) {
	ready := s.Ready()
	was := s.current.Swap(&published{n, make(chan struct{})})
	if was != nil {
		close(was.replaced)
		return
	}
	select {
	case <-ready:
	default:
		close(s.first)
	}
}

// errUnsound marks an answer that was made and did not pass the checks.
var errUnsound = errors.New("unsound")

// A call is one hook's work, which answers any snapshot.
type call[M proto.Message] struct {
	hook    Hook
	gateway gateway.Name // zero where the call does not tell: the last good is then that of every gateway
	ask     proto.Message
	echo    M                                                                       // the answer that changes nothing
	work    func(context.Context, *gateway.Snapshot) (m M, changed bool, err error) // must not change ask or echo
	stale   bool
}

// answer does the work on the newest snapshot; if that fails, on the last one that gave something sound; if that fails too,
// nothing is changed.
func answer[M proto.Message](ctx context.Context, s *Server, c call[M]) M {
	began := time.Now()
	limit := s.Deadline
	if d, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(d)-100*time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	m, result := decide(ctx, s, c, limit/2)
	s.Measure(Call{Hook: c.hook, Result: result, Took: time.Since(began), In: proto.Size(c.ask), Out: proto.Size(m)})
	return m
}

// decide gives the first try no more than its share of the time, so that there is some left for the second.
func decide[M proto.Message](ctx context.Context, s *Server, c call[M], share time.Duration) (M, Result) {
	now := s.current.Load()
	if now == nil {
		return c.echo, Unchanged
	}
	first, cancel := context.WithTimeout(ctx, share)
	m, changed, err := try(first, c, now.snapshot)
	cancel()
	if err == nil {
		s.good.Store(c.gateway, now.snapshot)
		switch {
		case c.stale:
			return m, Stale
		case changed:
			return m, Changed
		}
		return m, Unchanged
	}
	s.Log.Error("a hook could not be answered from the newest snapshot", "hook", c.hook, "gateway", c.gateway.String(), "err", err)
	if last, ok := s.good.Load(c.gateway); ok && last != now.snapshot {
		m, _, err := try(ctx, c, last.(*gateway.Snapshot))
		if err == nil {
			return m, Fallback
		}
		s.Log.Error("nor from the last good one", "hook", c.hook, "gateway", c.gateway.String(), "err", err)
	}
	return c.echo, Fallback
}

// try does the work beside the caller, who then waits no longer than ctx whatever the work does.
func try[M proto.Message](ctx context.Context, c call[M], n *gateway.Snapshot) (M, bool, error) {
	type outcome struct {
		m       M
		changed bool
		err     error
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if p := recover(); p != nil {
				o.err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			}
			done <- o
		}()
		o.m, o.changed, o.err = c.work(ctx, n)
	}()
	select {
	case o := <-done:
		return o.m, o.changed, o.err
	case <-ctx.Done():
		var none M
		return none, false, context.Cause(ctx)
	}
}

// seen notes that the hook for virtual hosts was called for a Gateway.
func (s *Server) seen(name gateway.Name) { s.hosts.Store(name, true) }

// asked says whether it was since the last time that this was called.
func (s *Server) asked(name gateway.Name) bool {
	_, was := s.hosts.LoadAndDelete(name)
	return was
}

func (s *Server) report(r Report) {
	if s.Report != nil {
		s.Report(r)
	}
}
