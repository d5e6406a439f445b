//go:build unix

package dashboard_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/web"
	"github.com/tailplane/tailplane/internal/problem"
)

// An env is the plane on loopback: the real service, store and pages behind a real HTTP server. The test sets the
// caller, because there is no tailnet here.
type env struct {
	board *plane.Store
	url   string // URL of the dashboard
	acts  string // of the actions that the browser's script can request from the test

	serve func(net.Listener) (stop func() error)

	mu      sync.Mutex
	stop    func() error // of the dashboard; nil while it is stopped
	caller  access.Caller
	entries []audit.Entry
	trail   audit.Recent // the recent audit log entries
	revoked []string
	streams openStreams
	replays []string
	confirm string // the confirmation page of alice's last request

	config *configuration
	enroll *plane.EnrollmentService
}

const capability = "tailplane.dev/cap/plane"

func open(t *testing.T) *env {
	t.Helper()
	h := &env{board: plane.NewStore(time.Now), caller: somebody("alice")}
	proxies := h.proxies()
	desk := plane.Service{Store: h.board, Now: time.Now, Version: "v0", Commit: "0", Ready: func() bool { return true }, RevokeSignin: h.revoke, AccessProxies: func() []plane.AccessProxy { return proxies }, Recorder: h.recorder(), AuditEntries: h.newest, RecentAudit: &h.trail, Exposures: func() []plane.Exposure {
		return []plane.Exposure{{Name: "grafana", Address: new("https://grafana.tail1234.ts.net"), Access: "observe.read", Source: "exposure:grafana"}}
	}}
	h.board.Report(plane.Source{Name: "exposure:grafana", Status: plane.StatusOK})
	fleet := plane.FleetService{Plane: &desk, CreateHold: h.pause, LiftHold: h.lift, RescheduleHold: h.reschedule, IgnoreDrift: h.ignore, RefreshDrift: func() []plane.Look {
		return []plane.Look{{Source: "gitops:drift", Triggered: true, Message: "The comparison starts now."}}
	}}
	h.config = h.configured(t, &desk)
	h.enroll = &plane.EnrollmentService{Plane: &desk, Changes: h.config.desk}
	jobs, meter := h.jobs(t, &desk)
	site := web.Site{Overview: desk.GetOverview, Now: time.Now, Capability: capability, Contact: "#platform"}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &httpapi.Server{
		Names:    func() []string { return []string{"127.0.0.1"} },
		Identify: func(*http.Request) (access.Caller, error) { return h.who(), nil },
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, access.PlanePolicy{Capability: capability, Contact: "#platform"}, now)
		},
		Record: h.record, Encoder: site.Form(plane.EnvelopeForm()), Log: slog.New(slog.DiscardHandler), Now: time.Now,
	}
	h.serve = func(ln net.Listener) (stop func() error) {
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() {
			served <- d.Run(ctx, ln, nil, slices.Concat(desk.Routes(), fleet.Routes(), jobs.Routes(), meter.Routes(), h.config.desk.Routes(), h.enroll.Routes(), site.Routes())...)
		}()
		return func() error { cancel(); return <-served }
	}
	h.stop = h.serve(ln)
	acts := httptest.NewServer(h.acting())
	t.Cleanup(func() {
		acts.Close()
		if err := h.leave(); err != nil {
			t.Error(err)
		}
	})
	h.url, h.acts = "http://"+ln.Addr().String(), acts.URL
	h.fill()
	h.proposeSome(t)
	return h
}

// leave stops the dashboard.
func (h *env) leave() error {
	h.mu.Lock()
	stop := h.stop
	h.stop = nil
	h.mu.Unlock()
	if stop == nil {
		return nil
	}
	return stop()
}

