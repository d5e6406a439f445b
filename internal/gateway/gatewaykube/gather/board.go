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

// A Board shows what was decided last, to those who act upon it. The zero Board
// shows nothing yet. It may be used by several goroutines.
type Board struct {
	mu      sync.Mutex
	result  *gateway.Result
	fault   error
	seen    map[types.UID]int64 // generations of our own kinds that were decided upon
	readers []*reader
}

type reader struct {
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request]
	of     func(was, is *gateway.Result) []types.NamespacedName
	faults bool // of is asked too when a fault comes or goes, with the same Result twice
}

// Post shows a decision, which nobody changes any more.
func (b *Board) Post(is *gateway.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.result
	b.result = is
	for _, r := range b.readers {
		r.read(was, is)
	}
}

// Result is what was decided last; nil before the first decision, and then nobody
// knows yet what should be.
func (b *Board) Result() *gateway.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.result
}

// Fault is why there is no newer decision than the one that is shown; nil if that
// one is the newest.
func (b *Board) Fault() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fault
}

// Saw says whether an object of the operator's own kinds was decided upon as its
// spec is now.
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

// setFault notes what is wrong, or that nothing is.
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

// Changes are the objects that a controller has to look at because a decision
// differs from the one before: of names them. The first time was is nil.
func (b *Board) Changes(of func(was, is *gateway.Result) []types.NamespacedName) source.Source {
	return b.source(of, false)
}

// ChangesAndFaults are the same, and of is also asked when a fault comes or goes:
// then was and is are one and the same.
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
