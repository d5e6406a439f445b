package testenv

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/internal/door"
)

// A Person is somebody on a device of the tailnet: a node, a home folder, and
// programs that speak to the tailnet as that node.
type Person struct {
	Node  *tsnet.Server
	Proxy string // an HTTP proxy on loopback; whoever uses it is this person
	Home  string

	env *Env
}

// Person brings a device into the tailnet and returns it when it can reach the
// access server. With tags it is nobody's.
func (r *Env) Person(ctx context.Context, host, login string, tags ...string) (*Person, error) {
	p := &Person{env: r, Node: r.Net.Node(host, login, tags...), Home: filepath.Join(r.Dir, "home", host)}
	settings := filepath.Join(p.Home, ".config", "tka")
	if err := os.MkdirAll(settings, 0o700); err != nil {
		return nil, err
	}
	// As `tka config server` would write it.
	if err := os.WriteFile(filepath.Join(settings, "config.yaml"), fmt.Appendf(nil, "server: %s.%s\n", r.hostname, r.Net.Suffix()), 0o600); err != nil {
		return nil, err
	}
	if err := r.Net.Ready(ctx, p.Node); err != nil {
		return nil, err
	}
	if r.Access != nil {
		if err := r.Net.WaitPeer(ctx, p.Node, r.hostname); err != nil {
			return nil, fmt.Errorf("%s does not see the access server: %w", host, err)
		}
	}
	var err error
	if p.Proxy, err = r.Net.Persona(p.Node); err != nil {
		return nil, err
	}
	return p, nil
}

// Leave takes somebody's device off the tailnet before the environment ends.
func (r *Env) Leave(p *Person) { r.Net.Retire(p.Node) }

// Kubeconfig is the person's kubeconfig file.
func (p *Person) Kubeconfig() string { return filepath.Join(p.Home, ".kube", "config") }

// Env is the environment in which programs are this person: a home of their
// own, the tailnet through the proxy, tka in PATH.
func (p *Person) Env() []string {
	bin := filepath.Join(p.env.Dir, "bin")
	return []string{
		"HOME=" + p.Home, "XDG_CONFIG_HOME=" + filepath.Join(p.Home, ".config"), "XDG_CACHE_HOME=" + filepath.Join(p.Home, ".cache"),
		"XDG_STATE_HOME=" + filepath.Join(p.Home, ".local/state"), "XDG_RUNTIME_DIR=" + filepath.Join(p.Home, ".run"),
		"KUBECONFIG=" + p.Kubeconfig(),
		"HTTPS_PROXY=" + p.Proxy, "HTTP_PROXY=" + p.Proxy, "https_proxy=" + p.Proxy, "http_proxy=" + p.Proxy,
		"NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost",
		"SSL_CERT_FILE=" + p.env.rootsFile(),
		"PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin", "TERM=dumb", "LANG=C.UTF-8",
	}
}

// A Result is what a program did.
type Result struct {
	Stdout, Stderr string
	Both           string // what a terminal would have shown: one as it came between the other
	Exit           int
	Took           time.Duration
}

// Run runs tka, kubectl or tailplaned as this person, with nothing on standard input.
func (p *Person) Run(ctx context.Context, program string, args ...string) (Result, error) {
	if err := p.env.linkPrograms(); err != nil {
		return Result{}, err
	}
	path, ok := p.env.programs[program]
	if !ok {
		return Result{}, fmt.Errorf("the environment has no program %q", program)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir = p.Env(), p.Home
	cmd.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	var both locked
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, &both), io.MultiWriter(&errs, &both)
	began := time.Now()
	err := cmd.Run()
	r := Result{Stdout: out.String(), Stderr: errs.String(), Both: both.String(), Exit: cmd.ProcessState.ExitCode(), Took: time.Since(began)}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return r, fmt.Errorf("%s %s: %w", program, strings.Join(args, " "), err)
	}
	return r, nil
}

// locked is a buffer that several may write to at a time.
type locked struct {
	mu sync.Mutex
	bytes.Buffer
}

// Write implements [io.Writer].
func (l *locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

// linkPrograms makes a folder in which the programs have the names that people type.
func (r *Env) linkPrograms() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	bin := filepath.Join(r.Dir, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		return err
	}
	for name, path := range r.programs {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}

// HTTP returns a client that speaks as this person's device and follows no redirect.
func (p *Person) HTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         p.Node.Dial,
			TLSClientConfig:     &tls.Config{RootCAs: p.env.Roots},
			MaxIdleConnsPerHost: 100,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       60 * time.Second,
	}
}

// Client returns the access server's other end, as this person's device.
func (p *Person) Client() door.Client { return door.Client{HTTP: p.HTTP(), Base: p.env.Server()} }
