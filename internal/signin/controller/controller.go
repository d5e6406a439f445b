package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
)

const (
	operatorName = "tailplane-operator" // name of the Lease, the event source and the field manager

	workers         = 16               // concurrent reconciles
	sweepEvery      = 10 * time.Minute // interval between sweeps for orphans
	maxRequeueAfter = 10 * time.Minute // maximum requeue delay, because the clock may be changed
	maxAttempts     = 4                // attempts of one reconcile when other writers interfere

	reconcileTimeout = 20 * time.Second      // time limit of one reconcile, so that a hanging API server does not block a worker
	cacheLag         = 50 * time.Millisecond // assumed delay of the cache after a write; an event usually comes earlier
	minRetryDelay    = 20 * time.Millisecond // first retry delay after a failure; doubled each time
	maxRetryDelay    = 20 * time.Second      // maximum retry delay: no sign-in outlives its end by more than a minute, even with failures
)

// Names of the cache indexes.
const (
	bySignin    = "signin"    // ServiceAccounts and bindings by the UID in their label
	byName      = "name"      // bindings by the name of the sign-in in their names
	byUID       = "uid"       // sign-ins by UID
	byNamespace = "namespace" // sign-ins by the namespaces that they name, and bySelector for those with a selector
	byRequest   = "request"   // sign-ins by the name of the access request that they use
)

// bySelector is the key of sign-ins with a selector in the index byNamespace. It is no name of a namespace.
const bySelector = "*"

// A ReadySignin is a new sign-in that is ready.
type ReadySignin struct {
	Waited     time.Duration // how long its owner waited
	Roles      []access.Role
	Privileged []access.Role // those that reach every ServiceAccount, because they are bound in the whole cluster
}

// A Controller provisions the sign-ins of one namespace and removes their objects at the end. Fields
// are required unless their comment says otherwise.
type Controller struct {
	Config    *rest.Config
	Namespace string // namespace of the sign-ins

	// LeaseNamespace holds the Lease for leader election, and the marks of FirstUseConfigMap. If it is empty, there is no leader
	// election. Two active operators do no harm; they only do the same work twice.
	LeaseNamespace string

	Rules signin.Rules
	Log   *slog.Logger
	Now   func() time.Time

	// OnReady, optional, is called when a new sign-in is ready.
	OnReady func(ReadySignin)
	// OnEnd, optional, is called for each sign-in that ended without the access server.
	OnEnd func(EndedSignin)
	// OnSweep, optional, is called for each ServiceAccount or binding that was removed because it
	// belongs to no sign-in. namespace is "" for a ClusterRoleBinding.
	OnSweep func(kind, namespace, name string)

	synced atomic.Bool
	reader atomic.Pointer[client.Reader] // reads the cache; set at the start of Run
}

// Synced reports whether the operator has filled its caches and is running, for a readiness check.
// It is false while the operator waits for leader election.
func (o *Controller) Synced() bool { return o.synced.Load() }

// OperatorLease is the name of the Lease that the operator in charge renews.
const OperatorLease = operatorName

