package controller

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
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
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
)

const (
	reconcileTimeout      = 2 * time.Minute        // for one reconcile of one enrollment, with all its requests
	maxReconciles         = 32                     // concurrent reconciles: a forge that hangs must not block the others
	maxConcurrentRequests = 8                      // concurrent requests for one enrollment
	retryFirst            = 100 * time.Millisecond // delay after a failure, doubled each time
	retryLast             = 30 * time.Second
)

// deps are what the reconciles use: clients, caches, stores, triggers and settings. All fields are required.
type deps struct {
	cached client.Reader // cache of our own kinds and of the labels of credentials
	direct client.Client // reads live objects, and writes
	events events.EventRecorder

	arcCache       *arcCache
	state          *sharedState
	sessions       *sessionCache
	baselines      *baselineCache
	driftSchedule  *driftSchedule
	listenerPoller *listenerPoller
	triggers       *triggers
	settings       settings

	now func() time.Time
	log *slog.Logger
}

// triggers hold one trigger for each controller.
type triggers struct{ enrollment, allocation, hold, forge, pool, external trigger }

// settings are the settings of [Controllers] that the reconciles use.
type settings struct {
	isolation    isolation.Settings
	arcNamespace string
	rules        fleet.Rules
	byPlane      bool
	isAdmin      func(login string) bool
	pollInterval time.Duration
}

// approval returns whether an enrollment is approved, as a condition.
func (s settings) approval(e *v1alpha1.RunnerEnrollment) fleet.Condition {
	return fleet.Approved(e, s.byPlane, s.isAdmin)
}

// A reconciler runs the controllers.
type reconciler struct {
	deps         deps
	statuses     *statusReconciler
	externals    *externalReconciler
	synced       *atomic.Bool
	onAllocation func(took time.Duration) // optional
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
	direct, err := client.NewWithWatch(config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: scheme, Mapper: mapper,
		FieldOwner: fieldManager})
	if err != nil {
		return err
	}
	w := newReconciler(c, mgr, direct)
	if err := w.setupControllers(mgr); err != nil {
		return err
	}
	c.statuses.Store(w.statuses)
	defer c.statuses.Store(nil)
	return mgr.Start(ctx)
}

