// Package testenv runs the whole system on one machine for end-to-end tests and the demo: a real tailnet, a real API
// server, and the product's own programs as processes. Each process has its real settings and exactly the rights of
// its ServiceAccount. No part that the tests must prove is replaced by a mock.
package testenv

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// Namespaces of the product, as in the manifests in deploy.
const (
	SystemNamespace = "tailplane-system"
	SigninNamespace = "tailplane-signins"
)

// Options configures the system to start. Policy or PolicyFile is required.
type Options struct {
	Policy      string            // HuJSON text
	PolicyFile  string            // the tailnet reads it again at each write
	ClusterName string            // "east" if empty
	Beside      *Env              // environment whose tailnet to share; the caller must close it last
	Hostname    string            // hostname of the access server on the tailnet; "tka" if empty
	Cluster     *kubetest.Cluster // a running cluster to use; if nil, Start starts one and Close stops it
	Settings    map[string]string // more server settings, by path: {"signin.period.min": "10m"}
	Progress    func(what string) // called before each step; may be nil
	NoAccess    bool              // the caller starts the access server
	NoOperator  bool              // the caller starts the operator

	// Tailnet configures the tailnet, except for its policy. On one like Headscale's, which has no certificates, the access server
	// serves plain HTTP.
	Tailnet tailnettest.Options

	Hosts map[string]string // additional host names for the plane, and their addresses; see CanName

	Manifests [][]byte // manifests to apply instead of deploy/crds and deploy/base
	All       bool     // one process runs every role, as the ServiceAccount tailplane
	// File returns the settings file of a role. If it is set, Settings is ignored. Env calls it when the tailnet and
	// the cluster are running.
	File func(r *Env, role string) ([]byte, error)
}

// Env is the running system. Close stops it.
type Env struct {
	Dir      string // directory of all files that Env writes
	Net      *tailnettest.Net
	Cluster  *kubetest.Cluster
	Access   *Process
	Operator *Process
	Plane    *Process          // nil until StartPlane
	Proxy    *Process          // nil until StartProxy
	Via      map[string]string // by role: another address of the API server, which its process uses
	Admin    *tsnet.Server     // a person without grants, to inspect the tailnet
	RootsPEM []byte            // CAs that clients must trust
	Roots    *x509.CertPool

	name        string
	hostname    string
	ownsCluster bool
	ownsNet     bool
	programs    map[string]string
	settings    map[string]string
	hosts       map[string]string
	file        func(r *Env, role string) ([]byte, error)
	mu          sync.Mutex
}