// Run reconciles until ctx ends. It returns an error if a setting is missing, if the API server
// cannot be reached at the start, or if another operator became the leader.
func (o *Controller) Run(ctx context.Context) error {
	if err := o.validate(); err != nil {
		return err
	}
	o.Rules.Reserved = append(slices.Clone(o.Rules.Reserved), o.Namespace, o.LeaseNamespace)
	config := kube.Unthrottled(o.Config)
	log := logr.FromSlogHandler(o.Log.Handler())
	options := manager.Options{
		Scheme:         runtime.NewScheme(),
		Logger:         log,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kube.Mapper(kinds()), nil },
		Metrics:        metricsserver.Options{BindAddress: "0"}, // the main package serves metrics
		Cache:          o.cacheOptions(),
		Client: client.Options{
			FieldOwner: operatorName,
			Cache:      &client.CacheOptions{DisableFor: []client.Object{&rbacv1.ClusterRole{}, &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}}},
		},
	}
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, admissionv1.AddToScheme, metav1.AddMetaToScheme} {
		if err := add(options.Scheme); err != nil {
			return err
		}
	}
	if o.LeaseNamespace != "" {
		lock, err := kube.NewLeaseLock(config, o.LeaseNamespace, operatorName, "")
		if err != nil {
			return err
		}
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionReleaseOnCancel = true, operatorName, true
		options.LeaderElectionResourceLockInterface = lock
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return fmt.Errorf("sign-in operator: %w", err)
	}
	marks, err := o.firstUseMarks(config)
	if err != nil {
		return err
	}
	r := &reconciler{
		Controller: o, marks: marks, Client: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: mgr.GetEventRecorder(operatorName), written: overwrittenVersions{versions: map[string][]string{}},
		arrivals: arrivalTimes{now: o.Now, at: map[types.UID]time.Time{}},
	}
	reader := client.Reader(mgr.GetCache())
	o.reader.Store(&reader)
	if err := r.index(ctx, mgr.GetFieldIndexer()); err != nil {
		return fmt.Errorf("sign-in operator: %w", err)
	}
	build := builder.ControllerManagedBy(mgr).
		Named("tkasignin").
		For(&v1alpha1.TkaSignin{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: needsReconcile})).
		Watches(&v1alpha1.TkaSignin{}, r.arrivals.handler()).
		Watches(&corev1.ServiceAccount{}, handler.EnqueueRequestsFromMapFunc(r.requestsForObject)).
		Watches(&rbacv1.ClusterRoleBinding{}, handler.EnqueueRequestsFromMapFunc(r.requestsForObject)).
		Watches(&rbacv1.RoleBinding{}, handler.EnqueueRequestsFromMapFunc(r.requestsForObject)).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.requestsForNamespace)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			ReconciliationTimeout:   reconcileTimeout,
			SkipNameValidation:      new(true), // names are metric labels; two operators in one process may share them
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](minRetryDelay, maxRetryDelay),
		})
	if o.Rules.Requests.Enabled {
		build = build.Watches(&v1alpha1.TkaRequest{}, handler.EnqueueRequestsFromMapFunc(r.requestsForAccessRequest))
	}
	if err := build.Complete(r); err != nil {
		return fmt.Errorf("sign-in operator: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(r.runSweeps)); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("sign-in operator: %w", err)
	}
	return nil
}

// validate returns which setting is missing, or nil.
func (o *Controller) validate() error {
	if o.Config == nil || o.Namespace == "" || o.Log == nil || o.Now == nil || len(o.Rules.Roles) == 0 ||
		o.Rules.Min <= 0 || o.Rules.Max < o.Rules.Min || o.Rules.KeepExpired <= 0 || o.Rules.Recheck <= 0 {
		return errors.New("the sign-in operator needs configuration, namespace, rules, log and clock")
	}
	if o.Rules.Requests.Enabled && o.Rules.Requests.Keep <= 0 {
		return errors.New("the sign-in operator needs the time for which it keeps access requests")
	}
	if o.Namespace == o.LeaseNamespace {
		return errors.New("sign-ins need a separate namespace: a client that may create tokens there could create a token of the operator")
	}
	return nil
}

// firstUseMarks returns the record of the devices for which first use is off, or nil if there is no namespace for it.
func (o *Controller) firstUseMarks(config *rest.Config) (*FirstUseMarks, error) {
	if o.LeaseNamespace == "" {
		return nil, nil
	}
	return NewFirstUseMarks(config, o.LeaseNamespace, o.Now)
}

