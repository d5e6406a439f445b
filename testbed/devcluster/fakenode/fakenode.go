// Package fakenode replaces scheduler and kubelet: it is one Node that binds pending pods and reports them as running
// and ready. It runs nothing, and the Node's condition says so. It ignores pods that it would have to lie about: pods
// with another scheduler, scheduling gates, or a node selector that does not match.
//
// Exec, attach, port-forward and logs use the kubelet's real protocols, with commands in memory (see [shell]).
//
// Not supported: probes, restarts, completion (a Job's pod never ends), resources, affinity, taints, volumes. Init
// containers are reported as completed, sidecars (init containers with restartPolicy Always) as running, and ephemeral
// containers as running from the moment on that they are in the pod.
package fakenode

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Node is the fake Node.
type Node struct {
	name   string
	client kubernetes.Interface
	labels labels.Set
	last   netip.Addr // last assigned pod address; only Run's single worker uses it

	kubelet *kubelet
}

// New returns a Node that listens for its API server and does nothing else before Register and Run.
func New(client kubernetes.Interface, name string, files TLS) (*Node, error) {
	k, err := listenKubelet(files)
	if err != nil {
		return nil, err
	}
	return &Node{
		name: name, client: client, kubelet: k,
		labels: labels.Set{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"},
		last:   netip.AddrFrom4([4]byte{10, 244, 0, 0}),
	}, nil
}

// Close closes a Node that was not run.
func (n *Node) Close() { n.kubelet.listener.Close() }

// Serve serves the streams of the Node's containers until ctx ends.
func (n *Node) Serve(ctx context.Context) error { return n.kubelet.run(ctx) }

// Register creates the Node object, or finds that of an earlier run, and reports it ready.
func (n *Node) Register(ctx context.Context) error {
	node, err := n.client.CoreV1().Nodes().Create(ctx,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: n.labels}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = n.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	}
	if err != nil {
		return err
	}
	now := metav1.Now()
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Fake", Message: "reports pods as running, but runs none",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeHostName, Address: n.name}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = n.kubelet.port()
	_, err = n.client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	return err
}

// Run handles pods until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	f := informers.NewSharedInformerFactory(n.client, 0)
	pods := f.Core().V1().Pods()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]())
	defer queue.ShutDown()
	add := func(o any) {
		if p, ok := o.(*corev1.Pod); ok {
			queue.Add(cache.MetaObjectToName(p))
		}
	}
	if _, err := pods.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add, UpdateFunc: func(_, o any) { add(o) },
	}); err != nil {
		return err
	}
	f.Start(ctx.Done())
	defer f.Shutdown()
	if !cache.WaitForCacheSync(ctx.Done(), pods.Informer().HasSynced) {
		return errors.New("stopped before its cache was synchronized")
	}
	context.AfterFunc(ctx, queue.ShutDown)
	for {
		key, down := queue.Get()
		if down {
			return nil
		}
		if err := n.sync(ctx, pods.Lister(), key); err != nil && ctx.Err() == nil {
			klog.ErrorS(err, "fake node", "pod", key)
			queue.AddRateLimited(key)
		} else {
			queue.Forget(key)
		}
		queue.Done(key)
	}
}

// sync moves a pod one step further: bound, running, gone. After a conflict or a deletion, another event follows.
func (n *Node) sync(ctx context.Context, lister listers.PodLister, key cache.ObjectName) error {
	p, err := lister.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	pods := n.client.CoreV1().Pods(p.Namespace)
	switch {
	case p.Spec.NodeName == n.name && p.DeletionTimestamp != nil:
		err = pods.Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64(0)), Preconditions: metav1.NewUIDPreconditions(string(p.UID)),
		})
	case p.Spec.NodeName == "" && p.DeletionTimestamp == nil && n.takes(p):
		err = pods.Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: n.name},
		}, metav1.CreateOptions{})
	case p.Spec.NodeName == n.name && p.Status.Phase == corev1.PodPending:
		ip, free := n.address(lister)
		if free != nil {
			return free
		}
		q := p.DeepCopy()
		q.Status = running(p, ip, metav1.NewTime(time.Now()))
		_, err = pods.UpdateStatus(ctx, q, metav1.UpdateOptions{})
	case p.Spec.NodeName == n.name && len(p.Status.EphemeralContainerStatuses) < len(p.Spec.EphemeralContainers):
		q := p.DeepCopy()
		q.Status.EphemeralContainerStatuses = nil
		for _, c := range p.Spec.EphemeralContainers {
			q.Status.EphemeralContainerStatuses = append(q.Status.EphemeralContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Now())}}})
		}
		_, err = pods.UpdateStatus(ctx, q, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// takes reports whether a scheduler could bind p to this node.
func (n *Node) takes(p *corev1.Pod) bool {
	return p.Spec.SchedulerName == corev1.DefaultSchedulerName && len(p.Spec.SchedulingGates) == 0 &&
		labels.SelectorFromSet(p.Spec.NodeSelector).Matches(n.labels)
}

// address returns the next free address of 10.244.0.0/16. It also skips addresses of pods of an earlier run. Nothing
// listens on the address, but EndpointSlices must accept it, and they reject loopback addresses.
func (n *Node) address(lister listers.PodLister) (string, error) {
	pods, err := lister.List(labels.Everything())
	if err != nil {
		return "", err
	}
	used := make(map[string]bool, len(pods))
	for _, p := range pods {
		used[p.Status.PodIP] = true
	}
	podRange := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, 0, 0}), 16)
	for range 1 << 16 {
		if n.last = n.last.Next(); !podRange.Contains(n.last) {
			n.last = podRange.Addr().Next()
		}
		if !used[n.last.String()] {
			return n.last.String(), nil
		}
	}
	return "", fmt.Errorf("no free address in %v", podRange)
}

func running(p *corev1.Pod, ip string, now metav1.Time) corev1.PodStatus {
	s := *p.Status.DeepCopy()
	s.Phase, s.StartTime = corev1.PodRunning, &now
	s.HostIP, s.HostIPs = "127.0.0.1", []corev1.HostIP{{IP: "127.0.0.1"}}
	s.PodIP, s.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	types := []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady}
	// Another component controls a readiness gate. So a pod with one is not ready, and never becomes ready here.
	if len(p.Spec.ReadinessGates) == 0 {
		types = append(types, corev1.PodReady)
	}
	s.Conditions = nil
	for _, t := range types {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: now})
	}
	up := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	done := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now}}
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for _, c := range p.Spec.InitContainers {
		st := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: new(false), State: done}
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			st.Started, st.State = new(true), up
		}
		s.InitContainerStatuses = append(s.InitContainerStatuses, st)
	}
	for _, c := range p.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: true, Started: new(true), State: up})
	}
	return s
}