// Start starts the system and returns when its access server answers. The system stops on Close, or when this process
// ends.
func Start(ctx context.Context, dir string, o Options) (_ *Env, err error) {
	r := &Env{Dir: dir, Cluster: o.Cluster, name: cmp.Or(o.ClusterName, "east"), hostname: cmp.Or(o.Hostname, "tka"), file: o.File, hosts: o.Hosts, programs: map[string]string{}}
	if r.settings = maps.Clone(o.Settings); r.settings == nil {
		r.settings = map[string]string{}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	say := func(format string, args ...any) {
		if o.Progress != nil {
			o.Progress(fmt.Sprintf(format, args...))
		}
	}
	for _, name := range []string{"tka", "tailplaned", "kubectl"} {
		if r.programs[name], err = buildcache.Lookup(name); err != nil {
			return r, err
		}
	}

	if o.Beside != nil {
		r.Net, r.RootsPEM = o.Beside.Net, o.Beside.RootsPEM
	} else {
		say("a tailnet: control server, relay and certificate authority on loopback")
		o.Tailnet.Policy, o.Tailnet.PolicyFile = o.Policy, o.PolicyFile
		r.Net, err = tailnettest.Run(filepath.Join(dir, "nodes"), o.Tailnet)
		if err != nil {
			return r, fmt.Errorf("tailnet: %w", err)
		}
		if r.ownsNet = true; r.Net.Certificates() {
			r.RootsPEM = r.Net.EnableHTTPS()
		}
	}
	r.Roots = x509.NewCertPool()
	r.Roots.AppendCertsFromPEM(r.RootsPEM)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return r, err
	}

	if r.Cluster == nil {
		say("a cluster: etcd, kube-apiserver and controllers in one process")
		if r.Cluster, err = kubetest.Run(ctx, kubetest.Options{Name: r.name}); err != nil {
			return r, fmt.Errorf("cluster: %w", err)
		}
		r.ownsCluster = true
	}
	if err := r.writeRoots(); err != nil {
		return r, err
	}
	manifests := o.Manifests
	if manifests == nil {
		if manifests, err = Manifests(); err != nil {
			return r, err
		}
	}
	if err := r.Cluster.Apply(ctx, manifests...); err != nil {
		return r, fmt.Errorf("manifests: %w", err)
	}
	settled := make(chan error, 1)
	go func() { settled <- r.settle(ctx) }()
	defer func() { err = errors.Join(err, <-settled) }()
	if o.All {
		say("tailplaned all, as the ServiceAccount tailplane and the node %q", r.hostname)
		return r, r.StartAll(ctx)
	}
	if !o.NoOperator {
		say("tailplaned operator, as the ServiceAccount tailplane-operator")
		if err := r.StartOperator(ctx); err != nil {
			return r, err
		}
	}
	if !o.NoAccess {
		say("tailplaned access, as the ServiceAccount tailplane-access and the node %q", r.hostname)
		if err := r.StartAccess(ctx); err != nil {
			return r, err
		}
	}
	return r, nil
}

// settle waits until the API server accepts sign-ins without delay. The API server delays the first writes to a new
// kind of resource by two seconds, once in the life of a cluster.
func (r *Env) settle(ctx context.Context) error {
	probe := filepath.Join(r.Dir, "probe.yaml")
	if err := os.WriteFile(probe, []byte("apiVersion: tailplane.dev/v1alpha1\nkind: TkaSignin\nmetadata: {name: probe, namespace: "+SigninNamespace+"}\n"), 0o600); err != nil {
		return err
	}
	// The server must reject this object: the schema is violated, and only the access server may create sign-ins.
	_, errs, exit := kubetest.Kubectl(ctx, r.Cluster.Kubeconfig, "create", "--dry-run=server", "--validate=false", "-f", probe)
	if exit == 0 {
		return errors.New("the API server accepted an empty sign-in: neither the schema nor the admission policy is active")
	}
	if ctx.Err() != nil {
		return fmt.Errorf("sign-ins are not served: %s", errs)
	}
	return nil
}

