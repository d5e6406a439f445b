package signin_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

var guardPolicy = access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view", "edit"}, Min: access.MinPeriod, Max: 24 * time.Hour,
	Reserved: []string{"tailplane-signins"}, Proxies: []access.Tag{"tag:proxy"}}

func guarded(login, device string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), UserID: "1", Device: access.Device{ID: device, Name: device + ".tiny.ts.net"}, Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

func live(c access.Caller, role access.Role, at time.Time) signin.Signin {
	o := signin.OwnerOf(c, "")
	return signin.Signin{Name: o.Name(), UID: "uid-" + o.Name(), Owner: o, Binds: access.Binds{{Role: role}}, Period: 8 * time.Hour, AskedAt: at, Created: at,
		Generation: 1, Report: signin.Report{Phase: signin.PhaseReady, ValidUntil: at.Add(8 * time.Hour), ObservedGeneration: 1}}
}

const eightHours = `{"role":"view","period":"8h"}`

// Section 2.5: The changes that end a sign-in without a request, and those that do not.
func TestRecheck(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	alice := guarded("alice@example.com", "n1", eightHours)
	with := func(f func(*access.Caller)) access.Caller { c := alice; f(&c); return c }
	rules := func(rs ...string) access.Caller { return guarded("alice@example.com", "n1", rs...) }
	s := live(alice, "view", t0)
	narrow := s
	narrow.Binds = access.Binds{{Role: narrow.Binds[0].Role, Namespaces: []string{"shop"}}}
	const confirm = 30 * time.Second
	for _, tt := range []struct {
		name   string
		s      signin.Signin
		seen   signin.DeviceState
		end    string // part of the reason; "": the sign-in stays
		period time.Duration
	}{
		{"still granted", s, signin.DeviceState{Caller: alice}, "", 0},
		{"by another rule of the role", s, signin.DeviceState{Caller: rules(`{"role":"view","period":"9h","priority":3}`)}, "", 0},
		{"a longer period changes nothing", s, signin.DeviceState{Caller: rules(`{"role":"view","period":"20h"}`)}, "", 0},
		{"an additional better role changes nothing", s, signin.DeviceState{Caller: rules(eightHours, `{"role":"edit","period":"1h","priority":9}`)}, "", 0},
		{"a tie with another role does not end the sign-in", s, signin.DeviceState{Caller: rules(eightHours, `{"role":"edit","period":"8h"}`)}, "", 0},
		{"role gone", s, signin.DeviceState{Caller: rules(`{"role":"edit","period":"8h"}`)}, "no longer granted", 0},
		{"grant gone", s, signin.DeviceState{Caller: rules()}, "no longer granted", 0},
		{"narrowed to a namespace", s, signin.DeviceState{Caller: rules(`{"role":"view","period":"8h","namespaces":["shop"]}`)}, "no longer granted", 0},
		{"narrowed, and it was as narrow", narrow, signin.DeviceState{Caller: rules(`{"role":"view","period":"8h","namespaces":["shop","jobs"]}`)}, "", 0},
		{"moved to another namespace", narrow, signin.DeviceState{Caller: rules(`{"role":"view","period":"8h","namespaces":["jobs"]}`)}, "no longer granted", 0},
		{"shorter", s, signin.DeviceState{Caller: rules(`{"role":"view","period":"2h"}`)}, "", 2 * time.Hour},
		{"shorter than the server's minimum", s, signin.DeviceState{Caller: rules(`{"role":"view","period":"5m"}`)}, "shortest period", 0},
		{"two rules, the longer one applies", s, signin.DeviceState{Caller: rules(`{"role":"view","period":"2h"}`, eightHours)}, "", 0},
		{"two rules, the higher priority applies", s, signin.DeviceState{Caller: rules(`{"role":"view","period":"2h","priority":1}`, eightHours)}, "", 2 * time.Hour},
		{"a typing error withdraws nothing", s, signin.DeviceState{Caller: rules(`{"role":"view","perod":"8h"}`)}, "", 0},
		{"expired key", s, signin.DeviceState{Caller: with(func(c *access.Caller) { c.Expired = true })}, "has expired", 0},
		{"tagged now", s, signin.DeviceState{Caller: with(func(c *access.Caller) { c.Login, c.Tags = "", []access.Tag{"tag:ci"} })}, "now belongs to node:n1.tiny.ts.net", 0},
		{"another person's now", s, signin.DeviceState{Caller: guarded("bob@example.com", "n1", eightHours)}, "now belongs to bob@example.com", 0},
		{"shared in now", s, signin.DeviceState{Caller: with(func(c *access.Caller) { c.Shared = true })}, "no longer granted", 0},
		{"not signed by the tailnet's lock", s, signin.DeviceState{Caller: with(func(c *access.Caller) { c.Via = access.ViaFunnel })}, "", 0},
		{"missing for the first time", s, signin.DeviceState{Missing: true}, "", 0},
		{"missing not long enough", s, signin.DeviceState{Missing: true, MissingFor: confirm - 1}, "", 0},
		{"missing", s, signin.DeviceState{Missing: true, MissingFor: confirm}, "no longer in the tailnet", 0},
		{"ending already", func() signin.Signin { e := s; e.Deleting = true; return e }(), signin.DeviceState{Missing: true, MissingFor: time.Hour}, "", 0},
		{"ended already", func() signin.Signin { e := s; e.ValidUntil = t0; return e }(), signin.DeviceState{Caller: rules()}, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := signin.Recheck(tt.s, tt.seen, guardPolicy, confirm, t0)
			switch {
			case f.End != (tt.end != ""):
				t.Errorf("f.End = %v, want %v", f.End, (tt.end != ""))
			case !strings.Contains(f.Reason, tt.end):
				t.Errorf("f.Reason = %q does not contain %q", f.Reason, tt.end)
			case f.Period != tt.period:
				t.Errorf("f.Period = %v, want %v", f.Period, tt.period)
			}
		})
	}
}

