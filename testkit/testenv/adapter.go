package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

// Adapter is a running `mca proxy` process. Its pod directories are in a directory of the test.
type Adapter struct {
	*Process
	Account    string // ServiceAccount directory: token, ca.crt, namespace
	Share      string // directory that the application sees
	State      string
	Address    string // host:port of the API
	Admin      string // host:port of the admin port
	Kubeconfig string // kubeconfig of the application: the local token file and the adapter's CA

	dir, server string
	args        []string
}

// AdapterOptions describe the pod of an Adapter. Fields are required unless their comment says otherwise.
type AdapterOptions struct {
	Server    string // URL of the pod's cluster
	CA        []byte // CA of that server's certificate
	Token     string // ServiceAccount token of the pod
	Namespace string
	Args      []string // optional: additional flags of mca proxy
	// Config is optional: the adapter's configuration. Secrets are the mounted files, by Secret name and file name.
	Config  string
	Secrets map[string]map[string]string
}

// StartAdapter starts an adapter with its directories in dir. It returns when the adapter passes the pod's startup
// probe.
func StartAdapter(ctx context.Context, dir string, o AdapterOptions) (*Adapter, error) {
	a := &Adapter{dir: dir, server: o.Server, args: o.Args, Account: filepath.Join(dir, "account"), Share: filepath.Join(dir, "share"), State: filepath.Join(dir, "state"),
		Kubeconfig: filepath.Join(dir, "kubeconfig"), Address: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	for _, d := range []string{a.Account, a.Share, a.State} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	for name, content := range map[string]string{"token": o.Token, "ca.crt": string(o.CA), "namespace": o.Namespace} {
		if err := os.WriteFile(filepath.Join(a.Account, name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	for secret, files := range o.Secrets {
		if err := os.MkdirAll(a.Secret(secret), 0o755); err != nil {
			return nil, err
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(a.Secret(secret), name), []byte(content), 0o600); err != nil {
				return nil, err
			}
		}
	}
	if o.Config != "" {
		if err := a.Configure(o.Config); err != nil {
			return nil, err
		}
	}
	if err := a.Start(ctx); err != nil {
		return nil, err
	}
	return a, os.WriteFile(a.Kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: pod, cluster: {server: "https://%s", certificate-authority: %q}}]
users: [{name: pod, user: {tokenFile: %q}}]
contexts: [{name: pod, context: {cluster: pod, user: pod, namespace: %q}}]
current-context: pod
`, a.Address, filepath.Join(a.Share, "ca.crt"), filepath.Join(a.Share, "token"), o.Namespace), 0o600)
}

// Secret returns the directory of a mounted Secret.
func (a *Adapter) Secret(name string) string { return filepath.Join(a.dir, "credentials", name) }

// Configure writes the configuration. A running adapter reloads it.
func (a *Adapter) Configure(config string) error {
	path := filepath.Join(a.dir, "config.yaml")
	if err := os.WriteFile(path+".new", []byte(config), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Start restarts the adapter's container at the addresses that it had before.
func (a *Adapter) Start(ctx context.Context) error {
	bin, err := buildcache.Lookup("mca")
	if err != nil {
		return err
	}
	home, err := url.Parse(a.server)
	if err != nil {
		return err
	}
	args := append([]string{bin, "proxy", "--listen", a.Address, "--admin", a.Admin, "--config", filepath.Join(a.dir, "config.yaml"), "--credentials-dir", filepath.Join(a.dir, "credentials"),
		"--serviceaccount-dir", a.Account, "--share-dir", a.Share, "--state-dir", a.State, "--log-level", "debug"}, a.args...)
	bound := filepath.Join(a.State, "address")
	if err := os.Remove(bound); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if a.Process, err = startProcess(a.dir, []string{"KUBERNETES_SERVICE_HOST=" + home.Hostname(), "KUBERNETES_SERVICE_PORT=" + home.Port()}, args...); err != nil {
		return err
	}
	if err := a.ready(ctx, bound); err != nil {
		a.Kill()
		return err
	}
	return nil
}

// ready waits until the new process reports its listening addresses and is ready.
func (a *Adapter) ready(ctx context.Context, bound string) error {
	var at struct{ Listen, Admin string }
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(bound); err == nil && json.Unmarshal(b, &at) == nil {
			if a.Address, a.Admin = at.Listen, at.Admin; exec.CommandContext(ctx, a.Args[0], "proxy", "--check", "--admin", a.Admin).Run() == nil {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-a.Done():
			return fmt.Errorf("mca ended: %s", tail(a.Output()))
		case <-ctx.Done():
			return fmt.Errorf("mca is not ready: %w: %s", ctx.Err(), tail(a.Output()))
		}
	}
}

// Close stops the adapter.
func (a *Adapter) Close() error { return a.Stop(40 * time.Second) }
