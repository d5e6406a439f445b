package controller

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
	"github.com/tailplane/tailplane/internal/kube"
)

const (
	reconcileTimeout      = 2 * time.Minute        // for one reconcile of one enrollment, with all its requests
	maxReconciles         = 32                     // concurrent reconciles: a forge that hangs must not block the others
	maxConcurrentRequests = 8                      // concurrent requests for one enrollment
	retryFirst            = 100 * time.Millisecond // delay after a failure, doubled each time
	retryLast             = 30 * time.Second
)

// A reconciler holds the state of the running controllers.
type reconciler struct {
	*Controllers
	pollInterval time.Duration
	cached       client.Reader // cache of our own kinds and of the labels of credentials
	direct       client.Client // reads live objects, and writes
	events       events.EventRecorder

	arcCache       *arcCache
	state          *sharedState
	sessions       *sessionCache
	statuses       *statusReconciler
	driftSchedule  *driftSchedule
	externals      *externalReconciler
	baselines      baselineCache
	listenerPoller *listenerPoller

	enrollmentTrigger, allocationTrigger, holdTrigger, forgeTrigger, poolTrigger, externalTrigger trigger
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
	mapper := restMapper()
	options := manager.Options{
		Scheme:         scheme,
		Logger:         logr.FromSlogHandler(c.Log.Handler()),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
		Metrics:        metricsserver.Options{BindAddress: "0"}, // package main serves the metrics
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Namespaces: map[string]cache.Config{c.Isolation.Namespace: {}}},
		}},
		Client: client.Options{FieldOwner: fieldManager},
	}
	if c.LeaseNamespace != "" {
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionReleaseOnCancel = true, fieldManager, true
		options.LeaderElectionNamespace = c.LeaseNamespace
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return err
	}
	// Do not use the manager's client: it would cache all objects of every kind that is read.
	direct, err := client.NewWithWatch(config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mapper, FieldOwner: fieldManager})
	if err != nil {
		return err
	}
	w := &reconciler{Controllers: c, pollInterval: cmp.Or(c.PollInterval, 2*time.Second), cached: mgr.GetCache(), direct: direct, events: mgr.GetEventRecorder(fieldManager),
		state: newSharedState(), sessions: newSessionCache(c.Now, c.OnForgeRequest), driftSchedule: newDriftSchedule(c.Now(), cmp.Or(c.DriftCheckInterval, 5*time.Minute))}
	w.arcCache = &arcCache{Direct: direct, Namespace: c.ARCNamespace, PollInterval: w.pollInterval, Log: c.Log, OnGlobalChange: func(ctx context.Context) {
		w.enrollmentTrigger.enqueue(w.selectEnrollments(ctx, func(*v1alpha1.RunnerEnrollment) bool { return true })...)
	}, OnOrgChange: func(org string, set bool) {
		w.enrollmentTrigger.enqueue(org)
		if set {
			w.allocationTrigger.enqueue("all")
		}
	}, OnExternalChange: func(namespace, name string) { w.externalTrigger.enqueue(externalName(namespace, name)) }}
	w.listenerPoller = newListenerPoller(c.Now, func(set fleet.Key) {
		if org := w.arcCache.orgOf(set); org != "" {
			w.enrollmentTrigger.enqueue(org)
		}
	})
	w.externals = &externalReconciler{ARC: w.arcCache, Cached: w.cached, Direct: direct, State: w.state, Log: c.Log, Now: c.Now, OnChange: func(ctx context.Context, pool string) {
		w.poolTrigger.enqueue(pool)
		w.enqueueHolds(ctx)
	}}
	w.statuses = &statusReconciler{State: w.state, Cached: w.cached, Direct: direct, Events: w.events, Sessions: w.sessions, Images: c.Isolation.Images, Log: c.Log, Now: c.Now}
	if err := w.setupControllers(mgr); err != nil {
		return err
	}
	c.reconciler.Store(w)
	defer c.reconciler.Store(nil)
	return mgr.Start(ctx)
}

// restMapper maps all kinds that the controllers use. ARC's kinds need not be installed.
func restMapper() meta.RESTMapper {
	namespaced, clusterWide := baselineKinds()
	for _, kind := range []string{"RunnerForge", "RunnerPool", "RunnerEnrollment", "RunnerHold"} {
		clusterWide = append(clusterWide, v1alpha1.GroupVersion.WithKind(kind))
	}
	return kube.Mapper(append(namespaced, arcKinds()...), clusterWide)
}

