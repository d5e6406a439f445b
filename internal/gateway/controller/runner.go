// Package controller runs the controllers of the gateway. They read Kubernetes objects and
// Tailscale's API, call package gateway for decisions, apply these and report the status. It
// follows law 7: known state stays in effect while new information is unavailable. An external
// object is recorded before it is created.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	reconcileTimeout = 2 * time.Minute // for one reconcile of one tailnet, including all API requests
	maxRequeueAfter  = 10 * time.Minute
	tailnetWorkers   = 8 // concurrent tailnets; one tailnet with a hanging API must not block the others
)

// A Runner runs all controllers of the gateway. Fields are required unless documented otherwise.
type Runner struct {
	Config    *rest.Config
	Namespace string // the operator's namespace

	CredentialNamespaces []string // additional namespaces with readable credential Secrets; may be empty
	BaseURLs             []string // API URLs that may receive credentials

	// ClientIDFile and ClientSecretFile are the files of a mounted OAuth client, for tailnets
	// without another credential. Optional.
	ClientIDFile, ClientSecretFile string

	Clients   *tsapi.Clients // clients of the tailnets' APIs; the controllers add and remove them
	UserAgent string
	PerSecond float64 // requests per second to each tailnet's API
	Burst     int

	// Settings of Envoy and of the relays' namespaces; see gatherer.
	ClusterDomain, Controller, EnvoyNamespace string
	ProxyNamespaces                           []string
	Addresses                                 bool

	// GatherOnly runs only what is needed to answer Envoy Gateway. Another process must run the
	// rest.
	GatherOnly bool

	// Publisher publishes the decisions. Publish and OnBuild are passed to the Gatherer. They are
	// optional.
	Publisher *Publisher
	Publish   func(*gateway.Snapshot)
	OnBuild   func(took time.Duration, err error)

	// Reports receives the answers to Envoy Gateway and records them. OnRestore is called when a
	// status that another party erased is written again. Both are optional.
	Reports   *TranslationReports
	OnRestore func()

	// Relays are the settings of relay pods. Without an image the operator runs no relays and
	// publishes nothing. OnKey is optional; it is called for each auth key with "minted",
	// "reissued" or "deleted".
	Relays workload.Settings
	OnKey  func(op string)

	// OperatorID and Release identify this operator to other operators. An empty OperatorID is
	// derived from the cluster and the release. ConsumerNamespaces are the namespaces where the
	// operator may create Services through which pods reach a tailnet.
	OperatorID, Release string
	ConsumerNamespaces  []string

	// Certificates maintains the certificates between Envoy Gateway and the extension server. If
	// nil, the administrator must provide them.
	Certificates *ExtensionCertificates

	// LeaseNamespace is the namespace of the leader election Lease. If empty, there is no leader
	// election.
	LeaseNamespace string

	Log *slog.Logger
	Now func() time.Time

	// Observe is called for each request to Tailscale's API. Optional.
	Observe func(tsapi.Op, tsapi.Class, time.Duration)

	synced    atomic.Bool
	cache     atomic.Pointer[cache.Cache]
	forbidden atomic.Pointer[forbiddenTracker]
}

// UnreadableNamespaces returns the number of namespaces that the operator's ServiceAccount cannot read although
// it should.
func (c *Runner) UnreadableNamespaces() int {
	if r := c.forbidden.Load(); r != nil {
		return len(r.Namespaces())
	}
	return 0
}

// Synced reports whether the caches are synced and the controllers run. It is false for a replica
// that waits for its election.
func (c *Runner) Synced() bool { return c.synced.Load() }

