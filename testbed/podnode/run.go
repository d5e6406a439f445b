//go:build linux

package podnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
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
	box     *sandbox.Container
	main    *sandbox.Running
	log     *podlog.Log
	silent  chan struct{}   // closed when all output has been read
	process sandbox.Process // other processes in the container start with the same settings
	stdin   io.WriteCloser  // nil: no standard input
	tty     *os.File        // the near end of its terminal, or nil
}

// once runs the container once and returns its exit code. It returns an error if the container did not start; the
// status contains the reason.
func (c *container) once(ctx context.Context) (int, error) {
	waiting := func(reason string, err error) (int, error) {
		c.p.n.o.Log.Info("container", "pod", c.p.key, "container", c.spec.Name, "reason", reason, "err", err)
		c.change(func(s *corev1.ContainerStatus) {
			s.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: err.Error()}}
		})
		return 0, err
	}
	program, ok := c.p.n.image(c.spec.Image)
	if !ok {
		return waiting("ErrImageNeverPull", fmt.Errorf("image %q is not a program of this testbed", c.spec.Image))
	}
	env, expand, err := c.p.reader.Env(ctx, c.spec, c.p.standardEnv())
	if err != nil {
		return waiting("CreateContainerConfigError", err)
	}
	uid, err := c.p.uid(c.spec)
	if err != nil {
		return waiting("CreateContainerConfigError", err)
	}
	c.mu.Lock()
	c.runs++
	number := c.runs
	c.mu.Unlock()
	process := sandbox.Process{Env: env, Dir: c.spec.WorkingDir, UID: uid, TTY: c.spec.TTY}
	if process.Dir == "" {
		process.Dir = "/"
	}
	command := c.spec.Command
	if len(command) == 0 && program != "/" {
		command = []string{programPath(c.spec.Image)}
	}
	for _, a := range append(append([]string{}, command...), c.spec.Args...) {
		process.Args = append(process.Args, expand(a))
	}
	message := filepath.Join(c.p.dir, "files", fmt.Sprintf("%s.%d.message", c.spec.Name, number))
	root, err := c.root(program, message)
	if err != nil {
		return waiting("CreateContainerError", err)
	}
	box, err := c.p.sandbox.Container(ctx, root)
	if err != nil {
		return waiting("CreateContainerError", err)
	}
	defer box.Kill()
	log, err := podlog.Open(filepath.Join(c.p.dir, "logs", fmt.Sprintf("%s.%d", c.spec.Name, number)), time.Now)
	if err != nil {
		return waiting("CreateContainerError", err)
	}
	defer log.End()
	r := &run{box: box, log: log, process: process, silent: make(chan struct{})}
	streams, err := r.open(c.spec.Stdin)
	if err != nil {
		return waiting("CreateContainerError", err)
	}
	r.main, err = box.Run(ctx, process, streams.far[0], streams.far[1], streams.far[2])
	streams.closeFar()
	if err != nil {
		streams.closeNear()
		return waiting("RunContainerError", err)
	}
	var spoken sync.WaitGroup
	for i, near := range streams.out {
		spoken.Go(func() { log.Copy(podlog.Stream(i), near) })
	}
	at := metav1.Now()
	c.mu.Lock()
	c.run = r
	c.mu.Unlock()
	id := fmt.Sprintf("podnode://%s/%s/%d", c.p.obj.UID, c.spec.Name, number)
	c.change(func(s *corev1.ContainerStatus) {
		s.State, s.Started, s.Ready = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}, new(false), false
		s.ContainerID, s.ImageID = id, "testbed://"+programPath(c.spec.Image)
	})
	probing, endProbes := context.WithCancel(ctx)
	var probes sync.WaitGroup
	unwell := make(chan string, 1)
	probes.Go(func() { c.wellbeing(probing, unwell) })
	reason := c.wait(ctx, r, unwell)
	endProbes()
	probes.Wait()
	exit := r.main.Exit()
	box.Kill() // also kills the remaining processes, so that the output ends
	spoken.Wait()
	close(r.silent)
	streams.closeNear()
	if reason == "" {
		switch {
		case exit.Code == 0:
			reason = "Completed"
		default:
			reason = "Error"
		}
	}
	said, err := os.ReadFile(message)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		said = []byte(err.Error())
	}
	c.mu.Lock()
	c.run, c.last = nil, r
	c.mu.Unlock()
	c.change(func(s *corev1.ContainerStatus) {
		s.Ready, s.Started = false, new(false)
		s.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(exit.Code), Signal: int32(exit.Signal), Reason: reason, StartedAt: at, FinishedAt: metav1.Now(), ContainerID: id,
			Message: strings.ToValidUTF8(string(said[:min(len(said), messageLimit)]), "?"),
		}}
		if c.init && !c.sidecar && exit.Code == 0 {
			s.Ready = true
		}
	})
	return exit.Code, nil
}

