//go:build linux

package podnode

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/testbed/podnode/podlog"
	"github.com/tailplane/tailplane/testbed/podnode/sandbox"
)

// launch starts the container's process. A failure has the reason that a kubelet reports in the status.
func (c *container) launch(ctx context.Context) (*run, *failure) {
	program, ok := c.p.n.image(c.spec.Image)
	if !ok {
		return nil, &failure{"ErrImageNeverPull", fmt.Sprintf("image %q is not a program of this testbed", c.spec.Image)}
	}
	process, err := c.mainProcess(ctx, program)
	if err != nil {
		return nil, &failure{"CreateContainerConfigError", err.Error()}
	}
	r, err := c.create(ctx, program, process)
	if err != nil {
		return nil, &failure{"CreateContainerError", err.Error()}
	}
	r.main, err = r.box.Run(ctx, process, r.streams.far[0], r.streams.far[1], r.streams.far[2])
	r.streams.closeFar()
	if err != nil {
		r.streams.closeNear()
		r.log.End()
		r.box.Kill()
		return nil, &failure{"RunContainerError", err.Error()}
	}
	r.began = metav1.Now()
	for i, near := range r.streams.out {
		r.copies.Go(func() { r.log.Copy(podlog.Stream(i), near) })
	}
	return r, nil
}

// mainProcess returns the container's main process. program is the path of the image's program, or "/".
func (c *container) mainProcess(ctx context.Context, program string) (sandbox.Process, error) {
	env, expand, err := c.p.reader.Env(ctx, c.spec, c.p.standardEnv())
	if err != nil {
		return sandbox.Process{}, err
	}
	uid, err := c.p.uid(c.spec)
	if err != nil {
		return sandbox.Process{}, err
	}
	process := sandbox.Process{Env: env, Dir: c.spec.WorkingDir, UID: uid, TTY: c.spec.TTY}
	if process.Dir == "" {
		process.Dir = "/"
	}
	command := c.spec.Command
	if len(command) == 0 && program != "/" {
		command = []string{programPath(c.spec.Image)}
	}
	for _, a := range slices.Concat(command, c.spec.Args) {
		process.Args = append(process.Args, expand(a))
	}
	return process, nil
}

// create creates the container with its file system, log and streams, but starts no process in it.
func (c *container) create(ctx context.Context, program string, process sandbox.Process) (*run, error) {
	c.mu.Lock()
	c.runs++
	number := c.runs
	c.mu.Unlock()
	r := &run{
		id:      fmt.Sprintf("podnode://%s/%s/%d", c.p.obj.UID, c.spec.Name, number),
		message: filepath.Join(c.p.dir, "files", fmt.Sprintf("%s.%d.message", c.spec.Name, number)),
		silent:  make(chan struct{}), process: process,
	}
	root, err := c.root(program, r.message)
	if err != nil {
		return nil, err
	}
	if r.box, err = c.p.sandbox.Container(ctx, root); err != nil {
		return nil, err
	}
	if r.log, err = podlog.Open(filepath.Join(c.p.dir, "logs", fmt.Sprintf("%s.%d", c.spec.Name, number)), time.Now); err != nil {
		r.box.Kill()
		return nil, err
	}
	if r.streams, err = r.open(c.spec.Stdin); err != nil {
		r.log.End()
		r.box.Kill()
		return nil, err
	}
	return r, nil
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
