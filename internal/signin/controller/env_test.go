//go:build unix

package controller

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// deadline limits every wait for a condition, on a loaded machine.
const deadline = 3 * time.Minute

// An env is a test environment: a namespace of sign-ins on a real cluster.
type env struct {
	t       testing.TB
	cluster *kubetest.Cluster
	admin   client.WithWatch
	ns      string
	rules   signin.Rules
	lease   string        // Lease namespace for leader election; "": no election
	ahead   time.Duration // clock offset of operators that start

	accessConfig, operatorConfig *rest.Config // client configurations of the two programs
}

var installed sync.Map // func() error by *kubetest.Cluster

// newEnv creates a namespace on the shared test cluster. The programs run as administrator there;
// tests of permissions use a cluster with the manifests.
func newEnv(t testing.TB) *env {
	t.Helper()
	c := kubetest.Start(t)
	install, _ := installed.LoadOrStore(c, sync.OnceValue(func() error {
		return c.Apply(context.Background(), files(t, "../../../deploy/crds/tailplane.dev_*.yaml")...)
	}))
	if err := install.(func() error)(); err != nil {
		t.Fatal(err)
	}
	return newEnvOn(t, c, c.Namespace(t))
}

func newEnvOn(t testing.TB, c *kubetest.Cluster, ns string) *env {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, eventsv1.AddToScheme, admissionv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	admin, err := client.NewWithWatch(c.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &env{
		t: t, cluster: c, admin: admin, ns: ns,
		accessConfig: c.AdminConfig(), operatorConfig: c.AdminConfig(),
		rules: signin.Rules{
			Roles: []access.Role{"view", "edit"}, Min: time.Second, Max: 24 * time.Hour, MaxLife: 24 * time.Hour,
			KeepExpired: time.Hour, Recheck: 200 * time.Millisecond, Reserved: []string{ns, "tailplane-system"},
		},
	}
}

// files reads the files that match a pattern.
func files(t testing.TB, pattern string) (docs [][]byte) {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) == 0 {
		t.Fatalf("no file %s: %v", pattern, err)
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, b)
	}
	return docs
}

// testLog returns a logger that writes to the test's log until the test ends.
func testLog(t testing.TB) *slog.Logger {
	w := &logWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type logWriter struct {
	mu sync.Mutex
	t  testing.TB
}

func (w *logWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}

// operate runs an operator until the returned function is called or the test ends.
func (p *env) operate() (stop func()) {
	p.t.Helper()
	o := p.operator(p.operatorConfig)
	return p.run("operator", o.Run, o.Synced)
}

func (p *env) operator(config *rest.Config) *Controller {
	ahead := p.ahead
	return &Controller{Config: config, Namespace: p.ns, LeaseNamespace: p.lease, Rules: p.rules, Log: testLog(p.t),
		Now: func() time.Time { return time.Now().Add(ahead) }}
}

// tokenRules returns the rules of the store that fit the rules of the operator.
func (p *env) tokenRules() signin.TokenRules {
	return signin.TokenRules{Max: p.rules.Max, MaxLife: p.rules.MaxLife, RequireAdmissionPolicy: p.rules.RequireAdmissionPolicy}
}

// open runs a store.
func (p *env) open() (s *Store, stop func()) {
	p.t.Helper()
	s, err := NewStore(p.accessConfig, p.ns, p.tokenRules(), time.Now)
	if err != nil {
		p.t.Fatal(err)
	}
	return s, p.run("store", s.Run, s.Synced)
}

func (p *env) run(what string, run func(context.Context) error, ready func() bool) (stop func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				p.t.Errorf("%s: %v", what, err)
			}
		case <-time.After(deadline):
			p.t.Errorf("%s: not stopped after %v", what, deadline)
		}
	})
	p.t.Cleanup(stop)
	p.until(what+" at work", func() bool {
		select {
		case err := <-done:
			done <- err
			p.t.Fatalf("%s ended: %v", what, err)
		default:
		}
		return ready()
	})
	return stop
}

