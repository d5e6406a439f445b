//go:build unix

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// A killer is a transport that lets a number of writes succeed and then kills the process: the last
// response is dropped, and no further request is sent. The API server then logs "http: Handler
// timeout" for each request whose client left, which does not mean that it hung. The killer also
// records the slowest response.
type killer struct {
	mu     sync.Mutex
	armed  bool
	left   int
	wrote  []string
	slow   callTimer
	killed chan struct{}
	kill   func()
}

var errKilled = errors.New("the process was killed")

func newKiller(after int) *killer {
	k := &killer{left: after, killed: make(chan struct{})}
	k.kill = sync.OnceFunc(func() { close(k.killed) })
	return k
}

func (k *killer) dead() bool {
	select {
	case <-k.killed:
		return true
	default:
		return false
	}
}

func (k *killer) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(k.slow.wrap)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if k.dead() {
				return nil, errKilled
			}
			if req.Method == http.MethodGet || strings.Contains(req.URL.Path, "/events") || strings.Contains(req.URL.Path, "/leases") {
				return next.RoundTrip(req)
			}
			// Allow one write at a time, so that the n-th write is well defined.
			k.mu.Lock()
			defer k.mu.Unlock()
			if k.dead() {
				return nil, errKilled
			}
			resp, err := next.RoundTrip(req)
			if err != nil || resp.StatusCode >= 300 || !k.armed {
				return resp, err
			}
			k.wrote = append(k.wrote, req.Method+" "+req.URL.Path)
			if k.left--; k.left == 0 {
				k.kill()
				resp.Body.Close()
				return nil, errKilled
			}
			return resp, nil
		})
	})
	return config
}

func (k *killer) arm() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.armed = true
}

func (k *killer) lastWrite() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.wrote) == 0 {
		return "nothing"
	}
	return k.wrote[len(k.wrote)-1]
}

// A callTimer records the slowest request, to show whether the API server hung.
type callTimer struct {
	mu   sync.Mutex
	took time.Duration
	what string
}

func (s *callTimer) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		began := time.Now()
		resp, err := next.RoundTrip(req)
		s.mu.Lock()
		defer s.mu.Unlock()
		if took := time.Since(began); took > s.took {
			s.took, s.what = took, req.Method+" "+req.URL.Path
		}
		return resp, err
	})
}

func (s *callTimer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprintf("%v for %s", s.took.Round(time.Millisecond), s.what)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// newKillable runs the operator and the store as one process: the killer ends both. The returned
// function stops them and waits.
func (p *env) newKillable(k *killer) (s *Store, end func()) {
	p.t.Helper()
	s, err := NewStore(k.wrap(p.accessConfig), p.ns, p.tokenRules(), time.Now)
	if err != nil {
		p.t.Fatal(err)
	}
	o := p.operator(k.wrap(p.operatorConfig))
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(ctx) }) // the error of a killed process has no meaning
	wg.Go(func() { _ = o.Run(ctx) })
	wg.Go(func() {
		select {
		case <-k.killed:
			cancel()
		case <-ctx.Done():
		}
	})
	end = func() { cancel(); wg.Wait() }
	p.t.Cleanup(end)
	p.until("operator and store at work", func() bool { return s.Synced() && o.Synced() })
	return s, end
}

// login does what the service does, once: create, extend or replace.
func login(ctx context.Context, s *Store, want signin.Signin) error {
	have, err := s.Get(ctx, want.Name)
	if err == nil && !have.Deleting && have.Binds.Equal(want.Binds) && have.Phase != signin.PhaseExpired {
		have.Period, have.AskedAt = want.Period, want.AskedAt
		_, err = s.Extend(ctx, have)
		return err
	}
	if err == nil {
		if !have.Deleting {
			if err := s.Delete(ctx, have); err != nil && !errors.Is(err, signin.ErrNotFound) {
				return err
			}
		}
		if err := s.Await(ctx, have.Name, func(x signin.Signin, there bool) bool { return !there || x.UID != have.UID }); err != nil {
			return err
		}
	} else if !errors.Is(err, signin.ErrNotFound) {
		return err
	}
	_, err = s.Create(ctx, want)
	return err
}

// invariants returns what is wrong now: a binding or account without a live sign-in, or a ready
// sign-in without them.
func (p *env) invariants() error { return p.invariantsAt(time.Now()) }

