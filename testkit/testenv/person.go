package testenv

import (
	"bytes"
	"cmp"
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

	"github.com/tailplane/tailplane/internal/httpapi"
)

// Person is a user on a tailnet device: a node, a home directory, and programs that connect to the tailnet as that
// node.
type Person struct {
	Node  *tsnet.Server
	Proxy string // HTTP proxy on loopback; every client of it acts as this person
	Home  string
	Vars  []string // more environment variables, such as TKA_CLUSTER=west

	env    *Env
	plain  string // SOCKS5 proxy for plain HTTP, if servers have no certificates
	socket string // of the device's Tailscale; empty if programs cannot ask it
}

// Person adds a device to the tailnet and returns it when it can connect to the access server. A device with tags
// belongs to no user.
func (r *Env) Person(ctx context.Context, host, login string, tags ...string) (*Person, error) {
	p := &Person{env: r, Node: r.Net.Node(host, login, tags...), Home: filepath.Join(r.Dir, "home", host)}
	if err := p.writeSettings(); err != nil {
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
	if r.Net.Certificates() {
		return p, nil
	}
	p.plain, err = r.Net.PersonaSOCKS(p.Node) // an HTTP proxy would answer plain HTTP itself where a server cannot be reached
	return p, err
}

// writeSettings writes the file that `tka config` would write for the access server.
func (p *Person) writeSettings() error {
	settings := filepath.Join(p.Home, ".config", "tka")
	if err := os.MkdirAll(settings, 0o700); err != nil {
		return err
	}
	text := fmt.Sprintf("server: %s.%s\n", p.env.hostname, p.env.Net.Suffix())
	if !p.env.Net.Certificates() {
		text = fmt.Sprintf("server: %[1]s\nservers:\n- {name: %[1]s, url: \"%[2]s\", insecureHTTP: true}\n", p.env.hostname, p.env.Server())
	}
	return os.WriteFile(filepath.Join(settings, "config.yaml"), []byte(text), 0o600)
}

// ServeTailscale lets programs of this person ask the device's Tailscale.
func (p *Person) ServeTailscale() error {
	p.socket = filepath.Join(p.Home, "tailscaled.sock")
	return p.env.Net.LocalAPI(p.Node, p.socket)
}

// User returns another user of the operating system on the same device. It has the same tailnet identity and a home of its own.
func (p *Person) User(name string) (*Person, error) {
	other := *p
	other.Home = filepath.Join(p.Home+"-users", name)
	return &other, other.writeSettings()
}

// Switch returns the user of p after `tailscale switch`: the same home, with the tailnet identity of the device of to.
func (p *Person) Switch(to *Person) *Person {
	switched := *to
	switched.Home, switched.Vars = p.Home, p.Vars
	return &switched
}

// Leave removes a person's device from the tailnet before the environment ends.
func (r *Env) Leave(p *Person) { r.Net.Retire(p.Node) }

// Kubeconfig returns the path of the person's kubeconfig.
func (p *Person) Kubeconfig() string { return filepath.Join(p.Home, ".kube", "config") }

// Bin returns the directory that has tka and kubectl.
func (p *Person) Bin() string { return filepath.Join(p.env.Dir, "bin") }

// Env returns the environment variables for programs that act as this person: the person's home, the tailnet through
// the proxy, and tka in PATH.
func (p *Person) Env() []string {
	plain := cmp.Or(p.plain, p.Proxy)
	vars := p.Vars
	if p.socket != "" {
		vars = append([]string{"TS_SOCKET=" + p.socket}, vars...)
	}
	return append([]string{
		"HOME=" + p.Home, "XDG_CONFIG_HOME=" + filepath.Join(p.Home, ".config"), "XDG_CACHE_HOME=" + filepath.Join(p.Home, ".cache"),
		"XDG_STATE_HOME=" + filepath.Join(p.Home, ".local/state"), "XDG_RUNTIME_DIR=" + filepath.Join(p.Home, ".run"),
		"KUBECONFIG=" + p.Kubeconfig(),
		"HTTPS_PROXY=" + p.Proxy, "HTTP_PROXY=" + plain, "https_proxy=" + p.Proxy, "http_proxy=" + plain,
		"NO_PROXY=127.0.0.1,localhost", "no_proxy=127.0.0.1,localhost",
		"SSL_CERT_FILE=" + p.env.rootsFile(),
		"PATH=" + p.Bin() + ":/usr/local/bin:/usr/bin:/bin", "TERM=dumb", "LANG=C.UTF-8",
	}, vars...)
}

// Result is the outcome of a program.
type Result struct {
	Stdout, Stderr string
	Both           string // both streams in the order of arrival, as a terminal would show them
	Exit           int
	Took           time.Duration
}

// Run runs tka, kubectl or tailplaned as this person, with an empty standard input.
func (p *Person) Run(ctx context.Context, program string, args ...string) (Result, error) {
	if err := p.env.linkPrograms(); err != nil {
		return Result{}, err
	}
	path, ok := p.env.programs[program]
	if !ok {
		return Result{}, fmt.Errorf("the environment has no program %q", program)
	}
	return p.RunPath(ctx, path, args...)
}

// RunPath runs a program at a path as this person, with an empty standard input.
func (p *Person) RunPath(ctx context.Context, path string, args ...string) (Result, error) {
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
		return r, fmt.Errorf("%s %s: %w", path, strings.Join(args, " "), err)
	}
	return r, nil
}

// locked is a buffer for concurrent writers.
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

// linkPrograms creates a directory in which the programs have the names that people type.
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

// HTTP returns a client that connects as this person's device and does not follow redirects.
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

// Client returns an API client of the access server that connects as this person's device.
func (p *Person) Client() httpapi.Client { return httpapi.Client{HTTP: p.HTTP(), Base: p.env.Server()} }
