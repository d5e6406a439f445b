package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/certificates/rootcacertpublisher"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	sacontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/tailplane/tailplane/testbed/devcluster/parts"
)

// startControllers runs the controllers directly from their packages. The kube-controller-manager program has process
// globals (informer names, configz) and includes fifty other controllers. startControllers returns when the caches
// are filled. If a controller returns by itself, the cluster fails. stop stops them and waits until all have
// returned.
func startControllers(ctx context.Context, fail context.CancelCauseFunc, admin *rest.Config, ca []byte, signingKey string) (stop func(), err error) {
	config := rest.CopyConfig(admin)
	config.UserAgent = "devcluster-controllers"
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	cs, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	md, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}

	g := parts.New(ctx, fail)
	running := g.Context()
	typed := informers.NewSharedInformerFactory(cs, 10*time.Minute)
	partial := metadatainformer.NewSharedInformerFactory(md, 10*time.Minute)
	stop = func() {
		g.Stop()
		typed.Shutdown()
		partial.Shutdown()
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()

	all := informerfactory.NewInformerFactory(typed, partial)
	started := make(chan struct{})
	list, err := newControllers(running, cs, md, all, typed, started, ca, signingKey)
	if err != nil {
		return nil, err
	}
	all.Start(running.Done())
	close(started)
	for name, run := range list.run {
		g.Go("controller "+name, func(ctx context.Context) error { run(ctx); return nil })
	}

	filling, cancelFilling := context.WithTimeoutCause(running, startLimit, fmt.Errorf("caches not synchronized within %v", startLimit))
	defer cancelFilling()
	for kind, ok := range typed.WaitForCacheSync(filling.Done()) {
		if !ok {
			return nil, fmt.Errorf("%v: %w", kind, context.Cause(filling))
		}
	}
	for logger := klog.FromContext(filling); !list.graph.IsSynced(logger); {
		select {
		case <-filling.Done():
			return nil, fmt.Errorf("garbage collector: %w", context.Cause(filling))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return stop, nil
}

type controllers struct {
	run   map[string]func(context.Context) // by name; each returns when its context ends
	graph *garbagecollector.GraphBuilder
}

func newControllers(ctx context.Context, cs *kubernetes.Clientset, md metadata.Interface, all informerfactory.InformerFactory,
	f informers.SharedInformerFactory, started <-chan struct{}, ca []byte, signingKey string) (*controllers, error) {
	core, apps := f.Core().V1(), f.Apps().V1()
	logger := klog.FromContext(ctx)

	accounts, err := sacontroller.NewServiceAccountsController(logger, core.ServiceAccounts(), core.Namespaces(), cs,
		sacontroller.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return nil, fmt.Errorf("serviceaccount: %w", err)
	}
	key, err := keyutil.PrivateKeyFromFile(signingKey)
	if err != nil {
		return nil, fmt.Errorf("signing key: %w", err)
	}
	generator, err := serviceaccount.JWTTokenGenerator(serviceaccount.LegacyIssuer, key)
	if err != nil {
		return nil, fmt.Errorf("token generator: %w", err)
	}
	tokens, err := sacontroller.NewTokensController(logger, core.ServiceAccounts(), core.Secrets(), cs,
		sacontroller.TokensControllerOptions{TokenGenerator: generator, RootCA: ca})
	if err != nil {
		return nil, fmt.Errorf("serviceaccount-token: %w", err)
	}
	rootCA, err := rootcacertpublisher.NewPublisher(core.ConfigMaps(), core.Namespaces(), cs, ca)
	if err != nil {
		return nil, fmt.Errorf("root-ca-publisher: %w", err)
	}
	namespaces := namespace.NewNamespaceController(ctx, cs, md, cs.Discovery().ServerPreferredNamespacedResources,
		core.Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)
	aggregation := clusterroleaggregation.NewClusterRoleAggregation(f.Rbac().V1().ClusterRoles(), cs.RbacV1())
	deployments, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), core.Pods(), cs)
	if err != nil {
		return nil, fmt.Errorf("deployment: %w", err)
	}
	replicaSets := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), core.Pods(), cs, replicaset.BurstReplicas)
	statefulSets := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(),
		apps.ControllerRevisions(), cs)
	slices := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(), f.Discovery().V1().EndpointSlices(), 100, cs, 0)

	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(cs.Discovery()))
	ignored := map[schema.GroupResource]struct{}{{Resource: "events"}: {}, {Group: "events.k8s.io", Resource: "events"}: {}}
	graph := garbagecollector.NewDependencyGraphBuilder(ctx, md, mapper, ignored, all, started)
	garbage, err := garbagecollector.NewComposedGarbageCollector(ctx, cs, md, mapper, graph)
	if err != nil {
		return nil, fmt.Errorf("garbage-collector: %w", err)
	}
	return &controllers{
		graph: graph,
		run: map[string]func(context.Context){
			"serviceaccount":          func(ctx context.Context) { accounts.Run(ctx, 1) },
			"serviceaccount-token":    func(ctx context.Context) { tokens.Run(ctx, 2) },
			"root-ca-publisher":       func(ctx context.Context) { rootCA.Run(ctx, 1) },
			"namespace":               func(ctx context.Context) { namespaces.Run(ctx, 5) },
			"clusterrole-aggregation": func(ctx context.Context) { aggregation.Run(ctx, 2) },
			"deployment":              func(ctx context.Context) { deployments.Run(ctx, 3) },
			"replicaset":              func(ctx context.Context) { replicaSets.Run(ctx, 3) },
			"statefulset":             func(ctx context.Context) { statefulSets.Run(ctx, 3) },
			"endpointslice":           func(ctx context.Context) { slices.Run(ctx, 2) },
			"garbage-collector":       func(ctx context.Context) { garbage.Run(ctx, 4, 5*time.Second) },
			"garbage-collector-sync":  func(ctx context.Context) { garbage.Sync(ctx, cs.Discovery(), 5*time.Second) },
		},
	}, nil
}