// Run runs the controllers until ctx ends. It returns an error if a setting is missing or if
// another replica becomes the leader.
func (c *Runner) Run(ctx context.Context) error {
	if c.Config == nil || c.Namespace == "" || len(c.BaseURLs) == 0 || c.Clients == nil || c.UserAgent == "" || c.PerSecond <= 0 || c.Burst < 1 ||
		c.Log == nil || c.Now == nil || c.ClusterDomain == "" || c.Controller == "" || c.EnvoyNamespace == "" || c.Publisher == nil || (c.ClientIDFile == "") != (c.ClientSecretFile == "") {
		return errors.New("the gateway's controllers lack a setting: configuration, namespace, base URLs, clients, user agent, limits, Envoy, publisher, log and clock are required, and both credential files or none")
	}
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("gateway controllers: %w", err)
	}
	return nil
}

func (c *Runner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := kube.Unthrottled(c.Config)
	in := append([]string{c.Namespace}, c.ProxyNamespaces...)
	byObject := mergeCaches(groupCacheOptions(in), gatheredCacheOptions(in, c.EnvoyNamespace))
	var err error
	options := manager.Options{
		Scheme:         runtime.NewScheme(),
		Logger:         logr.FromSlogHandler(c.Log.Handler()),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(), nil },
		Metrics:        metricsserver.Options{BindAddress: "0"}, // main serves metrics
		Cache:          cache.Options{DefaultTransform: cache.TransformStripManagedFields(), ByObject: byObject},
		Client:         client.Options{FieldOwner: v1alpha1.FieldManager, Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.Namespace{}}, EnableReadYourWritesConsistency: new(true)}},
	}
	refusals := &forbiddenTracker{Optional: c.ProxyNamespaces, Log: c.Log}
	c.forbidden.Store(refusals)
	if c.Addresses || !c.GatherOnly && c.Relays.Image != "" {
		refusals.Kinds = append(refusals.Kinds, discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	}
	if !c.GatherOnly && c.Relays.Image != "" {
		refusals.Kinds = append(refusals.Kinds, corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Secret"))
	}
	if refusals.Direct, err = client.New(config, client.Options{Scheme: options.Scheme, Mapper: newMapper()}); err != nil {
		return err
	}
	if err := refusals.Options(config, &options.Cache); err != nil {
		return err
	}
	for _, add := range []func(*runtime.Scheme) error{addGatheredTypes, addGroupTypes, addServiceTypes, authenticationv1.AddToScheme} {
		if err := add(options.Scheme); err != nil {
			return err
		}
	}
	if c.LeaseNamespace != "" && !c.GatherOnly {
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionReleaseOnCancel = true, v1alpha1.FieldManager, true
		options.LeaderElectionNamespace = c.LeaseNamespace
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return err
	}
	known := mgr.GetCache()
	c.cache.Store(&known)
	if err := c.addToEveryReplica(mgr); err != nil {
		return err
	}
	if c.GatherOnly {
		return mgr.Start(ctx)
	}
	acting := &attachmentReconciler{Log: c.Log, Now: c.Now, OnRestore: c.OnRestore}
	if err := acting.Add(mgr, c.Publisher); err != nil {
		return err
	}
	if c.Certificates != nil {
		if err := c.Certificates.Add(mgr); err != nil {
			return err
		}
	}
	if c.Relays.Image == "" {
		c.Log.Warn("running no relays and publishing nothing: the settings have no relay image (proxy.image)")
	} else if err := c.addRelays(ctx, mgr); err != nil {
		return err
	}
	secrets, err := corev1client.NewForConfig(config)
	if err != nil {
		return err
	}
	watches := newSecretWatches(ctx, secrets, c.Log)
	defer watches.wait()
	defer cancel()
	r := &tailnetReconciler{Runner: c, Client: mgr.GetClient(), events: mgr.GetEventRecorder(v1alpha1.FieldManager), watches: watches}
	if err := indexTailnets(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	specChanged := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	err = builder.ControllerManagedBy(mgr).
		Named("tailscaletailnet").
		For(&v1alpha1.TailscaleTailnet{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.TailscaleProxyGroup{}, handler.EnqueueRequestsFromMapFunc(r.tailnetsUsedBy), specChanged).
		Watches(&v1alpha1.TailscaleService{}, handler.EnqueueRequestsFromMapFunc(r.tailnetsUsedBy), specChanged).
		Watches(&v1alpha1.TailscaleGateway{}, handler.EnqueueRequestsFromMapFunc(r.tailnetsUsedBy), specChanged).
		WatchesRawSource(source.Channel(watches.changed, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: tailnetWorkers, ReconciliationTimeout: reconcileTimeout, SkipNameValidation: new(true)}).
		Complete(r)
	if err != nil {
		return err
	}
	d := &discoveryReconciler{Runner: c, Client: mgr.GetClient(), known: map[discoveryKey]discoveryState{}}
	err = builder.ControllerManagedBy(mgr).
		Named("discovery").
		For(&v1alpha1.TailscaleGateway{}, specChanged).
		Watches(&v1alpha1.TailscaleService{}, handler.EnqueueRequestsFromMapFunc(d.gatewaysInNamespace), specChanged).
		Watches(&v1alpha1.TailscaleTailnet{}, handler.EnqueueRequestsFromMapFunc(d.attachedTo), builder.WithPredicates(predicate.Funcs{UpdateFunc: readinessChanged})).
		WithOptions(controller.Options{MaxConcurrentReconciles: tailnetWorkers, ReconciliationTimeout: reconcileTimeout, SkipNameValidation: new(true)}).
		Complete(d)
	if err != nil {
		return err
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return nil
		}
		c.synced.Store(true)
		r.watchFiles(ctx)
		return nil
	})); err != nil {
		return err
	}
	defer c.synced.Store(false)
	return mgr.Start(ctx)
}