// newReconciler returns a reconciler with new, empty caches and stores.
func newReconciler(c *Controllers, mgr manager.Manager, direct client.WithWatch) *reconciler {
	d := deps{
		cached: mgr.GetCache(), direct: direct, events: mgr.GetEventRecorder(fieldManager),
		state: newSharedState(), sessions: newSessionCache(c.Now, c.OnForgeRequest), baselines: &baselineCache{}, triggers: &triggers{},
		driftSchedule: newDriftSchedule(c.Now(), cmp.Or(c.DriftCheckInterval, 5*time.Minute)),
		settings: settings{isolation: c.Isolation, arcNamespace: c.ARCNamespace, rules: c.Rules, byPlane: c.ByPlane, isAdmin: c.IsAdmin,
			pollInterval: cmp.Or(c.PollInterval, 2*time.Second)},
		now: c.Now, log: c.Log,
	}
	d.settings.rules.ClusterCIDRs = c.Isolation.ClusterCIDRs
	d.arcCache = &arcCache{Direct: direct, Namespace: c.ARCNamespace, PollInterval: d.settings.pollInterval, Log: c.Log}
	d.arcCache.OnGlobalChange = func(ctx context.Context) {
		d.triggers.enrollment.enqueue(d.selectEnrollments(ctx, func(*v1alpha1.RunnerEnrollment) bool { return true })...)
	}
	d.arcCache.OnOrgChange = func(org string, set bool) {
		d.triggers.enrollment.enqueue(org)
		if set {
			d.triggers.allocation.enqueue("all")
		}
	}
	d.arcCache.OnExternalChange = func(namespace, name string) { d.triggers.external.enqueue(externalName(namespace, name)) }
	d.listenerPoller = newListenerPoller(c.Now, func(set fleet.Key) {
		if org := d.arcCache.orgOf(set); org != "" {
			d.triggers.enrollment.enqueue(org)
		}
	})
	return &reconciler{
		deps:         d,
		statuses:     &statusReconciler{d},
		externals:    &externalReconciler{d},
		synced:       &c.synced,
		onAllocation: c.OnAllocation,
	}
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
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request { return requests([]string{"all"}) })
	using := handler.EnqueueRequestsFromMapFunc(w.enrollmentsUsing)
	external := handler.EnqueueRequestsFromMapFunc(w.externalSetsOf)
	named := func(name string) *builder.Builder { return builder.ControllerManagedBy(mgr).Named(name) }
	complete := func(b *builder.Builder, t *trigger, concurrent int, f reconcile.Func) error {
		options := controller.Options{
			MaxConcurrentReconciles: concurrent,
			ReconciliationTimeout:   reconcileTimeout,
			SkipNameValidation:      new(true),
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryLast),
		}
		return b.WatchesRawSource(t.source()).WithOptions(options).Complete(f)
	}
	triggers := w.deps.triggers
	return errors.Join(
		complete(named("fleetledger").
			Watches(&v1alpha1.RunnerEnrollment{}, all, changed).
			Watches(&v1alpha1.RunnerPool{}, all, changed).
			Watches(&v1alpha1.RunnerForge{}, all, changed).
			Watches(&corev1.Secret{}, all, builder.OnlyMetadata),
			&triggers.allocation, 1, w.reconcileAllocation),
		complete(named("runnerenrollment").
			For(&v1alpha1.RunnerEnrollment{}, changed).
			Watches(&v1alpha1.RunnerHold{}, handler.EnqueueRequestsFromMapFunc(w.enrollmentsOfHold), changed).
			Watches(&v1alpha1.RunnerPool{}, using, changed).
			Watches(&v1alpha1.RunnerForge{}, using, changed).
			Watches(&corev1.Secret{}, using, builder.OnlyMetadata),
			&triggers.enrollment, maxReconciles, w.reconcileEnrollment),
		complete(named("runnerhold").For(&v1alpha1.RunnerHold{}, changed), &triggers.hold, 4, w.statuses.reconcileHold),
		complete(named("runnerforge").For(&v1alpha1.RunnerForge{}, changed), &triggers.forge, 4, w.statuses.reconcileForge),
		complete(named("runnerpool").For(&v1alpha1.RunnerPool{}, changed), &triggers.pool, 4, w.statuses.reconcilePool),
		complete(named("fleetadopt").
			Watches(&v1alpha1.RunnerPool{}, external, changed).
			Watches(&v1alpha1.RunnerHold{}, external, changed),
			&triggers.external, 4, w.externals.reconcile),
		mgr.Add(manager.RunnableFunc(w.deps.arcCache.run)),
		mgr.Add(manager.RunnableFunc(w.deps.listenerPoller.run)),
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
type trigger struct {
	mu    sync.Mutex
	queue workqueueOf // nil: the controller does not run yet
	early []string    // names until then
}

type workqueueOf = workqueue.TypedRateLimitingInterface[reconcile.Request]

func (b *trigger) source() source.Source {
	return source.Func(func(_ context.Context, q workqueueOf) error {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, r := range requests(b.early) {
			q.Add(r)
		}
		b.queue, b.early = q, nil
		return nil
	})
}

// enqueue triggers a reconcile soon. Several triggers within a short time cause one reconcile.
func (b *trigger) enqueue(names ...string) { b.enqueueAfter(debounce, names) }

// enqueueNow triggers a reconcile at once.
func (b *trigger) enqueueNow(names ...string) { b.enqueueAfter(0, names) }

func (b *trigger) enqueueAfter(d time.Duration, names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queue == nil {
		b.early = append(b.early, names...)
		return
	}
	for _, r := range requests(names) {
		b.queue.AddAfter(r, d)
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
func (d deps) selectEnrollments(ctx context.Context, f func(*v1alpha1.RunnerEnrollment) bool) (names []string) {
	var list v1alpha1.RunnerEnrollmentList
	if err := d.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		d.log.Error("list enrollments in the cache", "err", err)
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
	return requests(w.deps.selectEnrollments(ctx, func(e *v1alpha1.RunnerEnrollment) bool {
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
	return requests(w.deps.selectEnrollments(ctx, func(e *v1alpha1.RunnerEnrollment) bool {
		switch o.(type) {
		case *v1alpha1.RunnerForge:
			return e.Spec.Forge == name
		case *v1alpha1.RunnerPool:
			return slices.Contains(poolsOf(e), name)
		}
		return e.Spec.Credentials.SecretName == name
	}))
}

// enqueueHolds triggers a reconcile of all holds, because the state of their workloads may have
// changed.
func (d deps) enqueueHolds(ctx context.Context) {
	var list v1alpha1.RunnerHoldList
	if err := d.cached.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		d.log.Error("list holds in the cache", "err", err)
	}
	for i := range list.Items {
		d.triggers.hold.enqueue(list.Items[i].Name)
	}
}
