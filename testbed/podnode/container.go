//go:build linux

package podnode

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Waits between restarts. A kubelet begins with ten seconds and ends with five minutes; tests have less time.
const (
	firstBackOff = 500 * time.Millisecond
	lastBackOff  = 30 * time.Second
	forgetAfter  = time.Minute // a run of that length makes the next wait the first again
)

// container is one container of a pod over all its restarts.
type container struct {
	p             *pod
	spec          corev1.Container
	init, sidecar bool

	started  chan struct{} // closed when it has started for the first time: for a sidecar's followers
	stopping chan struct{} // closed when it is to end for good
	done     chan struct{} // closed when it has ended for good

	mu       sync.Mutex
	status   corev1.ContainerStatus
	deadline time.Time // after stopping: when it is killed
	hurried  chan struct{}
	run      *run // nil: nothing runs
	last     *run // the one before, for its log
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

// lastCode is with what the container ended; false while it has not.
func (c *container) lastCode() (int32, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.status.State.Terminated; t != nil {
		return t.ExitCode, true
	}
	return 0, false
}

// stop asks the container to end for good, by then.
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

// hurry shortens the time that a container has which is ending.
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

// keep runs the container and restarts it as the pod says, until it is over.
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