// mergeCaches merges cache options. If a kind occurs more than once, the last options apply. Without
// the merge, the manager would choose one at random.
func mergeCaches(all ...map[client.Object]cache.ByObject) map[client.Object]cache.ByObject {
	out, of := map[client.Object]cache.ByObject{}, map[reflect.Type]client.Object{}
	for _, options := range all {
		for o, where := range options {
			if was, ok := of[reflect.TypeOf(o)]; ok {
				delete(out, was)
			}
			of[reflect.TypeOf(o)], out[o] = o, where
		}
	}
	return out
}

// readinessChanged selects the changes of a tailnet that can affect discovery. Status updates of
// the periodic check do not.
func readinessChanged(e event.UpdateEvent) bool {
	was, ok := e.ObjectOld.(*v1alpha1.TailscaleTailnet)
	is, ok2 := e.ObjectNew.(*v1alpha1.TailscaleTailnet)
	return !ok || !ok2 || was.Generation != is.Generation ||
		meta.IsStatusConditionTrue(was.Status.Conditions, v1alpha1.ConditionReady) != meta.IsStatusConditionTrue(is.Status.Conditions, v1alpha1.ConditionReady)
}

// addToEveryReplica adds the parts that run on every replica, leader or not.
func (c *Runner) addToEveryReplica(mgr manager.Manager) error {
	g := &gatherer{
		Namespace: c.Namespace, ClusterDomain: c.ClusterDomain, Controller: c.Controller, EnvoyNamespace: c.EnvoyNamespace, ProxyNamespaces: c.ProxyNamespaces,
		Addresses: c.Addresses, Publisher: c.Publisher, Log: c.Log, Publish: c.Publish, Measure: c.OnBuild,
	}
	refusals := c.forbidden.Load()
	g.UnreadableNamespaces, refusals.Changed = refusals.Namespaces, g.Trigger
	if err := errors.Join(g.Add(mgr), mgr.Add(refusals)); err != nil {
		return err
	}
	if c.Reports == nil {
		return nil
	}
	return c.Reports.Add(mgr, c.Publisher)
}