// cacheOptions limits the cache to what is watched, and to bindings with Tailplane's labels.
func (o *Controller) cacheOptions() cache.Options {
	own := labels.SelectorFromSet(labels.Set{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: o.Namespace})
	here := map[string]cache.Config{o.Namespace: {}}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.TkaSignin{}:        {Namespaces: here},
			&v1alpha1.TkaRequest{}:       {Namespaces: here},
			&corev1.ServiceAccount{}:     {Namespaces: here},
			&rbacv1.ClusterRoleBinding{}: {Label: own},
			&rbacv1.RoleBinding{}:        {Label: own},
		},
	}
}

func kinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	return []schema.GroupVersionKind{
			v1alpha1.GroupVersion.WithKind("TkaSignin"),
			v1alpha1.GroupVersion.WithKind("TkaRequest"),
			corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
			rbacv1.SchemeGroupVersion.WithKind("RoleBinding"),
		}, []schema.GroupVersionKind{
			rbacv1.SchemeGroupVersion.WithKind("ClusterRoleBinding"),
			rbacv1.SchemeGroupVersion.WithKind("ClusterRole"),
			corev1.SchemeGroupVersion.WithKind("Namespace"),
			admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicy"),
			admissionv1.SchemeGroupVersion.WithKind("ValidatingAdmissionPolicyBinding"),
		}
}

// A reconciler is a running operator.
type reconciler struct {
	*Controller
	client.Client // reads from the cache, except roles and admission policies
	live          client.Reader
	marks         *FirstUseMarks // nil without a namespace for it; first use is off then
	events        events.EventRecorder

	roles    lookupCache[roleInfo] // by name
	policies lookupCache[bool]     // whether a policy is in force, by name
	written  overwrittenVersions
	arrivals arrivalTimes
	cluster  atomic.Pointer[string] // the cluster's ID; nil until it was read
}

// index registers the cache indexes.
func (r *reconciler) index(ctx context.Context, f client.FieldIndexer) error {
	label := func(o client.Object) []string {
		if uid := o.GetLabels()[v1alpha1.SigninUIDLabel]; uid != "" {
			return []string{uid}
		}
		return nil
	}
	ofSignin := func(o client.Object) []string { return []string{signinName(o.GetName())} }
	return errors.Join(
		f.IndexField(ctx, &corev1.ServiceAccount{}, bySignin, label),
		f.IndexField(ctx, &rbacv1.ClusterRoleBinding{}, bySignin, label),
		f.IndexField(ctx, &rbacv1.RoleBinding{}, bySignin, label),
		f.IndexField(ctx, &rbacv1.ClusterRoleBinding{}, byName, ofSignin),
		f.IndexField(ctx, &rbacv1.RoleBinding{}, byName, ofSignin),
		f.IndexField(ctx, &v1alpha1.TkaSignin{}, byUID, func(o client.Object) []string { return []string{string(o.GetUID())} }),
		f.IndexField(ctx, &v1alpha1.TkaSignin{}, byNamespace, func(o client.Object) []string { return namespaceKeys(bindsOf(o.(*v1alpha1.TkaSignin))) }),
		f.IndexField(ctx, &v1alpha1.TkaSignin{}, byRequest, requestName),
	)
}

