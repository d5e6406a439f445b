package forge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// A gitLabCall is one of the client's methods, with its result as text.
type gitLabCall struct {
	name   string
	writes bool // its first request is a write
	list   bool
	do     func(context.Context, *GitLab, int64, int64) (found string, err error)
}

func gitLabCalls() []gitLabCall {
	say := func(x any, err error) (string, error) { return fmt.Sprintf("%+v", x), err }
	spec := func(group int64) RunnerSpec {
		return RunnerSpec{GroupID: group, RunUntagged: true, Description: "d", Note: "mark"}
	}
	return []gitLabCall{
		{"Check", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return say(g.Check(ctx)) }},
		{"Group", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return say(g.Group(ctx, "acme")) }},
		{"Version", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return say(g.Version(ctx)) }},
		{"CreateRunner", true, false, func(ctx context.Context, g *GitLab, group, _ int64) (string, error) {
			id, token, err := g.CreateRunner(ctx, spec(group))
			return fmt.Sprint(id, token), err
		}},
		{"GroupRunners", false, true, func(ctx context.Context, g *GitLab, group, _ int64) (string, error) {
			return say(g.GroupRunners(ctx, group))
		}},
		{"Runner", false, false, func(ctx context.Context, g *GitLab, _, id int64) (string, error) { return say(g.Runner(ctx, id)) }},
		{"UpdateRunner", true, false, func(ctx context.Context, g *GitLab, group, id int64) (string, error) {
			return "", g.UpdateRunner(ctx, id, spec(group))
		}},
		{"SetPaused", true, false, func(ctx context.Context, g *GitLab, _, id int64) (string, error) {
			return say(g.SetPaused(ctx, id, true, "mark"))
		}},
		{"ResetToken", true, false, func(ctx context.Context, g *GitLab, _, id int64) (string, error) { return say(g.ResetToken(ctx, id)) }},
		{"DeleteRunner", true, false, func(ctx context.Context, g *GitLab, _, id int64) (string, error) { return "", g.DeleteRunner(ctx, id) }},
		{"RunningJobs", false, true, func(ctx context.Context, g *GitLab, _, id int64) (string, error) { return say(g.RunningJobs(ctx, id)) }},
		{"CancelJob", true, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return "", g.CancelJob(ctx, 5, 6) }},
	}
}

// gitLabChanges returns the client's methods for a project.
func gitLabChanges() []gitLabCall {
	say := func(x any, err error) (string, error) { return fmt.Sprintf("%+v", x), err }
	head := strings.Repeat("a", 40)
	return []gitLabCall{
		{"CheckChanges", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return say(g.CheckChanges(ctx)) }},
		{"ReadFile", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) {
			return say(g.ReadFile(ctx, "main", "a.yaml"))
		}},
		{"Propose", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) {
			return say(g.Propose(ctx, Proposal{Base: "main", Branch: "tailplane/x", Path: "a.yaml", Content: []byte("x"), Message: "m", Author: Person{Name: "a", Email: "a@b"}, Title: "t"}))
		}},
		{"Request", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return say(g.Request(ctx, 1)) }},
		{"Merge", true, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return "", g.Merge(ctx, 1, head) }},
		{"Touched", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) {
			return say(g.Touched(ctx, "main", head))
		}},
		{"Withdraw", false, false, func(ctx context.Context, g *GitLab, _, _ int64) (string, error) { return "", g.Withdraw(ctx, 1, "no") }},
	}
}

// empty lists the texts of empty results.
var empty = []string{"", "[]", "0", fmt.Sprintf("0%v", secret.Text{}), fmt.Sprintf("0 %v", secret.Text{}), fmt.Sprint(secret.Text{}), fmt.Sprintf("%+v", Identity{}), fmt.Sprintf("%+v", GitLabRunner{})}