// invariantsAt is like invariants, with another clock.
func (p *env) invariantsAt(now time.Time) error {
	p.t.Helper()
	// This order matters: the operator creates objects after their sign-in and deletes them before
	// it.
	accounts, everywhere, somewhere := p.made()
	var list v1alpha1.TkaSigninList
	if err := p.admin.List(p.t.Context(), &list, client.InNamespace(p.ns)); err != nil {
		p.t.Fatal(err)
	}
	bindings := map[string]int{}
	for _, b := range everywhere {
		bindings[b.Labels[v1alpha1.SigninUIDLabel]]++
	}
	for _, b := range somewhere {
		bindings[b.Labels[v1alpha1.SigninUIDLabel]]++
	}
	owned := map[string]int{}
	for _, a := range accounts {
		owned[a.Labels[v1alpha1.SigninUIDLabel]]++
	}
	var errs []error
	for _, o := range list.Items {
		uid := string(o.UID)
		s := signinOf(&o)
		want := 0
		switch {
		case s.State(now) == signin.Ready:
			want = 1
		case s.Phase == signin.PhaseRefused && s.ObservedGeneration == s.Generation, s.Phase == signin.PhaseExpired && len(s.Bound) == 0:
		default:
			errs = append(errs, fmt.Errorf("%s is at no rest: %s", s.Name, s.State(now)))
			continue
		}
		perNamespace := 0
		for _, b := range s.Bound {
			perNamespace += max(1, len(b.Namespaces))
		}
		if owned[uid] != want || bindings[uid] != want*perNamespace {
			errs = append(errs, fmt.Errorf("%s is %s with %d accounts and %d bindings", s.Name, s.Phase, owned[uid], bindings[uid]))
		}
		delete(owned, uid)
		delete(bindings, uid)
	}
	if len(owned)+len(bindings) > 0 {
		errs = append(errs, fmt.Errorf("without a sign-in: %d accounts, %d bindings", len(owned), len(bindings)))
	}
	return errors.Join(errs...)
}

