package signin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// The default session keeps the name that a sign-in had before sessions existed, and each session of each device has another one.
func TestSessionNames(t *testing.T) {
	alice := guarded("alice@example.com", "n1", eightHours)
	const before = "alice-example-com-"
	names := map[string]signin.Session{}
	for _, session := range []signin.Session{"", "deploy", "deploy-1", "edit"} {
		for _, device := range []string{"n1", "n2"} {
			c := alice
			c.Device.ID = device
			name := signin.OwnerOf(c, session).Name()
			if other, twice := names[name]; twice {
				t.Errorf("sessions %q and %q have the same name", other, session)
			}
			names[name] = session
			if !strings.HasPrefix(name, before) || len(name) != len(before)+20 {
				t.Errorf("session %q: name %q", session, name)
			}
		}
	}
	if got, want := signin.OwnerOf(alice, "").Name(), "alice-example-com-c45199f0b677d8d9fbc9"; got != want {
		t.Errorf("the default session has the name %q, and had %q before sessions", got, want)
	}
}

func TestParseSession(t *testing.T) {
	for s, ok := range map[string]bool{"": true, "a": true, "deploy-1": true, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "default": false,
		"req-1": false, "Deploy": false, "-a": false, "a-": false, "a_b": false, "a.b": false, "ä": false, "a b": false, "a\n": false, "re": true, "requests": true} {
		got, err := signin.ParseSession(s)
		if (err == nil) != ok {
			t.Errorf("ParseSession(%q) = %q, %v", s, got, err)
		}
	}
}

