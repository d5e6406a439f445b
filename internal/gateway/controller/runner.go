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
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	reconcileTimeout = 2 * time.Minute  // for one reconcile of one object, including all API requests
	maxRequeueAfter  = 10 * time.Minute // between two reconciles, to find changes without an event
	tailnetWorkers   = 8                // concurrent tailnets; one tailnet with a hanging API must not block the others
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

	// Settings of Envoy and of the relays' namespaces; see gateway.Objects.
	ClusterDomain, Controller, EnvoyNamespace string
	ProxyNamespaces                           []string
	Addresses                                 bool

	// GatherOnly runs only what is needed to answer Envoy Gateway. Another process must run the
	// rest.
	GatherOnly bool

	// Publisher publishes the decisions. Publish and OnBuild are called by the gatherer. They are
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
	return len(c.unreadableNamespaces())
}

// unreadableNamespaces returns the names of these namespaces.
func (c *Runner) unreadableNamespaces() []string {
	if r := c.forbidden.Load(); r != nil {
		return r.Namespaces()
	}
	return nil
}

// Synced reports whether the caches are synced and the controllers run. It is false for a replica
// that waits for its election.
func (c *Runner) Synced() bool { return c.synced.Load() }

// Run runs the controllers until ctx ends. It returns an error if a setting is missing or if
// another replica becomes the leader.
func (c *Runner) Run(ctx context.Context) error {
	if c.Config == nil || c.Namespace == "" || len(c.BaseURLs) == 0 || c.Clients == nil || c.UserAgent == "" || c.PerSecond <= 0 || c.Burst < 1 ||
		c.Log == nil || c.Now == nil || c.ClusterDomain == "" || c.Controller == "" || c.EnvoyNamespace == "" ||
		c.Publisher == nil ||
		(c.ClientIDFile == "") != (c.ClientSecretFile == "") {
		return errors.New(
			"the gateway's controllers lack a setting: configuration, namespace, base URLs, clients, user agent, limits, Envoy, publisher, log and clock are required, and both credential files or none",
		)
	}
	return wrapError(c.run(ctx), "gateway controllers")
}

func (c *Runner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config := kube.Unthrottled(c.Config)
	mgr, err := c.newManager(config)
	if err != nil {
		return err
	}
	if err := c.addToEveryReplica(mgr); err != nil {
		return err
	}
	if c.GatherOnly {
		return mgr.Start(ctx)
	}
	secrets, err := corev1client.NewForConfig(config)
	if err != nil {
		return err
	}
	watches := newSecretWatches(ctx, secrets, c.Log)
	defer watches.running.Wait()
	defer cancel()
	if err := c.addToLeader(ctx, mgr, watches); err != nil {
		return err
	}
	defer c.synced.Store(false)
	return mgr.Start(ctx)
}

