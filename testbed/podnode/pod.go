//go:build linux

package podnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/testbed/podnode/sandbox"
	"github.com/tailplane/tailplane/testbed/podnode/volume"
)

const (
	// volumesAgain is the interval at which ConfigMaps, Secrets and tokens in volumes are read. A kubelet takes up to
	// a minute.
	volumesAgain = 5 * time.Second
	// setupAgain is the delay before a failed setup of a pod is retried.
	setupAgain = time.Second
)

// pod is one pod on this node, from its binding until its object is deleted.
type pod struct {
	n      *Node
	obj    *corev1.Pod // as first seen
	key    string      // namespace/name
	ip     string
	dir    string
	reader *volume.Reader

	inits, mains []*container

	ending chan struct{} // closed when the pod must end because its object is being deleted
	dirty  chan struct{} // the status has changed

	mu          sync.Mutex
	sandbox     *sandbox.Sandbox
	deadline    time.Time // after ending: time at which it must have ended
	failed      *failure  // of the pod as a whole
	initialized bool
	finished    bool
	since       map[corev1.PodConditionType]corev1.PodCondition
	startTime   time.Time
}

type failure struct{ reason, message string }

func newPod(n *Node, obj *corev1.Pod, ip string) *pod {
	p := &pod{
		n: n, obj: obj, key: obj.Namespace + "/" + obj.Name, ip: ip,
		dir:    filepath.Join(n.o.Dir, strings.ReplaceAll(string(obj.UID), "-", "")),
		ending: make(chan struct{}), dirty: make(chan struct{}, 1),
		startTime: time.Now(), since: map[corev1.PodConditionType]corev1.PodCondition{},
	}
	p.reader = &volume.Reader{Client: n.o.Client, Pod: obj, PodIP: ip, HostIP: "127.0.0.1", Now: time.Now}
	for i := range obj.Spec.InitContainers {
		c := newContainer(p, obj.Spec.InitContainers[i])
		c.init = true
		c.sidecar = c.spec.RestartPolicy != nil && *c.spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
		p.inits = append(p.inits, c)
	}
	for i := range obj.Spec.Containers {
		p.mains = append(p.mains, newContainer(p, obj.Spec.Containers[i]))
	}
	return p
}

// end ends the pod because its object is being deleted. A later call can only shorten the remaining time.
func (p *pod) end(grace time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now().Add(grace)
	if p.deleted() && at.After(p.deadline) {
		return
	}
	if !p.deleted() {
		close(p.ending)
	}
	p.deadline = at
	for _, c := range slices.Concat(p.inits, p.mains) {
		c.hurry(at)
	}
}

func (p *pod) deleted() bool {
	select {
	case <-p.ending:
		return true
	default:
		return false
	}
}

// graceLeft returns the time at which the pod must have ended.
func (p *pod) graceLeft() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline
}

func (p *pod) changed() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// run runs the pod from start to end.
func (p *pod) run(ctx context.Context) {
	log := p.n.o.Log.With("pod", p.key)
	var wg sync.WaitGroup
	published := make(chan struct{})
	wg.Go(func() { p.publish(ctx, published) })
	defer wg.Wait()
	if err := p.live(ctx); err != nil && ctx.Err() == nil {
		log.Info("the pod failed", "err", err)
		f, ok := errors.AsType[failure](err)
		if !ok {
			f = failure{"PodnodeFailed", err.Error()}
		}
		p.mu.Lock()
		p.failed = &f
		p.mu.Unlock()
	}
	p.mu.Lock()
	p.finished = true
	p.mu.Unlock()
	p.changed()
	close(published)
	wg.Wait()
	select {
	case <-ctx.Done(): // as when a machine disappears: the object stays
	case <-p.ending:
		if err := os.RemoveAll(p.dir); err != nil {
			log.Error("folder", "err", err)
		}
		p.remove(ctx)
	}
}

func (f failure) Error() string { return f.reason + ": " + f.message }