// FL-04: each failure has its class, for every method. No request is sent twice, no partial list is
// returned, and only GitLab's own answer counts for "gone".
func TestFL04_GitLabFaults(t *testing.T) {
	json := http.Header{"Content-Type": {"application/json"}}
	html := http.Header{"Content-Type": {"text/html; charset=utf-8"}}
	for _, f := range []struct {
		why   string
		fault forgetest.Fault
		want  Class
		wait  time.Duration
	}{
		{"401", forgetest.Fault{Status: 401, Header: json, Body: `{"message":"401 Unauthorized"}`}, Refused, 0},
		{"403", forgetest.Fault{Status: 403, Header: json, Body: `{"error":"insufficient_scope","error_description":"…"}`}, Forbidden, 0},
		{"404", forgetest.Fault{Status: 404, Header: json, Body: `{"message":"404 Not found"}`}, NotFound, 0},
		{"410", forgetest.Fault{Status: 410, Header: json, Body: `{"message":"410 Gone"}`}, NotFound, 0},
		{"404 of a proxy in front of GitLab", forgetest.Fault{Status: 404, Header: html, Body: "<h1>default backend</h1>"}, Unavailable, 0},
		{"404 with nothing in it", forgetest.Fault{Status: 404}, Unavailable, 0},
		{"409", forgetest.Fault{Status: 409, Header: json, Body: `{"message":"409 Conflict"}`}, Conflict, 0},
		{"412", forgetest.Fault{Status: 412, Header: json, Body: `{"message":"412 Precondition Failed"}`}, Conflict, 0},
		{"400", forgetest.Fault{Status: 400, Header: json, Body: `{"message":{"tags_list":["can not be empty"]}}`}, Invalid, 0},
		{"422", forgetest.Fault{Status: 422, Header: json, Body: `{"message":"422 Unprocessable"}`}, Invalid, 0},
		{"429 with a time", forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"30"}}, Body: "Retry later\n"}, RateLimited, 30 * time.Second},
		{"429 without a time", forgetest.Fault{Status: 429, Body: "Retry later\n"}, RateLimited, time.Minute},
		{"429 with a time that is too long", forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"999999"}}}, RateLimited, time.Hour},
		{"500", forgetest.Fault{Status: 500, Header: json, Body: `{"message":"500 Internal Server Error"}`}, Unavailable, 0},
		{"502", forgetest.Fault{Status: 502, Header: html, Body: "<h1>502</h1>"}, Unavailable, 0},
		{"503 with a time", forgetest.Fault{Status: 503, Header: http.Header{"Retry-After": {"7"}}}, Unavailable, 7 * time.Second},
		{"a redirect elsewhere", forgetest.Fault{Status: 302, Header: http.Header{"Location": {"https://sso.example.com/"}}}, Unavailable, 0},
		{"a redirect to nowhere", forgetest.Fault{Status: 302}, Unavailable, 0},
		{"a portal's page", forgetest.Fault{Status: 200, Header: html, Body: "<h1>Sign in</h1>"}, Unavailable, 0},
		{"no connection", forgetest.Fault{Drop: true}, Unavailable, 0},
	} {
		w, ctx := newGitLabEnv(t, "api"), testContext(t)
		r := w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
		w.Fault(func(*http.Request) *forgetest.Fault { return &f.fault })
		for _, call := range gitLabCalls() {
			w.Forget()
			found, err := call.do(ctx, w.clientOf(t, w.token, nil), w.group, r.ID) // a new client, because pauses belong to a client
			want := f.want
			switch {
			case call.name == "Version" && want == Forbidden, want == NotFound && (call.name == "DeleteRunner" || call.name == "CancelJob"):
				want = ""
			}
			if ClassOf(err) != want {
				t.Errorf("%s: %s: %v, of class %q, want %q", f.why, call.name, err, ClassOf(err), want)
			}
			if err != nil && !slices.Contains(empty, found) {
				t.Errorf("%s: %s fails and returns %s", f.why, call.name, found)
			}
			if e, ok := errors.AsType[*Error](err); ok && f.wait > 0 && e.RetryAfter != f.wait {
				t.Errorf("%s: %s is to wait %v, want %v", f.why, call.name, e.RetryAfter, f.wait)
			}
			writes := 0
			for _, c := range w.Calls() {
				if c.Method != http.MethodGet {
					writes++
				}
			}
			if writes > 1 || call.writes != (writes == 1) {
				t.Errorf("%s: %s wrote %d times", f.why, call.name, writes)
			}
		}
	}
}

// FL-04, FLEET-17: a success response with other content is a failure. An empty list counts only if
// the response says so.
func TestFL04_GitLabUnreadable(t *testing.T) {
	w, ctx := newGitLabEnv(t, "api"), testContext(t)
	for _, body := range []string{"", " ", "null", "{}", `"x"`, "[{}]", `[{"id":0}]`, "[1", `{"id":1`, `{"id":4711,"paused":true}`, "{}{}"} {
		for _, call := range gitLabCalls() {
			if call.name == "UpdateRunner" || call.name == "CancelJob" || call.name == "DeleteRunner" {
				continue // they read only the status
			}
			if call.name == "Managers" && (body == "[{}]" || body == `[{"id":0}]`) {
				continue // a manager may have no fields
			}
			w.Fault(func(*http.Request) *forgetest.Fault {
				return &forgetest.Fault{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}, "X-Next-Page": {""}}, Body: body}
			})
			if found, err := call.do(ctx, w.client, w.group, 1); ClassOf(err) != Unavailable || !slices.Contains(empty, found) {
				t.Errorf("%s answered with %q: %s, %v", call.name, body, found, err)
			}
		}
	}
}

