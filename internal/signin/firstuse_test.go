package signin_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
)

// memoryMarks is a record of marks in memory.
type memoryMarks map[string]bool

func (m memoryMarks) IsOff(_ context.Context, name string) (bool, error) { return m[name], nil }
func (m memoryMarks) TurnOff(_ context.Context, name, _ string) error    { m[name] = true; return nil }
func (m memoryMarks) TurnOn(_ context.Context, name string) error        { delete(m, name); return nil }

// allOf is every sign-in of a store.
func allOf(m *memoryStore) func() ([]signin.Signin, bool) {
	return func() (all []signin.Signin, ok bool) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, s := range m.signins {
			all = append(all, s)
		}
		return all, true
	}
}

// PRX-08: a sign-in that began on first use ends when nobody has used it for its idle time, and not before the proxies have
// reported for two minutes. The end leaves first use on; a logout turns it off, and a login on.
func TestPRX08_Idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alice := guarded("alice@example.com", "n1", `{"role":"view","period":"8h","onUse":true,"idle":"10m"}`)
		proxy := access.Caller{Tags: []access.Tag{"tag:proxy"}, Device: access.Device{ID: "p", Name: "east-api"}, Tailnet: "example.com", Via: access.ViaTailnet}
		store, marks, caller := newMemoryStore(), memoryMarks{}, proxy
		h, service, entries := newHandler(store, func() (access.Caller, error) { return caller, nil })
		service.FirstUseOff, service.All = marks, allOf(store)
		service.Devices = func(context.Context, ...string) (map[string]access.Caller, error) {
			return map[string]access.Caller{"n1": alice}, nil
		}
		var ended []signin.Cause
		service.Ended = func(_ signin.Signin, why signin.Cause) { ended = append(ended, why) }
		begin := func(want int) {
			t.Helper()
			caller = proxy
			if w := request(h, signin.FirstUse.Declare(), signin.FirstUseRequest{Device: "n1"}); w.Code != want {
				t.Fatalf("first use: %d %s, want %d", w.Code, w.Body, want)
			}
		}
		report := func(names ...string) {
			t.Helper()
			caller = proxy
			if w := request(h, signin.ReportUsage.Declare(), signin.UsageReport{Signins: append([]string{}, names...)}); w.Code != http.StatusOK {
				t.Fatalf("report: %d %s", w.Code, w.Body)
			}
		}
		name := signin.OwnerOf(alice, "").Name()
		lives := func() bool { _, err := store.Get(t.Context(), name); return err == nil }

		begin(http.StatusOK)
		if e := (*entries)[len(*entries)-1]; string(e.Actor.Login)+string(e.Actor.Via)+e.Args["proxy"] != "alice@example.comproxyeast-api" {
			t.Errorf("the audit entry is of %+v with %v, want alice through the proxy", e.Actor, e.Args)
		}
		time.Sleep(time.Hour)
		report() // the first one for long
		if !lives() {
			t.Error("it ended before reports have arrived for two minutes")
		}
		for range 30 {
			time.Sleep(time.Minute)
			report(name)
		}
		if !lives() {
			t.Fatal("it ended while it was in use")
		}
		for range 12 {
			time.Sleep(time.Minute)
			report()
		}
		if lives() || !slices.Equal(ended, []signin.Cause{signin.CauseIdle}) {
			t.Fatalf("lives: %v, ended: %v, want an end for want of use", lives(), ended)
		}
		begin(http.StatusOK) // first use stays on

		caller = alice
		request(h, signin.Logout.Declare(), signin.LogoutRequest{})
		begin(http.StatusNotFound)
		if lives() {
			t.Error("a first use after the logout made a sign-in")
		}
		caller = alice
		if w := request(h, signin.Login.Declare(), signin.LoginRequest{}); w.Code != http.StatusAccepted {
			t.Fatalf("login: %d %s", w.Code, w.Body)
		}
		if s, err := store.Get(t.Context(), name); err != nil || s.OnUse {
			t.Errorf("after the login: onUse %v, %v", s.OnUse, err)
		}
		if marks[name] {
			t.Error("the login left the mark")
		}
	})
}

// PRX-08, PRX-12: what a rule requires to be recorded is required of a sign-in that begins on first use too.
func TestPRX08_Record(t *testing.T) {
	alice := guarded("alice@example.com", "n1", `{"role":"view","period":"8h","onUse":true,"record":["exec"]}`)
	proxy := access.Caller{Tags: []access.Tag{"tag:proxy"}, Device: access.Device{ID: "p", Name: "east-api"}, Tailnet: "example.com", Via: access.ViaTailnet}
	store := newMemoryStore()
	h, service, _ := newHandler(store, func() (access.Caller, error) { return proxy, nil })
	service.FirstUseOff, service.All = memoryMarks{}, allOf(store)
	service.Devices = func(context.Context, ...string) (map[string]access.Caller, error) {
		return map[string]access.Caller{"n1": alice}, nil
	}
	if w := request(h, signin.FirstUse.Declare(), signin.FirstUseRequest{Device: "n1"}); w.Code != http.StatusOK {
		t.Fatalf("first use: %d %s", w.Code, w.Body)
	}
	s, err := store.Get(t.Context(), signin.OwnerOf(alice, "").Name())
	if err != nil || !slices.Equal(s.Record, []string{"exec"}) {
		t.Errorf("record: %v, %v, want exec", s.Record, err)
	}
}

// PRX-08: only an end that the access server asked for within the last 10 s leaves first use on.
func TestPRX08_EndsThatKeepFirstUse(t *testing.T) {
	deleted := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for _, x := range []struct {
		asked string
		want  bool
	}{
		{signin.EndAskedFor(signin.CauseIdle, deleted), true},
		{signin.EndAskedFor(signin.CauseReplaced, deleted.Add(-10*time.Second)), true},
		{signin.EndAskedFor(signin.CauseReplaced, deleted.Add(-11*time.Second)), false},
		{signin.EndAskedFor(signin.CauseIdle, deleted.Add(time.Minute)), false},
		{signin.EndAskedFor(signin.CauseLogout, deleted), false},
		{"access", false}, {"", false}, {"idle", false}, {"idle yesterday", false}, {"idle 2026-11-21T12:00:00Z now", false},
	} {
		s := signin.Signin{EndAsked: x.asked, Deleting: true, DeletedAt: deleted}
		if got := s.KeepsFirstUse(); got != x.want {
			t.Errorf("%q: %v, want %v", x.asked, got, x.want)
		}
	}
}
