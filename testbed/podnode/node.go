//go:build linux

// Package podnode is a node of a cluster that runs pods of the product's images as processes of this machine, without
// a kubelet, a container engine or root. It does not pretend to support a field. A pod with an unsupported field
// fails with an error that names it (NotOnTestbed), or gets an event that names it.
//
// The node binds a pod and gives it an address and directories for its volumes. It runs the init containers in order
// and the others together. It probes, restarts and stops them as a kubelet would, and reports all this in the pod's
// status. Package sandbox isolates pods. On a machine without namespaces, pods share the machine, and volumes cannot
// be mounted.
package podnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/tailplane/tailplane/testbed/podnode/kubelet"
)

// Options configure a node. Fields are required unless their comment says otherwise.
type Options struct {
	Name   string
	Dir    string // an empty directory with a short path, for Unix sockets
	Client kubernetes.Interface
	Server string        // host:port of the API server, which pods reach at 10.96.0.1:443
	Files  kubelet.Files // certificates for the connection from the API server to the node
	// Images maps image references to static binaries of this machine. A reference without tag and digest matches all
	// of them. "/" is an image with the machine's own programs.
	Images map[string]string
	Carry  map[string]string // optional: additional addresses that pods reach, and their destinations: host:port
	Shared string            // reason why pods share the machine and are not isolated; empty: they are isolated
	Log    *slog.Logger
}

// serviceAddress is the Service "kubernetes". The API server's certificate contains it.
const serviceAddress = "10.96.0.1"

// addresses are the addresses of pods: the upper half of the pod range, because the fake node uses the lower half.
var addresses = netip.MustParsePrefix("10.244.128.0/17")

// Node is a node. Run runs it.
type Node struct {
	o        Options
	labels   labels.Set
	endpoint *kubelet.Endpoint

	mu     sync.Mutex
	pods   map[types.UID]*pod
	byName map[string]*pod // namespace/name
	last   netip.Addr
	told   map[types.UID]bool // pending pods that have an event with the reason
}

// New returns a node that listens for its API server, and does nothing else before Run.
func New(o Options) (*Node, error) {
	n := &Node{
		o: o, labels: labels.Set{corev1.LabelHostname: o.Name, corev1.LabelOSStable: "linux"},
		pods: map[types.UID]*pod{}, byName: map[string]*pod{}, told: map[types.UID]bool{}, last: addresses.Addr(),
	}
	var err error
	n.endpoint, err = kubelet.Listen(o.Files, n, o.Log)
	return n, err
}

// Port returns the endpoint's port on 127.0.0.1.
func (n *Node) Port() int32 { return n.endpoint.Port }

// Run registers the node, calls ready, and runs pods until ctx ends. Then it kills all pods.
func (n *Node) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if err := n.endpoint.Serve(ctx); err != nil {
			cancel(fmt.Errorf("endpoint: %w", err))
		}
	})
	defer cancel(nil)
	if err := n.register(ctx); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	f := informers.NewSharedInformerFactory(n.o.Client, 0)
	informer := f.Core().V1().Pods().Informer()
	see := func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			n.see(ctx, &wg, p)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, o any) { see(o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if p, ok := o.(*corev1.Pod); ok {
				n.gone(p)
			}
		},
	}); err != nil {
		return err
	}
	f.Start(ctx.Done())
	defer f.Shutdown()
	defer cancel(nil)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("stopped before its cache was synchronized")
	}
	ready()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (n *Node) register(ctx context.Context) error {
	nodes := n.o.Client.CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.o.Name, Labels: n.labels}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = nodes.Get(ctx, n.o.Name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	message := "pods are processes in separate namespaces"
	if n.o.Shared != "" {
		message = "pods are plain processes, not isolated: " + n.o.Shared
	}
	now := metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Testbed", Message: message, LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	// No host name: the API server would try to resolve it first.
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = n.Port()
	_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// see handles the current state of a pod.
func (n *Node) see(ctx context.Context, wg *sync.WaitGroup, p *corev1.Pod) {
	key := p.Namespace + "/" + p.Name
	switch {
	case p.Spec.NodeName == "" && p.DeletionTimestamp == nil:
		if why := n.declines(p); why != "" {
			n.tell(ctx, wg, p, why)
			return
		}
		wg.Go(func() {
			err := n.o.Client.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
				ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: n.o.Name},
			}, metav1.CreateOptions{})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && ctx.Err() == nil {
				n.o.Log.Error("bind", "pod", key, "err", err)
			}
		})
	case p.Spec.NodeName == n.o.Name:
		n.mu.Lock()
		w, known := n.pods[p.UID]
		if !known && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed || !known && p.DeletionTimestamp != nil {
			w = newPod(n, p, n.address())
			n.pods[p.UID], n.byName[key] = w, w
			wg.Go(func() { w.run(ctx) })
		}
		n.mu.Unlock()
		if w != nil && p.DeletionTimestamp != nil {
			grace := time.Duration(0)
			if p.DeletionGracePeriodSeconds != nil {
				grace = time.Duration(*p.DeletionGracePeriodSeconds) * time.Second
			}
			w.end(grace)
		}
	}
}

