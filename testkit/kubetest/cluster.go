//go:build unix

// Package kubetest starts a real Kubernetes cluster on loopback for tests and the demo: etcd, kube-apiserver and
// controllers in one separate process. There are no mocks: a real Kubernetes decides about RBAC, tokens, garbage
// collection and admission. If the cluster cannot start, the test fails and names the command that helps.
//
// The binary comes from the build cache (make testbed). This package does not build or download anything. A cluster
// always ends with the process that started it, even after a crash.
package kubetest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

const (
	startLimit = 150 * time.Second // three seconds on an idle machine; the process itself gives up after 120 s per stage
	stopLimit  = 100 * time.Second // one to two seconds; the process itself gives up after 90 s
)

// Options configure the cluster to start. The zero value is valid.
type Options struct {
	Name          string   // cluster name in the kubeconfig; "devcluster" if empty
	NoControllers bool     // API server only: no garbage collection, no namespace deletion, no default ServiceAccounts
	FakeNode      bool     // a Node that binds every pod and reports it as ready; it runs nothing
	Args          []string // additional kube-apiserver flags, such as --audit-policy-file=…; kept over Restart
}

// Cluster is a Kubernetes cluster in a separate process. Its fields do not change over a Restart: certificates,
// signing key and port stay the same, so kubeconfigs and tokens stay valid. Callers must not call Kill, Stop,
// Restart, Pause, Resume and Close concurrently. All other methods are safe for concurrent use.
type Cluster struct {
	Name       string
	Kubeconfig string // path of the admin's self-contained kubeconfig (group system:masters)
	Server     string // https://127.0.0.1:port
	CA         []byte // PEM of the CA of the server's certificate
	Version    string // Kubernetes version, such as v1.37.0

	options Options
	dir     string
	config  *rest.Config
	client  *kubernetes.Clientset
	dynamic *dynamic.DynamicClient

	mu      sync.Mutex
	process *process // nil after Stop or Kill
}

// Run starts a cluster and returns when it is ready. ctx bounds only the start. The cluster runs until Close, or
// until this process ends for any reason. Its state is in a temporary directory, which Close removes.
func Run(ctx context.Context, o Options) (*Cluster, error) {
	if o.Name == "" {
		o.Name = "devcluster"
	}
	// The directory must be directly under the temporary directory, because a Unix socket path is limited to about
	// 100 characters.
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: o.Name, options: o, dir: dir}
	i, err := c.start(ctx)
	if err == nil {
		c.Kubeconfig, c.Server, c.CA, c.Version = i.Kubeconfig, i.Server, []byte(i.CA), i.Version
		err = c.connect()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start cluster %s: %w", o.Name, err), c.Close())
	}
	return c, nil
}

// connect prepares the admin's clients. It sends no request.
func (c *Cluster) connect() (err error) {
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.config.QPS = -1 // client-side throttling would only slow down tests
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return err
	}
	c.dynamic, err = dynamic.NewForConfig(c.config)
	return err
}

// AdminConfig returns a new client configuration with all rights (group system:masters) and no client-side
// throttling.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.config) }