// SGN-08, SI-06: For each operation, the process is killed after its first, second, ... last write
// and restarted. It reaches a stable state without extra objects. The person tries again, and the
// result is the same.
func TestKilledAfterEveryWrite(t *testing.T) {
	const view, edit = access.Role("view"), access.Role("edit")
	type scene struct {
		p     *env
		s     *Store
		owner signin.Owner
	}
	ready := func(role access.Role) func(signin.Signin, bool) bool {
		return func(s signin.Signin, there bool) bool {
			return there && s.State(time.Now()) == signin.Ready && s.Bound.Role() == role
		}
	}
	two := []string{"default", "kube-public"}
	tests := []struct {
		name    string
		setting func(*env)
		before  func(context.Context, scene) error // runs without the killer
		during  func(context.Context, scene) error // runs with the killer, and again after the kill
		after   func(signin.Signin, bool) bool     // the expected result
		later   time.Duration                      // how far the clock is ahead from then on
	}{
		{name: "login", after: ready(view),
			during: func(ctx context.Context, c scene) error { return login(ctx, c.s, newSignin(c.owner, view, time.Hour)) }},
		{name: "login in namespaces", after: ready(view),
			during: func(ctx context.Context, c scene) error {
				return login(ctx, c.s, newSignin(c.owner, view, time.Hour, two...))
			}},
		{name: "login with several roles", after: ready("view,edit"),
			during: func(ctx context.Context, c scene) error {
				return login(ctx, c.s, withBinds(c.owner, access.Bind{Role: view}, access.Bind{Role: edit, Namespaces: two}))
			}},
		{name: "fewer roles", after: ready(view),
			before: func(ctx context.Context, c scene) error {
				return login(ctx, c.s, withBinds(c.owner, access.Bind{Role: view}, access.Bind{Role: edit, Namespaces: two}))
			},
			during: func(ctx context.Context, c scene) error { return login(ctx, c.s, newSignin(c.owner, view, time.Hour)) }},
		{name: "extend", after: func(s signin.Signin, there bool) bool {
			return ready(view)(s, there) && time.Until(s.ValidUntil) > 90*time.Minute
		},
			before: func(ctx context.Context, c scene) error { return login(ctx, c.s, newSignin(c.owner, view, time.Hour)) },
			during: func(ctx context.Context, c scene) error {
				return login(ctx, c.s, newSignin(c.owner, view, 2*time.Hour))
			}},
		{name: "replace", after: ready(edit),
			before: func(ctx context.Context, c scene) error { return login(ctx, c.s, newSignin(c.owner, view, time.Hour)) },
			during: func(ctx context.Context, c scene) error { return login(ctx, c.s, newSignin(c.owner, edit, time.Hour)) }},
		{name: "logout", after: gone,
			before: func(ctx context.Context, c scene) error {
				return login(ctx, c.s, newSignin(c.owner, view, time.Hour, two...))
			},
			during: func(ctx context.Context, c scene) error {
				x, err := c.s.Get(ctx, c.owner.Name())
				if err == nil {
					err = c.s.Delete(ctx, x)
				}
				if errors.Is(err, signin.ErrNotFound) {
					return nil
				}
				return err
			}},
		{name: "expiry", after: gone, later: time.Hour, setting: func(p *env) { p.rules.KeepExpired = time.Second },
			before: func(ctx context.Context, c scene) error { return login(ctx, c.s, newSignin(c.owner, view, time.Hour)) },
			during: func(context.Context, scene) error { return nil }},
		{name: "role taken off the list", after: in(signin.Refused),
			setting: func(p *env) { p.rules.Roles = []access.Role{"edit"} },
			before: func(ctx context.Context, c scene) error {
				// This is the state that an operator leaves that allowed the role.
				p := *c.p
				p.rules.Roles = []access.Role{"view"}
				stop := p.operate()
				defer stop()
				if err := login(ctx, c.s, newSignin(c.owner, view, time.Hour)); err != nil {
					return err
				}
				p.await(c.s, c.owner.Name(), in(signin.Ready))
				return nil
			},
			during: func(context.Context, scene) error { return nil }},
		{name: "sweep", after: gone,
			before: func(ctx context.Context, c scene) error {
				// This is the state after a user removed a sign-in by force.
				return c.p.orphan(ctx, c.owner.Name())
			},
			during: func(context.Context, scene) error { return nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newEnv(t)
			if tt.setting != nil {
				tt.setting(p)
			}
			for n := 1; ; n++ {
				if n > 20 {
					t.Fatal("more than 20 writes")
				}
				if survived := func() bool {
					ctx, cancel := context.WithTimeout(t.Context(), deadline)
					defer cancel()
					c := scene{p: p, owner: p.owner(fmt.Sprintf("alice-%d@a.example", n), "laptop")}

					// Without the killer.
					p.ahead = 0
					if tt.before != nil {
						peace := newKiller(0)
						s, end := (*Store)(nil), func() {}
						if tt.name == "role taken off the list" {
							s, end = p.open()
						} else if tt.name != "sweep" {
							s, end = p.newKillable(peace)
						}
						c.s = s
						if err := tt.before(ctx, c); err != nil {
							t.Fatal(err)
						}
						if s != nil {
							p.await(s, c.owner.Name(), in(signin.Ready))
						}
						end()
					}

					// With the killer.
					p.ahead = tt.later
					k := newKiller(n)
					k.arm()
					s, end := p.newKillable(k)
					c.s = s
					life, die := context.WithCancel(ctx)
					done := make(chan error, 1)
					go func() { done <- tt.during(life, c) }()
					p.until("killed, or done", func() bool {
						if k.dead() {
							return true
						}
						x, err := p.readState(c.owner.Name())
						return tt.after(x, err == nil) && p.invariants() == nil
					})
					killed := k.dead()
					if killed {
						die()
					}
					end()
					if err := <-done; err != nil && !killed {
						t.Fatal(err)
					}
					die()
					if killed {
						t.Logf("killed after write %d, %s; the slowest answer took %v", n, k.lastWrite(), &k.slow)
					}

					// Again, without the killer.
					s, end = p.newKillable(newKiller(0))
					defer end()
					c.s = s
					var rest error
					p.until("rest", func() bool { rest = p.invariants(); return rest == nil })
					for {
						err := tt.during(ctx, c)
						if err == nil {
							break
						}
						if !errors.Is(err, signin.ErrConflict) && !errors.Is(err, signin.ErrExists) && !errors.Is(err, signin.ErrNotFound) {
							t.Fatalf("again, after write %d: %v", n, err)
						}
					}
					p.await(s, c.owner.Name(), tt.after)
					p.until("rest with the outcome", func() bool { rest = p.invariants(); return rest == nil })
					if x, err := s.Get(ctx, c.owner.Name()); err == nil {
						if err := s.Delete(ctx, x); err != nil && !errors.Is(err, signin.ErrNotFound) {
							t.Fatal(err)
						}
						p.await(s, c.owner.Name(), gone)
					}
					p.nothingLeft()
					return !killed
				}(); survived {
					t.Logf("%d writes", n-1)
					if n == 1 {
						t.Error("nothing was written: nothing was tested")
					}
					return
				}
			}
		})
	}
}

