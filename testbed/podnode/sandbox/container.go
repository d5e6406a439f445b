//go:build linux

package sandbox

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Exit is the result of a process.
type Exit struct {
	Code   int `json:"code"`   // 128 and more: by a signal
	Signal int `json:"signal"` // 0: it ended by itself
}

// Container is a root directory and processes that see no other processes.
type Container struct {
	sandbox *Sandbox
	socket  string
	life    *net.UnixConn
	done    chan struct{}

	shared *shared // of a shared pod only
}

// Container creates a container without a process. If r has no directory, Container creates one.
func (s *Sandbox) Container(ctx context.Context, r Root) (*Container, error) {
	if s.cmd == nil {
		return s.share(r)
	}
	s.mu.Lock()
	s.sockets++
	name := "c" + strconv.Itoa(s.sockets)
	s.mu.Unlock()
	if r.Dir == "" {
		r.Dir = filepath.Join(s.dir, name+".root")
		if err := os.Mkdir(r.Dir, 0o755); err != nil {
			return nil, err
		}
	}
	l, file, err := s.socket(name)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer file.Close()
	c := &Container{sandbox: s, socket: name, done: make(chan struct{})}
	if c.life, _, err = s.ask(ctx, "pod", message{Op: opContainer}, file); err != nil {
		return nil, err
	}
	go func() {
		_, _, _ = receive(c.life)
		close(c.done)
	}()
	conn, _, err := s.ask(ctx, name, message{Op: opRoot, Root: &r})
	if err != nil {
		c.Kill()
		return nil, err
	}
	return c, conn.Close()
}

// Kill kills every process of the container, and waits until they are gone.
func (c *Container) Kill() {
	if c.shared != nil {
		c.shared.kill()
		return
	}
	_ = c.life.CloseWrite()
	select {
	case <-c.done:
	case <-c.sandbox.done:
	}
	c.life.Close()
}

// Running is a process in a container.
type Running struct {
	signal func(syscall.Signal)
	done   chan struct{}
	exit   Exit
}

// Run starts a process with the three standard streams, which the caller may close afterwards.
func (c *Container) Run(ctx context.Context, p Process, stdin, stdout, stderr *os.File) (*Running, error) {
	if c.shared != nil {
		return c.shared.run(p, stdin, stdout, stderr)
	}
	conn, _, err := c.sandbox.ask(ctx, c.socket, message{Op: opRun, Process: &p}, stdin, stdout, stderr)
	if err != nil {
		return nil, err
	}
	r := &Running{done: make(chan struct{}), exit: Exit{Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL)},
		signal: func(s syscall.Signal) { _ = send(conn, message{Op: opSignal, Signal: int(s)}) }}
	go func() {
		defer close(r.done)
		defer conn.Close()
		// If there is no exit message, the container was killed.
		if m, _, err := receive(conn); err == nil && m.Exited != nil {
			r.exit = *m.Exited
		}
	}()
	go func() {
		select {
		case <-c.done:
			conn.SetDeadline(time.Unix(1, 0))
		case <-c.sandbox.done:
			conn.SetDeadline(time.Unix(1, 0))
		case <-r.done:
		}
	}()
	return r, nil
}

// Done returns a channel that is closed when the process has ended.
func (r *Running) Done() <-chan struct{} { return r.done }

// Exit waits for the end of the process and returns its result.
func (r *Running) Exit() Exit {
	<-r.done
	return r.exit
}

// Signal sends a signal. It does nothing if the process has ended.
func (r *Running) Signal(s syscall.Signal) { r.signal(s) }
