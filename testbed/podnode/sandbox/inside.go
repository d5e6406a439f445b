//go:build linux

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// insideArg is the first argument of a first process.
const insideArg = "sandbox-inside"

// Inside reports whether this process was started as the first process of a pod or a container. If so, it runs that
// process and exits, and does not return. A program that uses this package must call Inside before anything else.
func Inside() bool {
	if len(os.Args) < 3 || os.Args[1] != insideArg {
		return false
	}
	fmt.Fprintln(os.Stderr, "sandbox:", inside(os.Args[2]))
	os.Exit(1)
	return true
}

// first is the first process of a pod or a container. It handles the node's requests and reaps children.
type first struct {
	mu      sync.Mutex
	ends    map[int]chan syscall.WaitStatus // children that a request waits for
	aliases map[string]bool                 // addresses of lo
}

// inside serves requests until the node is gone, or returns an error.
func inside(role string) error {
	// A Ctrl-C in the terminal is for the node, which then stops this process in order. The signals are caught and
	// not ignored, because child processes inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	f := &first{ends: map[int]chan syscall.WaitStatus{}, aliases: map[string]bool{}}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	go func() {
		for range died {
			f.reap()
		}
	}()
	if role == "pod" {
		if err := syscall.Sethostname([]byte(os.Getenv("HOSTNAME"))); err != nil {
			return fmt.Errorf("host name: %w", err)
		}
		if err := loopbackUp(); err != nil {
			return fmt.Errorf("lo: %w", err)
		}
		// containerd does the same for every pod: low ports need no privilege.
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0); err != nil {
			return err
		}
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("private mounts: %w", err)
		}
		go func() {
			// The node's end of this pipe closes when the node ends for any reason.
			_, _ = os.Stdin.Read(make([]byte, 1))
			os.Exit(0)
		}()
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return fmt.Errorf("descriptor 3 is a %T", l)
	}
	ul.SetUnlinkOnClose(false)
	for {
		c, err := ul.AcceptUnix()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if err := f.serve(c); err != nil {
				_ = send(c, message{Error: err.Error()})
			}
		}()
	}
}

func (f *first) reap() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if pid <= 0 {
			return
		}
		f.mu.Lock() // start holds the lock until it has added the child to ends
		if ch := f.ends[pid]; ch != nil && (ws.Exited() || ws.Signaled()) {
			ch <- ws
			delete(f.ends, pid)
		}
		f.mu.Unlock()
	}
}

func (f *first) start(path string, args []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	pid, err := syscall.ForkExec(path, args, attr)
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	f.ends[pid] = ch
	return pid, ch, nil
}

func (f *first) serve(c *net.UnixConn) error {
	m, files, err := receive(c)
	if err != nil {
		return err
	}
	defer closeAll(files)
	switch m.Op {
	case opListen:
		return f.listen(c, m.Address)
	case opDial:
		return dial(c, m.Address)
	case opMemory:
		if err := syscall.Mount("tmpfs", m.Address, "tmpfs", syscall.MS_NOSUID|syscall.MS_NODEV, "mode=0777"); err != nil {
			return fmt.Errorf("memory at %s: %w", m.Address, err)
		}
		return send(c, message{})
	case opContainer:
		if len(files) != 1 {
			return fmt.Errorf("%s: %d descriptors", m.Op, len(files))
		}
		pid, ended, err := f.start("/proc/self/exe", []string{"container", insideArg, "container"}, &syscall.ProcAttr{
			Env: os.Environ(), Files: []uintptr{0, 1, 2, files[0].Fd()},
			Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC},
		})
		if err != nil {
			return err
		}
		return f.mind(c, pid, ended)
	case opRoot:
		if m.Root == nil {
			return errors.New("no root")
		}
		if err := m.Root.enter(); err != nil {
			return err
		}
		return send(c, message{})
	case opRun:
		if m.Process == nil || len(files) != 3 {
			return fmt.Errorf("%s: %d descriptors", m.Op, len(files))
		}
		p := m.Process
		path, err := p.program()
		if err != nil {
			return err
		}
		attr := &syscall.ProcAttr{Dir: p.Dir, Env: p.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.TTY}}
		for _, file := range files {
			attr.Files = append(attr.Files, file.Fd())
		}
		if p.UID != 0 {
			// The machine gives only one user. A separate user namespace lets the process have the pod's user ID, and
			// removes all its rights over the pod's network and mounts.
			attr.Sys.Cloneflags = syscall.CLONE_NEWUSER
			attr.Sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: p.UID, HostID: 0, Size: 1}}
			attr.Sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: p.UID, HostID: 0, Size: 1}}
		}
		pid, ended, err := f.start(path, p.Args, attr)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Args[0], err)
		}
		closeAll(files)
		return f.mind(c, pid, ended)
	}
	return fmt.Errorf("unknown request %q", m.Op)
}

// mind reports that a child runs, forwards signals, and reports its exit. It kills the child when the connection
// closes.
func (f *first) mind(c *net.UnixConn, pid int, ended <-chan syscall.WaitStatus) error {
	if err := send(c, message{}); err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		return err
	}
	go func() {
		for {
			m, _, err := receive(c)
			f.mu.Lock() // a reaped child is no longer in ends: its PID can belong to another process
			if _, lives := f.ends[pid]; lives {
				if err != nil {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				} else if m.Op == opSignal {
					_ = syscall.Kill(pid, syscall.Signal(m.Signal))
				}
			}
			f.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	ws := <-ended
	e := &Exit{Code: ws.ExitStatus()}
	if ws.Signaled() {
		e.Code, e.Signal = 128+int(ws.Signal()), int(ws.Signal())
	}
	return send(c, message{Exited: e})
}

func (f *first) listen(c *net.UnixConn, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if err := f.have(host); err != nil {
		return fmt.Errorf("address %s: %w", host, err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer file.Close()
	return send(c, message{}, file)
}

// have adds an address to lo, if it is missing.
func (f *first) have(host string) error {
	ip := net.ParseIP(host).To4()
	if ip == nil {
		return errors.New("not IPv4")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if ip.IsLoopback() || f.aliases[host] {
		return nil
	}
	if err := addAddress(fmt.Sprintf("lo:%d", len(f.aliases)+1), ip); err != nil {
		return err
	}
	f.aliases[host] = true
	return nil
}

// dialLimit bounds a connection to a port in the pod, which responds at once or not at all.
const dialLimit = 10 * time.Second

func dial(c *net.UnixConn, address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), dialLimit)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		return err
	}
	defer file.Close()
	return send(c, message{}, file)
}

// program finds the program of a process as a container runtime does: by path, or in the process's own PATH.
func (p *Process) program() (string, error) {
	if len(p.Args) == 0 {
		return "", errors.New("no command")
	}
	name := p.Args[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.Dir, name)
		}
		return name, nil
	}
	for _, e := range p.Env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			for _, dir := range filepath.SplitList(path) {
				try := filepath.Join(dir, name)
				if i, err := os.Stat(try); err == nil && !i.IsDir() && i.Mode()&0o111 != 0 {
					return try, nil
				}
			}
		}
	}
	return "", fmt.Errorf("%s: not found in the container's PATH", name)
}
