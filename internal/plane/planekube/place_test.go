//go:build unix

package planekube

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	coordinationv1 "k8s.io/api/coordination/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/gossip/gossipkube"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/kubetest"
	"github.com/tailplane/tailplane/internal/plane"
)

// deadline is for conditions that come at once on an idle machine.
const deadline = 2 * time.Minute

// definitions are the kinds that are shown.
var definitions = sync.OnceValues(func() (docs [][]byte, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		return nil, err
	}
	api := filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard")
	for _, pattern := range []string{"../../../deploy/crds/gateway.tailscale.com_*.yaml", "../../../deploy/crds/tailplane.dev_*.yaml",
		filepath.Join(api, "gateway.networking.k8s.io_gateways.yaml"), filepath.Join(api, "gateway.networking.k8s.io_httproutes.yaml")} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return nil, errors.Join(err, errors.New("no definitions: "+pattern))
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			docs = append(docs, b)
		}
	}
	return docs, nil
})

// installed is the shared cluster, with the definitions.
var installed = sync.OnceValues(func() (*kubetest.Cluster, error) {
	c, err := kubetest.Run(context.Background(), kubetest.Options{Name: "shared"})
	if err != nil {
		return nil, err
	}
	docs, err := definitions()
	if err != nil {
		return nil, err
	}
	return c, c.Apply(context.Background(), docs...)
})

func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(m.Run()) // with which the shared cluster ends
}

// A place is a cluster with a namespace that is both the sign-ins' and our own, and
// an account that has the rights that are needed, and no others.
type place struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   client.Client
	ns      string
	config  *rest.Config // of the account
	log     kubetest.Log
}

// newPlace is on the cluster that all tests share, in a namespace of its own, unless
// another one is given.
func newPlace(t *testing.T, c *kubetest.Cluster) *place {
	t.Helper()
	t.Parallel()
	if c == nil {
		var err error
		if c, err = installed(); err != nil {
			t.Fatal(err)
		}
	}
	p := &place{T: t, cluster: c, ns: c.Namespace(t)}
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme, gatewayv1alpha1.AddToScheme, gatewayapi.Install} {
		p.must(add(all))
	}
	var err error
	p.admin, err = client.New(c.AdminConfig(), client.Options{Scheme: all})
	p.must(err)
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: p.ns, Name: name} }
	everywhere := metav1.ObjectMeta{Name: p.ns}
	read := []string{"get", "list", "watch"}
	subject := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: p.ns, Name: "plane"}}
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: meta("plane")},
		&coordinationv1.Lease{ObjectMeta: meta(LeaseName)},
		&corev1.ConfigMap{ObjectMeta: meta(IgnoredConfigMap)},
		&rbacv1.Role{ObjectMeta: meta("plane"), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"tailplane.dev"}, Resources: []string{"tkasignins"}, Verbs: append([]string{"delete"}, read...)},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{gossipkube.MembersConfigMap}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{IgnoredConfigMap}, Verbs: append([]string{"update"}, read...)},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{LeaseName}, Verbs: []string{"get", "update"}},
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta("plane"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "plane"}, Subjects: subject},
		&rbacv1.ClusterRole{ObjectMeta: everywhere, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{gatewayv1alpha1.Group}, Resources: []string{"tailscaletailnets", "tailscalegateways", "tailscaleroutepolicies", "tailscaleservices", "tailscaleproxygroups"}, Verbs: read},
			{APIGroups: []string{"tailplane.dev"}, Resources: []string{"runnerenrollments", "runnerpools", "runnerforges"}, Verbs: read},
			{APIGroups: []string{"tailplane.dev"}, Resources: []string{"runnerholds"}, Verbs: append([]string{"create", "patch", "delete"}, read...)},
			{APIGroups: []string{gatewayapi.GroupName}, Resources: []string{"gateways", "httproutes"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: read},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"list"}},
			{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{fleetLease}, Verbs: read},
			{APIGroups: []string{"actions.github.com"}, Resources: []string{"ephemeralrunners"}, Verbs: read},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: everywhere, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: p.ns}, Subjects: subject},
	} {
		p.must(p.admin.Create(t.Context(), o))
	}
	path, err := c.ServiceAccountKubeconfig(t.Context(), p.ns, "plane", t.TempDir())
	p.must(err)
	p.config, err = kube.Config(path)
	p.must(err)
	return p
}

