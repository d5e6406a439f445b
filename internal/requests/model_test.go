package requests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// A world is a cluster and a tailnet in memory, with a clock and faults that the test controls.
type world struct {
	rand     *rand.Rand
	now      time.Time
	versions int
	requests map[string]Request
	signins  map[string]signin.Signin
	people   map[string]access.Caller // by device
	blind    bool                     // the tailnet answers nothing
	faults   bool                     // writes fail sometimes, before or after they happen
	uncached bool                     // no sign-in is cached yet
	reads    int                      // of requests, at the API server
	between  func()                   // called between a read and the write that follows it
}

var errFault = errors.New("the API server does not answer")

// fault returns an error sometimes. Half of the time the write happens nevertheless.
func (w *world) fault(write func()) error {
	if !w.faults || w.rand.IntN(8) > 0 {
		write()
		return nil
	}
	if w.rand.IntN(2) == 0 {
		write()
	}
	return errFault
}

func (w *world) version() string { w.versions++; return fmt.Sprint(w.versions) }

type requestStore struct{ *world }

func (w requestStore) Create(_ context.Context, r Request) (Request, error) {
	r.UID, r.Version, r.Created = "uid-"+w.version(), w.version(), w.now.Truncate(time.Second)
	r.Digest = "digest of " + r.UID
	return r, w.fault(func() { w.requests[r.Name] = r })
}

func (w requestStore) Get(_ context.Context, name string) (Request, error) {
	w.world.reads++
	r, ok := w.requests[name]
	if !ok {
		return Request{}, ErrNotFound
	}
	return r, nil
}

func (w requestStore) All() (all []Request, ok bool) {
	for _, r := range w.requests {
		all = append(all, r)
	}
	return all, true
}

func (w requestStore) Write(_ context.Context, r Request) (Request, error) {
	if between := w.between; between != nil {
		w.world.between = nil
		between()
	}
	switch have, ok := w.requests[r.Name]; {
	case !ok:
		return Request{}, ErrNotFound
	case have.Version != r.Version:
		return Request{}, ErrConflict
	}
	r.Version = w.version()
	return r, w.fault(func() { w.requests[r.Name] = r })
}

func (w requestStore) Await(context.Context, string, func(Request, bool) bool) error { return nil }

type signinStore struct{ *world }

func (w signinStore) Get(_ context.Context, name string) (signin.Signin, error) {
	s, ok := w.signins[name]
	if !ok {
		return signin.Signin{}, signin.ErrNotFound
	}
	return s, nil
}

func (w signinStore) GetCached(name string) (signin.Signin, bool) {
	s, ok := w.signins[name]
	return s, ok && !w.uncached
}

func (w signinStore) Create(_ context.Context, s signin.Signin) (signin.Signin, error) {
	if _, ok := w.signins[s.Name]; ok {
		return signin.Signin{}, signin.ErrExists
	}
	s.UID, s.Created = "signin-"+w.version(), w.now.Truncate(time.Second)
	return s, w.fault(func() { w.signins[s.Name] = s })
}

func (w signinStore) Delete(_ context.Context, s signin.Signin) error {
	if have, ok := w.signins[s.Name]; !ok || have.UID != s.UID {
		return signin.ErrNotFound
	}
	return w.fault(func() { delete(w.signins, s.Name) })
}

func (w signinStore) Await(ctx context.Context, name string, done func(signin.Signin, bool) bool) error {
	if s, ok := w.signins[name]; !done(s, ok) {
		return context.DeadlineExceeded
	}
	return nil
}

// operate does what the operator does: it deletes sign-ins that no request names as its use in time, or whose request or
// time is over.
func (w *world) operate() {
	for name, s := range w.signins {
		r, ok := w.requests[s.ByRequest.Name]
		unused := ok && r.Use == nil && w.now.Sub(s.Created) >= time.Minute
		if !ok || unused || r.Revoked != nil || !w.binds(s) && r.Use != nil {
			delete(w.signins, name)
		}
	}
}

