package controller

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailplane/tailplane/internal/gateway"
)

// The gatherer collects the objects for a decision, calls gateway.Build and publishes the result to
// the controllers. It follows law 7: there is no decision until everything is known, and a decision
// stays until there is a new one.

// Default times of a gatherer. They are short, because one change often needs three decisions:
// first for a group, then for a port of it, then for the route. The requests to Envoy Gateway are
// limited separately.
const (
	quietTime        = 100 * time.Millisecond // time without changes before a decision
	maxDecisionDelay = time.Second            // maximum time from the first change to the decision
)

// pauseFactor is the minimum pause between two decisions as a multiple of the decision time. During many
// changes, two thirds of the time remain for other work.
const pauseFactor = 2

const (
	optionalKindsInterval = 10 * time.Second // between checks for kinds that are not served
	referencesInterval    = time.Minute      // between reads of objects that are not watched
	cacheSyncTimeout      = time.Minute      // for the cache of one kind to sync
	referenceTimeout      = 20 * time.Second // for one object that is not watched
	gatherRetryTime       = 5 * time.Second  // after an error
)

// A gatherer computes a new decision whenever an object changes.
type gatherer struct {
	*Runner
	// QuietTime and MaxDelay replace the default times. Optional.
	QuietTime, MaxDelay time.Duration
	// Build replaces gateway.Build. Optional.
	Build func(gateway.Objects) gateway.Result

	cache                cache.Cache
	direct               client.Reader // reads from the API server
	changed              chan struct{}
	follows              map[string]bool // kinds with a synced cache
	optionalKindsChecked time.Time       // last check for kinds that are not served
	roots                map[gateway.Name]string
	wake                 time.Duration // until the next decision without a change; 0 means never
	rested               time.Time     // earliest time of the next decision
}

// Add registers the gatherer to run on every replica, leader or not.
func (g *gatherer) Add(mgr manager.Manager) error {
	g.cache, g.direct = mgr.GetCache(), mgr.GetAPIReader()
	g.changed, g.follows, g.roots = make(chan struct{}, 1), map[string]bool{}, map[gateway.Name]string{}
	return mgr.Add(everyReplica(g.run))
}

func (g *gatherer) run(ctx context.Context) error {
	logged := ""
	for ctx.Err() == nil {
		err := g.rebuild(ctx)
		if ctx.Err() != nil {
			break
		}
		g.Publisher.setErr(err)
		if err != nil {
			g.wake = gatherRetryTime
			if err.Error() != logged {
				g.Log.Error("the published state is not the newest: gathering or deciding failed", "err", err)
			}
			logged = err.Error()
		} else if logged != "" {
			g.Log.Info("gathering and deciding work again")
			logged = ""
		}
		g.wait(ctx)
	}
	return nil
}

// wait returns when a decision is due: some time after a change, so that following changes are
// included, or when wake has passed.
func (g *gatherer) wait(ctx context.Context) {
	var due <-chan time.Time
	if g.wake > 0 {
		due = time.After(g.wake)
	}
	select {
	case <-g.changed:
	case <-due:
		return
	case <-ctx.Done():
		return
	}
	latest := time.After(max(cmp.Or(g.MaxDelay, maxDecisionDelay), time.Until(g.rested)))
	for {
		select {
		case <-g.changed:
		case <-time.After(max(cmp.Or(g.QuietTime, quietTime), time.Until(g.rested))):
			return
		case <-latest:
			return
		case <-ctx.Done():
			return
		}
	}
}

// rebuild gathers the objects, computes a decision and publishes it.
func (g *gatherer) rebuild(ctx context.Context) (err error) {
	began := time.Now()
	defer func() {
		if g.OnBuild != nil && ctx.Err() == nil {
			g.OnBuild(time.Since(began), err)
		}
	}()
	g.wake = 0
	objects, err := g.gather(ctx)
	if err != nil {
		return err
	}
	began = time.Now() // the wait for caches does not count
	result, err := g.decide(objects)
	g.rested = time.Now().Add(pauseFactor * time.Since(began))
	if err != nil {
		return err
	}
	defer g.Publisher.setIncluded(generations(objects)) // after the decision is published
	if was := g.Publisher.Result(); was == nil || !reflect.DeepEqual(was, result) {
		g.Publisher.Publish(result)
		if g.Publish != nil {
			g.Publish(result.Snapshot)
		}
	}
	return nil
}

// generations returns the generations of Tailplane's objects by UID.
func generations(o gateway.Objects) map[types.UID]int64 {
	seen := make(map[types.UID]int64, len(o.Groups)+len(o.Services)+len(o.Attachments)+len(o.Policies))
	addGenerations(seen, o.Groups)
	addGenerations(seen, o.Services)
	addGenerations(seen, o.Attachments)
	addGenerations(seen, o.Policies)
	return seen
}

func addGenerations[T client.Object](seen map[types.UID]int64, list []T) {
	for _, o := range list {
		seen[o.GetUID()] = o.GetGeneration()
	}
}

// decide calls Build. A panic, which only an unexpected object can cause, becomes a fault, and the
// previous decision stays.
func (g *gatherer) decide(objects gateway.Objects) (result *gateway.Result, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the decision failed: %v", p)
			g.Log.Error("the decision failed", "panic", p, "stack", string(debug.Stack()))
		}
	}()
	build := g.Build
	if build == nil {
		build = gateway.Build
	}
	r := build(objects)
	return &r, nil
}

// trigger triggers a new decision. Add must have been called before.
func (g *gatherer) trigger() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// watchKind syncs the cache of a kind and registers for its changes.
func (g *gatherer) watchKind(ctx context.Context, kind string, o client.Object) error {
	if g.follows[kind] {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, cacheSyncTimeout)
	defer cancel()
	informer, err := g.cache.GetInformer(limited, o)
	if err != nil {
		return fmt.Errorf("the cache of %s does not fill; check that this account may list and watch them: %w", kind, err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { g.trigger() },
		DeleteFunc: func(any) { g.trigger() },
		UpdateFunc: func(was, is any) {
			if affectsDecision(was, is) {
				g.trigger()
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", kind, err)
	}
	g.follows[kind] = true
	return nil
}

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