// back serves it again at the same address.
func (h *env) back() error {
	ln, err := net.Listen("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stop = h.serve(ln)
	return nil
}

// acting returns the handler for actions that the browser's script requests from the test.
func (h *env) acting() http.Handler {
	change := func(f func()) func() error { return func() error { f(); return nil } }
	acts := map[string]func() error{
		"leave": h.leave,
		"serve": h.back,
		"dead":  change(func() { h.board.Set(plane.KindCluster, "gossip", cluster("prod-us", "Dead", false)) }),
		"back":  change(func() { h.board.Set(plane.KindCluster, "gossip", cluster("prod-us", "Alive", false)) }),
		"new":   change(func() { h.board.Set(plane.KindCluster, "gossip", cluster("aaa-new", "Alive", false)) }),
		"gone":  change(func() { h.board.Delete(plane.KindCluster, "aaa-new") }),
		"down": change(func() {
			h.board.Report(plane.Source{Name: "kubernetes", Status: plane.StatusDown, Message: "The API server does not respond."})
		}),
		"up": change(func() { h.board.Report(plane.Source{Name: "kubernetes", Status: plane.StatusOK}) }),
		"unexposed": change(func() {
			h.board.Report(plane.Source{Name: "exposure:grafana", Status: plane.StatusDown, Message: "Nothing answers at its upstream."})
		}),
		"exposed": change(func() { h.board.Report(plane.Source{Name: "exposure:grafana", Status: plane.StatusOK}) }),
		"hostile": change(h.hostile),
		"many":    change(func() { h.board.Replace(plane.KindSignin, "kubernetes", manySignins(2000)) }),
		"asked":   h.asked,
		"lifted":  change(func() { h.board.Delete(plane.KindHold, "all-1") }),
		"alice":   change(func() { h.as(somebody("alice")) }),
		"amy":     change(func() { h.as(somebody("amy")) }),
		"gus":     change(func() { h.as(somebody("gus")) }),
		"pat":     change(func() { h.as(somebody("pat")) }),
		"vic":     change(func() { h.as(somebody("vic")) }),
		"paula":   change(func() { h.as(somebody("paula")) }),
		"byplane": h.byPlane,
		"mallory": change(func() { h.as(person("mallory<b>@acme.dev")) }),
		"push":    h.config.push,
		"edit":    h.config.edit,
		"apply":   h.config.apply,
		"away":    change(h.config.away),
		"there":   change(h.config.there),
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{act}", func(w http.ResponseWriter, r *http.Request) {
		act := acts[r.PathValue("act")]
		if act == nil {
			http.Error(w, "unknown action", http.StatusNotFound)
			return
		}
		if err := act(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /confirm", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		_ = json.NewEncoder(w).Encode(h.confirm)
	})
	mux.HandleFunc("GET /holds", func(w http.ResponseWriter, _ *http.Request) {
		names := []string{}
		for _, o := range h.board.List(plane.KindHold).Objects {
			if hold, ok := o.(plane.Hold); ok {
				names = append(names, hold.Scope.String()+" by "+hold.RequestedBy+": "+hold.Reason)
			}
		}
		_ = json.NewEncoder(w).Encode(names)
	})
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(h.config.onMain())
	})
	mux.HandleFunc("GET /cuts", func(w http.ResponseWriter, _ *http.Request) {
		h.streams.mu.Lock()
		defer h.streams.mu.Unlock()
		_ = json.NewEncoder(w).Encode(slices.Concat([]string{}, h.streams.cuts))
	})
	mux.HandleFunc("GET /replays", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		_ = json.NewEncoder(w).Encode(slices.Concat([]string{}, h.replays))
	})
	mux.HandleFunc("GET /revoked", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		_ = json.NewEncoder(w).Encode(slices.Concat([]string{}, h.revoked))
	})
	return mux
}

// asked lifts the hold of everything in alice's name, as an assistant would, and stores the confirmation page that it
// gets.
func (h *env) asked() error {
	h.as(somebody("alice"))
	h.board.Set(plane.KindHold, "kubernetes", holding("all-1", plane.Scope{All: true}, plane.ModePause, "node upgrade", "alice@acme.dev", plane.HoldApplied))
	c := httpapi.Client{HTTP: http.DefaultClient, Base: h.url, Open: plane.ParseEnvelope}
	_, err := plane.LiftHold.Call(context.Background(), c, plane.LiftRequest{Name: "all-1", Reason: "the job's log says so"})
	p, ok := errors.AsType[*problem.Error](err)
	if !ok || p.Confirm == nil {
		return fmt.Errorf("no confirmation was required: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.confirm = p.Confirm.Path
	return nil
}

func (h *env) who() access.Caller {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.caller
}

func (h *env) as(c access.Caller) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.caller = c
}

func (h *env) record(e audit.Entry) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entries = append(h.entries, e)
	h.trail.Add(e)
	return nil
}

func (h *env) newest(_ context.Context, yield func(plane.AuditEntry) bool) (int, error) {
	h.mu.Lock()
	entries := slices.Clone(h.entries)
	h.mu.Unlock()
	for i, e := range slices.Backward(entries) {
		if !yield(plane.AuditEntry{Entry: e, Seq: uint64(i + 1)}) {
			break
		}
	}
	return 0, nil
}

// revoke does the same as plane/kube, but only in the store, because there is no cluster here.
func (h *env) revoke(_ context.Context, p access.Permit, namespace, name, reason string, dryRun bool) (plane.Revocation, error) {
	if err := p.Require(access.SigninsRevoke, time.Now()); err != nil {
		return plane.Revocation{}, err
	}
	id := namespace + "/" + name
	if _, ok := h.board.Get(plane.KindSignin, id); !ok {
		return plane.Revocation{}, problem.New(problem.NotFound, "There is no such sign-in.")
	}
	if !dryRun {
		h.board.Delete(plane.KindSignin, id)
		h.mu.Lock()
		defer h.mu.Unlock()
		h.revoked = append(h.revoked, id+": "+reason)
	}
	return plane.Revocation{Deleted: !dryRun, RefusedBy: new(time.Now().Add(10 * time.Second))}, nil
}

// pause and lift do the same as plane/kube, but only in the store.
func (h *env) pause(_ context.Context, p access.Permit, d plane.HoldDraft, dryRun bool) (plane.Hold, bool, error) {
	if err := p.Require(access.HoldsCreate, time.Now()); err != nil {
		return plane.Hold{}, false, err
	}
	hold := holding(d.Name, d.Scope, d.Mode, d.Reason, p.Caller().Identity(), plane.HoldApplying)
	hold.ExpiresAt, hold.Digest = d.ExpiresAt, d.Digest
	if !dryRun {
		h.board.Set(plane.KindHold, "kubernetes", hold)
	}
	return hold, true, nil
}