// namespaceKeys returns the keys of a sign-in with these roles in the index byNamespace.
func namespaceKeys(binds access.Binds) (keys []string) {
	for _, b := range binds {
		keys = append(keys, b.Namespaces...)
		if b.Selector != "" {
			keys = append(keys, bySelector)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// needsReconcile reports whether an update of a sign-in needs a reconcile. Annotations do not count: the
// operator writes one at each attempt, and would trigger itself after each failure.
func needsReconcile(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TkaSignin)
	is, ok2 := e.ObjectNew.(*v1alpha1.TkaSignin)
	return !ok || !ok2 || was.UID != is.UID || was.Generation != is.Generation || (was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!slices.Equal(was.Finalizers, is.Finalizers) || !apiequality.Semantic.DeepEqual(was.Status, is.Status)
}

// requestsForObject returns the sign-ins that a ServiceAccount or binding belongs to: by its name and by its
// label.
func (r *reconciler) requestsForObject(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetName()
	if _, account := o.(*corev1.ServiceAccount); !account {
		name = signinName(name)
	}
	var requests []reconcile.Request
	if name != "" {
		requests = append(requests, r.request(name))
	}
	if uid := o.GetLabels()[v1alpha1.SigninUIDLabel]; uid != "" {
		requests = append(requests, r.requestsByIndex(ctx, byUID, uid)...)
	}
	return requests
}

// requestsForNamespace returns the sign-ins that name a namespace or select it by its labels. The
// watch calls it with the labels before and after a change.
func (r *reconciler) requestsForNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.requestsByIndex(ctx, byNamespace, o.GetName())
	for _, x := range r.signinsByIndex(ctx, byNamespace, bySelector) {
		if slices.ContainsFunc(bindsOf(&x), func(b access.Bind) bool { return b.Selector != "" && selects(b.Selector, o.GetLabels()) }) {
			requests = append(requests, r.request(x.Name))
		}
	}
	return requests
}

func (r *reconciler) requestsByIndex(ctx context.Context, index, key string) (requests []reconcile.Request) {
	for _, x := range r.signinsByIndex(ctx, index, key) {
		requests = append(requests, r.request(x.Name))
	}
	return requests
}

// signinsByIndex returns sign-ins from the cache. The caller must not change them.
func (r *reconciler) signinsByIndex(ctx context.Context, index, key string) []v1alpha1.TkaSignin {
	var list v1alpha1.TkaSigninList
	if err := r.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingFields{index: key}, client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error("look up sign-ins in the cache", "err", err)
	}
	return list.Items
}

func (r *reconciler) request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: name}}
}

// Reconcile brings one sign-in to its desired state: gather, decide, act, report. It repeats at
// once if another writer interfered.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var (
		live bool // read from the API server instead of the cache
		f    signin.Facts
		o    *v1alpha1.TkaSignin
		step signin.Step
		err  error
	)
	for range maxAttempts {
		f, o, err = r.gather(ctx, req.Name, live)
		if apierrors.IsNotFound(err) {
			r.written.forget(req.Name)
			return reconcile.Result{}, r.sweepOne(ctx, req.Name)
		}
		if err != nil {
			return reconcile.Result{}, r.reportFailure(ctx, o, f, signin.Step{}, fmt.Errorf("read the sign-in %s: %w", req.Name, err))
		}
		if !live && r.written.contains(o) {
			return reconcile.Result{RequeueAfter: cacheLag}, nil // an earlier reconcile already handled this version; wait for the cache
		}
		var wake time.Time
		step, wake = signin.Next(f, r.Now())
		if !live && (step.IsDestructive() || step.Action == signin.Correct || f.ByRequest.Name != "" && step.Gives()) {
			live = true // law 7: a cache is no basis to remove anything, to report a change by others, or to give what somebody may have revoked
			continue
		}
		err = r.act(ctx, o.DeepCopy(), step)
		switch {
		case kube.IsStale(err):
			live = true // another writer changed the object
			continue
		case err != nil:
			return reconcile.Result{}, r.reportFailure(ctx, o, f, step, fmt.Errorf("%s the sign-in %s: %w", step.Action, req.Name, err))
		}
		r.emitTransition(o, f, step)
		if wake.IsZero() {
			return reconcile.Result{}, nil
		}
		if delay := wake.Sub(r.Now()); delay > 0 {
			return reconcile.Result{RequeueAfter: min(delay, maxRequeueAfter)}, nil
		}
		live = true // next step at once
	}
	if err == nil {
		return reconcile.Result{RequeueAfter: minRetryDelay}, nil // all steps succeeded, and more remain
	}
	return reconcile.Result{}, r.reportFailure(ctx, o, f, step, fmt.Errorf("%s the sign-in %s, which another client also changes: %w", step.Action, req.Name, err))
}