// wait waits until the container's process has ended, by itself or because it must stop.
func (c *container) wait(ctx context.Context, r *run, unwell <-chan string) (reason string) {
	select {
	case <-r.main.Done():
		return ""
	case <-ctx.Done():
		r.box.Kill()
		return ""
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
	return ""
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
			c.p.n.event(context.WithoutCancel(ctx), c.p.obj, corev1.EventTypeWarning, "FailedPreStopHook", c.spec.Name+": "+err.Error())
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

// root returns the container's view of the file system.
func (c *container) root(program, message string) (sandbox.Root, error) {
	r := sandbox.Root{}
	if sc := c.spec.SecurityContext; sc != nil && sc.ReadOnlyRootFilesystem != nil {
		r.ReadOnly = *sc.ReadOnlyRootFilesystem
	}
	if program == "/" {
		r.Tools = true
	} else {
		r.Mounts = append(r.Mounts, sandbox.Mount{Source: program, Target: programPath(c.spec.Image), ReadOnly: true})
	}
	if c.p.n.o.Shared != "" {
		return r, nil
	}
	for _, name := range []string{"hosts", "hostname", "resolv.conf", "passwd"} {
		r.Mounts = append(r.Mounts, sandbox.Mount{Source: filepath.Join(c.p.dir, "files", name), Target: "/etc/" + name, ReadOnly: true})
	}
	if err := os.WriteFile(message, nil, 0o666); err != nil {
		return r, err
	}
	target := c.spec.TerminationMessagePath
	if target == "" {
		target = corev1.TerminationMessagePathDefault
	}
	r.Mounts = append(r.Mounts, sandbox.Mount{Source: message, Target: target})
	for _, m := range c.spec.VolumeMounts {
		r.Mounts = append(r.Mounts, sandbox.Mount{Source: c.p.volume(m.Name), Target: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return r, nil
}

// wellbeing runs the probes: first the startup probe, then the liveness and readiness probes.
func (c *container) wellbeing(ctx context.Context, unwell chan<- string) {
	if p := c.spec.StartupProbe; p != nil {
		starting, started := context.WithCancel(ctx)
		ok := false
		c.watch(starting, "startup", p, func(good bool) {
			if ok = good; !good {
				unwell <- "failed its startup probe"
			}
			started()
		})
		started()
		if !ok {
			return
		}
	}
	c.change(func(s *corev1.ContainerStatus) {
		s.Started = new(true)
		s.Ready = c.spec.ReadinessProbe == nil
	})
	c.mu.Lock()
	select {
	case <-c.started:
	default:
		close(c.started)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	if p := c.spec.ReadinessProbe; p != nil {
		wg.Go(func() {
			c.watch(ctx, "readiness", p, func(good bool) { c.change(func(s *corev1.ContainerStatus) { s.Ready = good }) })
		})
	}
	if p := c.spec.LivenessProbe; p != nil {
		wg.Go(func() {
			living, dead := context.WithCancel(ctx)
			defer dead()
			c.watch(living, "liveness", p, func(good bool) {
				if !good {
					unwell <- "failed its liveness probe"
					dead()
				}
			})
		})
	}
}
