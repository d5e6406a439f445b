package requests

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// asked returns a world in which alice has asked for edit in shop from a1, with this many approvals needed.
func asked(t *testing.T, rule string) (*world, *Service, Request) {
	t.Helper()
	w, s := newWorld(1)
	w.people["a1"] = caller("alice", "a1", rule)
	v, err := w.ask(s, "a1", AskRequest{Reason: "why"})
	if err != nil {
		t.Fatal(err)
	}
	return w, s, w.requests[v.ID]
}

func use(w *world, s *Service, device, name string) error {
	_, err := s.Use(context.Background(), w.people[device], name)
	return err
}

func wantCode(t *testing.T, what string, err error, want problem.Code) {
	t.Helper()
	if got := problem.CodeOf(err); got != want {
		t.Errorf("%s: got %q (%v), want %q", what, got, err, want)
	}
}

// REQ-02: The period starts at the use, and the shortest period of the approvals counts (REQ-07).
func TestREQ02PeriodStartsAtUse(t *testing.T) {
	w, s, r := asked(t, asks)
	p, err := w.permit("b1", access.RequestApprove)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.approve(context.Background(), p, ApproveRequest{ID: r.Name, Seen: r.Digest, Period: 1800e9}); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(20 * time.Minute)
	wantCode(t, "use", use(w, s, "a1", r.Name), "")
	u := w.requests[r.Name].Use
	if want := w.now.Truncate(time.Second); !u.At.Equal(want) || u.Period != 30*time.Minute {
		t.Errorf("got %+v, want from %v for 30m", u, want)
	}
}

// RQ-03: One person counts once.
func TestRQ03OnePersonCountsOnce(t *testing.T) {
	w, s, r := asked(t, `{"role":"edit","namespaces":["shop"],"period":"1h","approvals":2}`)
	other := caller("bob", "b2", approves)
	other.Login = "BOB@example.com"
	w.people["b2"] = other
	renamed := caller("bobby", "b3", approves)
	renamed.UserID = "id of bob"
	w.people["b3"] = renamed
	for _, device := range []string{"b1", "b1", "b2", "b3"} {
		wantCode(t, device, w.approve(s, device, r), "")
	}
	if got := len(w.requests[r.Name].Approved); got != 1 {
		t.Errorf("%d approvals are stored", got)
	}
	wantCode(t, "use", use(w, s, "a1", r.Name), problem.NotApproved)
	wantCode(t, "another person", w.approve(s, "c1", r), "")
	wantCode(t, "use", use(w, s, "a1", r.Name), "")
}

// RQ-04, RQ-05: An approver is looked up again at the use.
func TestRQ04ApproverIsLookedUpAtUse(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*world)
		want   problem.Code
	}{
		"nothing":                      {func(*world) {}, ""},
		"loses the rule":               {func(w *world) { w.people["b1"] = caller("bob", "b1") }, problem.NotApproved},
		"the rule shrinks":             {func(w *world) { w.people["b1"] = caller("bob", "b1", `{"approve":["edit"],"namespaces":["web"]}`) }, problem.NotApproved},
		"the rule is invalid":          {func(w *world) { w.people["b1"] = caller("bob", "b1", approves, `{}`) }, problem.NotApproved},
		"leaves":                       {func(w *world) { delete(w.people, "b1") }, problem.NotApproved},
		"another owner":                {func(w *world) { w.people["b1"] = caller("dave", "b1", approves) }, problem.NotApproved},
		"expires":                      {func(w *world) { c := caller("bob", "b1", approves); c.Expired = true; w.people["b1"] = c }, problem.NotApproved},
		"the tailnet is blind":         {func(w *world) { w.blind = true }, problem.IdentityUnavailable},
		"the requester's rule is gone": {func(w *world) { w.people["a1"] = caller("alice", "a1", `{"role":"view","period":"1h"}`) }, problem.GrantRemoved},
		"the rule needs two now":       {func(w *world) { w.people["a1"] = caller("alice", "a1", `{"role":"edit","period":"1h","approvals":2}`) }, problem.NotApproved},
		"the rule needs none now":      {func(w *world) { w.people["a1"] = caller("alice", "a1", `{"role":"edit","period":"1h","approvals":0}`) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w, s, r := asked(t, asks)
			wantCode(t, "approve", w.approve(s, "b1", r), "")
			x.change(w)
			wantCode(t, "use", use(w, s, "a1", r.Name), x.want)
			if bound := len(w.signins); (bound == 1) != (x.want == "") {
				t.Errorf("%d sign-ins", bound)
			}
		})
	}
}