func (h *env) lift(_ context.Context, p access.Permit, hold plane.Hold, dryRun bool) error {
	if err := p.Require(access.HoldsLift, time.Now()); err != nil {
		return err
	}
	if _, there := h.board.Get(plane.KindHold, hold.Name); !there {
		return problem.New(problem.NotFound, "The hold no longer exists.")
	}
	if !dryRun {
		h.board.Delete(plane.KindHold, hold.Name)
	}
	return nil
}

func (h *env) ignore(_ context.Context, p access.Permit, o plane.Drift, i plane.DriftIgnore, dryRun bool) error {
	if err := p.Require(access.ConfigPropose, time.Now()); err != nil {
		return err
	}
	if !dryRun {
		h.board.Set(plane.KindDrift, "kubernetes", o.WithIgnore(i))
	}
	return nil
}

func (h *env) reschedule(_ context.Context, p access.Permit, hold plane.Hold, end *time.Time, dryRun bool) (plane.Hold, error) {
	if err := p.Require(access.HoldsLift, time.Now()); err != nil {
		return plane.Hold{}, err
	}
	hold.ExpiresAt = end
	if !dryRun {
		h.board.Set(plane.KindHold, "kubernetes", hold)
	}
	return hold, nil
}

// somebody returns one of the callers with a role.
func somebody(name string) access.Caller {
	switch name {
	case "pat":
		return person("pat@platform.dev", `{"role":"platform-admin","orgs":["*"]}`)
	case "paula":
		return person("paula@platform.dev", `{"role":"platform-admin","orgs":["*"]}`)
	case "amy":
		return person("amy@acme.dev", `{"role":"org-admin","orgs":["acme"]}`)
	case "gus":
		return person("gus@globex.dev", `{"role":"org-admin","orgs":["globex"]}`)
	case "vic":
		return person("vic@acme.dev", `{"role":"viewer","orgs":["acme"]}`)
	}
	return person("alice@acme.dev", `{"role":"operator","orgs":["*"]}`)
}

func person(login string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login), DisplayName: "A. Person", UserID: "1", Device: access.Device{ID: "n-" + login, Name: "laptop.tail1234.ts.net"}, Tailnet: "acme.dev", Via: access.ViaTailnet}
	for _, r := range rules {
		c.Rules = append(c.Rules, json.RawMessage(r))
	}
	return c
}

func is(what string, ok bool, reason, message string) plane.Condition {
	status := "False"
	if ok {
		status = "True"
	}
	return plane.Condition{Type: what, Status: status, Reason: reason, Message: message, Since: time.Now().Add(-3 * time.Hour)}
}

func isReady(ok bool, reason, message string) []plane.Condition {
	return []plane.Condition{is("Ready", ok, reason, message)}
}

func cluster(name, health string, self bool) plane.Cluster {
	seen := time.Now().Add(-2 * time.Second)
	if health == "Dead" {
		seen = time.Now().Add(-19 * time.Minute)
	}
	version := "v0.9.2"
	if name == "lab" {
		version = "v0.8.0"
	}
	return plane.Cluster{ID: name, Name: name, Endpoint: "https://" + name + ".k8s.acme.dev:6443", Port: 6443, URL: "https://tka-" + name + ".tail1234.ts.net",
		Labels: map[string]string{"env": "prod", "region": name}, Health: health, LastSeen: &seen, Verified: true, Self: self, Version: version, Skew: new(name == "lab"),
		Members: []plane.ClusterMember{{Node: "n1", Host: "tka-" + name + ".tail1234.ts.net", Health: health, LastSeen: &seen}}, ObservedAt: time.Now()}
}

func signin(i int, login, device, role, phase string, namespaces ...string) plane.Signin {
	created := time.Now().Add(-time.Duration(i*13+2) * time.Minute)
	s := plane.Signin{Namespace: "tailplane", Name: fmt.Sprintf("s-%04d", i), Login: login, Device: device, Role: role, Namespaces: slices.Concat([]string{}, namespaces), Created: created,
		ValidUntil: new(created.Add(8 * time.Hour)), Phase: phase, Conditions: isReady(phase == "Ready", "Provisioned", "The sign-in is provisioned."), ObservedAt: time.Now()}
	if phase == "Refused" {
		s.ValidUntil, s.Conditions = nil, isReady(false, "RoleNotAllowed", "The role cluster-admin may not be given out.")
	}
	s.ID = s.Namespace + "/" + s.Name
	return s
}

func manySignins(n int) (all []plane.Object) {
	roles, phases := []string{"view", "edit", "admin"}, []string{"Ready", "Ready", "Ready", "Pending", "Expired"}
	for i := range n {
		all = append(all, signin(i, fmt.Sprintf("person-%04d@acme.dev", i), fmt.Sprintf("laptop-%04d", i), roles[i%3], phases[i%5]))
	}
	return all
}
