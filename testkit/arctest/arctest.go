//go:build unix

// Package arctest is a fake of GitHub's actions-runner-controller (ARC) that works on a real API server. It has its
// own small definitions of ARC's kinds, and a controller that behaves as ARC 0.13.1 to 0.14.2. The fake runs no jobs:
// tests control each job by [ARC.Assign], [ARC.Start] and [ARC.Finish]. Where ARC waits, deletes or hangs, the fake
// does so too.
//
// The behaviour comes from the source of ARC's releases, which the comment of each step names. The fake omits
// proxies, vaults, all metrics except those of jobs, the hooks of kubernetes mode, and a change of the runner group.
//
// The fake defines all names itself and shares no code with the product, so that tests find a wrong name.
package arctest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// GitHub is the part of GitHub that ARC calls. place is the configURL of an organisation, an enterprise or a
// repository. secret is the data of the credential. An error is a response of GitHub, after which ARC tries again.
type GitHub interface {
	// EnsureScaleSet creates a scale set, or finds the one with that name in that group. The labels of an existing
	// one stay unchanged. An empty group is the default group.
	EnsureScaleSet(place, group, name string, labels []string, secret map[string][]byte) (id int64, err error)
	// DeleteScaleSet deletes a scale set. A missing scale set is not an error.
	DeleteScaleSet(place string, id int64, secret map[string][]byte) error
}

// Options configure an ARC. Cluster, Namespace, Version and GitHub are required.
type Options struct {
	Cluster   *kubetest.Cluster
	Namespace string // namespace of the controller, such as arc-systems; Install creates it
	Version   string // for example 0.14.2
	Watch     string // the only namespace to watch; empty: all
	Eventual  bool   // update strategy eventual instead of immediate
	GitHub    GitHub
	Auto      bool // jobs start by themselves as soon as a runner is idle
	Metrics   bool // listeners serve metrics on loopback

	// Confined lets ARC use the account of its Deployment with the rights of ARC's own chart. In a namespace of
	// runners it then needs the rights that the fleet grants. It also creates the objects that a listener and a
	// runner need, which the fake omits otherwise.
	Confined bool
}

// ARC is the fake.
type ARC struct {
	o      Options
	admin  *dynamic.DynamicClient // for actions of others: nodes and GitHub
	client *dynamic.DynamicClient // client of the fake itself
	queue  workqueue.TypedRateLimitingInterface[types.NamespacedName]

	working sync.RWMutex // held for reading while an operation of one version runs

	mu       sync.Mutex
	version  string // of the running program; empty: none
	log      []string
	jobs     []*job
	runners  int64 // last number given to a runner
	crashing map[types.NamespacedName]string
	outdated map[types.NamespacedName]bool
	linger   bool
	metrics  map[types.NamespacedName]*http.Server
	ports    map[types.NamespacedName]int64 // ports of these servers
}

var (
	setResource       = schema.GroupVersionResource{Group: "actions.github.com", Version: "v1alpha1", Resource: "autoscalingrunnersets"}
	listenerResource  = schema.GroupVersionResource{Group: "actions.github.com", Version: "v1alpha1", Resource: "autoscalinglisteners"}
	runnerSetResource = schema.GroupVersionResource{Group: "actions.github.com", Version: "v1alpha1", Resource: "ephemeralrunnersets"}
	runnerResource    = schema.GroupVersionResource{Group: "actions.github.com", Version: "v1alpha1", Resource: "ephemeralrunners"}
	podResource       = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	secretResource    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// Start installs an ARC and runs it until the test ends.
func Start(t testing.TB, o Options) *ARC {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("fake ARC: %v", err)
		}
		if t.Failed() {
			t.Logf("fake ARC %s did:\n%s", o.Namespace, strings.Join(a.Log(), "\n"))
		}
	})
	return a
}

// New returns an ARC that does nothing before Install and Run.
func New(o Options) (*ARC, error) {
	if o.Cluster == nil || o.Namespace == "" || o.Version == "" || o.GitHub == nil {
		return nil, errors.New("fake ARC: cluster, namespace, version and GitHub are required")
	}
	client, err := dynamic.NewForConfig(o.Cluster.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("fake ARC: %w", err)
	}
	return &ARC{o: o, admin: client, client: client, version: o.Version, crashing: map[types.NamespacedName]string{}, outdated: map[types.NamespacedName]bool{}, metrics: map[types.NamespacedName]*http.Server{}, ports: map[types.NamespacedName]int64{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](50*time.Millisecond, 2*time.Second))}, nil
}

// Install creates ARC's kinds, namespace, Deployment and pod on the server.
func (a *ARC) Install(ctx context.Context) error {
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + a.o.Namespace + "}\n"
	if err := a.o.Cluster.Apply(ctx, []byte(definitions), []byte(namespace), a.deployment(a.o.Version)); err != nil {
		return fmt.Errorf("install the fake ARC: %w", err)
	}
	if a.o.Confined {
		if err := a.confine(ctx); err != nil {
			return fmt.Errorf("confine the fake ARC: %w", err)
		}
	}
	return a.place(ctx, a.o.Version)
}