// setupControllers adds everything that only the leader runs.
func (w *reconciler) setupControllers(mgr manager.Manager) error {
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
			WatchesRawSource(w.allocationTrigger.source()).
			WithOptions(every(1, reconcileTimeout)).
			Complete(reconcile.Func(w.reconcileAllocation)),
		builder.ControllerManagedBy(mgr).Named("runnerenrollment").
			For(&v1alpha1.RunnerEnrollment{}, changed).
			Watches(&v1alpha1.RunnerHold{}, handler.EnqueueRequestsFromMapFunc(w.enrollmentsOfHold), changed).
			Watches(&v1alpha1.RunnerPool{}, handler.EnqueueRequestsFromMapFunc(w.enrollmentsUsing), changed).
			Watches(&v1alpha1.RunnerForge{}, handler.EnqueueRequestsFromMapFunc(w.enrollmentsUsing), changed).
			Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(w.enrollmentsUsing), builder.OnlyMetadata).
			WatchesRawSource(w.enrollmentTrigger.source()).
			WithOptions(every(maxReconciles, reconcileTimeout)).
			Complete(reconcile.Func(w.reconcileEnrollment)),
		builder.ControllerManagedBy(mgr).Named("runnerhold").
			For(&v1alpha1.RunnerHold{}, changed).
			WatchesRawSource(w.holdTrigger.source()).
			WithOptions(every(4, reconcileTimeout)).
			Complete(reconcile.Func(w.statuses.reconcileHold)),
		builder.ControllerManagedBy(mgr).Named("runnerforge").
			For(&v1alpha1.RunnerForge{}, changed).
			WatchesRawSource(w.forgeTrigger.source()).
			WithOptions(every(4, reconcileTimeout)).
			Complete(reconcile.Func(w.statuses.reconcileForge)),
		builder.ControllerManagedBy(mgr).Named("runnerpool").
			For(&v1alpha1.RunnerPool{}, changed).
			WatchesRawSource(w.poolTrigger.source()).
			WithOptions(every(4, reconcileTimeout)).
			Complete(reconcile.Func(w.statuses.reconcilePool)),
		builder.ControllerManagedBy(mgr).Named("fleetadopt").
			Watches(&v1alpha1.RunnerPool{}, handler.EnqueueRequestsFromMapFunc(w.externalSetsOf), changed).
			Watches(&v1alpha1.RunnerHold{}, handler.EnqueueRequestsFromMapFunc(w.externalSetsOf), changed).
			WatchesRawSource(w.externalTrigger.source()).
			WithOptions(every(4, reconcileTimeout)).
			Complete(reconcile.Func(w.externals.reconcile)),
		mgr.Add(manager.RunnableFunc(w.arcCache.run)),
		mgr.Add(manager.RunnableFunc(w.listenerPoller.run)),
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

// A trigger triggers reconciles of a controller after the controller has started.
type trigger struct{ queue earlyQueue }

func (b *trigger) source() source.Source {
	return source.Func(func(_ context.Context, q workqueueOf) error {
		b.queue.set(q)
		return nil
	})
}

// enqueue triggers a reconcile soon. Several triggers within a short time cause one reconcile.
func (b *trigger) enqueue(names ...string) { b.enqueueAfter(debounce, names) }

// enqueueNow triggers a reconcile at once.
func (b *trigger) enqueueNow(names ...string) { b.enqueueAfter(0, names) }

func (b *trigger) enqueueAfter(d time.Duration, names []string) {
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

// selectEnrollments returns the names of the cached enrollments that f selects.
func (w *reconciler) selectEnrollments(ctx context.Context, f func(*v1alpha1.RunnerEnrollment) bool) (names []string) {
	var list v1alpha1.RunnerEnrollmentList
	if err := w.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		w.Log.Error("list enrollments in the cache", "err", err)
	}
	for i := range list.Items {
		if f(&list.Items[i]) {
			names = append(names, list.Items[i].Name)
		}
	}
	return names
}

// enrollmentsOfHold returns requests for the enrollments in the scope of a hold.
func (w *reconciler) enrollmentsOfHold(ctx context.Context, o client.Object) []reconcile.Request {
	h, ok := o.(*v1alpha1.RunnerHold)
	if !ok {
		return nil
	}
	return requests(w.selectEnrollments(ctx, func(e *v1alpha1.RunnerEnrollment) bool {
		for _, pool := range poolsOf(e) {
			if fleet.ScopeIncludes(h.Spec.Scope, fleet.Target{Forge: e.Spec.Forge, Org: e.Name, Pool: pool}) {
				return true
			}
		}
		return false
	}))
}

// externalSetsOf returns requests for the external scale set that a pool adopts, or for all adopted scale
// sets if a hold has changed.
func (w *reconciler) externalSetsOf(ctx context.Context, o client.Object) []reconcile.Request {
	if p, ok := o.(*v1alpha1.RunnerPool); ok {
		if p.Spec.Adopt == nil {
			return nil
		}
		return requests([]string{externalName(p.Spec.Adopt.Namespace, p.Spec.Adopt.Name)})
	}
	return requests(w.externals.names(ctx))
}

// enrollmentsUsing returns requests for the enrollments that use a pool, a forge or a credential's Secret.
func (w *reconciler) enrollmentsUsing(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetName()
	return requests(w.selectEnrollments(ctx, func(e *v1alpha1.RunnerEnrollment) bool {
		switch o.(type) {
		case *v1alpha1.RunnerForge:
			return e.Spec.Forge == name
		case *v1alpha1.RunnerPool:
			return strings.Contains(" "+strings.Join(poolsOf(e), " ")+" ", " "+name+" ")
		}
		return e.Spec.Credentials.SecretName == name
	}))
}

// enqueueHolds triggers a reconcile of all holds, because the state of their workloads may have
// changed.
func (w *reconciler) enqueueHolds(ctx context.Context) {
	var list v1alpha1.RunnerHoldList
	if err := w.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		w.Log.Error("list holds in the cache", "err", err)
	}
	for i := range list.Items {
		w.holdTrigger.enqueue(list.Items[i].Name)
	}
}