// binds reports whether the operator gives access for s.
func (w *world) binds(s signin.Signin) bool {
	r := w.requests[s.ByRequest.Name]
	return r.Use != nil && r.Use.SigninUID == s.UID && r.Revoked == nil && w.now.Before(r.Use.At.Add(min(r.Use.Period, s.Period)))
}

var testPolicy = access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view", "edit", "admin"}, Min: access.MinPeriod, Max: 24 * time.Hour,
	Requests: access.RequestPolicy{Enabled: true, Capability: "tailplane.dev/cap/requests", Floor: map[access.Role]int{"admin": 2}}}

const asks, approves = `{"role":"edit","namespaces":["shop"],"period":"1h"}`, `{"approve":["edit","admin"],"namespaces":["shop"]}`

func caller(login, device string, rules ...string) access.Caller {
	c := access.Caller{Login: access.Login(login + "@example.com"), UserID: "id of " + login, Device: access.Device{ID: device, Name: device}, Tailnet: "example.com", Via: access.ViaTailnet}
	for _, r := range rules {
		c.RequestRules = append(c.RequestRules, json.RawMessage(r))
	}
	return c
}

func newWorld(seed uint64) (*world, *Service) {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), requests: map[string]Request{}, signins: map[string]signin.Signin{}, people: map[string]access.Caller{}}
	for _, c := range []access.Caller{caller("alice", "a1", asks), caller("alice", "a2", asks, approves), caller("bob", "b1", approves), caller("carol", "c1", approves), caller("dave", "d1", asks, approves), caller("mallory", "m1")} {
		w.people[c.Device.ID] = c
	}
	return w, &Service{Store: requestStore{w}, Signins: signinStore{w}, Policy: testPolicy, ClusterName: "east", ClusterID: "c1",
		Limits: Limits{PendingFor: 8 * time.Hour, UseWithin: time.Hour, MaxPendingPerLogin: 5, MaxPending: 50, MaxAskedPerDay: 50, MaxKept: 500},
		Devices: func(_ context.Context, ids ...string) (map[string]access.Caller, error) {
			if w.blind {
				return nil, problem.New(problem.IdentityUnavailable, "blind")
			}
			found := map[string]access.Caller{}
			for _, id := range ids {
				if c, ok := w.people[id]; ok {
					found[id] = c
				}
			}
			return found, nil
		},
		Now: func() time.Time { return w.now }}
}

// permit decides for the device now.
func (w *world) permit(device string, v access.Verb) (access.Permit, error) {
	return access.Decide(w.people[device], v, testPolicy, w.now)
}

func (w *world) ask(s *Service, device string, req AskRequest) (View, error) {
	p, err := w.permit(device, access.RequestCreate)
	if err != nil {
		return View{}, err
	}
	asked, err := s.ask(context.Background(), p, req)
	return asked.View, err
}

func (w *world) approve(s *Service, device string, r Request) error {
	p, err := w.permit(device, access.RequestApprove)
	if err == nil {
		_, err = s.approve(context.Background(), p, ApproveRequest{ID: r.Name, Seen: r.Digest})
	}
	return err
}

// REQ-34: Random interleavings of all operations, faults and clock steps.
func TestREQ34Model(t *testing.T) {
	uses := 0
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		w, s := newWorld(seed)
		w.faults = seed%3 > 0
		finals := map[string]State{}
		for step := range 200 {
			w.step(s)
			if w.rand.IntN(3) == 0 {
				w.operate()
			}
			uses += w.check(t, s, finals, fmt.Sprintf("seed %d, step %d", seed, step))
			if t.Failed() {
				return
			}
		}
	}
	if uses < 30 {
		t.Errorf("only %d requests were used in all runs", uses)
	}
}