// A guardStore is a store in memory.
type guardStore struct {
	mu      sync.Mutex
	all     map[string]signin.Signin
	unknown bool
	err     error
}

func (k *guardStore) All() ([]signin.Signin, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Values(k.all)), !k.unknown
}
func (k *guardStore) Extend(_ context.Context, s signin.Signin) (signin.Signin, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[s.Name] = s
	return s, k.err
}
func (k *guardStore) Delete(_ context.Context, s signin.Signin) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		delete(k.all, s.Name)
	}
	return k.err
}
func (k *guardStore) has(s signin.Signin) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, there := k.all[s.Name]
	return there
}

// A tailnet is a fake tailnet for a Guard.
type tailnet struct {
	mu      sync.Mutex
	devices map[string]access.Caller
	down    error
	changed chan struct{}
	checks  int
	read    func() // called after each reading, with mu held
}

func (n *tailnet) Devices(_ context.Context, ids ...string) (map[string]access.Caller, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checks++
	found := map[string]access.Caller{}
	for _, id := range ids {
		if c, ok := n.devices[id]; ok {
			found[id] = c
		}
	}
	if n.read != nil {
		n.read()
	}
	return found, n.down
}
func (n *tailnet) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}
func (n *tailnet) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
}

// SGN-11, with a fake clock.
func TestGuard(t *testing.T) {
	alice, bob := guarded("alice@example.com", "n1", eightHours), guarded("bob@example.com", "n2", eightHours)
	const interval = 30 * time.Second
	type guardEnv struct {
		*guardStore
		*tailnet
		a, b     signin.Signin
		reported []string
	}
	run := func(name string, f func(*testing.T, *guardEnv)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &guardEnv{a: live(alice, "view", time.Now()), b: live(bob, "view", time.Now())}
				w.guardStore = &guardStore{all: map[string]signin.Signin{w.a.Name: w.a, w.b.Name: w.b}}
				w.tailnet = &tailnet{devices: map[string]access.Caller{"n1": alice, "n2": bob}, changed: make(chan struct{})}
				g := &signin.Guard{Store: w.guardStore, Devices: w.Devices, Changed: w.Changed, Tailnet: func() string { return "example.com" },
					Policy: guardPolicy, Interval: interval, Log: slog.New(slog.DiscardHandler), Now: time.Now,
					Report: func(s signin.Signin, f signin.CheckResult) {
						w.reported = append(w.reported, s.Owner.Login+": "+f.Reason)
					}}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- g.Run(ctx) }()
				time.Sleep(time.Second)
				f(t, w)
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
	want := func(t *testing.T, w *guardEnv, a, b bool) {
		t.Helper()
		synctest.Wait() // the guard sleeps, so its writes can be read
		if w.has(w.a) != a || w.has(w.b) != b {
			t.Errorf("alice %v, bob %v; want %v, %v; logged %q", w.has(w.a), w.has(w.b), a, b, w.reported)
		}
	}
	run("nothing changes", func(t *testing.T, w *guardEnv) {
		time.Sleep(time.Hour)
		want(t, w, true, true)
		switch {
		case len(w.reported) != 0:
			t.Errorf("logged: len(w.reported) = %v, want 0", len(w.reported))
		case w.checks < 100:
			t.Errorf("logged: w.checks = %v, want at least 100", w.checks)
		case w.checks > 130:
			t.Errorf("logged: w.checks = %v, want at most 130", w.checks)
		}
	})
	run("a grant is removed", func(t *testing.T, w *guardEnv) {
		w.change(func() { w.devices["n1"] = guarded("alice@example.com", "n1") })
		time.Sleep(time.Second)
		want(t, w, false, true)
		if len(w.reported) != 1 || !strings.Contains(w.reported[0], "alice@example.com") {
			t.Errorf("logged %q", w.reported)
		}
	})
	run("all grants are removed", func(t *testing.T, w *guardEnv) {
		before := 0
		w.change(func() {
			before = w.checks
			w.devices["n1"], w.devices["n2"] = guarded("alice@example.com", "n1"), guarded("bob@example.com", "n2")
		})
		time.Sleep(time.Second)
		want(t, w, false, false)
		if n := w.checks - before; n != 2 {
			t.Errorf("the guard read the devices %d times, want twice for any number of sign-ins that end", n)
		}
	})
	run("a grant is removed without a notification", func(t *testing.T, w *guardEnv) {
		w.setQuietly(func() { w.devices["n1"] = guarded("alice@example.com", "n1") })
		time.Sleep(interval)
		want(t, w, false, true)
	})
	run("a shorter period", func(t *testing.T, w *guardEnv) {
		w.change(func() { w.devices["n1"] = guarded("alice@example.com", "n1", `{"role":"view","period":"1h"}`) })
		time.Sleep(time.Second)
		all, _ := w.All()
		for _, s := range all {
			if want := map[string]time.Duration{"alice@example.com": time.Hour, "bob@example.com": 8 * time.Hour}[s.Owner.Login]; s.Period != want || !s.AskedAt.Equal(w.a.AskedAt) {
				t.Errorf("%s has %v from %v", s.Owner.Login, s.Period, s.AskedAt)
			}
		}
	})
	run("a device is deleted", func(t *testing.T, w *guardEnv) {
		w.change(func() { delete(w.devices, "n1") })
		time.Sleep(interval / 2)
		want(t, w, true, true)
		time.Sleep(interval/2 + time.Second)
		want(t, w, false, true)
	})
	run("a device leaves while its grants are read", func(t *testing.T, w *guardEnv) {
		w.change(func() {
			w.devices["n1"] = guarded("alice@example.com", "n1")
			w.read = func() { delete(w.devices, "n1") }
		})
		time.Sleep(interval / 2)
		want(t, w, true, true)
		time.Sleep(interval/2 + time.Second)
		want(t, w, false, true)
		if len(w.reported) != 1 || !strings.Contains(w.reported[0], "no longer in the tailnet") {
			t.Errorf("reported %q", w.reported)
		}
	})
	run("a device is missing and comes back", func(t *testing.T, w *guardEnv) {
		for range 10 {
			w.change(func() { delete(w.devices, "n1") })
			time.Sleep(interval - time.Second)
			w.change(func() { w.devices["n1"] = alice })
			time.Sleep(2 * time.Second)
		}
		want(t, w, true, true)
	})
	run("the backend is stopped", func(t *testing.T, w *guardEnv) {
		w.change(func() {
			w.devices, w.down = nil, problem.New(problem.IdentityUnavailable, "the node is Stopped")
		})
		time.Sleep(5 * time.Minute)
		want(t, w, true, true)
		// The tailnet is reachable again, and grants revoked in the meantime take effect.
		w.change(func() {
			w.devices, w.down = map[string]access.Caller{"n1": alice, "n2": guarded("bob@example.com", "n2")}, nil
		})
		time.Sleep(time.Second)
		want(t, w, true, false)
	})
	run("the time of not knowing is no time of being missing", func(t *testing.T, w *guardEnv) {
		w.change(func() { delete(w.devices, "n1") })
		time.Sleep(time.Second)
		w.change(func() { w.down = errors.New("WhoIs fails") })
		time.Sleep(5 * time.Minute)
		want(t, w, true, true)
		w.change(func() { w.down = nil })
		time.Sleep(interval / 2)
		want(t, w, true, true)
		time.Sleep(interval/2 + 2*time.Second)
		want(t, w, false, true)
	})
	run("the cache is not filled", func(t *testing.T, w *guardEnv) {
		w.guardStore.mu.Lock()
		w.unknown = true
		w.guardStore.mu.Unlock()
		w.change(func() { w.devices = map[string]access.Caller{} })
		time.Sleep(5 * time.Minute)
		want(t, w, true, true)
	})
	run("the cluster does not do it", func(t *testing.T, w *guardEnv) {
		w.guardStore.mu.Lock()
		w.err = errors.New("the API server is down")
		w.guardStore.mu.Unlock()
		w.change(func() { w.devices["n1"] = guarded("alice@example.com", "n1") })
		time.Sleep(interval * 2)
		want(t, w, true, true)
		if len(w.reported) != 0 {
			t.Errorf("logged %q", w.reported)
		}
		w.guardStore.mu.Lock()
		w.err = nil
		w.guardStore.mu.Unlock()
		time.Sleep(6 * time.Second)
		want(t, w, false, true)
	})
	run("a sign-in through another tailnet", func(t *testing.T, w *guardEnv) {
		other := guarded("carol@other.example", "n9", eightHours)
		other.Tailnet = "other.example"
		s := live(other, "view", time.Now())
		w.guardStore.mu.Lock()
		w.all[s.Name] = s
		w.guardStore.mu.Unlock()
		time.Sleep(time.Hour)
		if !w.has(s) {
			t.Error("it was ended by a server that cannot see its device")
		}
	})
}

func (n *tailnet) setQuietly(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}