// until polls a condition.
func (p *env) until(what string, is func() bool) time.Duration {
	p.t.Helper()
	start := time.Now()
	for !is() {
		if time.Since(start) > deadline {
			p.t.Fatalf("%s: not within %v", what, deadline)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(start)
}

// owner returns an owner, such as alice on her laptop. Owners differ between environments, because
// cluster-wide bindings have no namespace to distinguish them.
func (p *env) owner(login, device string) signin.Owner {
	return signin.Owner{Login: login, UserID: "u1", DisplayName: "Some One", DeviceID: device + "-" + p.ns, DeviceName: device, Tailnet: "example.com"}
}

func newSignin(o signin.Owner, role access.Role, period time.Duration, namespaces ...string) signin.Signin {
	return signin.Signin{Name: o.Name(), Owner: o, Binds: access.Binds{{Role: role, Namespaces: namespaces}}, Period: period, AskedAt: time.Now()}
}

// await waits until is returns true for the sign-in, and returns it.
func (p *env) await(s *Store, name string, is func(signin.Signin, bool) bool) signin.Signin {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), deadline)
	defer cancel()
	var last signin.Signin
	if err := s.Await(ctx, name, func(x signin.Signin, there bool) bool {
		last = x
		return is(x, there)
	}); err != nil {
		p.t.Fatalf("await %s: %v; it is %+v", name, err, last)
	}
	return last
}

func in(state signin.State) func(signin.Signin, bool) bool {
	return func(s signin.Signin, there bool) bool { return there && s.State(time.Now()) == state }
}

func gone(_ signin.Signin, there bool) bool { return !there }

// login stores a sign-in and waits until it is ready.
func (p *env) login(s *Store, want signin.Signin) signin.Signin {
	p.t.Helper()
	if _, err := s.Create(p.t.Context(), want); err != nil {
		p.t.Fatal(err)
	}
	return p.await(s, want.Name, in(signin.Ready))
}

// shorten changes a ready sign-in so that it ends soon, and returns the end. A sign-in that is
// created with so short a period could end before the test sees it ready.
func (p *env) shorten(s *Store, x signin.Signin) time.Time {
	p.t.Helper()
	x.Period, x.AskedAt = p.rules.Min, time.Now()
	x, err := s.Extend(p.t.Context(), p.now(s, x))
	if err != nil {
		p.t.Fatal(err)
	}
	return x.AskedAt.Add(x.Period).Truncate(time.Second)
}

// made lists the objects that give access for the sign-ins of this environment.
func (p *env) made() (accounts []corev1.ServiceAccount, everywhere []rbacv1.ClusterRoleBinding, somewhere []rbacv1.RoleBinding) {
	p.t.Helper()
	var a corev1.ServiceAccountList
	var c rbacv1.ClusterRoleBindingList
	var r rbacv1.RoleBindingList
	for list, opts := range map[client.ObjectList][]client.ListOption{&a: {client.InNamespace(p.ns)}, &c: nil, &r: nil} {
		if err := p.admin.List(p.t.Context(), list, opts...); err != nil {
			p.t.Fatal(err)
		}
	}
	here := func(subjects []rbacv1.Subject) bool {
		for _, s := range subjects {
			if s.Kind == rbacv1.ServiceAccountKind && s.Namespace == p.ns {
				return true
			}
		}
		return false
	}
	for _, x := range a.Items {
		if x.Name != "default" {
			accounts = append(accounts, x)
		}
	}
	for _, x := range c.Items {
		if here(x.Subjects) || x.Labels[v1alpha1.SigninNamespaceLabel] == p.ns {
			everywhere = append(everywhere, x)
		}
	}
	for _, x := range r.Items {
		if here(x.Subjects) || x.Labels[v1alpha1.SigninNamespaceLabel] == p.ns {
			somewhere = append(somewhere, x)
		}
	}
	return accounts, everywhere, somewhere
}

// nothingLeft fails the test if any object of a sign-in remains.
func (p *env) nothingLeft() {
	p.t.Helper()
	accounts, everywhere, somewhere := p.made()
	var list v1alpha1.TkaSigninList
	if err := p.admin.List(p.t.Context(), &list, client.InNamespace(p.ns)); err != nil {
		p.t.Fatal(err)
	}
	if len(accounts)+len(everywhere)+len(somewhere)+len(list.Items) > 0 {
		p.t.Errorf("left: %d ServiceAccounts, %d ClusterRoleBindings, %d RoleBindings, %d sign-ins", len(accounts), len(everywhere), len(somewhere), len(list.Items))
	}
}

// object returns the stored object of a sign-in.
func (p *env) object(name string) *v1alpha1.TkaSignin {
	p.t.Helper()
	o := new(v1alpha1.TkaSignin)
	if err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, o); err != nil {
		p.t.Fatal(err)
	}
	return o
}

// clientFor returns a client that uses a token.
func (p *env) clientFor(token secret.Text) client.Client {
	p.t.Helper()
	c, err := client.New(p.cluster.TokenConfig(token.Reveal()), client.Options{Scheme: p.admin.Scheme(), Mapper: p.admin.RESTMapper()})
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}
