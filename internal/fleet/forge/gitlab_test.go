package forge

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/testkit/forgetest"
)

// managing lists the scopes that the fleet needs.
var managing = []string{scopeCreate, scopeManage, scopeRead}

// gitLabEnv is a GitLab with one group, and a client with a token for it.
type gitLabEnv struct {
	*forgetest.GitLabFake
	client *GitLab
	token  string
	group  int64
}

func newGitLabEnv(t *testing.T, scopes ...string) gitLabEnv {
	t.Helper()
	w := gitLabEnv{GitLabFake: forgetest.NewGitLab(t)}
	w.group = w.AddGroup("acme")
	if scopes == nil {
		scopes = managing
	}
	w.token = w.AddToken(forgetest.GitLabToken{Scopes: scopes, Owns: []int64{w.group}})
	w.client = w.clientOf(t, w.token, nil)
	return w
}

func (w gitLabEnv) clientOf(t *testing.T, token string, now func() time.Time) *GitLab {
	t.Helper()
	c, err := NewGitLab(Config{URL: w.URL, Credential: map[string][]byte{"access_token": []byte(token + "\n")}, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// countCalls counts the requests of one method and path, such as "POST /user/runners".
func (w gitLabEnv) countCalls(what string) (n int) {
	for _, c := range w.Calls() {
		if c.Method+" "+strings.TrimPrefix(c.Path, "/api/v4") == what {
			n++
		}
	}
	return n
}

// The life of a runner. GitLab's later state confirms each step.
func TestGitLabRunner(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	if id, err := w.client.Group(ctx, "Acme"); err != nil || id != w.group {
		t.Fatalf("group %d, %v; want %d", id, err, w.group)
	}
	spec := RunnerSpec{GroupID: w.group, Tags: []string{"docker", "nix"}, Locked: true, Protected: true, Paused: true, MaximumTimeout: time.Hour, Description: "acme-gl-nix", Note: "mark-1"}
	id, token, err := w.client.CreateRunner(ctx, spec)
	if err != nil || !strings.HasPrefix(token.Reveal(), "glrt-") {
		t.Fatalf("runner %d with token %q, %v", id, token.Reveal(), err)
	}
	r, err := w.client.Runner(ctx, id)
	want := GitLabRunner{ID: id, Paused: true, Locked: true, Protected: true, Status: "never_contacted", Description: "acme-gl-nix", Note: "mark-1", Tags: spec.Tags, MaximumTimeout: time.Hour, Groups: []int64{w.group}}
	if err != nil || fmt.Sprint(r) != fmt.Sprint(want) {
		t.Fatalf("got  %+v, %v\nwant %+v", r, err, want)
	}

	if w.Contact(token.Reveal(), "s_1") != id {
		t.Fatal("the token opens nothing")
	}
	switch r, err := w.client.Runner(ctx, id); {
	case err != nil:
		t.Errorf("a paused runner whose manager contacted GitLab: %v", err)
	case r.Status != "online":
		t.Errorf("a paused runner whose manager contacted GitLab: r.Status = %q, want %q", r.Status, "online")
	case r.ContactedAt.IsZero():
		t.Errorf("a paused runner whose manager contacted GitLab: r.ContactedAt.IsZero() is true; %+v, %v", r, err)
	case r.Version == "":
		t.Errorf("a paused runner whose manager contacted GitLab: r.Version is empty; %+v, %v", r, err)
	}
	switch r, err := w.client.SetPaused(ctx, id, false, ""); {
	case err != nil:
		t.Errorf("resumed: %v", err)
	case r.Paused:
		t.Errorf("resumed: r.Paused is true; %+v, %v", r, err)
	case r.Note != "mark-1":
		t.Errorf("resumed: r.Note = %q, want %q", r.Note, "mark-1")
	}
	job := w.StartJob(id, 77)
	if jobs, err := w.client.RunningJobs(ctx, id); err != nil || !slices.Equal(jobs, []Job{{job, 77}}) {
		t.Errorf("jobs %v, %v", jobs, err)
	}
	switch r, err := w.client.SetPaused(ctx, id, true, "mark-1; paused by alice"); {
	case err != nil:
		t.Errorf("paused: %v", err)
	case !r.Paused:
		t.Errorf("paused: r.Paused is false; %+v, %v", r, err)
	case r.Note != "mark-1; paused by alice":
		t.Errorf("paused: r.Note = %q, want %q", r.Note, "mark-1; paused by alice")
	}
	if w.StartJob(id, 77) != 0 {
		t.Error("a paused runner takes a job")
	}
	if j, _ := w.Job(job); j.Status != "running" {
		t.Errorf("a pause ends a job: %+v", j)
	}

	w.Contact(token.Reveal(), "s_2")

	if err := w.client.UpdateRunner(ctx, id, RunnerSpec{Tags: []string{"docker"}, RunUntagged: true, Description: "other"}); err != nil {
		t.Error(err)
	}
	switch r, err := w.client.Runner(ctx, id); {
	case err != nil:
		t.Errorf("changed: %v", err)
	case !slices.Equal(r.Tags, []string{"docker"}):
		t.Errorf("changed: r.Tags (-want +got):\n%s", cmp.Diff([]string{"docker"}, r.Tags))
	case !r.RunUntagged:
		t.Errorf("changed: r.RunUntagged is false; %+v, %v", r, err)
	case r.Locked:
		t.Errorf("changed: r.Locked is true; %+v, %v", r, err)
	case r.Protected:
		t.Errorf("changed: r.Protected is true; %+v, %v", r, err)
	case r.MaximumTimeout != 0:
		t.Errorf("changed: r.MaximumTimeout = %v, want 0", r.MaximumTimeout)
	case !r.Paused:
		t.Errorf("changed: r.Paused is false; %+v, %v", r, err)
	case r.Note == "":
		t.Errorf("changed: r.Note is empty; %+v, %v", r, err)
	}

	next, err := w.client.ResetToken(ctx, id)
	switch {
	case err != nil:
		t.Errorf("after a reset the old token opens: %v", err)
	case w.Contact(token.Reveal(), "s_1") != 0:
		t.Errorf(`after a reset the old token opens: w.Contact(token.Reveal(), "s_1") != 0; %d, %d, %v`,
			w.Contact(token.Reveal(), "s_1"), w.Contact(next.Reveal(), "s_1"), err)
	case w.Contact(next.Reveal(), "s_1") != id:
		t.Errorf(`after a reset the old token opens: w.Contact(next.Reveal(), "s_1") != id; %d, %d, %v`,
			w.Contact(token.Reveal(), "s_1"), w.Contact(next.Reveal(), "s_1"), err)
	}

	for range 2 { // the second call finds it gone
		if err := w.client.DeleteRunner(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if _, err := w.client.Runner(ctx, id); ClassOf(err) != NotFound {
		t.Errorf("the deleted runner: %v", err)
	}
	if j, _ := w.Job(job); j.Status != "failed" {
		t.Errorf("the job of a deleted runner: %+v", j)
	}
}

// An unknown runner status stays unchanged.
func TestGitLabStatus(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	for status, want := range map[string]string{"": "never_contacted", "online": "online", "offline": "offline", "stale": "stale", "paused": "offline", "hibernating": "hibernating"} {
		r := w.AddRunner(forgetest.GitLabRunner{Group: w.group, Status: status, RunUntagged: true})
		if got, err := w.client.Runner(ctx, r.ID); err != nil || got.Status != want {
			t.Errorf("%q is read as %q, %v; want %q", status, got.Status, err, want)
		}
	}
}

func TestGitLabCheck(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	end := time.Date(2100, 3, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		why     string
		scopes  []string
		missing []string
	}{
		{"the scopes that the fleet requires", managing, nil},
		{"api is everything", []string{"api"}, nil},
		{"a group's runners cannot be listed with manage_runner", []string{scopeCreate, scopeManage}, []string{scopeRead}},
		{"nothing can be written", []string{scopeRead, "read_user"}, []string{scopeCreate, scopeManage}},
	} {
		token := w.AddToken(forgetest.GitLabToken{Scopes: test.scopes, ExpiresAt: end})
		id, err := w.clientOf(t, token, nil).Check(ctx)
		switch {
		case err != nil:
			t.Errorf("%s: %v", test.why, err)
		case id.Kind != "gitlabToken":
			t.Errorf("%s: id.Kind = %q, want %q", test.why, id.Kind, "gitlabToken")
		case !slices.Equal(id.Scopes, test.scopes):
			t.Errorf("%s: id.Scopes (-want +got):\n%s", test.why, cmp.Diff(test.scopes, id.Scopes))
		case !slices.Equal(id.Missing, test.missing):
			t.Errorf("%s: id.Missing (-want +got):\n%s", test.why, cmp.Diff(test.missing, id.Missing))
		case !id.ExpiresAt.Equal(end):
			t.Errorf("%s: id.ExpiresAt = %v, want %v", test.why, id.ExpiresAt, end)
		}
		// The scopes are necessary: without one of them, GitLab refuses a request.
		client := w.clientOf(t, token, nil)
		_, listed := client.GroupRunners(ctx, w.group)
		_, _, created := client.CreateRunner(ctx, RunnerSpec{GroupID: w.group, RunUntagged: true})
		refused := ClassOf(listed) == Forbidden || ClassOf(created) == Forbidden
		if refused != (len(test.missing) > 0) {
			t.Errorf("%s: list %v, create %v", test.why, listed, created)
		}
	}
	if id, err := w.client.Check(ctx); err != nil || !id.ExpiresAt.IsZero() {
		t.Errorf("a token without an end: %+v, %v", id, err)
	}
	for why, change := range map[string]func(*forgetest.GitLabToken){
		"revoked": func(t *forgetest.GitLabToken) { t.Revoked = true },
		"expired": func(t *forgetest.GitLabToken) { t.ExpiresAt = time.Now().Add(-time.Hour) },
	} {
		token := w.AddToken(forgetest.GitLabToken{Scopes: managing})
		w.ChangeToken(token, change)
		if _, err := w.clientOf(t, token, nil).Check(ctx); ClassOf(err) != Refused || !strings.Contains(err.Error(), "oken") {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// A runner's own token, created by a person, only fetches jobs. The client sends no request with
// it.
func TestGitLabRunnerTokenOnly(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	c, err := NewGitLab(Config{URL: w.URL, Credential: map[string][]byte{"runner_token": []byte("glrt-byhand")}})
	if err != nil {
		t.Fatal(err)
	}
	switch both, err := NewGitLab(Config{URL: w.URL, Credential: map[string][]byte{"runner_token": []byte("glrt-byhand"), "access_token": []byte("x")}}); {
	case err != nil:
		t.Error(err)
	case !both.RunnerToken().IsZero():
		t.Errorf("both.RunnerToken().IsZero() is false; both = %v, %v", both, err)
	case c.RunnerToken().Reveal() != "glrt-byhand":
		t.Errorf(`c.RunnerToken().Reveal() != "glrt-byhand"; both = %v, %v`, both, err)
	}
	if id, err := c.Check(ctx); err != nil || !slices.Equal(id.Missing, managing) {
		t.Errorf("%+v, %v", id, err)
	}
	if _, err := c.SetPaused(ctx, 1, true, ""); ClassOf(err) != Forbidden {
		t.Errorf("paused: %v", err)
	}
	if len(w.Calls()) != 0 {
		t.Errorf("requested %v", w.Calls())
	}
	if v, err := c.Version(ctx); err != nil || v != "" {
		t.Errorf("version %q, %v: it answers, which is enough", v, err)
	}
}

func TestGitLabVersion(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	if v, err := w.client.Version(ctx); err != nil || !strings.HasPrefix(v, "18.") {
		t.Errorf("version %q, %v", v, err)
	}
	narrow := w.clientOf(t, w.AddToken(forgetest.GitLabToken{Scopes: []string{scopeManage}}), nil)
	if v, err := narrow.Version(ctx); err != nil || v != "" {
		t.Errorf("with a scope without this permission: %q, %v", v, err)
	}
	if _, err := w.clientOf(t, "glpat-nobodys", nil).Version(ctx); ClassOf(err) != Refused {
		t.Errorf("with a token that is none: %v", err)
	}
}

func TestGitLabGroup(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	below := w.AddGroup("acme/ci.d")
	w.AddGroup("other")
	digits := w.AddGroup(fmt.Sprint(w.group))
	if id, err := w.client.Group(ctx, "acme/ci.d"); err != nil || id != below {
		t.Errorf("%d, %v; want %d", id, err, below)
	}
	for path, want := range map[string]Class{"nobody": NotFound, "other": NotFound, fmt.Sprint(w.group): NotFound, "": Invalid, "acme/": Invalid} {
		if id, err := w.client.Group(ctx, path); ClassOf(err) != want || id != 0 {
			t.Errorf("%q: %d, %v; want %s (there is %d)", path, id, err, want, digits)
		}
	}
}

// Lists are read to their end, and include runners of parent groups.
func TestGitLabLists(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	child, other := w.AddGroup("acme/child"), w.AddGroup("acmeother")
	var own, below []int64
	for i := range 250 {
		switch {
		case i%10 == 0:
			w.AddRunner(forgetest.GitLabRunner{Group: other, RunUntagged: true})
		case i%50 == 1:
			below = append(below, w.AddRunner(forgetest.GitLabRunner{Group: child, RunUntagged: true}).ID)
		default:
			own = append(own, w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true}).ID)
		}
	}
	if got, err := w.client.GroupRunners(ctx, w.group); err != nil || !slices.Equal(got, own) {
		t.Errorf("%d runners, %v; want %d", len(got), err, len(own))
	}
	if got, err := w.client.GroupRunners(ctx, child); err != nil || len(got) != len(own)+len(below) {
		t.Errorf("%d runners of the group below, %v; want %d", len(got), err, len(own)+len(below))
	}
	empty := w.AddGroup("acme/empty/not")
	for _, id := range own {
		w.RemoveRunner(id)
	}
	switch got, err := w.client.GroupRunners(ctx, empty); {
	case err != nil:
		t.Error(err)
	case got == nil:
		t.Error("got is nil")
	case len(got) != 0:
		t.Errorf("len(got) = %v, want 0", len(got))
	}
	job := int64(0)
	r := w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	for range 130 {
		job = w.StartJob(r.ID, 5)
	}
	switch jobs, err := w.client.RunningJobs(ctx, r.ID); {
	case err != nil:
		t.Error(err)
	case len(jobs) != 130:
		t.Errorf("len(jobs) = %v, want 130", len(jobs))
	case !slices.Contains(jobs, Job{job, 5}):
		t.Errorf("jobs = %v does not contain %v", jobs, Job{job, 5})
	}
}

// If a runner is deleted during the reads, a later one moves and could be missed.
func TestGitLabListChangesWhileRead(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	var ids []int64
	for range 201 {
		ids = append(ids, w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true}).ID)
	}
	gone := 0
	var mu sync.Mutex
	disturb := func(times int) {
		gone = 0
		w.Fault(func(r *http.Request) *forgetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if r.FormValue("page") == "2" && gone < times {
				w.RemoveRunner(ids[0])
				ids = ids[1:]
				gone++
			}
			return nil
		})
	}
	disturb(1)
	if got, err := w.client.GroupRunners(ctx, w.group); err != nil || !slices.Equal(got, ids) {
		t.Errorf("%d runners, %v; want %d", len(got), err, len(ids))
	}
	disturb(100)
	if got, err := w.client.GroupRunners(ctx, w.group); ClassOf(err) != Unavailable || got != nil {
		t.Errorf("%d runners, %v: of a list that never rests", len(got), err)
	}
}

// GitLab answers 304 for an unchanged page, which may not be the last page any more.
func TestGitLabNextPageOfAnUnchangedOne(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	at := time.Now()
	w.Clock(func() time.Time { return at })
	for range 100 {
		w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	}
	for want := 100; want <= 101; want++ {
		if got, err := w.client.GroupRunners(ctx, w.group); err != nil || len(got) != want {
			t.Errorf("%d runners, %v; want %d", len(got), err, want)
		}
		w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	}
	if !slices.ContainsFunc(w.Calls(), func(c forgetest.Call) bool { return c.Status == http.StatusNotModified }) {
		t.Error("no page was answered 304")
	}
}

func TestGitLabCancelJob(t *testing.T) {
	w, ctx := newGitLabEnv(t, "api"), testContext(t)
	r := w.AddRunner(forgetest.GitLabRunner{Group: w.group, RunUntagged: true})
	job := w.StartJob(r.ID, 9)
	for range 2 {
		if err := w.client.CancelJob(ctx, 9, job); err != nil {
			t.Error(err)
		}
	}
	if j, _ := w.Job(job); j.Status != "canceled" {
		t.Errorf("%+v", j)
	}
	if err := w.client.CancelJob(ctx, 9, 4711); err != nil {
		t.Errorf("a job that is not there: %v", err)
	}
	// Newer versions refuse to cancel a job that has ended.
	w.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Method == http.MethodPost {
			return &forgetest.Fault{Status: http.StatusUnprocessableEntity, Body: `{"message":"Job is not cancelable"}`}
		}
		return nil
	})
	if err := w.client.CancelJob(ctx, 9, job); err != nil {
		t.Errorf("a job that has ended: %v", err)
	}
	running := w.StartJob(r.ID, 9)
	if err := w.client.CancelJob(ctx, 9, running); ClassOf(err) != Invalid {
		t.Errorf("a job that runs and is not cancelled: %v", err)
	}
	w.Fault(nil)
	narrow := w.clientOf(t, w.AddToken(forgetest.GitLabToken{Scopes: managing}), nil)
	if err := narrow.CancelJob(ctx, 9, running); ClassOf(err) != Forbidden || !strings.Contains(err.Error(), "403") {
		t.Errorf("without the scope api: %v", err)
	}
	w.RestrictCancel(9, forgetest.NoOne)
	if err := w.client.CancelJob(ctx, 9, running); ClassOf(err) != Forbidden {
		t.Errorf("where the project does not allow it: %v", err)
	}
}

// Configurations that are refused without a request.
func TestNewGitLab(t *testing.T) {
	token := map[string][]byte{"access_token": []byte("glpat-canary-x")}
	for why, c := range map[string]Config{
		"no URL":                {Credential: token},
		"in the clear":          {URL: "http://gitlab.example.com", Credential: token},
		"a password in the URL": {URL: "https://u:canary@gitlab.example.com", Credential: token},
		"API in the clear":      {URL: "https://gitlab.example.com", APIURL: "http://gitlab.example.com/api/v4", Credential: token},
		"no credential":         {URL: "https://gitlab.example.com"},
		"an empty one":          {URL: "https://gitlab.example.com", Credential: map[string][]byte{"access_token": []byte(" \n")}},
		"two lines":             {URL: "https://gitlab.example.com", Credential: map[string][]byte{"access_token": []byte("glpat-canary\nX-Evil: y")}},
		"another forge's":       {URL: "https://gitlab.example.com", Credential: map[string][]byte{"github_token": []byte("ghp_canary")}},
		"an invalid bundle":     {URL: "https://gitlab.example.com", CABundle: []byte("nothing"), Credential: token},
	} {
		switch g, err := NewGitLab(c); {
		case err == nil:
			t.Errorf("%s: no error", why)
		case g != nil:
			t.Errorf("%s: g = %v, want nil", why, g)
		case strings.Contains(err.Error(), "canary"):
			t.Errorf("%s: err.Error() = %q contains %q", why, err.Error(), "canary")
		}
	}
	g, err := NewGitLab(Config{URL: "https://example.com/gitlab/", Credential: token})
	if err != nil || g.transport.base.String() != "https://example.com/gitlab/api/v4" {
		t.Errorf("below a path: %v", err)
	}
}

func TestGitLabCABundle(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	to, err := url.Parse(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(to))
	front.Config.ErrorLog = log.New(io.Discard, "", 0) // the client's TLS error is expected
	front.StartTLS()
	t.Cleanup(front.Close)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	for _, b := range [][]byte{nil, bundle} {
		c, err := NewGitLab(Config{URL: front.URL, CABundle: b, Credential: map[string][]byte{"access_token": []byte(w.token)}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Check(ctx)
		if (err == nil) != (b != nil) || b == nil && ClassOf(err) != Unavailable {
			t.Errorf("with %d bytes of a bundle: %v", len(b), err)
		}
	}
}

// Tags that GitLab would read as other tags are not sent.
func TestGitLabTags(t *testing.T) {
	w, ctx := newGitLabEnv(t), testContext(t)
	for _, tag := range []string{"", "a,b", " a"} {
		spec := RunnerSpec{GroupID: w.group, Tags: []string{"ok", tag}}
		if _, _, err := w.client.CreateRunner(ctx, spec); ClassOf(err) != Invalid {
			t.Errorf("created with %q: %v", tag, err)
		}
		if err := w.client.UpdateRunner(ctx, 1, spec); ClassOf(err) != Invalid {
			t.Errorf("changed to %q: %v", tag, err)
		}
	}
	if len(w.Calls()) != 0 {
		t.Errorf("requested %v", w.Calls())
	}
	if _, _, err := w.client.CreateRunner(ctx, RunnerSpec{GroupID: w.group}); ClassOf(err) != Invalid || !strings.Contains(err.Error(), "tags_list") {
		t.Errorf("no tags and nothing untagged: %v", err)
	}
	if _, _, err := w.client.CreateRunner(ctx, RunnerSpec{GroupID: w.group + 1000, RunUntagged: true}); ClassOf(err) != Forbidden {
		t.Errorf("in a group that is not there: %v", err)
	}
}
