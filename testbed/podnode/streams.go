//go:build linux

package podnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/tailplane/tailplane/testbed/podnode/kubelet"
	"github.com/tailplane/tailplane/testbed/podnode/podlog"
)

// drainLimit bounds the wait for the last output of an ended process, because its child processes may keep the stream
// open.
const drainLimit = 10 * time.Second

// command runs the command of a probe or a hook in the container and waits for its end.
func (c *container) command(ctx context.Context, args []string) error {
	var said tail
	err := c.exec(ctx, args, nil, &said, &said, false, nil)
	if err != nil && len(said) > 0 {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// tail keeps the beginning of a command's output.
type tail []byte

func (t *tail) Write(b []byte) (int, error) {
	*t = append(*t, b[:min(len(b), max(0, 1024-len(*t)))]...)
	return len(b), nil
}

// exec runs a command in the container, with its environment, and returns its exit code as a
// [utilexec.CodeExitError].
func (c *container) exec(ctx context.Context, args []string, in io.Reader, out, errs io.Writer, tty bool, sizes <-chan remotecommand.TerminalSize) error {
	r := c.current()
	if r == nil {
		return fmt.Errorf("container %s is not running", c.spec.Name)
	}
	p, err := newPipes(in != nil, tty)
	if err != nil {
		return err
	}
	defer p.closeNear()
	process := r.process
	process.Args, process.TTY = args, tty
	running, err := r.box.Run(ctx, process, p.far[0], p.far[1], p.far[2])
	p.closeFar()
	if err != nil {
		// A shell returns this code for a missing command, and so does a container engine.
		return utilexec.CodeExitError{Err: err, Code: 127}
	}
	if tty && sizes != nil {
		go resize(p.out[0], sizes)
	}
	if in != nil {
		go func() {
			_, _ = io.Copy(p.in, in)
			if !tty { // on a terminal, the end of input is a character, and output can still follow
				p.in.Close()
			}
		}()
	}
	drained := make(chan struct{}, 2)
	for i, to := range []io.Writer{out, errs} {
		if i == len(p.out) {
			break
		}
		if to == nil {
			to = io.Discard
		}
		go func() {
			_, _ = io.Copy(to, p.out[i])
			drained <- struct{}{}
		}()
	}
	select {
	case <-running.Done():
	case <-ctx.Done():
		running.Signal(unix.SIGKILL)
		<-running.Done()
	}
	limit := time.After(drainLimit)
	for range p.out {
		select {
		case <-drained:
		case <-limit:
			p.closeNear()
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if e := running.Exit(); e.Code != 0 {
		return utilexec.CodeExitError{Err: fmt.Errorf("command %s ended with %d", args[0], e.Code), Code: e.Code}
	}
	return nil
}

// find returns a pod and its container. An empty name finds only the pod.
func (n *Node) find(key, name string) (*pod, *container, error) {
	n.mu.Lock()
	p := n.byName[key]
	n.mu.Unlock()
	if p == nil {
		return nil, nil, fmt.Errorf("pod %s is not on node %s", key, n.o.Name)
	}
	if name == "" {
		return p, nil, nil
	}
	for _, c := range slices.Concat(p.inits, p.mains) {
		if c.spec.Name == name {
			return p, c, nil
		}
	}
	return nil, nil, fmt.Errorf("pod %s has no container %s", key, name)
}

// Has implements [kubelet.Runtime].
func (n *Node) Has(key, name string) error {
	_, _, err := n.find(key, name)
	return err
}

// ExecInContainer implements [kubelet.Runtime].
func (n *Node) ExecInContainer(ctx context.Context, key, _, name string, args []string, in io.Reader, out, errs io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize, _ time.Duration) error {
	_, c, err := n.find(key, name)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("no command")
	}
	return c.exec(ctx, args, reader(in), writer(out), writer(errs), tty, sizes)
}

// reader and writer convert a nil of one interface type to a nil of the other.
func reader(r io.Reader) io.Reader {
	if c, ok := r.(io.ReadCloser); r == nil || ok && c == nil {
		return nil
	}
	return r
}

func writer(w io.WriteCloser) io.Writer {
	if w == nil {
		return nil
	}
	return w
}

// AttachContainer implements [kubelet.Runtime].
func (n *Node) AttachContainer(ctx context.Context, key, _, name string, in io.Reader, out, errs io.WriteCloser, _ bool, sizes <-chan remotecommand.TerminalSize) error {
	_, c, err := n.find(key, name)
	if err != nil {
		return err
	}
	r := c.current()
	if r == nil {
		return fmt.Errorf("container %s is not running", name)
	}
	for i, to := range []io.Writer{writer(out), writer(errs)} {
		if to != nil {
			defer r.log.Tap(podlog.Stream(i), to)()
		}
	}
	if r.tty != nil && sizes != nil {
		go resize(r.tty, sizes)
	}
	if in = reader(in); in != nil && r.stdin != nil {
		go func() {
			_, _ = io.Copy(r.stdin, in)
			if c.spec.StdinOnce && r.tty == nil {
				r.stdin.Close()
			}
		}()
	}
	select {
	case <-r.silent:
	case <-ctx.Done():
	}
	return nil
}

// PortForward implements [kubelet.Runtime]: it dials the pod's own 127.0.0.1.
func (n *Node) PortForward(ctx context.Context, key, _ string, port int32, stream io.ReadWriteCloser) error {
	p, _, err := n.find(key, "")
	if err != nil {
		return err
	}
	defer stream.Close()
	conn, err := p.dial(ctx, "127.0.0.1", int(port))
	if err != nil {
		return fmt.Errorf("port %d in pod %s: %w", port, key, err)
	}
	join(stream, conn)
	return nil
}

// Logs implements [kubelet.Runtime].
func (n *Node) Logs(ctx context.Context, key, name string, o kubelet.LogOptions, w io.Writer) error {
	_, c, err := n.find(key, name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	r := c.run
	if o.Previous || r == nil {
		r = c.last
	}
	c.mu.Unlock()
	if r == nil {
		return fmt.Errorf("container %s of pod %s has no output yet", name, key)
	}
	return r.log.Read(ctx, o, w)
}

var _ kubelet.Runtime = (*Node)(nil)
