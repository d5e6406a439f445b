package fleetkube

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/account"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/adopt"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/arcworld"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/board"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/findings"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/furnish"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/listeners"
	"github.com/tailplane/tailplane/internal/kube"
)

const (
	lookLimit  = 2 * time.Minute        // for one reconcile of one enrollment, with all its requests
	workers    = 32                     // concurrent reconciles: a forge that hangs must not block the others
	atOnce     = 8                      // concurrent requests for one enrollment
	retryFirst = 100 * time.Millisecond // delay after a failure, doubled each time
	retryLast  = 30 * time.Second
)

// A crew holds the state of the running controllers.
type crew struct {
	*Controllers
	pace   time.Duration
	known  client.Reader // cache of our own kinds and of the labels of credentials
	direct client.Client // reads live objects, and writes
	events events.EventRecorder

	arc      *arcworld.World
	board    *board.Board
	accounts *account.Accounts
	standing *board.Standing
	rounds   *findings.Rounds
	keeper   *adopt.Keeper
	grounds  furnish.Memory
	ears     *listeners.Asker

	enrollments, decisions, holds, forges, pools, adopted bell
}

func (c *Controllers) run(ctx context.Context) error {
	config := kube.Unthrottled(c.Config)
	if c.UserAgent != "" {
		config.UserAgent = c.UserAgent
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), clientgoscheme.AddToScheme(scheme)); err != nil {
		return err
	}
	mapper := mapper()
	options := manager.Options{
		Scheme:         scheme,
		Logger:         logr.FromSlogHandler(c.Log.Handler()),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Metrics:        metricsserver.Options{BindAddress: "0"}, // package main serves the metrics
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{c.Isolation.Namespace: {}}},
		}},
		Client: client.Options{FieldOwner: FieldManager},
	}
	if c.LeaseNamespace != "" {
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionReleaseOnCancel = true, FieldManager, true
		options.LeaderElectionNamespace = c.LeaseNamespace
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return err
	}
	// Do not use the manager's client: it would cache all objects of every kind that is read.
	direct, err := client.NewWithWatch(config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mapper, FieldOwner: FieldManager})
	if err != nil {
		return err
	}
	w := &crew{Controllers: c, pace: cmp.Or(c.Pace, 2*time.Second), known: mgr.GetCache(), direct: direct, events: mgr.GetEventRecorder(FieldManager),
		board: board.New(), accounts: account.New(c.Now, c.Asked), rounds: findings.NewRounds(c.Now(), cmp.Or(c.TruthCheckEvery, 5*time.Minute))}
	w.arc = &arcworld.World{Direct: direct, Namespace: c.ARCNamespace, Pace: w.pace, Log: c.Log, Everyone: func(ctx context.Context) {
		w.enrollments.ring(w.all(ctx, func(*v1alpha1.RunnerEnrollment) bool { return true })...)
	}, Changed: func(org string, set bool) {
		w.enrollments.ring(org)
		if set {
			w.decisions.ring("all")
		}
	}, Adoptable: func(namespace, name string) { w.adopted.ring(adopt.Name(namespace, name)) }}
	w.ears = listeners.New(c.Now, func(set fleet.Key) {
		if org := w.arc.OrgOf(set); org != "" {
			w.enrollments.ring(org)
		}
	})
	w.keeper = &adopt.Keeper{World: w.arc, Known: w.known, Direct: direct, Board: w.board, Log: c.Log, Now: c.Now, Seen: func(ctx context.Context, pool string) {
		w.pools.ring(pool)
		w.ringHolds(ctx)
	}}
	w.standing = &board.Standing{Board: w.board, Known: w.known, Direct: direct, Events: w.events, Accounts: w.accounts, Images: c.Isolation.Images, Log: c.Log, Now: c.Now}
	if err := w.add(mgr); err != nil {
		return err
	}
	c.crew.Store(w)
	defer c.crew.Store(nil)
	return mgr.Start(ctx)
}

// mapper maps all kinds that the controllers use. ARC's kinds need not be installed.
func mapper() meta.RESTMapper {
	namespaced, clusterWide := furnish.Kinds()
	for _, kind := range []string{"RunnerForge", "RunnerPool", "RunnerEnrollment", "RunnerHold"} {
		clusterWide = append(clusterWide, v1alpha1.GroupVersion.WithKind(kind))
	}
	return kube.Mapper(append(namespaced, arcworld.Kinds()...), clusterWide)
}