// addRelays adds the controllers of proxy groups and of services.
func (c *Runner) addRelays(ctx context.Context, mgr manager.Manager) error {
	direct, err := client.New(mgr.GetConfig(), client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return err
	}
	id, instance, err := identifyOperator(ctx, direct, c.Namespace, c.Release, c.OperatorID)
	if err != nil {
		return err
	}
	relays := &groupReconciler{Namespace: c.Namespace, ProxyNamespaces: c.ProxyNamespaces, ClusterDomain: c.ClusterDomain, Workload: c.Relays,
		Clients: c.Clients, Log: c.Log, Now: c.Now, OnKey: c.OnKey}
	ways := &serviceReconciler{Namespace: c.Namespace, ConsumerNamespaces: c.ConsumerNamespaces, ClusterDomain: c.ClusterDomain, OperatorID: id, Instance: instance,
		Clients: c.Clients, Log: c.Log, Now: c.Now, Forbidden: c.forbidden.Load().Forbidden}
	return errors.Join(relays.Add(mgr, c.Publisher), ways.Add(mgr, c.Publisher))
}

// newMapper returns a RESTMapper for the kinds that the controllers use.
func newMapper() meta.RESTMapper {
	namespaced, clusterWide := gatheredKinds()
	more, _ := serviceKinds() // its cluster-wide kinds are among the gathered kinds
	namespaced = append(append(namespaced, groupKinds()...), more...)
	return kube.Mapper(append(namespaced, corev1.SchemeGroupVersion.WithKind("Secret"), corev1.SchemeGroupVersion.WithKind("ServiceAccount")),
		append(clusterWide, authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview")))
}

// Count counts the ready and degraded tailnets and the discovered services in the cache. ok is
// false until the first decision.
func (c *Runner) Count(ctx context.Context) (ready, degraded, services int, ok bool) {
	known := c.cache.Load()
	if known == nil || c.Publisher.Result() == nil {
		return 0, 0, 0, false
	}
	var tailnets v1alpha1.TailscaleTailnetList
	var gateways v1alpha1.TailscaleGatewayList
	if (*known).List(ctx, &tailnets, client.UnsafeDisableDeepCopy) != nil || (*known).List(ctx, &gateways, client.UnsafeDisableDeepCopy) != nil {
		return 0, 0, 0, false
	}
	for i := range tailnets.Items {
		of := tailnets.Items[i].Status.Conditions
		if meta.IsStatusConditionTrue(of, v1alpha1.ConditionReady) {
			ready++
		}
		if meta.IsStatusConditionTrue(of, v1alpha1.ConditionDegraded) {
			degraded++
		}
	}
	for i := range gateways.Items {
		for _, t := range gateways.Items[i].Status.Tailnets {
			services += int(t.DiscoveredServices)
		}
	}
	return ready, degraded, services, true
}

// byTailnet is the index of the objects that use a tailnet, by its name.
const byTailnet = "tailnet"

func indexTailnets(ctx context.Context, f client.FieldIndexer) error {
	return errors.Join(
		f.IndexField(ctx, &v1alpha1.TailscaleProxyGroup{}, byTailnet, tailnetsOf),
		f.IndexField(ctx, &v1alpha1.TailscaleService{}, byTailnet, tailnetsOf),
		f.IndexField(ctx, &v1alpha1.TailscaleGateway{}, byTailnet, tailnetsOf),
	)
}

// tailnetsOf returns the names of the tailnets that an object uses. The name "" means the default
// tailnet.
func tailnetsOf(o client.Object) (names []string) {
	switch o := o.(type) {
	case *v1alpha1.TailscaleProxyGroup:
		names = []string{""}
		if ref := o.Spec.TailnetRef; ref != nil {
			names[0] = ref.Name
		}
	case *v1alpha1.TailscaleService:
		if ref := o.Spec.TailnetRef; ref != nil {
			names = []string{ref.Name}
		}
	case *v1alpha1.TailscaleGateway:
		for _, t := range o.Spec.Tailnets {
			names = append(names, t.TailnetRef.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