// newManager returns the manager of the controllers.
func (c *Runner) newManager(config *rest.Config) (manager.Manager, error) {
	options := manager.Options{
		Scheme:         runtime.NewScheme(),
		Logger:         logr.FromSlogHandler(c.Log.Handler()),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(), nil },
		Metrics:        metricsserver.Options{BindAddress: "0"}, // main serves metrics
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: cacheOptions(append([]string{c.Namespace}, c.ProxyNamespaces...), c.EnvoyNamespace)},
		Client: client.Options{
			FieldOwner: v1alpha1.FieldManager,
			Cache: &client.CacheOptions{
				DisableFor:                      []client.Object{&corev1.Secret{}, &corev1.Namespace{}},
				EnableReadYourWritesConsistency: new(true),
			},
		},
	}
	err := addTypes(options.Scheme)
	if err != nil {
		return nil, err
	}
	refusals := &forbiddenTracker{Optional: c.ProxyNamespaces, Log: c.Log}
	c.forbidden.Store(refusals)
	runsRelays := !c.GatherOnly && c.Relays.Image != ""
	if c.Addresses || runsRelays {
		refusals.Kinds = append(refusals.Kinds, discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"))
	}
	if runsRelays {
		refusals.Kinds = append(refusals.Kinds, corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Secret"))
	}
	if refusals.Direct, err = client.New(config, client.Options{Scheme: options.Scheme, Mapper: newMapper()}); err != nil {
		return nil, err
	}
	if err := refusals.Options(config, &options.Cache); err != nil {
		return nil, err
	}
	if c.LeaseNamespace != "" && !c.GatherOnly {
		options.LeaderElection, options.LeaderElectionID, options.LeaderElectionReleaseOnCancel = true, v1alpha1.FieldManager, true
		options.LeaderElectionNamespace = c.LeaseNamespace
	}
	mgr, err := manager.New(config, options)
	if err != nil {
		return nil, err
	}
	c.cache.Store(new(mgr.GetCache()))
	return mgr, nil
}

// addToEveryReplica adds the parts that run on every replica, leader or not.
func (c *Runner) addToEveryReplica(mgr manager.Manager) error {
	g, refusals := &gatherer{Runner: c}, c.forbidden.Load()
	refusals.Changed = g.trigger
	if err := errors.Join(g.Add(mgr), mgr.Add(refusals)); err != nil {
		return err
	}
	if c.Reports == nil {
		return nil
	}
	return c.Reports.Add(mgr, c.Publisher)
}

// addToLeader adds the parts that run on the leader.
func (c *Runner) addToLeader(ctx context.Context, mgr manager.Manager, watches *secretWatches) error {
	if err := (&attachmentReconciler{Runner: c}).Add(mgr); err != nil {
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
	tailnets := &tailnetReconciler{
		Runner:  c,
		Client:  mgr.GetClient(),
		events:  mgr.GetEventRecorder(v1alpha1.FieldManager),
		watches: watches,
	}
	discovery := &discoveryReconciler{Runner: c, Client: mgr.GetClient(), known: map[discoveryKey]discoveryState{}}
	if err := errors.Join(indexTailnets(ctx, mgr.GetFieldIndexer()), tailnets.Add(mgr), discovery.Add(mgr)); err != nil {
		return err
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if mgr.GetCache().WaitForCacheSync(ctx) {
			c.synced.Store(true)
			tailnets.watchFiles(ctx)
		}
		return nil
	}))
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
	return errors.Join((&groupReconciler{Runner: c}).Add(mgr), (&serviceReconciler{Runner: c, operatorID: id, instance: instance}).Add(mgr))
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
	if (*known).List(ctx, &tailnets, client.UnsafeDisableDeepCopy) != nil ||
		(*known).List(ctx, &gateways, client.UnsafeDisableDeepCopy) != nil {
		return 0, 0, 0, false
	}
	for _, t := range pointers(tailnets.Items) {
		if isReady(t) {
			ready++
		}
		if conditions.Get(t.Status.Conditions, v1alpha1.ConditionDegraded).IsTrue() {
			degraded++
		}
	}
	for _, g := range pointers(gateways.Items) {
		for _, t := range g.Status.Tailnets {
			services += int(t.DiscoveredServices)
		}
	}
	return ready, degraded, services, true
}

// identityConfigMap is the name of a ConfigMap in the operator's namespace. Its UID distinguishes
// the operator from a copy in a cluster that was restored from this one.
const identityConfigMap = "tailplane-gateway-identity"

// identifyOperator returns the IDs that identify this operator to other operators. operatorID is id, or is
// derived from the cluster and the release if id is empty. instance is the UID of the
// identityConfigMap, which identifyOperator creates if necessary.
func identifyOperator(ctx context.Context, c client.Client, namespace, release, id string) (operatorID, instance string, err error) {
	if id == "" {
		var ns corev1.Namespace
		if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &ns); err != nil {
			return "", "", fmt.Errorf("read the cluster's ID: %w", err)
		}
		id = gateway.OperatorID(string(ns.UID), namespace, release)
	}
	m := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace,
			Name:      identityConfigMap,
			Labels:    map[string]string{v1alpha1.ManagedLabel: "true"},
		},
	}
	err = c.Get(ctx, client.ObjectKeyFromObject(m), m)
	if apierrors.IsNotFound(err) {
		if err = c.Create(ctx, m); apierrors.IsAlreadyExists(err) { // another replica created it first
			err = c.Get(ctx, client.ObjectKeyFromObject(m), m)
		}
	}
	if err != nil {
		return "", "", fmt.Errorf("the ConfigMap with this operator's identity: %w", err)
	}
	return id, string(m.UID), nil
}