// Run runs the controller until ctx ends.
func (a *ARC) Run(ctx context.Context) error {
	defer a.queue.ShutDown()
	defer a.closeMetrics()
	informers := dynamicinformer.NewFilteredDynamicSharedInformerFactory(a.client, 0, a.o.Watch, nil)
	own := dynamicinformer.NewFilteredDynamicSharedInformerFactory(a.client, 0, a.o.Namespace, nil)
	var synced []cache.InformerSynced
	for _, of := range []struct {
		from     dynamicinformer.DynamicSharedInformerFactory
		resource schema.GroupVersionResource
		key      func(*unstructured.Unstructured) types.NamespacedName
	}{
		{informers, setResource, named}, {informers, runnerSetResource, labelled}, {informers, runnerResource, labelled}, {informers, podResource, labelled},
		{own, listenerResource, labelled}, {own, podResource, labelled},
	} {
		i := of.from.ForResource(of.resource).Informer()
		add := func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if u, ok := o.(*unstructured.Unstructured); ok {
				if k := of.key(u); k.Name != "" && (a.o.Watch == "" || k.Namespace == a.o.Watch) {
					a.queue.Add(k)
				}
			}
		}
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: add}); err != nil {
			return err
		}
		synced = append(synced, i.HasSynced)
	}
	informers.Start(ctx.Done())
	own.Start(ctx.Done())
	defer informers.Shutdown()
	defer own.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil // ctx ended before the caches were filled
	}
	context.AfterFunc(ctx, a.queue.ShutDown)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { a.work(ctx) })
	}
	wg.Wait()
	return nil
}

func (a *ARC) work(ctx context.Context) {
	for {
		k, down := a.queue.Get()
		if down {
			return
		}
		switch again, err := a.pass(ctx, k); {
		case err != nil && ctx.Err() == nil:
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				a.note("%s: tries again: %v", k, err)
			}
			a.queue.AddRateLimited(k)
		case again:
			a.queue.Forget(k)
			a.queue.AddAfter(k, 200*time.Millisecond)
		default:
			a.queue.Forget(k)
		}
		a.queue.Done(k)
	}
}

// Log returns the actions of the fake in order. Each line begins with the set's namespace and name. Repeated lines
// are left out.
func (a *ARC) Log() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.log)
}

func (a *ARC) note(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.log); n == 0 || a.log[n-1] != line {
		a.log = append(a.log, line)
	}
}

// Linger keeps the pods of replaced or deleted listeners until it is called with false. ARC gives them a minute to
// end.
func (a *ARC) Linger(stay bool) {
	a.mu.Lock()
	a.linger = stay
	a.mu.Unlock()
	a.wakeAll()
}

// Crash lets the pods of a set's runners fail with that reason. An empty reason ends that.
func (a *ARC) Crash(namespace, set, reason string) {
	k := types.NamespacedName{Namespace: namespace, Name: set}
	a.mu.Lock()
	if a.crashing[k] = reason; reason == "" {
		delete(a.crashing, k)
	}
	a.mu.Unlock()
	a.queue.Add(k)
}

// Reject lets GitHub reject the image of a set's runners as too old. They end with exit code 7, and ARC 0.14 then
// switches off the set. False ends the rejection. A set that is off stays off until its spec or its labels change.
func (a *ARC) Reject(namespace, set string, reject bool) {
	k := types.NamespacedName{Namespace: namespace, Name: set}
	a.mu.Lock()
	a.outdated[k] = reject
	a.mu.Unlock()
	a.queue.Add(k)
}

// Upgrade starts to replace the controller, as a Deployment with strategy Recreate does: the Deployment has the new
// version, and the old pod is gone. The returned function starts the new pod. Until then no controller runs.
func (a *ARC) Upgrade(ctx context.Context, version string) (start func(context.Context) error, err error) {
	a.setVersion("")
	if err := a.o.Cluster.Apply(ctx, a.deployment(version)); err != nil {
		return nil, fmt.Errorf("upgrade the fake ARC: %w", err)
	}
	if err := a.admin.Resource(podResource).Namespace(a.o.Namespace).Delete(ctx, podName, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("upgrade the fake ARC: %w", err)
	}
	return func(ctx context.Context) error {
		if err := a.place(ctx, version); err != nil {
			return err
		}
		a.setVersion(version)
		a.wakeAll()
		return nil
	}, nil
}

// Lie sets the version of the running controller, while its Deployment and its pod keep theirs. The controller then
// deletes sets that were made for the version of the Deployment.
func (a *ARC) Lie(version string) { a.setVersion(version) }

// setVersion waits until all operations of the earlier version end.
func (a *ARC) setVersion(v string) {
	a.working.Lock()
	defer a.working.Unlock()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version = v
}

// wakeAll queues every existing set.
func (a *ARC) wakeAll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	all, err := a.admin.Resource(setResource).Namespace(a.o.Watch).List(ctx, metav1.ListOptions{})
	if err != nil {
		a.note("list: %v", err)
		return
	}
	for i := range all.Items {
		a.queue.Add(named(&all.Items[i]))
	}
}

func named(u *unstructured.Unstructured) types.NamespacedName {
	return types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
}

// labelled returns the set that ARC's labels name. ARC adds these labels to every object that it creates.
func labelled(u *unstructured.Unstructured) types.NamespacedName {
	l := u.GetLabels()
	return types.NamespacedName{Namespace: l["actions.github.com/scale-set-namespace"], Name: l["actions.github.com/scale-set-name"]}
}