// step does one random operation.
func (w *world) step(s *Service) {
	ctx, devices := context.Background(), []string{"a1", "a2", "b1", "c1", "d1", "m1"}
	device := devices[w.rand.IntN(len(devices))]
	r := w.any()
	if w.rand.IntN(10) == 0 {
		other := devices[w.rand.IntN(len(devices))]
		w.between = func() {
			if w.rand.IntN(2) == 0 {
				_ = w.approve(s, other, r)
			} else if p, err := w.permit(other, access.RequestDeny); err == nil {
				_, _ = s.deny(ctx, p, DenyRequest{ID: r.Name, Seen: r.Digest, Reason: "no"})
			}
		}
	}
	switch w.rand.IntN(12) {
	case 0, 1:
		_, _ = w.ask(s, device, AskRequest{Reason: "why"})
	case 2, 3, 4:
		_ = w.approve(s, device, r)
	case 5:
		if p, err := w.permit(device, access.RequestDeny); err == nil && w.rand.IntN(3) == 0 {
			_, _ = s.deny(ctx, p, DenyRequest{ID: r.Name, Seen: r.Digest, Reason: "no"})
		}
	case 6:
		if p, err := w.permit(device, access.RequestCancel); err == nil && w.rand.IntN(3) == 0 {
			_, _ = s.cancel(ctx, p, EndRequest{ID: r.Name})
		}
	case 7:
		if p, err := w.permit(device, access.RequestRevoke); err == nil {
			_, _ = s.revoke(ctx, p, EndRequest{ID: r.Name})
		}
	case 8, 9:
		_, _ = s.Use(ctx, w.people[device], r.Name)
	case 10:
		w.now = w.now.Add(time.Duration(w.rand.IntN(40)) * time.Minute)
	case 11:
		w.disturb()
	}
}

// disturb changes the tailnet or the policy.
func (w *world) disturb() {
	c := w.people["b1"]
	switch w.rand.IntN(5) {
	case 0:
		w.blind = !w.blind
	case 1:
		c.RequestRules = nil
	case 2:
		c = caller("bob", "b1", approves)
	case 3:
		c = caller("bob", "b1", `{"approve":["edit"],"namespaces":["web"]}`)
	case 4:
		c.Expired = !c.Expired
	}
	w.people["b1"] = c
}

func (w *world) any() Request {
	all, _ := requestStore{w}.All()
	if len(all) == 0 {
		return Request{Name: "req-00000000000000000000"}
	}
	return all[w.rand.IntN(len(all))]
}

// check checks the invariants, and returns how many sign-ins are bound.
func (w *world) check(t *testing.T, s *Service, finals map[string]State, at string) (bound int) {
	t.Helper()
	for _, r := range w.requests {
		facts, _ := s.facts(context.Background(), r)
		v := Judge(r, facts[0], w.now)
		if !reflect.DeepEqual(v, Judge(r, facts[0], w.now)) {
			t.Errorf("%s: two verdicts about %s", at, r.Name)
		}
		if was, ok := finals[r.Name]; ok && was != v.State && was != Over && v.State != Revoked {
			t.Errorf("%s: %s was %s and is %s", at, r.Name, was, v.State)
		}
		if v.State.IsFinal() {
			finals[r.Name] = v.State
		}
		if awaits := v.Until.After(w.now); awaits == v.State.IsFinal() {
			t.Errorf("%s: %s is %s until %v, and it is %v", at, r.Name, v.State, v.Until, w.now)
		}
		if r.Use != nil && r.Decision != nil {
			t.Errorf("%s: %s is used and decided", at, r.Name)
		}
	}
	for _, signed := range w.signins {
		if !w.binds(signed) {
			continue
		}
		bound++
		r := w.requests[signed.ByRequest.Name]
		people := map[string]bool{}
		for _, a := range r.Approved {
			if a.Digest == r.Digest && !strings.EqualFold(a.Login, r.Requester.Login) && a.Device != r.Requester.Device {
				people[a.Login] = true
			}
		}
		if len(people) < r.Approvals {
			t.Errorf("%s: %s is bound with %d of %d approvals", at, r.Name, len(people), r.Approvals)
		}
		if end := r.Use.At.Add(r.Period + time.Minute); w.now.After(end) {
			t.Errorf("%s: %s is bound after %v", at, r.Name, end)
		}
	}
	return bound
}