// Two terminals of one device: an elevated session has its own sign-in, and its login, its narrower
// period and its end change nothing of the other one.
func TestTwoSessions(t *testing.T) {
	alice := guarded("alice@example.com", "n1", `{"role":"view","period":"8h","priority":1}`, `{"role":"edit","period":"1h"}`)
	store := newMemoryStore()
	h, _, entries := newHandler(store, func() (access.Caller, error) { return alice, nil })
	do := func(method, path, body string, wantCode int) (st signin.Status) {
		t.Helper()
		r := httptest.NewRequest(method, signin.Base+path, strings.NewReader(body))
		r.Host = "tka"
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != wantCode {
			t.Fatalf("%s %s %s: %d %s", method, path, body, w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	one := do("POST", "/login", "", http.StatusAccepted)
	two := do("POST", "/login", `{"role":"edit","period":"30m","session":"deploy"}`, http.StatusAccepted)
	if got := (*entries)[len(*entries)-1].Args["session"]; got != "deploy" {
		t.Errorf("the audit entry has the session %q", got)
	}
	if one.Name == two.Name {
		t.Errorf("both have the name %s", one.Name)
	}
	if two.Session != "deploy" || two.Role != "edit" {
		t.Errorf("the second: %+v", two)
	}
	if diff := cmp.Diff(one.Until, do("GET", "/login", "", http.StatusOK).Until); diff != "" {
		t.Errorf("the default session changed (-before +after):\n%s", diff)
	}
	do("POST", "/logout?session=deploy", "", http.StatusOK)
	if got := do("GET", "/login", "", http.StatusOK); got.Role != "view" || got.Until != one.Until {
		t.Errorf("after the other's logout: %+v", got)
	}
	do("GET", "/login?session=deploy", "", http.StatusNotFound)
	do("GET", "/login?session=Deploy", "", http.StatusBadRequest)
	do("POST", "/login", `{"session":"req-1"}`, http.StatusBadRequest)
}

// A reason is stored, recorded and shown. An extension keeps it unless it gives another one.
func TestReason(t *testing.T) {
	alice := guarded("alice@example.com", "n1", `{"role":"view","period":"8h","reason":"required"}`)
	store := newMemoryStore()
	h, _, entries := newHandler(store, func() (access.Caller, error) { return alice, nil })
	for _, tt := range []struct {
		reason string
		code   problem.Code
	}{
		{"", problem.ReasonRequired}, {"  ", problem.ReasonRequired}, {"two\nlines", problem.BadRequest}, {"\x1b[31mred", problem.BadRequest}, {strings.Repeat("x", 501), problem.BadRequest},
		{" INC-7: pods crash ", ""}, {"", problem.ReasonRequired}, {strings.Repeat("ä", 500), ""},
	} {
		body, err := json.Marshal(map[string]string{"reason": tt.reason})
		if err != nil {
			t.Fatal(err)
		}
		w := request(h, signin.Login.Declare(), json.RawMessage(body))
		var answer struct {
			Code          problem.Code
			Name          string
			RequestReason string
		}
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		if answer.Code != tt.code {
			t.Errorf("reason %.40q: %q, want %q; %s", tt.reason, answer.Code, tt.code, w.Body)
		}
		if tt.code != "" {
			continue
		}
		want := strings.TrimSpace(tt.reason)
		if got := store.signins[answer.Name].Why; got != want || answer.RequestReason != want {
			t.Errorf("reason %.40q: stored %.40q, shown %.40q", tt.reason, got, answer.RequestReason)
		}
		if got := (*entries)[len(*entries)-1].Reason; got != want {
			t.Errorf("reason %.40q: recorded %.40q", tt.reason, got)
		}
	}
}

// The kubeconfig of a session has another context than that of the default session, and the token of
// the session's own account.
func TestSessionKubeconfig(t *testing.T) {
	alice := guarded("alice@example.com", "n1", eightHours)
	store := newMemoryStore()
	h, _, _ := newHandler(store, func() (access.Caller, error) { return alice, nil })
	for session, context := range map[string]string{"": "tka-east", "deploy": "tka-east-deploy"} {
		if w := request(h, signin.Login.Declare(), signin.LoginRequest{Session: signin.Session(session)}); w.Code != http.StatusAccepted {
			t.Fatal(w.Body)
		}
		r := httptest.NewRequest("GET", signin.Base+"/kubeconfig?session="+session, nil)
		r.Host = "tka"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var k struct {
			Current string `json:"current-context"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &k); err != nil || k.Current != context {
			t.Errorf("session %q: context %q, want %q; %v %s", session, k.Current, context, err, w.Body)
		}
	}
}

// The sessions of a device are listed together, and count as one device. The limit of sessions locks
// nobody out of the default one, and the limit of devices out of no session of a device that has one.
func TestSessionLimits(t *testing.T) {
	now := time.Now()
	laptop, phone := guarded("alice@example.com", "n1", eightHours), guarded("alice@example.com", "n2", eightHours)
	who := laptop
	store := newMemoryStore()
	h, service, _ := newHandler(store, func() (access.Caller, error) { return who, nil })
	login := func(session string) (problem.Code, string) {
		t.Helper()
		w := request(h, signin.Login.Declare(), signin.LoginRequest{Session: signin.Session(session)})
		var p problem.Error
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
		return p.Code, p.Message
	}
	for i := range 20 {
		if code, msg := login(fmt.Sprint("shell-", i)); code != "" {
			t.Fatalf("session %d: %s %s", i, code, msg)
		}
	}
	if code, msg := login("shell-20"); code != problem.TooManySignins || !strings.Contains(msg, "20 sessions") {
		t.Errorf("session 21: %q %s", code, msg)
	}
	if code, msg := login("shell-7"); code != "" {
		t.Errorf("extend a session: %s %s", code, msg)
	}
	if code, msg := login(""); code != "" {
		t.Errorf("the default session: %s %s", code, msg)
	}
	service.MaxPerLogin = 1
	if code, msg := login("shell-3"); code != "" {
		t.Errorf("at the limit of devices, a session of the same device: %s %s", code, msg)
	}
	who = phone
	if code, _ := login(""); code != problem.TooManySignins {
		t.Errorf("a second device at a limit of 1: %q", code)
	}
	who, service.MaxPerLogin = laptop, 2
	w := request(h, signin.ListSessions.Declare(), nil)
	var list signin.Sessions
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Sessions) != 21 || list.Sessions[0].Session != "" {
		t.Errorf("list: %s", w.Body)
	}
	who = phone
	store.mu.Lock()
	other := live(guarded("bob@example.com", "n3"), "view", now)
	store.signins[other.Name] = other
	store.mu.Unlock()
	if w := request(h, signin.ListSessions.Declare(), nil); strings.TrimSpace(w.Body.String()) != `{"sessions":[]}` {
		t.Errorf("the other device lists %s", w.Body)
	}
}

// A login every morning gives a whole day: where the maximum lifetime would cut it to a rest, a new sign-in replaces the old one. Where it cuts
// less, the response says so.
func TestDailyLogin(t *testing.T) {
	synctest.Test(t, dailyLogin)
}

func dailyLogin(t *testing.T) {
	alice := guarded("alice@example.com", "n1", eightHours)
	store := newMemoryStore()
	h, service, _ := newHandler(store, func() (access.Caller, error) { return alice, nil })
	morning := time.Now()
	service.MaxLife = 24 * time.Hour
	for _, tt := range []struct {
		after   time.Duration
		until   time.Duration
		clamped bool
		uids    string
	}{
		{0, 8 * time.Hour, false, "uid1"},
		{7 * time.Hour, 15 * time.Hour, false, "uid1"},
		{14 * time.Hour, 22 * time.Hour, false, "uid1"},
		{18 * time.Hour, 26 * time.Hour, true, "uid1"}, // six of eight hours are left; the store of this test has no operator that ends it then
		{21 * time.Hour, 29 * time.Hour, false, "uid2"},
	} {
		time.Sleep(time.Until(morning.Add(tt.after)))
		w := request(h, signin.Login.Declare(), signin.LoginRequest{})
		var st signin.Status
		if err := json.Unmarshal(w.Body.Bytes(), &st); err != nil || w.Code != http.StatusAccepted {
			t.Fatalf("after %v: %d %s", tt.after, w.Code, w.Body)
		}
		if want := morning.Add(tt.until).UTC().Format(time.RFC3339); st.Until != want || st.Clamped != tt.clamped {
			t.Errorf("after %v: until %s, want %s; clamped %v", tt.after, st.Until, want, st.Clamped)
		}
		if got := store.signins[st.Name].UID; got != tt.uids {
			t.Errorf("after %v: %s, want %s", tt.after, got, tt.uids)
		}
	}
}
