package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// Pods runs the pods of one namespace as a kubelet would, as far as tailplaned needs it. Each pod is a process with
// exactly the pod's environment, arguments and account, at its own address. Pods probes it for readiness, stops it
// with its preStop hook and SIGTERM, and restarts it when it ends. Pods does not isolate processes. The testbed's
// podnode isolates them, but its pods are not reachable from outside.
type Pods struct {
	o      PodsOptions
	c      *kubetest.Cluster
	dir    string
	client corev1client.PodInterface
	end    context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	known map[types.UID]*Relay // nil until the process has started
	next  netip.Addr
	errs  []error
}

// PodsOptions configure Pods. Fields are required unless their comment says otherwise.
type PodsOptions struct {
	Namespace string
	First     netip.Addr // address of the first pod; the machine must have it and the following ones
	Env       []string   // optional: in addition to the pod's own
}

// podLook is the interval between two polls of a pod. Each poll is one request.
const podLook = 200 * time.Millisecond

// RunPods starts to run the pods. Their files are in dir. The caller must call Stop.
func RunPods(c *kubetest.Cluster, dir string, o PodsOptions) (*Pods, error) {
	client, err := corev1client.NewForConfig(c.AdminConfig())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pods{o: o, c: c, dir: dir, client: client.Pods(o.Namespace), end: cancel, known: map[types.UID]*Relay{}, next: o.First}
	p.wg.Go(func() {
		tick := time.NewTicker(podLook)
		defer tick.Stop()
		for ctx.Err() == nil {
			list, err := p.client.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
			if err != nil {
				p.trouble(ctx, err)
			} else {
				for _, pod := range list.Items {
					p.look(ctx, &pod)
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return p, nil
}

// Stop kills all processes and returns the cluster errors that occurred since RunPods.
func (p *Pods) Stop() error {
	p.end()
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.errs...)
}

// Running returns the running pods by name.
func (p *Pods) Running() map[string]*Relay {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := map[string]*Relay{}
	for _, r := range p.known {
		if r != nil {
			all[r.Pod] = r
		}
	}
	return all
}

func (p *Pods) trouble(ctx context.Context, err error) {
	if ctx.Err() != nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return // the pod is gone, or the next poll handles it
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs = append(p.errs, err)
}

// look starts a pod that is new.
func (p *Pods) look(ctx context.Context, pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, is := p.known[pod.UID]; is || pod.DeletionTimestamp != nil && pod.Spec.NodeName == "" {
		return
	}
	p.known[pod.UID] = nil
	ip := p.next.String()
	p.next = p.next.Next()
	p.wg.Go(func() {
		if err := p.live(ctx, pod, ip); err != nil {
			p.trouble(ctx, fmt.Errorf("pod %s: %w", pod.Name, err))
		}
	})
}

// live runs a pod until it is deleted or ctx ends.
func (p *Pods) live(ctx context.Context, pod *corev1.Pod, ip string) error {
	if len(pod.Spec.Containers) != 1 {
		return errors.New("it must have exactly one container")
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, UID: pod.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: "rig"}}
	if pod.Spec.NodeName == "" { // the API server deletes a pod without a node at once
		if err := p.client.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	pod.Status.PodIP, pod.Status.PodIPs = ip, []corev1.PodIP{{IP: ip}}
	dir := filepath.Join(p.dir, string(pod.UID))
	for restarts := int32(0); ; restarts++ {
		r, err := p.start(ctx, pod, dir)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.known[pod.UID] = r
		p.mu.Unlock()
		gone, err := p.attend(ctx, pod, r, restarts)
		if gone || err != nil {
			return err
		}
		if retry.Sleep(ctx, time.Second) != nil { // backoff as of a kubelet, but shorter
			return nil
		}
	}
}

// start starts the process of a pod.
func (p *Pods) start(ctx context.Context, pod *corev1.Pod, dir string) (*Relay, error) {
	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		return nil, err
	}
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	kubeconfig, err := p.c.ServiceAccountKubeconfig(ctx, pod.Namespace, pod.Spec.ServiceAccountName, dir)
	if err != nil {
		return nil, err
	}
	env, err := environment(pod)
	if err != nil {
		return nil, err
	}
	env = append(append(tailnettest.ChildEnv(), "HOME="+dir, "TMPDIR="+os.TempDir()), append(env, p.o.Env...)...)
	args := append([]string{program}, pod.Spec.Containers[0].Args...)
	process, err := startProcess(dir, env, append(args, "--kubeconfig", kubeconfig, "--state-dir", state, "--log-level", "debug")...)
	if err != nil {
		return nil, err
	}
	return &Relay{process, RelayOptions{Namespace: pod.Namespace, Account: pod.Spec.ServiceAccountName, Pod: pod.Name, UID: string(pod.UID), IP: pod.Status.PodIP}}, nil
}

// environment returns the environment of the pod with all references resolved.
func environment(pod *corev1.Pod) (env []string, err error) {
	values := map[string]string{}
	for _, v := range pod.Spec.Containers[0].Env {
		value := v.Value
		for name, earlier := range values {
			value = strings.ReplaceAll(value, "$("+name+")", earlier)
		}
		if from := v.ValueFrom; from != nil {
			if from.FieldRef == nil {
				return nil, fmt.Errorf("%s is not from a field", v.Name)
			}
			fields := map[string]string{"metadata.name": pod.Name, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID), "status.podIP": pod.Status.PodIP, "status.podIPs": pod.Status.PodIP}
			is := false
			if value, is = fields[from.FieldRef.FieldPath]; !is {
				return nil, fmt.Errorf("%s is of %s", v.Name, from.FieldRef.FieldPath)
			}
		}
		values[v.Name] = value
		env = append(env, v.Name+"="+value)
	}
	return env, nil
}

// attend probes a running pod, updates its status, and stops it when it is deleted.
func (p *Pods) attend(ctx context.Context, pod *corev1.Pod, r *Relay, restarts int32) (gone bool, err error) {
	tick := time.NewTicker(podLook)
	defer tick.Stop()
	ready, told := false, false
	for {
		if probe := pod.Spec.Containers[0].ReadinessProbe; probe != nil && probe.HTTPGet != nil {
			status, _, _, err := r.Ask(ctx, probe.HTTPGet.Path)
			if is := err == nil && status == http.StatusOK; is != ready {
				ready, told = is, false
			}
		}
		if !told {
			if err := p.tell(ctx, pod, ready, restarts); err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
			told = true
		}
		now, err := p.client.Get(ctx, pod.Name, metav1.GetOptions{ResourceVersion: "0"})
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			r.Kill() // the pod was deleted by force
			return true, nil
		}
		if err == nil && now.DeletionTimestamp != nil {
			return true, p.stop(ctx, now, r)
		}
		select {
		case <-tick.C:
		case <-r.Done():
			return false, p.tell(ctx, pod, false, restarts+1)
		case <-ctx.Done():
			r.Kill()
			return true, nil
		}
	}
}

// stop terminates a pod in order: preStop hook, then SIGTERM, within the grace period.
func (p *Pods) stop(ctx context.Context, pod *corev1.Pod, r *Relay) error {
	p.mu.Lock()
	p.known[pod.UID] = nil
	p.mu.Unlock()
	grace := time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	ctx, cancel := context.WithTimeout(ctx, max(grace, time.Second))
	defer cancel()
	if hook := pod.Spec.Containers[0].Lifecycle; hook != nil && hook.PreStop != nil && hook.PreStop.HTTPGet != nil {
		_, _, _, _ = r.Ask(ctx, hook.PreStop.HTTPGet.Path) // a failed hook does not delay the termination
	}
	if r.Stop(max(grace, time.Second)) != nil {
		r.Kill()
	}
	background := context.WithoutCancel(ctx)
	err := p.client.Delete(background, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// tell writes a pod's status.
func (p *Pods) tell(ctx context.Context, pod *corev1.Pod, ready bool, restarts int32) error {
	now, err := p.client.Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	condition := func(kind corev1.PodConditionType, holds bool) corev1.PodCondition {
		c := corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now(), ObservedGeneration: now.Generation}
		if holds {
			c.Status = corev1.ConditionTrue
		}
		return c
	}
	container := pod.Spec.Containers[0]
	now.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: pod.Status.PodIP, PodIPs: pod.Status.PodIPs, HostIP: "127.0.0.1", ObservedGeneration: now.Generation,
		StartTime: new(metav1.Now()),
		Conditions: []corev1.PodCondition{condition(corev1.PodScheduled, true), condition(corev1.PodInitialized, true),
			condition(corev1.ContainersReady, ready), condition(corev1.PodReady, ready)},
		ContainerStatuses: []corev1.ContainerStatus{{Name: container.Name, Image: container.Image, Ready: ready, Started: new(true), RestartCount: restarts,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}},
	}
	_, err = p.client.UpdateStatus(ctx, now, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return p.tell(ctx, pod, ready, restarts)
	}
	return err
}
