//go:build linux

// Package sandbox runs processes as a pod does, without a container engine and without root. Each pod has its own
// network and loopback, and each container has its own processes and root directory. If the machine does not support
// namespaces, the package returns an error with the reason. It never reduces the isolation without a request of the
// caller.
//
// A pod has a first process in its own user, mount, PID, network and host name namespaces. Each container has a first
// process in mount and PID namespaces below. First processes handle requests of the node over Unix sockets. A pod can
// reach the outside only through listeners that the node has opened in the pod with [Sandbox.Listen]. The outside can
// reach the pod only through [Sandbox.Dial]. Both support only TCP.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Process is a process of a container.
type Process struct {
	Args []string `json:"args"` // the program first
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
	UID  int      `json:"uid"` // user ID inside the pod; all processes of a pod have the same user on the machine
	TTY  bool     `json:"tty"` // its standard input is a terminal, which becomes its controlling terminal
}

// startLimit bounds each step of a start. All steps together take milliseconds.
const startLimit = 60 * time.Second

// Sandbox is a running pod. Start and Shared return it without containers. Close ends it.
type Sandbox struct {
	dir  string
	cmd  *exec.Cmd // nil: the pod shares everything with the machine
	life io.Closer // closing it reports to the first process that this process is gone
	done chan struct{}

	mu         sync.Mutex
	sockets    int
	listeners  []net.Listener
	containers []*Container // of a shared pod only
	once       sync.Once
}

// Possible returns nil if this machine can isolate pods, and otherwise the reason why not.
func Possible(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "pn")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := Start(ctx, dir, "check")
	if err != nil {
		return err
	}
	defer s.Close()
	c, err := s.Container(ctx, Root{})
	if err != nil {
		return err
	}
	c.Kill()
	return nil
}

// Start starts the first process of a pod with its sockets in dir. The path of dir must be short, because the path of
// a socket has at most 107 characters.
func Start(ctx context.Context, dir, hostname string) (*Sandbox, error) {
	s := &Sandbox{dir: dir, done: make(chan struct{})}
	l, file, err := s.socket("pod")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer file.Close()
	var said limitedBuffer
	s.cmd = exec.Command("/proc/self/exe", insideArg, "pod")
	s.cmd.Args[0] = "pod"
	s.cmd.Env = []string{"HOSTNAME=" + hostname}
	s.cmd.Stderr = &said
	s.cmd.ExtraFiles = []*os.File{file}
	if s.life, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("namespaces: %w", err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	// The first response shows that the pod's network works.
	probe, err := s.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%w: %s", err, said.String())
	}
	return s, probe.Close()
}

// socket creates a listener for a first process, and the file descriptor to pass to it.
func (s *Sandbox) socket(name string) (*net.UnixListener, *os.File, error) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(s.dir, name), Net: "unixpacket"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		l.Close()
		return nil, nil, err
	}
	return l, f, nil
}

// Done returns a channel that is closed when the pod has ended.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Close kills every process of the pod, and waits until they are gone.
func (s *Sandbox) Close() {
	s.mu.Lock()
	for _, l := range s.listeners {
		l.Close()
	}
	containers := s.containers
	s.mu.Unlock()
	if s.cmd == nil {
		for _, c := range containers {
			c.Kill()
		}
		s.once.Do(func() { close(s.done) })
		return
	}
	s.life.Close()
	_ = s.cmd.Process.Kill()
	<-s.done
}

// ask sends a request to the first process at the socket and returns the connection after the first response. The
// connection is closed when the pod ends.
func (s *Sandbox) ask(ctx context.Context, socket string, m message, files ...*os.File) (*net.UnixConn, []*os.File, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(s.dir, socket), Net: "unixpacket"})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	// If a first process dies before it accepts, the connection stays open, because this process holds the listener
	// too.
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		select {
		case <-s.done:
			c.SetDeadline(time.Unix(1, 0))
		case <-answered:
		}
	}()
	err = send(c, m, files...)
	var got []*os.File
	if err == nil {
		_, got, err = receive(c)
	}
	if err != nil {
		c.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, nil, fmt.Errorf("%s: %w", m.Op, err)
	}
	return c, got, nil
}

// Listen listens in the pod at an IPv4 address, which it adds to the pod if necessary. The caller accepts the
// connections outside.
func (s *Sandbox) Listen(ctx context.Context, address string) (net.Listener, error) {
	if s.cmd == nil {
		return nil, errShared
	}
	c, files, err := s.ask(ctx, "pod", message{Op: opListen, Address: address})
	if err != nil {
		return nil, fmt.Errorf("%s in the pod: %w", address, err)
	}
	defer c.Close()
	defer closeAll(files)
	if len(files) != 1 {
		return nil, errors.New("no listener was received")
	}
	l, err := net.FileListener(files[0])
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	return l, nil
}

// Dial connects to an address in the pod, from inside the pod.
func (s *Sandbox) Dial(ctx context.Context, address string) (net.Conn, error) {
	if s.cmd == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	c, files, err := s.ask(ctx, "pod", message{Op: opDial, Address: address})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer closeAll(files)
	if len(files) != 1 {
		return nil, errors.New("no connection was received")
	}
	return net.FileConn(files[0])
}

// Memory mounts a file system in memory over an existing directory, for containers that start afterwards.
func (s *Sandbox) Memory(ctx context.Context, dir string) error {
	if s.cmd == nil {
		return errShared
	}
	c, _, err := s.ask(ctx, "pod", message{Op: opMemory, Address: dir})
	if err != nil {
		return err
	}
	return c.Close()
}

// limitedBuffer keeps the beginning of the output of a first process, for the case that it dies.
type limitedBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (l *limitedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, b[:min(len(b), max(0, 4096-len(l.b)))]...)
	return len(b), nil
}

func (l *limitedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.b)
}