// Manifests returns the product's manifests: deploy/crds and deploy/base.
func Manifests() ([][]byte, error) {
	root, err := sourceTree()
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, folder := range []string{"deploy/crds", "deploy/base"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" || d.Name() == "kustomization.yaml" {
				return err
			}
			b, err := os.ReadFile(path)
			out = append(out, b)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func sourceTree() (string, error) {
	c, err := buildcache.Open()
	if err != nil {
		return "", err
	}
	return c.Root, nil
}

func (r *Env) rootsFile() string { return filepath.Join(r.Dir, "roots.pem") }

// Server returns the URL of the access server.
func (r *Env) Server() string { return r.ServerAt(r.hostname) }

// ServerAt returns the URL of an access server with that host name.
func (r *Env) ServerAt(hostname string) string {
	if !r.Net.Certificates() {
		return "http://" + hostname + "." + r.Net.Suffix() + ":443"
	}
	return "https://" + hostname + "." + r.Net.Suffix()
}

// OperatorAuditFile returns the path of the operator's audit log, if the operator is a separate process.
func (r *Env) OperatorAuditFile() string { return filepath.Join(r.Dir, "operator", "audit.jsonl") }

// AuditFile returns the path of the access server's audit log.
func (r *Env) AuditFile() string { return filepath.Join(r.Dir, "access", "audit.jsonl") }

// StartOperator starts `tailplaned operator` and waits until it logs that it is working.
func (r *Env) StartOperator(ctx context.Context) error {
	p, err := r.tailplaned(ctx, "operator", "tailplane-operator", nil)
	if err != nil {
		return err
	}
	r.Operator = p
	return p.WaitLog(ctx, `"the sign-in operator is running"`)
}

// StartAccess starts `tailplaned access` and waits until it serves on the tailnet.
func (r *Env) StartAccess(ctx context.Context) error {
	if err := r.writeAuthKey(); err != nil {
		return err
	}
	p, err := r.tailplaned(ctx, "access", "tailplane-access", append(tailnettest.ChildEnv(), r.Net.HTTPSEnv()...))
	if err != nil {
		return err
	}
	r.Access = p
	return p.WaitLog(ctx, `"access is serving"`)
}

// StartAll starts `tailplaned all` and waits until both the operator and the access server work.
func (r *Env) StartAll(ctx context.Context) error {
	if err := r.writeAuthKey(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.AuditFile()), 0o700); err != nil {
		return err
	}
	p, err := r.tailplaned(ctx, "all", "tailplane", append(tailnettest.ChildEnv(), r.Net.HTTPSEnv()...))
	if err != nil {
		return err
	}
	r.Access, r.Operator = p, p
	return errors.Join(p.WaitLog(ctx, `"the sign-in operator is running"`), p.WaitLog(ctx, `"access is serving"`))
}

// AuthKeyFile returns the path of a tailnet auth key for a node with tag:tailplane.
func (r *Env) AuthKeyFile() string { return filepath.Join(r.Dir, "authkey") }

func (r *Env) writeAuthKey(tags ...string) error {
	if len(tags) == 0 {
		tags = []string{"tag:tailplane"}
	}
	if _, err := os.Stat(r.AuthKeyFile()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The plane starts one node for each exposure.
	key := r.Net.AuthKey(tailnettest.AuthKey{Tags: tags, Reusable: r.settings["plane.exposures"] != ""})
	return os.WriteFile(r.AuthKeyFile(), []byte(key+"\n"), 0o600)
}

// tailplaned starts one role of the server with its own settings file.
func (r *Env) tailplaned(ctx context.Context, role, account string, env []string) (*Process, error) {
	dir := filepath.Join(r.Dir, role)
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		return nil, err
	}
	kubeconfig, err := r.Cluster.ServiceAccountKubeconfig(ctx, SystemNamespace, account, dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", account, err)
	}
	if via := r.Via[role]; via != "" {
		b, err := os.ReadFile(kubeconfig)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(kubeconfig, bytes.ReplaceAll(b, []byte(r.Cluster.Server), []byte("https://"+via)), 0o600); err != nil {
			return nil, err
		}
	}
	config := filepath.Join(dir, "config.yaml")
	text, err := r.Settings(role)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return nil, err
	}
	args := []string{r.programs["tailplaned"], role, "--config", config, "--kubeconfig", kubeconfig}
	if role == "plane" && len(r.hosts) > 0 {
		if args, err = named(dir, r.hosts, args); err != nil {
			return nil, err
		}
	}
	if r.hasPublicServer() {
		env = append(env, "SSL_CERT_FILE="+r.rootsFile())
	}
	return startProcess(dir, append(os.Environ(), env...), args...)
}

// writeRoots writes the authorities that the systems of all trust.
func (r *Env) writeRoots() error {
	roots := bytes.Clone(r.RootsPEM)
	if r.Cluster != nil && r.hasPublicServer() {
		roots = append(roots, r.Cluster.CA...)
	}
	return os.WriteFile(r.rootsFile(), roots, 0o600)
}

// hasPublicServer reports whether the API server's certificate counts as public: the systems of all have its authority.
func (r *Env) hasPublicServer() bool { return r.settings["cluster.caData"] == "system" }

