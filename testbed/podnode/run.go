//go:build linux

package podnode

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/testbed/podnode/podlog"
	"github.com/tailplane/tailplane/testbed/podnode/sandbox"
)

// messageLimit is the maximum size of a termination message in bytes.
const messageLimit = 4096

// run is a container from one start to its end.
type run struct {
	id      string      // container ID in the status
	began   metav1.Time // start of the process
	message string      // path of the file for the termination message

	box     *sandbox.Container
	main    *sandbox.Running
	log     *podlog.Log
	silent  chan struct{}   // closed when all output has been read
	process sandbox.Process // other processes in the container start with the same settings
	streams *pipes
	copies  sync.WaitGroup // copies of the output to the log
	stdin   io.WriteCloser // nil: no standard input
	tty     *os.File       // the near end of its terminal, or nil
}

// once runs the container once and returns its exit code. It returns an error if the container did not start; the
// status contains the reason.
func (c *container) once(ctx context.Context) (int, error) {
	r, failed := c.launch(ctx)
	if failed != nil {
		c.p.n.o.Log.Info("container", "pod", c.p.key, "container", c.spec.Name, "reason", failed.reason, "err", failed.message)
		waiting := corev1.ContainerStateWaiting{Reason: failed.reason, Message: failed.message}
		c.change(func(s *corev1.ContainerStatus) { s.State = corev1.ContainerState{Waiting: &waiting} })
		return 0, failed
	}
	defer r.log.End()
	c.reportRunning(r)
	c.probeAndWait(ctx, r)
	exit := r.finish()
	c.reportTerminated(r, exit)
	return exit.Code, nil
}

// finish reads the remaining output of a run whose process has ended, and releases what the run has.
func (r *run) finish() sandbox.Exit {
	exit := r.main.Exit()
	r.box.Kill() // also kills the remaining processes, so that the output ends
	r.copies.Wait()
	close(r.silent)
	r.streams.closeNear()
	return exit
}

// lastMessage returns the termination message. An unreadable file gives the reason instead.
func (r *run) lastMessage() string {
	b, err := os.ReadFile(r.message)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		b = []byte(err.Error())
	}
	return strings.ToValidUTF8(string(b[:min(len(b), messageLimit)]), "?")
}

// reportRunning makes r the current run.
func (c *container) reportRunning(r *run) {
	c.mu.Lock()
	c.run = r
	c.mu.Unlock()
	c.change(func(s *corev1.ContainerStatus) {
		s.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: r.began}}
		s.Started, s.Ready = new(false), false
		s.ContainerID, s.ImageID = r.id, "testbed://"+programPath(c.spec.Image)
	})
}

// reportTerminated makes r the last run, with its exit code and its termination message.
func (c *container) reportTerminated(r *run, exit sandbox.Exit) {
	reason := "Error"
	if exit.Code == 0 {
		reason = "Completed"
	}
	message := r.lastMessage()
	c.mu.Lock()
	c.run, c.last = nil, r
	c.mu.Unlock()
	c.change(func(s *corev1.ContainerStatus) {
		s.Ready, s.Started = c.init && !c.sidecar && exit.Code == 0, new(false)
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(exit.Code), Signal: int32(exit.Signal), Reason: reason, Message: message,
			StartedAt: r.began, FinishedAt: metav1.Now(), ContainerID: r.id,
		}}
	})
}

// probeAndWait runs the probes until the container's process has ended.
func (c *container) probeAndWait(ctx context.Context, r *run) {
	probing, endProbes := context.WithCancel(ctx)
	var probes sync.WaitGroup
	unwell := make(chan string, 1)
	probes.Go(func() { c.wellbeing(probing, unwell) })
	c.wait(ctx, r, unwell)
	endProbes()
	probes.Wait()
}

// wait waits until the container's process has ended, by itself or because it must stop.
func (c *container) wait(ctx context.Context, r *run, unwell <-chan string) {
	select {
	case <-r.main.Done():
	case <-ctx.Done():
		r.box.Kill()
	case why := <-unwell:
		c.p.n.event(ctx, c.p.obj, corev1.EventTypeNormal, "Killing", c.spec.Name+" "+why+", will be restarted")
		c.mu.Lock()
		if c.deadline.IsZero() {
			c.deadline = time.Now().Add(c.p.grace())
		}
		c.mu.Unlock()
		c.terminate(ctx, r)
		c.mu.Lock()
		select {
		case <-c.stopping:
		default:
			c.deadline = time.Time{} // the next run has its full grace period
		}
		c.mu.Unlock()
	case <-c.stopping:
		c.terminate(ctx, r)
	}
}

// terminate ends the process: preStop, SIGTERM, and SIGKILL at the end of the grace period.
func (c *container) terminate(ctx context.Context, r *run) {
	killed := make(chan struct{})
	defer close(killed)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		for {
			c.mu.Lock()
			left := time.Until(c.deadline)
			c.mu.Unlock()
			select {
			case <-killed:
				return
			case <-c.hurried: // the grace period may be shorter now
				continue
			case <-ctx.Done():
			case <-time.After(left):
			}
			cancel()
			r.box.Kill()
			return
		}
	}()
	if l := c.spec.Lifecycle; l != nil && l.PreStop != nil {
		if err := c.hook(ctx, *l.PreStop); err != nil {
			message := c.spec.Name + ": " + err.Error()
			c.p.n.event(context.WithoutCancel(ctx), c.p.obj, corev1.EventTypeWarning, "FailedPreStopHook", message)
		}
	}
	r.main.Signal(syscall.SIGTERM)
	<-r.main.Done()
}

func (c *container) hook(ctx context.Context, h corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return c.command(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		return c.get(ctx, *h.HTTPGet)
	case h.Sleep != nil:
		_ = retry.Sleep(ctx, time.Duration(h.Sleep.Seconds)*time.Second)
		return nil
	}
	return errors.New("a hook of an unknown kind")
}