// live runs the pod's containers, and returns when all have ended.
func (p *pod) live(ctx context.Context) error {
	if err := p.admit(ctx); err != nil {
		return err
	}
	for _, d := range []string{"", "volumes", "logs", "files"} {
		if err := os.Mkdir(filepath.Join(p.dir, d), 0o700); err != nil {
			return err
		}
	}
	s, err := p.start(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	p.mu.Lock()
	p.sandbox = s
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var refreshing sync.WaitGroup
	defer refreshing.Wait()
	defer cancel()
	if !p.setUp(ctx, s) {
		return nil
	}
	p.changed()
	refreshing.Go(func() { p.refresh(ctx) })

	sidecars, ok, err := p.runInits(ctx)
	defer p.stopSidecars(sidecars)
	if !ok {
		return err
	}
	p.mu.Lock()
	p.initialized = true
	p.mu.Unlock()
	p.changed()
	p.runMains(ctx)
	return nil
}

// admit returns an error for a pod that this node does not support. It records an event for the parts that the node
// ignores.
func (p *pod) admit(ctx context.Context) error {
	r, err := examine(p.obj.Spec)
	if err != nil {
		return err
	}
	if r.refused != "" {
		return failure{"NotOnTestbed", r.refused + " is not on the testbed"}
	}
	if err := p.refuse(); err != nil {
		return err
	}
	if len(r.unkept) > 0 {
		message := "the testbed does not enforce " + strings.Join(r.unkept, ", ")
		p.n.event(ctx, p.obj, corev1.EventTypeNormal, "NotOnTestbed", message)
	}
	return nil
}

// runInits starts the sidecars and runs the other init containers to their end, in order. It returns the started
// sidecars. ok is false if the main containers must not start. The status then reports a failed container, and err is
// not nil only if ctx has ended.
func (p *pod) runInits(ctx context.Context) (sidecars []*container, ok bool, err error) {
	for _, c := range p.inits {
		go c.keep(ctx, p.obj.Spec.RestartPolicy)
		if c.sidecar {
			sidecars = append(sidecars, c)
			select {
			case <-c.started:
			case <-p.ending:
				return sidecars, false, nil
			case <-ctx.Done():
				return sidecars, false, nil
			}
			continue
		}
		select {
		case <-c.done:
		case <-p.ending:
			c.stop(p.graceLeft())
			<-c.done
			return sidecars, false, nil
		}
		if code, ended := c.lastCode(); !ended || code != 0 {
			return sidecars, false, ctx.Err()
		}
	}
	return sidecars, true, nil
}

// runMains runs the main containers, and returns when all have ended.
func (p *pod) runMains(ctx context.Context) {
	for _, c := range p.mains {
		go c.keep(ctx, p.obj.Spec.RestartPolicy)
	}
	for _, c := range p.mains {
		select {
		case <-c.done:
		case <-p.ending:
			for _, c := range p.mains {
				c.stop(p.graceLeft())
			}
			<-c.done
		}
	}
}

// stopSidecars stops sidecars in the reverse order of their start. All other containers must have ended.
func (p *pod) stopSidecars(sidecars []*container) {
	for _, c := range slices.Backward(sidecars) {
		c.stop(p.until())
		<-c.done
	}
}

// until returns the time at which a container that stops now must have ended.
func (p *pod) until() time.Time {
	if p.deleted() {
		return p.graceLeft()
	}
	return time.Now().Add(p.grace())
}

func (p *pod) grace() time.Duration {
	if s := p.obj.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}

// refuse returns an error for a part of the pod that is not supported and that examine does not detect.
func (p *pod) refuse() error {
	for _, c := range slices.Concat(p.obj.Spec.InitContainers, p.obj.Spec.Containers) {
		if c.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
			return failure{"NotOnTestbed", "container " + c.Name + ": terminationMessagePolicy FallbackToLogsOnError is not on the testbed"}
		}
		if p.n.o.Shared != "" && len(c.VolumeMounts) > 0 {
			return failure{"NotOnTestbed", fmt.Sprintf("container %s: volumeMounts[0] at %s: a pod without isolation cannot have mounts: %s",
				c.Name, c.VolumeMounts[0].MountPath, p.n.o.Shared)}
		}
	}
	return nil
}

// uid returns the user ID of a container's processes.
func (p *pod) uid(c corev1.Container) (int, error) {
	var uid *int64
	must := false
	if s := p.obj.Spec.SecurityContext; s != nil {
		uid = s.RunAsUser
		must = s.RunAsNonRoot != nil && *s.RunAsNonRoot
	}
	if s := c.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			uid = s.RunAsUser
		}
		if s.RunAsNonRoot != nil {
			must = *s.RunAsNonRoot
		}
	}
	if must && (uid == nil || *uid == 0) {
		return 0, errors.New("container has runAsNonRoot and would run as root")
	}
	if uid == nil {
		return 0, nil
	}
	return int(*uid), nil
}

// standardEnv returns the variables that every container has before its own.
func (p *pod) standardEnv() map[string]string {
	host, port := serviceAddress, "443"
	if p.n.o.Shared != "" {
		host, port, _ = net.SplitHostPort(p.n.o.Server)
	}
	address := "tcp://" + net.JoinHostPort(host, port)
	return map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": p.obj.Name, "HOME": "/",
		"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "KUBERNETES_SERVICE_PORT_HTTPS": port,
		"KUBERNETES_PORT": address, "KUBERNETES_PORT_443_TCP": address, "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
		"KUBERNETES_PORT_443_TCP_PORT": port, "KUBERNETES_PORT_443_TCP_ADDR": host,
	}
}