// FLEET-17: a list is an error if one of its pages fails, is cut, or does not say whether there is
// a next page.
func TestFLEET17_GitLabPartialList(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	runner := forgetest.GitLabRunner{}
	for range 230 {
		runner = w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	}
	for range 230 {
		w.StartJob(runner.ID, 3)
	}
	json := http.Header{"Content-Type": {"application/json"}}
	next := func(n string) http.Header {
		h := json.Clone()
		h.Set("X-Next-Page", n)
		h.Set("X-Total", "230")
		return h
	}
	items := func(n int) string { // items with IDs, new on each page
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,{"id":%d,"project":{"id":3}}`, 10_000+i)
		}
		return "[" + strings.TrimPrefix(b.String(), ",") + "]"
	}
	for why, fault := range map[string]*forgetest.Fault{
		"fails":                     {Status: 500},
		"is forbidden":              {Status: 403, Header: json, Body: `{"message":"403 Forbidden"}`},
		"is cut":                    {Cut: 900},
		"is not there":              {Status: 404, Header: json, Body: `{"message":"404 Not found"}`},
		"comes not at all":          {Drop: true},
		"does not show the end":     {Status: 200, Header: json, Body: items(100)},
		"goes in a circle":          {Status: 200, Header: next("2"), Body: items(100)},
		"continues without entries": {Status: 200, Header: next("3"), Body: "[]"},
		"is fewer than all":         {Status: 200, Header: next(""), Body: items(3)},
	} {
		for _, page := range []string{"1", "2"} {
			if why == "goes in a circle" && page == "1" {
				continue // it equals the answer of a first page
			}
			w.Fault(func(r *http.Request) *forgetest.Fault {
				if r.FormValue("page") == page {
					return fault
				}
				return nil
			})
			client := w.clientOf(t, w.token, nil) // without cached pages
			if got, err := client.GroupRunners(ctx, w.group); err == nil || got != nil {
				t.Errorf("runners, of which page %s %s: %d of them", page, why, len(got))
			}
			if got, err := client.RunningJobs(ctx, runner.ID); err == nil || got != nil {
				t.Errorf("jobs, of which page %s %s: %d of them", page, why, len(got))
			}
		}
	}
	w.Fault(nil)
	if got, err := w.client.GroupRunners(ctx, w.group); err != nil || len(got) != 230 {
		t.Errorf("%d runners, %v: afterwards", len(got), err)
	}
}

// lose sends a request that takes effect but gets no response. It cancels the request after the
// effect.
func (w gitLabEnv) lose(t *testing.T, what string, do func(context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	w.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Method+" "+strings.TrimPrefix(r.URL.Path, "/api/v4") != what {
			return nil
		}
		return &forgetest.Fault{After: true, Hang: true}
	})
	defer w.Fault(nil)
	before := w.countCalls(what)
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	for deadline := time.Now().Add(time.Minute); w.countCalls(what) == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s was never requested", what)
		}
	}
	cancel()
	err := <-done
	if ClassOf(err) != Unavailable || !errors.Is(err, context.Canceled) {
		t.Errorf("%s with a lost answer: %v", what, err)
	}
	if n := w.countCalls(what) - before; n != 1 {
		t.Errorf("%s was requested %d times", what, n)
	}
	return err
}

// FL-03: the response to a creation is lost after its effect. The runner is found by its mark, and
// a reset gives a new token.
func TestFL03_GitLabLostAnswer(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	other := w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true, Note: "somebody's"})
	spec := RunnerSpec{GroupID: w.group, Tags: []string{"nix"}, Note: "tailplane 7f3a acme-gl-nix", Paused: true}
	w.lose(t, "POST /user/runners", func(ctx context.Context) error {
		_, _, err := w.client.CreateRunner(ctx, spec)
		return err
	})
	ids, err := w.client.GroupRunners(ctx, w.group)
	if err != nil {
		t.Fatal(err)
	}
	var found []GitLabRunner
	for _, id := range ids {
		r, err := w.client.Runner(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if r.Note == spec.Note {
			found = append(found, r)
		}
	}
	switch {
	case len(found) != 1:
		t.Fatalf("len(found) = %v, want 1", len(found))
	case found[0].ID == other.ID:
		t.Fatalf("found[0].ID = %v, the same as other.ID", found[0].ID)
	case found[0].Status != "never_contacted":
		t.Fatalf("found[0].Status = %q, want %q", found[0].Status, "never_contacted")
	}
	id := found[0].ID

	w.lose(t, fmt.Sprintf("POST /runners/%d/reset_authentication_token", id), func(ctx context.Context) error {
		_, err := w.client.ResetToken(ctx, id)
		return err
	})
	token, err := w.client.ResetToken(ctx, id)
	if err != nil || w.Contact(token.Reveal(), "s") != id {
		t.Errorf("after a lost reset: %v", err)
	}

	w.lose(t, fmt.Sprintf("PUT /runners/%d", id), func(ctx context.Context) error {
		_, err := w.client.SetPaused(ctx, id, false, "")
		return err
	})
	if r, err := w.client.Runner(ctx, id); err != nil || r.Paused {
		t.Errorf("after a change with a lost answer: %+v, %v", r, err)
	}

	w.lose(t, fmt.Sprintf("DELETE /runners/%d", id), func(ctx context.Context) error { return w.client.DeleteRunner(ctx, id) })
	if err := w.client.DeleteRunner(ctx, id); err != nil {
		t.Errorf("after a lost deletion: %v", err)
	}
}

// FL-04: a runner is gone when a read confirms it, not when its deletion was requested.
func TestFL04_GitLabDeletedIsVerified(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	r := w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	json := http.Header{"Content-Type": {"application/json"}}
	for why, f := range map[string]func(*http.Request) *forgetest.Fault{
		"a proxy in front of it answers with success": func(r *http.Request) *forgetest.Fault {
			return map[string]*forgetest.Fault{http.MethodDelete: {Status: http.StatusNoContent}}[r.Method]
		},
		"it answers that there is none": func(r *http.Request) *forgetest.Fault {
			return map[string]*forgetest.Fault{http.MethodDelete: {Status: http.StatusNotFound, Header: json, Body: `{"message":"404 Not found"}`}}[r.Method]
		},
		"the read is forbidden": func(r *http.Request) *forgetest.Fault {
			return map[string]*forgetest.Fault{http.MethodDelete: {Status: http.StatusNoContent}, http.MethodGet: {Status: http.StatusForbidden}}[r.Method]
		},
		"the read fails": func(r *http.Request) *forgetest.Fault {
			return map[string]*forgetest.Fault{http.MethodDelete: {Status: http.StatusNoContent}, http.MethodGet: {Status: http.StatusBadGateway}}[r.Method]
		},
	} {
		w.Fault(f)
		if err := w.client.DeleteRunner(ctx, r.ID); err == nil || ClassOf(err) == NotFound {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// The client obeys a pause that GitLab requests: it sends no request until the pause ends.
func TestGitLabRateLimit(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	var mu sync.Mutex
	at := time.Date(2030, 1, 1, 12, 0, 20, 0, time.UTC)
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return at
	}
	w.Clock(clock)
	client := w.clientOf(t, w.token, clock)
	if client.Rate() != (Rate{}) {
		t.Errorf("before any request: %+v", client.Rate())
	}
	w.Limit(3)
	for n := range 3 {
		if _, err := client.Check(ctx); err != nil {
			t.Fatal(err)
		}
		if want := (Rate{Limit: 3, Remaining: 2 - n, Reset: time.Date(2030, 1, 1, 12, 1, 0, 0, time.UTC)}); client.Rate() != want {
			t.Errorf("%+v, want %+v", client.Rate(), want)
		}
	}
	w.Forget()
	for range 5 {
		_, err := client.Check(ctx)
		switch e, ok := errors.AsType[*Error](err); {
		case !ok:
			t.Errorf("ok is false; %v", err)
		case e.Class != RateLimited:
			t.Errorf("e.Class = %q, want %q", e.Class, RateLimited)
		case e.RetryAfter != 40*time.Second:
			t.Errorf("e.RetryAfter = %v, want %v", e.RetryAfter, 40*time.Second)
		}
	}
	if n := len(w.Calls()); n != 1 {
		t.Errorf("%d requests in the pause", n)
	}
	mu.Lock()
	at = at.Add(40 * time.Second)
	mu.Unlock()
	if _, err := client.Check(ctx); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// A limit with an end by GitLab's clock is converted to the local clock.
func TestGitLabClockSkew(t *testing.T) {
	for _, ahead := range []time.Duration{5 * time.Minute, -5 * time.Minute} {
		w, ctx := newGitLabEnv(t), testContext(t)
		managed := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
		others := managed.Add(ahead)
		client := w.clientOf(t, w.token, func() time.Time { return managed })
		w.Fault(func(*http.Request) *forgetest.Fault {
			return &forgetest.Fault{Status: http.StatusTooManyRequests, Header: http.Header{
				"Date": {others.Format(http.TimeFormat)}, "Ratelimit-Reset": {strconv.FormatInt(others.Add(25*time.Second).Unix(), 10)}}}
		})
		_, err := client.Check(ctx)
		if e, ok := errors.AsType[*Error](err); !ok || e.RetryAfter != 25*time.Second {
			t.Errorf("GitLab's clock %v ahead: %v, wait %v", ahead, err, e.RetryAfter)
		}
	}
}

// The credential goes only to GitLab, whatever redirects say.
func TestGitLabRedirect(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	var mu sync.Mutex
	var answered []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		answered = append(answered, r.Method+" "+r.URL.Path)
	}))
	t.Cleanup(elsewhere.Close)
	to := elsewhere.URL
	if u, err := url.Parse(to); err == nil { // the same machine with another name
		to = "http://localhost:" + u.Port()
	}
	for _, status := range []int{301, 302, 307, 308} {
		w.Fault(func(r *http.Request) *forgetest.Fault {
			return &forgetest.Fault{Status: status, Header: http.Header{"Location": {to + r.URL.Path}}}
		})
		for _, call := range gitLabCalls() {
			if _, err := call.do(ctx, w.client, w.group, 1); ClassOf(err) != Unavailable {
				t.Errorf("%s, redirected by %d: %v", call.name, status, err)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if answered != nil {
		t.Errorf("the other host received %v", answered)
	}
}

// FL-03, FLEET-12, AU-01: no error, log line or dump contains a secret, even if GitLab or a proxy
// repeats it.
func TestFL03_GitLabCanary(t *testing.T) {
	w, ctx := newGitLabEnv(t, "api"), testContext(t)
	created := w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	secrets := []string{w.token, created.Token}
	var printed bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&printed, nil))
	say := func(x any) {
		fmt.Fprintf(&printed, "%v %+v %#v %s %q\n", x, x, x, x, x)
		logger.Info("said", "it", x)
	}
	client, err := NewGitLab(Config{URL: w.URL, ScopeURL: w.URL + "/acme/config", Credential: map[string][]byte{"access_token": []byte(w.token)}})
	if err != nil {
		t.Fatal(err)
	}
	say(client)
	say(*client)
	for _, body := range []string{`{"message":"no: ` + w.token + ` and ` + created.Token + `"}`, `{"message":{"token":["` + created.Token + `"]}}`, created.Token + w.token, `{"token":"` + created.Token} {
		for _, status := range []int{200, 201, 302, 400, 401, 403, 404, 422, 500} {
			w.Fault(func(*http.Request) *forgetest.Fault {
				return &forgetest.Fault{Status: status, Header: http.Header{"Content-Type": {"application/json"}, "Location": {"https://x:" + w.token + "@example.com/" + created.Token}}, Body: body}
			})
			for _, call := range slices.Concat(gitLabCalls(), gitLabChanges()) {
				found, err := call.do(ctx, client, w.group, created.ID)
				say(found)
				say(err)
			}
		}
	}
	w.Fault(nil)
	_, token, err := w.client.CreateRunner(ctx, RunnerSpec{GroupID: w.group, RunUntagged: true})
	if err != nil {
		t.Fatal(err)
	}
	again, err := w.client.ResetToken(ctx, created.ID)
	if err != nil {
		t.Fatal(err)
	}
	secrets = append(secrets, token.Reveal(), again.Reveal())
	say(token)
	say(struct{ T secret.Text }{again})
	r, err := w.client.Runner(ctx, created.ID)
	say(r)
	say(err)
	if printed.Len() < 1000 {
		t.Fatal("nothing was printed")
	}
	for _, s := range secrets {
		if strings.Contains(printed.String(), s) || strings.Contains(printed.String(), strings.TrimPrefix(strings.TrimPrefix(s, "glrt-"), "glpat-")) {
			t.Errorf("%s… is printed", s[:8])
		}
	}
}

// Observe receives each request, with or without a response. Calls may be concurrent.
func TestGitLabObserve(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	var mu sync.Mutex
	reported := map[string]int{}
	client, err := NewGitLab(Config{URL: w.URL, Credential: map[string][]byte{"access_token": []byte(w.token)}, Observe: func(op string, status int) {
		mu.Lock()
		defer mu.Unlock()
		reported[fmt.Sprint(op, " ", status)]++
	}})
	if err != nil {
		t.Fatal(err)
	}
	r := w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	var wg sync.WaitGroup
	failed := make(chan error, 60)
	for range 20 {
		wg.Go(func() { _, err := client.GroupRunners(ctx, w.group); failed <- err })
		wg.Go(func() { _, err := client.Runner(ctx, r.ID); failed <- err })
		wg.Go(func() { _, err := client.SetPaused(ctx, r.ID, true, ""); failed <- err })
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			t.Error(err)
		}
	}
	w.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Drop: true} })
	if _, err := client.Check(ctx); err == nil {
		t.Error("there was no answer")
	}
	mu.Lock()
	defer mu.Unlock()
	switch {
	case reported["pause a runner 200"] != 20:
		t.Errorf(`reported: reported["pause a runner 200"] = %v, want 20`, reported["pause a runner 200"])
	case reported["check the access token 0"] != 1:
		t.Errorf(`reported: reported["check the access token 0"] = %v, want 1`, reported["check the access token 0"])
	case reported["list runners 200"]+reported["list runners 304"] != 20:
		t.Errorf("reported: got %v, want 20", reported["list runners 200"]+reported["list runners 304"])
	}
}