func (p *place) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *place) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&p.log, nil)) }

// until waits for a condition.
func (p *place) until(what string, true func() bool) {
	p.Helper()
	for end := time.Now().Add(deadline); !true(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("it never came that %s\n%s", what, p.log.Tail())
		}
	}
}

// create stores an object, and its status if it has one.
func (p *place) create(o client.Object) {
	p.Helper()
	with := o.DeepCopyObject().(client.Object)
	p.must(p.admin.Create(p.Context(), o))
	with.SetResourceVersion(o.GetResourceVersion())
	p.must(p.admin.Status().Update(p.Context(), with))
	p.must(p.admin.Get(p.Context(), client.ObjectKeyFromObject(o), o))
}

// step is a subtest, which may fail where p may.
func (p *place) step(name string, f func()) {
	p.Run(name, func(t *testing.T) {
		was := p.T
		p.T = t
		defer func() { p.T = was }()
		f()
	})
}

// watch starts a Watch that speaks to the API server through config.
func (p *place) watch(config *rest.Config) *plane.Board {
	p.Helper()
	board, _ := p.watching(config)
	return board
}

func (p *place) watching(config *rest.Config) (*plane.Board, *Watch) {
	p.Helper()
	board := plane.NewBoard(time.Now)
	ignores, err := NewIgnores(config, p.ns, board, time.Now)
	p.must(err)
	w := &Watch{Config: config, Board: board, SigninNamespace: p.ns, SystemNamespace: p.ns, FleetNamespace: p.ns, Ignores: ignores, Version: "v1", Log: p.logger(), Now: time.Now, ProbeEvery: 200 * time.Millisecond}
	done := make(chan error, 1)
	ctx := p.Context()
	go func() { done <- w.Run(ctx) }()
	p.Cleanup(func() {
		if err := <-done; err != nil {
			p.Error(err)
		}
	})
	return board, w
}

// source is how the source of a resource is.
func source(b *plane.Board, resource string) plane.Source {
	for _, s := range b.Sources() {
		if s.Name == "kubernetes:"+resource {
			return s
		}
	}
	return plane.Source{}
}

func objectOf[T plane.Object](b *plane.Board, k plane.Kind, key string) (T, bool) {
	o, _ := b.Get(k, key)
	is, ok := o.(T)
	return is, ok
}

// A gate stands between a client and the API server.
type gate struct {
	ln net.Listener
	to string

	mu    sync.Mutex
	shut  bool
	mute  bool // connections are taken, and nothing is carried
	conns map[net.Conn]bool
}

func newGate(t *testing.T, config *rest.Config) (*gate, *rest.Config) {
	t.Helper()
	u, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{ln: ln, to: u.Host, conns: map[net.Conn]bool{}}
	done := make(chan struct{})
	go func() { defer close(done); g.serve() }()
	t.Cleanup(func() {
		ln.Close()
		g.cut()
		<-done
	})
	through := rest.CopyConfig(config)
	through.Host = "https://" + ln.Addr().String()
	return g, through
}

func (g *gate) serve() {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := g.ln.Accept()
		if err != nil {
			return
		}
		g.mu.Lock()
		shut := g.shut
		if !shut {
			g.conns[c] = true
		}
		g.mu.Unlock()
		if shut {
			c.Close()
			continue
		}
		wg.Go(func() { g.carry(c) })
	}
}

func (g *gate) carry(c net.Conn) {
	defer c.Close()
	server, err := net.Dial("tcp", g.to)
	if err != nil {
		return
	}
	defer server.Close()
	g.mu.Lock()
	if g.conns[c] { // else it was cut meanwhile
		g.conns[server] = true
	} else {
		server.Close()
	}
	g.mu.Unlock()
	var wg sync.WaitGroup
	pour := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 && !g.muted() {
				if _, err := to.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	wg.Go(func() { pour(server, c) })
	wg.Go(func() { pour(c, server) })
	wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, c)
	delete(g.conns, server)
}

func (g *gate) muted() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mute
}

// set opens, shuts or mutes the gate. Shutting it cuts what goes through.
func (g *gate) set(shut, mute bool) {
	g.mu.Lock()
	g.shut, g.mute = shut, mute
	g.mu.Unlock()
	if shut {
		g.cut()
	}
}

func (g *gate) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		c.Close()
	}
	clear(g.conns)
}