// RQ-15: A rule that asks for less later lowers nothing.
func TestRQ15ALowerRuleLowersNothing(t *testing.T) {
	w, s, r := asked(t, asks)
	w.people["a1"] = caller("alice", "a1", `{"role":"edit","period":"1h","approvals":0}`)
	wantCode(t, "use", use(w, s, "a1", r.Name), problem.NotApproved)
}

// RQ-07, RQ-27: A request is used once, by its device.
func TestRQ07UsedOnce(t *testing.T) {
	w, s, r := asked(t, asks)
	wantCode(t, "approve", w.approve(s, "b1", r), "")
	wantCode(t, "another device", use(w, s, "a2", r.Name), problem.NotApproved)
	wantCode(t, "a stranger", use(w, s, "m1", r.Name), problem.NotFound)
	for range 3 {
		wantCode(t, "use", use(w, s, "a1", r.Name), "")
	}
	if len(w.signins) != 1 {
		t.Errorf("%d sign-ins", len(w.signins))
	}
	wantCode(t, "an approval after the use", w.approve(s, "c1", r), problem.RequestOver)
	clear(w.signins)
	wantCode(t, "use after its sign-in was deleted", use(w, s, "a1", r.Name), problem.RequestOver)
}

// REQ-06: A request expires without being read, and nothing brings it back.
func TestREQ06Expires(t *testing.T) {
	w, s, r := asked(t, asks)
	w.now = w.now.Add(8 * time.Hour)
	wantCode(t, "approve", w.approve(s, "b1", r), problem.RequestOver)
	w, s, r = asked(t, asks)
	wantCode(t, "approve", w.approve(s, "b1", r), "")
	w.now = w.now.Add(time.Hour)
	wantCode(t, "use", use(w, s, "a1", r.Name), problem.RequestOver)
	wantCode(t, "approve again", w.approve(s, "c1", r), problem.RequestOver)
}

// REQ-19: Without an operator or with a wrong clock nothing is used up.
func TestREQ19NoRefusalUsesTheRequest(t *testing.T) {
	w, s, r := asked(t, asks)
	wantCode(t, "approve", w.approve(s, "b1", r), "")
	s.Operator = func(context.Context) error { return problem.New(problem.OperatorUnavailable, "none") }
	wantCode(t, "without an operator", use(w, s, "a1", r.Name), problem.OperatorUnavailable)
	s.Operator = nil
	s.Fresh = func(context.Context) error { return problem.New(problem.IdentityUnavailable, "old") }
	wantCode(t, "with an old map", use(w, s, "a1", r.Name), problem.IdentityUnavailable)
	s.Fresh = nil
	clock := s.Now
	s.Now = func() time.Time { return clock().Add(2 * time.Minute) }
	wantCode(t, "with a wrong clock", use(w, s, "a1", r.Name), problem.ClockSkew)
	s.Now = clock
	wantCode(t, "use", use(w, s, "a1", r.Name), "")
}

// RQ-08: A denial that was stored between the read and the write of the use wins.
func TestRQ08DenialDuringUse(t *testing.T) {
	w, s, r := asked(t, asks)
	wantCode(t, "approve", w.approve(s, "b1", r), "")
	w.between = func() {
		p, err := w.permit("c1", access.RequestDeny)
		if err == nil {
			_, err = s.deny(context.Background(), p, DenyRequest{ID: r.Name, Seen: r.Digest, Reason: "no"})
		}
		wantCode(t, "deny", err, "")
	}
	wantCode(t, "use", use(w, s, "a1", r.Name), problem.RequestOver)
	if len(w.signins) != 0 {
		t.Errorf("%d sign-ins", len(w.signins))
	}
}

// RQ-18: Who asks too often is refused, and others are not.
func TestRQ18Limits(t *testing.T) {
	w, s := newWorld(1)
	s.Limits.MaxPendingPerLogin = 1
	w.people["a1"] = caller("alice", "a1", asks, `{"role":"view","period":"1h"}`)
	_, err := w.ask(s, "a1", AskRequest{Role: "edit", Reason: "why"})
	wantCode(t, "the first", err, "")
	_, err = w.ask(s, "a1", AskRequest{Role: "edit", Reason: "why"})
	wantCode(t, "the same again", err, "")
	_, err = w.ask(s, "a1", AskRequest{Role: "edit", Reason: "another reason"})
	wantCode(t, "the same for another reason", err, problem.RequestChanged)
	_, err = w.ask(s, "a1", AskRequest{Role: "view", Reason: "why"})
	wantCode(t, "another one", err, problem.TooManyRequests)
	_, err = w.ask(s, "d1", AskRequest{Reason: "why"})
	wantCode(t, "another person", err, "")
	if len(w.requests) != 2 {
		t.Errorf("%d requests", len(w.requests))
	}
}