// All requests get the same response body. Nothing panics, and each result without an error has the
// requested content. This is not a fuzz target, because the instrumentation would compile both
// libraries again.
func TestGitLabAnyAnswer(t *testing.T) {
	w, ctx := newGitLabEnv(t, "api"), testContext(t)
	g, err := NewGitLab(Config{URL: w.URL, ScopeURL: w.URL + "/acme/config", Credential: map[string][]byte{"access_token": []byte("glpat-x")}})
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.Repeat("a", 40)
	for _, body := range []string{"", "null", "[]", "{}", "[null]", "[[]]", `"x"`, "1", `[{"id":1}]`, `[{"id":-1}]`, `[{"id":1},{"id":1}]`, `{"id":1,"paused":false}`, `{"id":1,"paused":"no"}`, `{"id":1,"token":"glrt-x"}`, `{"token":""}`,
		`{"scopes":["api"],"active":true,"expires_at":"2030-01-01"}`, `{"scopes":["api"],"active":true,"expires_at":"soon"}`, `{"id":1,"full_path":"acme"}`, `{"iid":1,"sha":"` + commit + `","state":"merged"}`,
		`{"name":"main","commit":{"id":"` + commit + `"}}`, `{"name":"main","commit":null}`, `{"approved_by":[{"user":null}]}`, `{"file_path":"a.yaml","encoding":"base64"}`, `{"path_with_namespace":"acme/config","permissions":{}}`} {
		for _, status := range []int{200, 204, 206, 304, 404, 418} {
			for _, next := range []string{"", "2"} {
				if status != http.StatusOK && next != "" {
					continue
				}
				w.Fault(func(*http.Request) *forgetest.Fault {
					return &forgetest.Fault{Status: status, Header: http.Header{"Content-Type": {"application/json"}, "X-Next-Page": {next}}, Body: body}
				})
				for _, call := range slices.Concat(gitLabCalls(), gitLabChanges()) {
					found, err := call.do(ctx, g, 1, 1)
					switch {
					case err != nil && (ClassOf(err) == "" || err.Error() == ""):
						t.Errorf("%s, answered %d %q: %v", call.name, status, body, err)
					case err == nil && call.list && strings.Contains(found, "ID:0"):
						t.Errorf("%s, answered %d %q: %s", call.name, status, body, found)
					}
				}
				if ids, err := g.GroupRunners(ctx, 1); err == nil && (ids == nil || slices.ContainsFunc(ids, func(id int64) bool { return id <= 0 })) {
					t.Errorf("runners %v, answered %q", ids, body)
				}
				if r, err := g.Runner(ctx, 1); err == nil && r.ID != 1 {
					t.Errorf("another runner: %+v, answered %q", r, body)
				}
				if _, token, err := g.CreateRunner(ctx, RunnerSpec{GroupID: 1, RunUntagged: true}); err == nil && token.IsZero() {
					t.Errorf("a runner without a token, answered %q", body)
				}
			}
		}
	}
}