// Try starts an additional `tailplaned ROLE` in the directory name, with settings and arguments that the test
// changed. The caller must stop it.
func (r *Env) Try(name, role string, env []string, settings string, args ...string) (*Process, error) {
	dir := filepath.Join(r.Dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if role == "operator" { // the environment's own operator holds its audit log
		settings = strings.Replace(settings, r.OperatorAuditFile(), filepath.Join(dir, "audit.jsonl"), 1)
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		return nil, err
	}
	env = append(append(os.Environ(), append(tailnettest.ChildEnv(), r.Net.HTTPSEnv()...)...), env...)
	return startProcess(dir, env, append([]string{r.programs["tailplaned"], role, "--config", config}, args...)...)
}

// Set changes a setting, by path, for programs that start after the call.
func (r *Env) Set(path, value string) { r.settings[path] = value }

// Settings returns the settings file of a role.
func (r *Env) Settings(role string) ([]byte, error) {
	if r.file != nil {
		return r.file(r, role)
	}
	ca := filepath.Join(r.Dir, "cluster-ca.crt")
	if err := os.WriteFile(ca, r.Cluster.CA, 0o600); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	dir := filepath.Join(r.Dir, role)
	authority := "caFile: " + ca
	if r.hasPublicServer() {
		authority = "caData: system"
	}
	fmt.Fprintf(&b, "cluster:\n  name: %s\n  server: %s\n  %s\n  labels: %s\n", r.name, r.Cluster.Server, authority, cmp.Or(r.settings["cluster.labels"], "{env: demo}"))
	fmt.Fprintf(&b, "tailnet:\n  hostname: %s\n  tags: [tag:tailplane]\n  controlURL: %s\n  authKeyFile: %s\n  stateDir: %s\n",
		r.hostname, r.Net.ControlURL(), r.AuthKeyFile(), filepath.Join(dir, "state"))
	if !r.Net.Certificates() {
		fmt.Fprintf(&b, "  insecureHTTP: true\n")
	}
	roles := r.settings["signin.roles"]
	if roles == "" {
		roles = "[view, edit]"
	}
	fmt.Fprintf(&b, "signin:\n  roles: %s\n", roles)
	for path, value := range r.settings {
		if key, ok := strings.CutPrefix(path, "signin."); ok && key != "roles" {
			fmt.Fprintf(&b, "  %s: %s\n", key, value)
		}
	}
	fmt.Fprintf(&b, "health: 127.0.0.1:0\n")
	record := r.AuditFile()
	switch role {
	case "operator":
		record = r.OperatorAuditFile()
	case "plane":
		record = r.PlaneAuditFile()
	case "proxy":
		record = r.ProxyAuditFile()
	}
	fmt.Fprintf(&b, "audit:\n  file: %s\n", record)
	for _, section := range []string{"api", "access", "requests", "gossip", "plane", "fleet", "proxy"} {
		var lines []string
		for path, value := range r.settings {
			if key, ok := strings.CutPrefix(path, section+"."); ok {
				lines = append(lines, fmt.Sprintf("  %s: %s\n", key, value))
			}
		}
		if _, set := r.settings["gossip.allowEndpoints"]; section == "gossip" && !set { // the testbed's clusters are on loopback
			lines = append(lines, "  allowEndpoints: [127.0.0.0/8]\n")
		}
		if len(lines) > 0 {
			fmt.Fprintf(&b, "%s:\n%s", section, strings.Join(lines, ""))
		}
	}
	return b.Bytes(), nil
}

// Close stops everything that Start and the other methods started.
func (r *Env) Close() error {
	var errs []error
	for _, p := range []*Process{r.Proxy, r.Plane, r.Access, r.Operator} {
		if p != nil {
			errs = append(errs, p.Stop(time.Minute))
		}
	}
	if r.ownsNet {
		errs = append(errs, r.Net.Close())
	}
	if r.ownsCluster {
		errs = append(errs, r.Cluster.Close())
	}
	return errors.Join(errs...)
}
