package signinkube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
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
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
)

const (
	operatorName = "tailplane-operator" // of the Lease, of events and of field managers

	workers    = 16               // sign-ins at a time
	sweepEvery = 10 * time.Minute // for what nobody's sign-in left behind
	longestNap = 10 * time.Minute // a clock may be set: nothing sleeps longer without a look
	tries      = 4                // of one sign-in in one go, when others write at the same time

	lookLimit  = 20 * time.Second      // for one look at one sign-in: an API server that hangs holds no worker for ever
	lag        = 50 * time.Millisecond // of the cache behind our own writes; an event mostly comes before
	retryFirst = 20 * time.Millisecond // after a failure, doubled each time
	retryLast  = 20 * time.Second      // nothing outlives its end by more than a minute, failures or not
)

// Keys of the cache's indexes.
const (
	bySignin    = "signin"    // ServiceAccounts and bindings by the UID in their label
	byName      = "name"      // RoleBindings by their name, over all namespaces
	byUID       = "uid"       // sign-ins by their UID
	byNamespace = "namespace" // sign-ins by the namespaces they wish for
)

// An Operator provisions the sign-ins of one namespace and takes them down.
// Fields without a remark are required.
type Operator struct {
	Config    *rest.Config
	Namespace string // of the sign-ins

	// LeaseNamespace holds the Lease that elects one of several operators.
	// Empty: this one does not ask; two that work at once do no harm, only
	// each other's work.
	LeaseNamespace string

	Rules signin.Rules
	Log   *slog.Logger
	Now   func() time.Time

	// Readied, optional, hears how long the owner of a new sign-in waited until it
	// was ready.
	Readied func(time.Duration)
	// Ended, optional, hears of each sign-in that ended without the access server.
	Ended func(End)
	// Swept, optional, hears of what was removed because no sign-in accounts for it:
	// a ServiceAccount or a binding (of the namespace, or of the whole cluster).
	Swept func(kind, namespace, name string)

	synced atomic.Bool
	reader atomic.Pointer[client.Reader] // of the cache, from the start on
}

// Synced reports whether the operator has filled its caches and is at work, for
// a readiness check. One that waits to be elected is not at work.
func (o *Operator) Synced() bool { return o.synced.Load() }

// Run works until ctx ends. It returns an error when a setting is missing, when
// the API server cannot be asked at the start, or when another operator took over.
func (o *Operator) Run(ctx context.Context) error {
	if o.Config == nil || o.Namespace == "" || o.Log == nil || o.Now == nil || len(o.Rules.Roles) == 0 ||
		o.Rules.Min <= 0 || o.Rules.Max < o.Rules.Min || o.Rules.KeepExpired <= 0 || o.Rules.Recheck <= 0 {
		return errors.New("the sign-in operator lacks a setting: configuration, namespace, rules, log and clock are required")
	}
	if o.Namespace == o.LeaseNamespace {
		return errors.New("sign-ins must have a namespace of their own: whoever may make tokens there could make the operator's")
	}
	o.Rules.Reserved = append(slices.Clone(o.Rules.Reserved), o.Namespace, o.LeaseNamespace)
	config := kube.Unthrottled(o.Config)
	log := logr.FromSlogHandler(o.Log.Handler())
	options := manager.Options{
		Scheme:         runtime.NewScheme(),
		Logger:         log,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kube.Mapper(kinds()), nil },
		Metrics:        metricsserver.Options{BindAddress: "0"}, // main serves metrics
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
		lock, err := lease(config, o.LeaseNamespace)
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
	r := &reconciler{
		Operator: o, Client: mgr.GetClient(), live: mgr.GetAPIReader(),
		events: mgr.GetEventRecorder(operatorName), answered: answered{answers: map[string]answer{}}, written: overwritten{versions: map[string][]string{}},
		arrivals: arrivals{now: o.Now, at: map[types.UID]time.Time{}},
	}
	reader := client.Reader(mgr.GetCache())
	o.reader.Store(&reader)
	if err := r.index(ctx, mgr.GetFieldIndexer()); err != nil {
		return fmt.Errorf("sign-in operator: %w", err)
	}
	err = builder.ControllerManagedBy(mgr).
		Named("tkasignin").
		For(&v1alpha1.TkaSignin{}, builder.WithPredicates(predicate.Funcs{UpdateFunc: matters})).
		Watches(&v1alpha1.TkaSignin{}, r.arrivals.handler()).
		Watches(&corev1.ServiceAccount{}, handler.EnqueueRequestsFromMapFunc(r.ofMade)).
		Watches(&rbacv1.ClusterRoleBinding{}, handler.EnqueueRequestsFromMapFunc(r.ofMade)).
		Watches(&rbacv1.RoleBinding{}, handler.EnqueueRequestsFromMapFunc(r.ofMade)).
		WatchesMetadata(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(r.ofNamespace)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			ReconciliationTimeout:   lookLimit,
			SkipNameValidation:      new(true), // names of metrics; two operators in one process may share theirs
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryLast),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("sign-in operator: %w", err)
	}
	if err := mgr.Add(manager.RunnableFunc(r.sweepForEver)); err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("sign-in operator: %w", err)
	}
	return nil
}

// cacheOptions keep in memory what is watched, and of bindings only our own.
func (o *Operator) cacheOptions() cache.Options {
	ours := labels.SelectorFromSet(labels.Set{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: o.Namespace})
	here := map[string]cache.Config{o.Namespace: {}}
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.TkaSignin{}:        {Namespaces: here},
			&corev1.ServiceAccount{}:     {Namespaces: here},
			&rbacv1.ClusterRoleBinding{}: {Label: ours},
			&rbacv1.RoleBinding{}:        {Label: ours},
		},
	}
}

func kinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	return []schema.GroupVersionKind{
			v1alpha1.GroupVersion.WithKind("TkaSignin"),
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

// lease is the election's lock. It writes no events: they would need rights in
// the namespace of the Lease.
func lease(config *rest.Config, namespace string) (resourcelock.Interface, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this operator in the election: %w", err)
	}
	c, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: operatorName},
		Client:     c,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}, nil
}

// A reconciler is an operator at work.
type reconciler struct {
	*Operator
	client.Client // reads from the cache, but for roles and policies
	live          client.Reader
	events        events.EventRecorder

	answered
	written  overwritten
	arrivals arrivals
}

// index prepares the look-ups in the cache.
func (r *reconciler) index(ctx context.Context, f client.FieldIndexer) error {
	label := func(o client.Object) []string {
		if uid := o.GetLabels()[v1alpha1.SigninUIDLabel]; uid != "" {
			return []string{uid}
		}
		return nil
	}
	return errors.Join(
		f.IndexField(ctx, &corev1.ServiceAccount{}, bySignin, label),
		f.IndexField(ctx, &rbacv1.ClusterRoleBinding{}, bySignin, label),
		f.IndexField(ctx, &rbacv1.RoleBinding{}, bySignin, label),
		f.IndexField(ctx, &rbacv1.RoleBinding{}, byName, func(o client.Object) []string { return []string{o.GetName()} }),
		f.IndexField(ctx, &v1alpha1.TkaSignin{}, byUID, func(o client.Object) []string { return []string{string(o.GetUID())} }),
		f.IndexField(ctx, &v1alpha1.TkaSignin{}, byNamespace, func(o client.Object) []string { return o.(*v1alpha1.TkaSignin).Spec.Namespaces }),
	)
}

// matters says whether a change of a sign-in is worth a look. Its annotations are
// not: we write one at every attempt, and would wake ourselves after each failure.
func matters(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TkaSignin)
	is, ok2 := e.ObjectNew.(*v1alpha1.TkaSignin)
	return !ok || !ok2 || was.UID != is.UID || was.Generation != is.Generation || (was.DeletionTimestamp == nil) != (is.DeletionTimestamp == nil) ||
		!slices.Equal(was.Finalizers, is.Finalizers) || !apiequality.Semantic.DeepEqual(was.Status, is.Status)
}

// ofMade returns whose sign-in an event about a ServiceAccount or a binding
// concerns: the one that its name says and the one that its label says.
func (r *reconciler) ofMade(ctx context.Context, o client.Object) []reconcile.Request {
	name := o.GetName()
	if _, account := o.(*corev1.ServiceAccount); !account {
		name = signinName(name)
	}
	var requests []reconcile.Request
	if name != "" {
		requests = append(requests, r.request(name))
	}
	if uid := o.GetLabels()[v1alpha1.SigninUIDLabel]; uid != "" {
		requests = append(requests, r.indexed(ctx, byUID, uid)...)
	}
	return requests
}

// ofNamespace returns whose sign-ins wish for a namespace that came or went.
func (r *reconciler) ofNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return r.indexed(ctx, byNamespace, o.GetName())
}

func (r *reconciler) indexed(ctx context.Context, index, key string) (requests []reconcile.Request) {
	var list v1alpha1.TkaSigninList
	if err := r.List(ctx, &list, client.InNamespace(r.Namespace), client.MatchingFields{index: key}, client.UnsafeDisableDeepCopy); err != nil {
		r.Log.Error("look up sign-ins in the cache", "err", err)
	}
	for i := range list.Items {
		requests = append(requests, r.request(list.Items[i].Name))
	}
	return requests
}

func (r *reconciler) request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: r.Namespace, Name: name}}
}

// Reconcile brings one sign-in to where it should be: gather, decide, act,
// report; again at once when somebody else wrote meanwhile.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var (
		live bool // ask the API server, not the cache
		f    signin.Facts
		o    *v1alpha1.TkaSignin
		step signin.Step
		err  error
	)
	for range tries {
		f, o, err = r.gather(ctx, req.Name, live)
		if apierrors.IsNotFound(err) {
			r.written.forget(req.Name)
			return reconcile.Result{}, r.sweepName(ctx, req.Name)
		}
		if err != nil {
			return reconcile.Result{}, r.failed(ctx, o, f, signin.Step{}, fmt.Errorf("look at the sign-in %s: %w", req.Name, err))
		}
		if !live && r.written.isOverwritten(o) {
			return reconcile.Result{RequeueAfter: lag}, nil // what the cache will show in a moment was decided upon already
		}
		var wake time.Time
		step, wake = signin.Next(f, r.Now())
		if !live && (step.Destroys() || step.Deed == signin.Correct) {
			live = true // law 7: nothing is taken away, nobody accused, on the word of a cache
			continue
		}
		err = r.act(ctx, o.DeepCopy(), step)
		switch {
		case kube.Stale(err):
			live = true // somebody else wrote meanwhile
			continue
		case err != nil:
			return reconcile.Result{}, r.failed(ctx, o, f, step, fmt.Errorf("%s the sign-in %s: %w", step.Deed, req.Name, err))
		}
		r.record(o, f, step)
		if wake.IsZero() {
			return reconcile.Result{}, nil
		}
		if nap := wake.Sub(r.Now()); nap > 0 {
			return reconcile.Result{RequeueAfter: min(nap, longestNap)}, nil
		}
		live = true // at once
	}
	if err == nil {
		return reconcile.Result{RequeueAfter: retryFirst}, nil // each step was carried out, and there are more
	}
	return reconcile.Result{}, r.failed(ctx, o, f, step, fmt.Errorf("%s the sign-in %s, and somebody else writes as well: %w", step.Deed, req.Name, err))
}
