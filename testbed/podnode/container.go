//go:build linux

package podnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Backoff between restarts. A kubelet starts with ten seconds and ends with five minutes; tests have less time.
const (
	firstBackOff = 500 * time.Millisecond
	lastBackOff  = 30 * time.Second
	forgetAfter  = time.Minute // after a run of this length, the backoff starts again at the first value
)

// container is one container of a pod over all its restarts.
type container struct {
	p             *pod
	spec          corev1.Container
	init, sidecar bool

	started  chan struct{} // closed at its first start, for the containers after a sidecar
	stopping chan struct{} // closed when it must stop permanently
	done     chan struct{} // closed when it has stopped permanently

	mu       sync.Mutex
	status   corev1.ContainerStatus
	deadline time.Time // after stopping: time at which it is killed
	hurried  chan struct{}
	run      *run // nil: not running
	last     *run // the run before, for its log
	runs     int
}

func newContainer(p *pod, spec corev1.Container) *container {
	return &container{
		p: p, spec: spec, started: make(chan struct{}), stopping: make(chan struct{}), done: make(chan struct{}), hurried: make(chan struct{}, 1),
		status: corev1.ContainerStatus{Name: spec.Name, Image: spec.Image, Started: new(false), State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}},
	}
}

// change changes the container's status.
func (c *container) change(fn func(s *corev1.ContainerStatus)) {
	c.mu.Lock()
	fn(&c.status)
	c.mu.Unlock()
	c.p.changed()
}

func (c *container) current() *run {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.run
}

// lastCode returns the exit code of the ended container. It returns false while the container has not ended.
func (c *container) lastCode() (int32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.status.State.Terminated; t != nil {
		return t.ExitCode, true
	}
	return 0, false
}

// stop stops the container permanently. It is killed at the time by.
func (c *container) stop(by time.Time) {
	c.mu.Lock()
	select {
	case <-c.stopping:
	default:
		c.deadline = by
		close(c.stopping)
	}
	c.mu.Unlock()
	c.hurry(by)
}

// hurry shortens the remaining time of a container that stops.
func (c *container) hurry(by time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deadline.IsZero() || by.Before(c.deadline) {
		c.deadline = by
	}
	select {
	case c.hurried <- struct{}{}:
	default:
	}
}

// keep runs the container and restarts it by the pod's restart policy, until it stops permanently.
func (c *container) keep(ctx context.Context, policy corev1.RestartPolicy) {
	defer close(c.done)
	if c.sidecar {
		policy = corev1.RestartPolicyAlways
	}
	if c.init && !c.sidecar && policy == corev1.RestartPolicyAlways {
		policy = corev1.RestartPolicyOnFailure
	}
	wait := firstBackOff
	for {
		began := time.Now()
		code, err := c.once(ctx)
		select {
		case <-c.stopping:
			return
		case <-ctx.Done():
			return
		default:
		}
		if err == nil && (policy == corev1.RestartPolicyNever || policy == corev1.RestartPolicyOnFailure && code == 0) {
			return
		}
		if time.Since(began) > forgetAfter {
			wait = firstBackOff
		}
		c.change(func(s *corev1.ContainerStatus) {
			if s.State.Terminated != nil {
				s.LastTerminationState = s.State
				s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %v before restarting container %s", wait, c.spec.Name)}}
				s.RestartCount++
			}
		})
		select {
		case <-c.stopping:
			return
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, lastBackOff)
	}
}
