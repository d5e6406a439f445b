package gather

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailplane/tailplane/internal/gateway"
)

// A Board publishes the last decision to the controllers. The zero Board has no decision. It is
// safe for concurrent use.
type Board struct {
	mu      sync.Mutex
	result  *gateway.Result
	fault   error
	seen    map[types.UID]int64 // generations of Tailplane's objects in the last decision
	readers []*reader
}

type reader struct {
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
	of     func(was, is *gateway.Result) []types.NamespacedName
	faults bool // also call of when a fault begins or ends, with the same Result twice
}

// Post publishes a decision, which must not be modified afterwards.
func (b *Board) Post(is *gateway.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.result
	b.result = is
	for _, r := range b.readers {
		r.read(was, is)
	}
}

// Result returns the last decision. It is nil before the first decision; the desired state is then
// unknown.
func (b *Board) Result() *gateway.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.result
}

// Fault returns the error that prevents a newer decision. It is nil if the published decision is
// the newest.
func (b *Board) Fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fault
}

// Saw reports whether the last decision included the current generation of an object.
func (b *Board) Saw(o metav1.Object) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	generation, ok := b.seen[o.GetUID()]
	return ok && generation >= o.GetGeneration()
}

func (b *Board) setSeen(seen map[types.UID]int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = seen
}

// setFault sets or clears the fault.
func (b *Board) setFault(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	news := (b.fault == nil) != (err == nil)
	b.fault = err
	for _, r := range b.readers {
		if news && r.faults && b.result != nil {
			r.read(b.result, b.result)
		}
	}
}

// Changes returns a source of the objects to reconcile after a new decision. of returns their
// names. was is nil in the first call.
func (b *Board) Changes(of func(was, is *gateway.Result) []types.NamespacedName) source.Source {
	return b.source(of, false)
}

// ChangesAndFaults is like Changes, but also calls of when a fault begins or ends. was and is are
// then the same Result.
func (b *Board) ChangesAndFaults(of func(was, is *gateway.Result) []types.NamespacedName) source.Source {
	return b.source(of, true)
}

func (b *Board) source(of func(was, is *gateway.Result) []types.NamespacedName, faults bool) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		r := &reader{queue, of, faults}
		b.readers = append(b.readers, r)
		if b.result != nil {
			r.read(nil, b.result)
		}
		context.AfterFunc(ctx, func() { b.forget(r) })
		return nil
	})
}

func (r *reader) read(was, is *gateway.Result) {
	for _, name := range r.of(was, is) {
		r.queue.Add(reconcile.Request{NamespacedName: name})
	}
}

func (b *Board) forget(r *reader) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, one := range b.readers {
		if one == r {
			b.readers = append(b.readers[:i], b.readers[i+1:]...)
			return
		}
	}
}
