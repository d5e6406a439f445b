//go:build linux

package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
)

var errShared = errors.New("the pod shares the machine's network and files: this machine refuses namespaces")

// Shared returns a pod whose processes are ordinary processes of this machine: they see its network, its files and
// each other.
func Shared(dir string) *Sandbox { return &Sandbox{dir: dir, done: make(chan struct{})} }

// shared is a container of a shared pod: a group of processes.
type shared struct {
	programs map[string]string // by their path in the container
	dir      string            // working directory

	mu      sync.Mutex
	ended   bool
	running map[*exec.Cmd]bool
	wg      sync.WaitGroup
}

// share creates a container of a shared pod. From its root, only the programs are available.
func (s *Sandbox) share(r Root) (*Container, error) {
	c := &shared{programs: map[string]string{}, dir: s.dir, running: map[*exec.Cmd]bool{}}
	for _, m := range r.Mounts {
		i, err := os.Stat(m.Source)
		if err != nil {
			return nil, err
		}
		if !i.Mode().IsRegular() || i.Mode()&0o111 == 0 {
			return nil, fmt.Errorf("%s: %w", m.Target, errShared)
		}
		c.programs[m.Target] = m.Source
	}
	k := &Container{sandbox: s, done: make(chan struct{}), shared: c}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.containers = append(s.containers, k)
	return k, nil
}

func (c *shared) run(p Process, stdin, stdout, stderr *os.File) (*Running, error) {
	path, ok := c.programs[p.Args[0]]
	if !ok {
		var err error
		if path, err = p.program(); err != nil {
			return nil, err
		}
	}
	cmd := &exec.Cmd{Path: path, Args: p.Args, Env: p.Env, Dir: p.Dir, Stdin: stdin, Stdout: stdout, Stderr: stderr,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Setctty: p.TTY, Pdeathsig: syscall.SIGKILL}}
	if cmd.Dir == "" || cmd.Dir == "/" {
		cmd.Dir = filepath.Clean(c.dir)
	}
	r := &Running{done: make(chan struct{}), signal: func(s syscall.Signal) { _ = cmd.Process.Signal(s) }}
	started := make(chan error)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, errors.New("the container has ended")
	}
	c.wg.Go(func() {
		// The kernel kills the child when the thread that created it ends.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait()
		ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if r.exit.Code = ws.ExitStatus(); ws.Signaled() {
			r.exit = Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
		}
		// Its remaining child processes are in the process group of its session.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		c.mu.Lock()
		delete(c.running, cmd)
		c.mu.Unlock()
		close(r.done)
	})
	if err := <-started; err != nil {
		return nil, err
	}
	c.running[cmd] = true
	return r, nil
}

func (c *shared) kill() {
	c.mu.Lock()
	c.ended = true
	for cmd := range c.running {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	c.mu.Unlock()
	c.wg.Wait()
}
