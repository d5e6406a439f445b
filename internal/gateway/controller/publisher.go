package controller

import (
	"cmp"
	"context"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailplane/tailplane/internal/gateway"
)

// A Publisher publishes the last decision to the controllers. The zero Publisher has no decision. It is
// safe for concurrent use.
type Publisher struct {
	mu          sync.Mutex
	result      *gateway.Result
	err         error
	included    map[types.UID]int64 // generations of Tailplane's objects in the last decision
	subscribers []*subscriber
}

type subscriber struct {
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	of    func(was, is *gateway.Result) []gateway.Name
}

// Publish publishes a decision, which must not be modified afterwards.
func (b *Publisher) Publish(is *gateway.Result) {
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.result
	b.result = is
	for _, r := range b.subscribers {
		r.notify(was, is)
	}
}

// Result returns the last decision. It is nil before the first decision; the desired state is then
// unknown.
func (b *Publisher) Result() *gateway.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.result
}

// Err returns the error that prevents a newer decision. It is nil if the published decision is
// the newest.
func (b *Publisher) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// Includes reports whether the last decision included the current generation of an object.
func (b *Publisher) Includes(o metav1.Object) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	generation, ok := b.included[o.GetUID()]
	return ok && generation >= o.GetGeneration()
}

func (b *Publisher) setIncluded(seen map[types.UID]int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.included = seen
}

// setErr sets or clears the fault.
func (b *Publisher) setErr(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	news := (b.err == nil) != (err == nil)
	b.err = err
	for _, r := range b.subscribers {
		if news && b.result != nil {
			r.notify(b.result, b.result)
		}
	}
}

// Changes returns a source of the objects to reconcile after a new decision. of returns their
// names. was is empty in the first call. When a fault begins or ends, was and is are the same
// Result.
func (b *Publisher) Changes(of func(was, is *gateway.Result) []gateway.Name) source.Source {
	return source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		r := &subscriber{queue, of}
		b.subscribers = append(b.subscribers, r)
		if b.result != nil {
			r.notify(nil, b.result)
		}
		context.AfterFunc(ctx, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.subscribers = slices.DeleteFunc(b.subscribers, func(one *subscriber) bool { return one == r })
		})
		return nil
	})
}

// notify queues the names that of returns. was may be nil.
func (r *subscriber) notify(was, is *gateway.Result) {
	for _, q := range requests(r.of(cmp.Or(was, &gateway.Result{Snapshot: &gateway.Snapshot{}}), is)...) {
		r.queue.Add(q)
	}
}