// readState reads a sign-in without the store, so that the killer does not count the request.
func (p *env) readState(name string) (signin.Signin, error) {
	o := new(v1alpha1.TkaSignin)
	if err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, o); err != nil {
		return signin.Signin{}, err
	}
	return signinOf(o), nil
}

// orphan creates the objects of a sign-in that does not exist.
func (p *env) orphan(ctx context.Context, name string) error {
	labels := map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: p.ns, v1alpha1.SigninUIDLabel: "7e2b0f6e-0000-4000-8000-" + p.ns[2:] + "0000000"}
	m := metav1.ObjectMeta{Name: signin.BindingName(name), Labels: labels}
	inside := m
	inside.Namespace = "default"
	account := metav1.ObjectMeta{Namespace: p.ns, Name: name, Labels: labels}
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: p.ns, Name: name}}
	return errors.Join(
		p.admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: account}),
		p.admin.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: m, RoleRef: role, Subjects: subjects}),
		p.admin.Create(ctx, &rbacv1.RoleBinding{ObjectMeta: inside, RoleRef: role, Subjects: subjects}),
	)
}

// When all work is done, the operator is idle: it sends no requests and retries nothing. In TKA,
// the queue keeps an item that fails forever after each logout.
func TestQueueIsIdle(t *testing.T) {
	p := newEnv(t)
	p.rules.KeepExpired = time.Second
	count := &counter{}
	p.operatorConfig = count.wrap(p.operatorConfig)
	p.operate()
	s, _ := p.open()
	for i := range 5 {
		x := p.login(s, newSignin(p.owner(fmt.Sprint("out", i, "@a.example"), "laptop"), "view", time.Hour))
		if err := s.Delete(t.Context(), x); err != nil {
			t.Fatal(err)
		}
		p.await(s, x.Name, gone)
		over := p.login(s, newSignin(p.owner(fmt.Sprint("over", i, "@a.example"), "laptop"), "view", time.Hour))
		p.shorten(s, over)
		p.await(s, over.Name, gone)
	}
	p.nothingLeft()
	// The first retries come after 20, 40, 80 ... milliseconds, so a failing item sends a request
	// within two seconds.
	last, since := count.now(), time.Now()
	p.until("two seconds without a request", func() bool {
		if n := count.now(); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
}

// A counter counts requests, except those for leader election and events.
type counter struct {
	writes bool // count writes only
	mu     sync.Mutex
	n      int
}

func (c *counter) now() int { c.mu.Lock(); defer c.mu.Unlock(); return c.n }

func (c *counter) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if !strings.Contains(req.URL.Path, "/events") && !strings.Contains(req.URL.Path, "/leases") && (!c.writes || req.Method != http.MethodGet) {
				c.mu.Lock()
				c.n++
				c.mu.Unlock()
			}
			return next.RoundTrip(req)
		})
	})
	return config
}

// blackhole records writes that the API server or the client gave up after a time limit. They may
// still be stored later, whatever was decided in the meantime.
type blackhole struct {
	mu    sync.Mutex
	paths map[string]bool
}

func (u *blackhole) wrap(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			res, err := next.RoundTrip(req)
			if req.Method != http.MethodGet && (os.IsTimeout(err) || err == nil && res.StatusCode == http.StatusGatewayTimeout) {
				u.mu.Lock()
				u.paths[req.URL.Path] = true
				u.mu.Unlock()
			}
			return res, err
		})
	})
	return config
}

// binding reports whether the creation of a binding in a namespace was given up.
func (u *blackhole) binding(namespace string) bool {
	path := "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
	if namespace != "" {
		path = "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/rolebindings"
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.paths[path]
}