// gone handles the deletion of a pod's object: it stops the remaining processes.
func (n *Node) gone(p *corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.pods[p.UID]; w != nil {
		delete(n.pods, p.UID)
		if key := p.Namespace + "/" + p.Name; n.byName[key] == w {
			delete(n.byName, key)
		}
		w.end(0)
	}
	delete(n.told, p.UID)
}

// declines returns why an unbound pod is not for this node, or "" if it is. A space means that another component must
// report the reason.
func (n *Node) declines(p *corev1.Pod) string {
	if p.Spec.SchedulerName != corev1.DefaultSchedulerName || len(p.Spec.SchedulingGates) > 0 || !labels.SelectorFromSet(p.Spec.NodeSelector).Matches(n.labels) {
		return " "
	}
	if _, asked := p.Spec.NodeSelector[corev1.LabelHostname]; asked {
		return ""
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if _, ok := n.image(c.Image); !ok {
			return fmt.Sprintf("image %q is not a program of this testbed", c.Image)
		}
	}
	return ""
}

// tell creates one event with the reason why a pod stays pending.
func (n *Node) tell(ctx context.Context, wg *sync.WaitGroup, p *corev1.Pod, why string) {
	n.mu.Lock()
	told := n.told[p.UID]
	n.told[p.UID] = true
	n.mu.Unlock()
	if !told && why != " " {
		wg.Go(func() { n.event(ctx, p, corev1.EventTypeWarning, "NotOnTestbed", why) })
	}
}

// event creates an event on a pod. If that fails, it logs the event.
func (n *Node) event(ctx context.Context, p *corev1.Pod, kind, reason, message string) {
	now := metav1.Now()
	_, err := n.o.Client.CoreV1().Events(p.Namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: p.Name + "."},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		Type:           kind, Reason: reason, Message: message, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "podnode", Host: n.o.Name},
	}, metav1.CreateOptions{})
	if err != nil && ctx.Err() == nil {
		n.o.Log.Warn("event", "pod", p.Namespace+"/"+p.Name, "reason", reason, "message", message, "err", err)
	}
}

// image returns the program of an image.
func (n *Node) image(ref string) (string, bool) {
	if program, ok := n.o.Images[ref]; ok {
		return program, true
	}
	program, ok := n.o.Images[repository(ref)]
	return program, ok
}

// repository returns an image's reference without tag and digest.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref = ref[:i]
	}
	return ref
}

// programPath returns the path in a container of the program of its image.
func programPath(ref string) string { return "/" + path.Base(repository(ref)) }

// address returns an address that no pod of this node has. The caller must hold n.mu.
func (n *Node) address() string {
	used := map[string]bool{}
	for w := range maps.Values(n.pods) {
		used[w.ip] = true
	}
	for {
		if n.last = n.last.Next(); !addresses.Contains(n.last.Next()) {
			n.last = addresses.Addr().Next()
		}
		if !used[n.last.String()] {
			return n.last.String()
		}
	}
}