// REQ-27: To a stranger, an existing request is like an unknown one.
func TestREQ27Stranger(t *testing.T) {
	w, s, r := asked(t, asks)
	var texts []string
	for _, name := range []string{r.Name, "req-00000000000000000000"} {
		p, err := w.permit("m1", access.RequestRead)
		if err == nil {
			_, err = s.read(context.Background(), p, ReadRequest{ID: name})
		}
		wantCode(t, name, err, problem.NotFound)
		if e, ok := errors.AsType[*problem.Error](err); ok {
			texts = append(texts, e.Message)
		}
	}
	if len(texts) != 2 || texts[0] != texts[1] {
		t.Errorf("got %q", texts)
	}
}

// Rules that change between the approval and the use: what they now require holds, and what they no longer allow does not use the request up.
func TestRulesAtUse(t *testing.T) {
	for name, x := range map[string]struct {
		rule string
		want problem.Code
	}{
		"exec must be recorded": {`{"role":"edit","namespaces":["shop"],"period":"1h","record":["exec"]}`, ""},
		"too short a period":    {`{"role":"edit","namespaces":["shop"],"period":"5m"}`, problem.PeriodOutOfBounds},
	} {
		t.Run(name, func(t *testing.T) {
			w, s, r := asked(t, asks)
			wantCode(t, "approve", w.approve(s, "b1", r), "")
			w.people["a1"] = caller("alice", "a1", x.rule)
			wantCode(t, "use", use(w, s, "a1", r.Name), x.want)
			stored := w.requests[r.Name]
			if isUsed := stored.Use != nil; isUsed != (x.want == "") {
				t.Errorf("the use is %+v", stored.Use)
			}
			for _, made := range w.signins {
				if got := strings.Join(made.Record, ","); got != "exec" {
					t.Errorf("the sign-in records %q, want exec", got)
				}
			}
		})
	}
}

// RQ-01: A person's subnet router may carry the requester's other device, so no decision from it counts, and an earlier approval from it is void.
func TestRQ01Router(t *testing.T) {
	w, s, r := asked(t, asks)
	router := w.people["b1"]
	router.Router = true
	plain := w.people["b1"]
	w.people["b1"] = router
	wantCode(t, "approve from a router", w.approve(s, "b1", r), problem.SubnetRouter)
	w.people["b1"] = plain
	wantCode(t, "approve", w.approve(s, "b1", r), "")
	w.people["b1"] = router
	wantCode(t, "use", use(w, s, "a1", r.Name), problem.NotApproved)
}

// Requests that are over cost no call of the API server when their requester asks again.
func TestAskReadsNoOldRequests(t *testing.T) {
	w, s, r := asked(t, asks)
	p, err := w.permit("a1", access.RequestCancel)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.cancel(t.Context(), p, EndRequest{ID: r.Name}); err != nil {
		t.Fatal(err)
	}
	before := w.reads
	if _, err := w.ask(s, "a1", AskRequest{Reason: signin.Reason(r.Reason)}); err != nil {
		t.Fatal(err)
	}
	if w.reads != before {
		t.Errorf("%d reads, want none", w.reads-before)
	}
}

// RQ-08: A revocation ends a sign-in that the cache does not have yet.
func TestRQ08RevokeBeforeTheCache(t *testing.T) {
	w, s, r := asked(t, asks)
	wantCode(t, "approve", w.approve(s, "b1", r), "")
	wantCode(t, "use", use(w, s, "a1", r.Name), "")
	w.now = w.now.Add(2 * cacheLag)
	w.uncached = true
	p, err := w.permit("b1", access.RequestRevoke)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.revoke(t.Context(), p, EndRequest{ID: r.Name, Reason: "enough"})
	wantCode(t, "revoke", err, "")
	if w.requests[r.Name].Revoked == nil {
		t.Error("the request is not revoked")
	}
}