// add adds everything that only the leader runs.
func (w *crew) add(mgr manager.Manager) error {
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))
	fixed := func(name string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
		})
	}
	every := func(n int, limit time.Duration) controller.Options {
		return controller.Options{MaxConcurrentReconciles: n, ReconciliationTimeout: limit, SkipNameValidation: new(true),
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryLast)}
	}
	one := fixed("all")
	return errors.Join(
		builder.ControllerManagedBy(mgr).Named("fleetledger").
			Watches(&v1alpha1.RunnerEnrollment{}, one, changed).
			Watches(&v1alpha1.RunnerPool{}, one, changed).
			Watches(&v1alpha1.RunnerForge{}, one, changed).
			Watches(&corev1.Secret{}, one, builder.OnlyMetadata).
			WatchesRawSource(w.decisions.source()).
			WithOptions(every(1, lookLimit)).
			Complete(reconcile.Func(w.decide)),
		builder.ControllerManagedBy(mgr).Named("runnerenrollment").
			For(&v1alpha1.RunnerEnrollment{}, changed).
			Watches(&v1alpha1.RunnerHold{}, handler.EnqueueRequestsFromMapFunc(w.heldBy), changed).
			Watches(&v1alpha1.RunnerPool{}, handler.EnqueueRequestsFromMapFunc(w.using), changed).
			Watches(&v1alpha1.RunnerForge{}, handler.EnqueueRequestsFromMapFunc(w.using), changed).
			Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(w.using), builder.OnlyMetadata).
			WatchesRawSource(w.enrollments.source()).
			WithOptions(every(workers, lookLimit)).
			Complete(reconcile.Func(w.enrollment)),
		builder.ControllerManagedBy(mgr).Named("runnerhold").
			For(&v1alpha1.RunnerHold{}, changed).
			WatchesRawSource(w.holds.source()).
			WithOptions(every(4, lookLimit)).
			Complete(reconcile.Func(w.standing.Hold)),
		builder.ControllerManagedBy(mgr).Named("runnerforge").
			For(&v1alpha1.RunnerForge{}, changed).
			WatchesRawSource(w.forges.source()).
			WithOptions(every(4, lookLimit)).
			Complete(reconcile.Func(w.standing.Forge)),
		builder.ControllerManagedBy(mgr).Named("runnerpool").
			For(&v1alpha1.RunnerPool{}, changed).
			WatchesRawSource(w.pools.source()).
			WithOptions(every(4, lookLimit)).
			Complete(reconcile.Func(w.standing.Pool)),
		builder.ControllerManagedBy(mgr).Named("fleetadopt").
			Watches(&v1alpha1.RunnerPool{}, handler.EnqueueRequestsFromMapFunc(w.adopting), changed).
			Watches(&v1alpha1.RunnerHold{}, handler.EnqueueRequestsFromMapFunc(w.adopting), changed).
			WatchesRawSource(w.adopted.source()).
			WithOptions(every(4, lookLimit)).
			Complete(reconcile.Func(w.keeper.Look)),
		mgr.Add(manager.RunnableFunc(w.arc.Run)),
		mgr.Add(manager.RunnableFunc(w.ears.Run)),
		mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
			if mgr.GetCache().WaitForCacheSync(ctx) {
				w.synced.Store(true)
				defer w.synced.Store(false)
			}
			<-ctx.Done()
			return nil
		})),
	)
}

// A bell triggers reconciles of a controller after the controller has started.
type bell struct{ queue queue }

func (b *bell) source() source.Source {
	return source.Func(func(_ context.Context, q workqueueOf) error {
		b.queue.set(q)
		return nil
	})
}

// ring triggers a reconcile soon. Several triggers within a short time cause one reconcile.
func (b *bell) ring(names ...string) { b.after(board.Quiet, names) }

// now triggers a reconcile at once.
func (b *bell) now(names ...string) { b.after(0, names) }

func (b *bell) after(d time.Duration, names []string) {
	for _, r := range requests(names) {
		b.queue.add(r, d)
	}
}

// requests returns the reconcile requests for these names.
func requests(names []string) (out []reconcile.Request) {
	for _, name := range names {
		out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
	}
	return out
}

// all returns the names of the cached enrollments that f selects.
func (w *crew) all(ctx context.Context, f func(*v1alpha1.RunnerEnrollment) bool) (names []string) {
	var list v1alpha1.RunnerEnrollmentList
	if err := w.known.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		w.Log.Error("look up enrollments in the cache", "err", err)
	}
	for i := range list.Items {
		if f(&list.Items[i]) {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// heldBy returns requests for the enrollments in the scope of a hold.
func (w *crew) heldBy(ctx context.Context, o client.Object) []reconcile.Request {
	h, ok := o.(*v1alpha1.RunnerHold)
	if !ok {
		return nil
	}
	return requests(w.all(ctx, func(e *v1alpha1.RunnerEnrollment) bool {
		for _, pool := range board.PoolsOf(e) {
			if fleet.Holds(h.Spec.Scope, fleet.Target{Forge: e.Spec.Forge, Org: e.Name, Pool: pool}) {
				return true
			}
		}
		return false
	}))
}

// adopting returns requests for the external scale set that a pool adopts, or for all adopted scale
// sets if a hold has changed.
func (w *crew) adopting(ctx context.Context, o client.Object) []reconcile.Request {
	if p, ok := o.(*v1alpha1.RunnerPool); ok {
		if p.Spec.Adopt == nil {
			return nil
		}
		return requests([]string{adopt.Name(p.Spec.Adopt.Namespace, p.Spec.Adopt.Name)})
	}
	return requests(w.keeper.All(ctx))
}

// using returns requests for the enrollments that use a pool, a forge or a credential's Secret.
func (w *crew) using(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetName()
	return requests(w.all(ctx, func(e *v1alpha1.RunnerEnrollment) bool {
		switch o.(type) {
		case *v1alpha1.RunnerForge:
			return e.Spec.Forge == name
		case *v1alpha1.RunnerPool:
			return strings.Contains(" "+strings.Join(board.PoolsOf(e), " ")+" ", " "+name+" ")
		}
		return e.Spec.Credentials.SecretName == name
	}))
}

// ringHolds triggers a reconcile of all holds, because the state of their workloads may have
// changed.
func (w *crew) ringHolds(ctx context.Context) {
	var list v1alpha1.RunnerHoldList
	if err := w.known.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		w.Log.Error("look up holds in the cache", "err", err)
	}
	for i := range list.Items {
		w.holds.ring(list.Items[i].Name)
	}
}