// PID returns the process id, or 0 while the cluster is stopped.
func (c *Cluster) PID() int {
	if p := c.current(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Pause freezes the process: connections stay open and the cluster does not respond. Resume reverses it.
func (c *Cluster) Pause() error { return c.signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (c *Cluster) Resume() error { return c.signal(syscall.SIGCONT) }

func (c *Cluster) signal(s os.Signal) error {
	p := c.current()
	if p == nil {
		return fmt.Errorf("cluster %s is not running", c.Name)
	}
	return p.cmd.Process.Signal(s)
}

// Kill kills the process, as a crash would. The state stays for Restart.
func (c *Cluster) Kill() error {
	p := c.take()
	if p == nil {
		return nil
	}
	defer p.stdin.Close()
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// Stop ends the process in an orderly way, even if it is paused. The state stays for Restart. Stop returns an error
// if the cluster ended by itself before.
func (c *Cluster) Stop() error {
	p := c.take()
	if p == nil {
		return nil
	}
	// Close it only at the end: a closed standard input means that the owner is gone, and the process removes the
	// state.
	defer p.stdin.Close()
	select {
	case <-p.done:
		return c.endedByItself(p)
	default:
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	select {
	case <-p.done:
		if p.crashed() { // the process crashed, but done was not closed yet
			return c.endedByItself(p)
		}
		if p.err != nil {
			return fmt.Errorf("stop cluster %s: %w", c.Name, c.explain(p.err))
		}
		return nil
	case <-time.After(stopLimit):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("cluster %s did not stop within %v and was killed", c.Name, stopLimit)
	}
}

// Restart stops the cluster if it runs, and starts it again on its kept state: same data, address, certificates and
// keys. ctx bounds the start.
func (c *Cluster) Restart(ctx context.Context) error {
	if err := c.Stop(); err != nil {
		return err
	}
	i, err := c.start(ctx)
	if err != nil {
		return fmt.Errorf("restart cluster %s: %w", c.Name, err)
	}
	if i.Server != c.Server || i.CA != string(c.CA) {
		return fmt.Errorf("restart cluster %s: it has another address, %s instead of %s", c.Name, i.Server, c.Server)
	}
	return nil
}

// Close stops the cluster and removes its state.
func (c *Cluster) Close() error {
	return errors.Join(c.Stop(), os.RemoveAll(c.dir))
}

func (c *Cluster) current() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.process
}

func (c *Cluster) take() *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.process
	c.process = nil
	return p
}

// explain adds the standard error of the ended process to err: a sentence, or the beginning of a panic.
func (c *Cluster) explain(err error) error {
	b, _ := os.ReadFile(c.stderr())
	if text := strings.TrimSpace(string(b[:min(len(b), 4<<10)])); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return fmt.Errorf("%w (no output)", err)
}

func (c *Cluster) endedByItself(p *process) error {
	return fmt.Errorf("cluster %s ended unexpectedly: %w", c.Name, c.explain(p.err))
}

func (c *Cluster) stderr() string { return filepath.Join(c.dir, "stderr.log") }

// LogTail returns the last n lines of the cluster's log, for a failed test.
func (c *Cluster) LogTail(n int) string {
	b, err := os.ReadFile(filepath.Join(c.dir, "devcluster.log"))
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

// process is one run of the devcluster program.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer     // its end reports to the process that this process is gone
	done  chan struct{} // closed when the process has ended
	err   error         // reason of the end; read it after done
}

// crashed reports whether a signal other than the stop signal ended the process. Callers must wait for done first.
func (p *process) crashed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() != syscall.SIGTERM
}

// ready is the line that the program prints.
type ready struct {
	Kubeconfig string `json:"kubeconfig"`
	Server     string `json:"server"`
	CA         string `json:"ca"`
	Version    string `json:"version"`
	PID        int    `json:"pid"`
}

func (c *Cluster) start(ctx context.Context) (*ready, error) {
	bin, err := buildcache.Lookup("devcluster")
	if err != nil {
		return nil, err
	}
	args := []string{"-dir", c.dir, "-name", c.Name, "-ephemeral"}
	if c.options.NoControllers {
		args = append(args, "-no-controllers")
	}
	if c.options.FakeNode {
		args = append(args, "-fakenode")
	}
	for _, a := range c.options.Args {
		args = append(args, "-arg="+a)
	}
	stderr, err := os.Create(c.stderr())
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	p := &process{cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.Stderr = stderr
	// The separate process group has two purposes. A Ctrl-C in the terminal reaches only this process, which then
	// stops the cluster in an orderly way. And if this process is killed while the cluster is paused, the kernel
	// wakes the cluster with SIGHUP, so that it ends too.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	line := make(chan []byte, 1)
	go func() {
		r := bufio.NewReader(stdout)
		if l, err := r.ReadBytes('\n'); err == nil {
			line <- l
		}
		_, _ = io.Copy(io.Discard, r)
		p.err = p.cmd.Wait()
		close(p.done)
	}()

	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("not ready within %v", startLimit))
	defer cancel()
	select {
	case l := <-line:
		i := new(ready)
		if err := json.Unmarshal(l, i); err != nil {
			_ = p.cmd.Process.Kill()
			<-p.done
			return nil, fmt.Errorf("ready line %q: %w", l, err)
		}
		c.mu.Lock()
		c.process = p
		c.mu.Unlock()
		return i, nil
	case <-p.done:
		return nil, c.explain(cmp.Or(p.err, errors.New("it ended without output")))
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		<-p.done
		return nil, context.Cause(ctx)
	}
}
