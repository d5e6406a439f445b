package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/testkit/forgetest"
)

const configProject, configFile = "platform/fleet", "fleet/gl-nix.yaml"

// newGitLabChangeEnv returns a GitLab with a project that contains one file, and a client for changes.
func newGitLabChangeEnv(t *testing.T) gitLabEnv {
	t.Helper()
	w := newGitLabEnv(t)
	w.AddProject(configProject, map[string]string{configFile: "max: 3\n", "README.md": "# fleet\n"})
	w.token = w.AddToken(forgetest.GitLabToken{User: "tailplane-bot", Level: 40, Scopes: []string{"api"}})
	w.client = w.changesOf(t, w.token)
	return w
}

func (w gitLabEnv) changesOf(t *testing.T, token string) *GitLab {
	t.Helper()
	c, err := NewGitLab(Config{URL: w.URL, ScopeURL: w.URL + "/" + configProject, Credential: map[string][]byte{"access_token": []byte(token)}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// proposal returns a change of the file, based on its version on main.
func (w gitLabEnv) proposal(t *testing.T, content string) Proposal {
	t.Helper()
	f, err := w.client.ReadFile(testContext(t), "main", configFile)
	if err != nil {
		t.Fatal(err)
	}
	return Proposal{Base: "main", Branch: "tailplane/c1", Path: configFile, Was: f.Version, Content: []byte(content), Message: "More\n\nTailplane-Change: c1\nCo-authored-by: Bob <bob@example.com>\n",
		Author: Person{Name: "alice@example.com", Email: "alice@example.com"}, Title: "More runners", Body: "because", Labels: []string{"tailplane/risk-low"}}
}

// writes returns the write requests.
func (w gitLabEnv) writes() (out []string) {
	for _, c := range w.Calls() {
		if c.Method != http.MethodGet {
			out = append(out, c.Method+" "+strings.TrimPrefix(c.Path, "/api/v4/projects/platform%2Ffleet"))
		}
	}
	return out
}

// FLEET-15: a change is one commit on its own branch and one merge request, however often it is
// proposed.
func TestFLEET15_GitLabPropose(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	p := w.proposal(t, "max: 5\n")
	first, err := w.client.Propose(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	log := w.Log(configProject, p.Branch)
	switch {
	case len(log) != 2:
		t.Fatalf("commits: len(log) = %v, want 2", len(log))
	case log[0].ID != first.Head:
		t.Fatalf("commits: log[0].ID = %q, want %q", log[0].ID, first.Head)
	case log[0].Message != p.Message:
		t.Fatalf("commits: log[0].Message = %q, want %q", log[0].Message, p.Message)
	case log[0].AuthorEmail != "alice@example.com":
		t.Fatalf("commits: log[0].AuthorEmail = %q, want %q", log[0].AuthorEmail, "alice@example.com")
	case log[0].CommitterName != "tailplane-bot":
		t.Fatalf("commits: log[0].CommitterName = %q, want %q", log[0].CommitterName, "tailplane-bot")
	}
	switch {
	case !first.Open:
		t.Errorf("first.Open is false; first = %+v", first)
	case first.Merged:
		t.Errorf("first.Merged is true; first = %+v", first)
	case first.Number != 1:
		t.Errorf("first.Number = %v, want 1", first.Number)
	case !strings.Contains(first.URL, "/merge_requests/1"):
		t.Errorf("first.URL = %q does not contain %q", first.URL, "/merge_requests/1")
	case first.Blocked != "":
		t.Errorf("first.Blocked = %q, want none", first.Blocked)
	case !first.ChecksKnown:
		t.Errorf("first.ChecksKnown is false; first = %+v", first)
	}
	for _, name := range []string{"tailplane-bot", "alice@example.com", "Bob", "bob@example.com"} {
		if !slices.Contains(first.Authors, name) {
			t.Errorf("%s is not an author of it: %v", name, first.Authors)
		}
	}
	if text, _ := w.File(configProject, "main", configFile); text != "max: 3\n" {
		t.Errorf("main has %q", text)
	}

	w.Forget()
	switch again, err := w.client.Propose(ctx, p); {
	case err != nil:
		t.Errorf("the same again: %v", err)
	case again.Head != first.Head:
		t.Errorf("the same again: again.Head = %q, want %q", again.Head, first.Head)
	case again.Number != first.Number:
		t.Errorf("the same again: again.Number = %v, want %v", again.Number, first.Number)
	case len(w.writes()) != 0:
		t.Errorf("the same again: len(w.writes()) != 0; again = %+v, %v, %v", again, err, w.writes())
	}

	w.Lag(configProject, 2) // GitLab adds the commit to the request later
	f, err := w.client.ReadFile(ctx, p.Branch, configFile)
	if err != nil || f.Commit != first.Head {
		t.Fatalf("%+v, %v", f, err)
	}
	p.Was, p.Content, p.Title, p.Labels = f.Version, []byte("max: 7\n"), "Even more", []string{"tailplane/risk-high"}
	w.ChangeMergeRequest(configProject, 1, func(mr *forgetest.GitLabMergeRequest) { mr.Labels = append(mr.Labels, "somebody's") })
	second, err := w.client.Propose(ctx, p)
	switch {
	case err != nil:
		t.Errorf("a second one: %v", err)
	case second.Number != 1:
		t.Errorf("a second one: second.Number = %v, want 1", second.Number)
	case second.Head == first.Head:
		t.Errorf("a second one: second.Head = %q, the same as first.Head", second.Head)
	case second.Head != w.Log(configProject, p.Branch)[0].ID:
		t.Errorf("a second one: second.Head = %q, want w.Log(configProject, p.Branch)[0].ID", second.Head)
	}
	switch mrs := w.MergeRequests(configProject); {
	case len(mrs) != 1:
		t.Errorf("len(mrs) = %v, want 1", len(mrs))
	case mrs[0].Title != "Even more":
		t.Errorf("mrs[0].Title = %q, want %q", mrs[0].Title, "Even more")
	case !slices.Equal(mrs[0].Labels, []string{"somebody's", "tailplane/risk-high"}):
		t.Errorf("mrs[0].Labels (-want +got):\n%s", cmp.Diff([]string{"somebody's", "tailplane/risk-high"}, mrs[0].Labels))
	}
}

// A missing file is created, and an existing one is deleted.
func TestGitLabProposeFiles(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	p := w.proposal(t, "")
	p.Content = nil
	if r, err := w.client.Propose(ctx, p); err != nil {
		t.Error(err)
	} else if _, exists := w.File(configProject, p.Branch, configFile); exists {
		t.Errorf("it still exists: %+v", r)
	}
	p.Branch, p.Path, p.Was, p.Content = "tailplane/c2", "fleet/new pool.yaml", "", []byte("max: 1\n")
	if _, err := w.client.Propose(ctx, p); err != nil {
		t.Error(err)
	}
	if text, _ := w.File(configProject, p.Branch, p.Path); text != "max: 1\n" {
		t.Errorf("%q", text)
	}
	switch f, err := w.client.ReadFile(ctx, "main", p.Path); {
	case err != nil:
		t.Errorf("what is not on main: %v", err)
	case f.Version != "":
		t.Errorf("what is not on main: f.Version = %q, want none", f.Version)
	case f.Content != nil:
		t.Errorf("what is not on main: f.Content = %v, want nil", f.Content)
	case !isCommit(f.Commit):
		t.Errorf("what is not on main: isCommit(f.Commit) is false; %+v, %v", f, err)
	}
	if _, err := w.client.ReadFile(ctx, "nowhere", p.Path); ClassOf(err) != NotFound {
		t.Errorf("a branch that is not there: %v", err)
	}
	for _, path := range []string{"", "/etc/passwd", "a/../b", ".gitlab-ci.yml", ".git/config"} {
		if _, err := w.client.ReadFile(ctx, "main", path); ClassOf(err) != Invalid {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// FLEET-15: a concurrent change, at any moment, is a Conflict, and nothing is overwritten.
func TestFLEET15_GitLabMovedBase(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	p := w.proposal(t, "max: 5\n")
	other := "max: 4\n"
	w.Push(configProject, "main", "carol", "meanwhile", map[string]*string{configFile: &other})
	if _, err := w.client.Propose(ctx, p); ClassOf(err) != Conflict || len(w.writes()) != 0 {
		t.Errorf("moved before: %v, wrote %v", err, w.writes())
	}
	p = w.proposal(t, "max: 5\n")
	readme := "# other\n"
	w.Push(configProject, "main", "carol", "another file", map[string]*string{"README.md": &readme})
	if _, err := w.client.Propose(ctx, p); err != nil {
		t.Errorf("another file moved: %v", err)
	}

	// On the change's own branch, between the read and the commit.
	f, err := w.client.ReadFile(ctx, p.Branch, configFile)
	if err != nil {
		t.Fatal(err)
	}
	p.Was, p.Content = f.Version, []byte("max: 9\n")
	w.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/repository/commits") {
			mallory := "max: 1000\n"
			w.Push(configProject, p.Branch, "mallory", "quick", map[string]*string{configFile: &mallory})
		}
		return nil
	})
	if _, err := w.client.Propose(ctx, p); ClassOf(err) != Conflict {
		t.Errorf("moved under our hands: %v", err)
	}
	w.Fault(nil)
	if text, _ := w.File(configProject, p.Branch, configFile); text != "max: 1000\n" {
		t.Errorf("it was written over: %q", text)
	}

	same := w.proposal(t, "max: 4\n")
	same.Branch = "tailplane/c2"
	if _, err := w.client.Propose(ctx, same); ClassOf(err) != Conflict {
		t.Errorf("content that is already there: %v", err)
	}
	w.AddMergeRequest(configProject, forgetest.GitLabMergeRequest{Source: "tailplane/c3", Target: "main", SHA: w.Log(configProject, "main")[0].ID, State: "closed"})
	over := w.proposal(t, "max: 6\n")
	over.Branch = "tailplane/c3"
	if _, err := w.client.Propose(ctx, over); ClassOf(err) != Conflict {
		t.Errorf("a change that was closed: %v", err)
	}
	w.AddMergeRequest(configProject, forgetest.GitLabMergeRequest{Source: "tailplane/c4", Target: "main", SHA: w.Log(configProject, "main")[0].ID, Fork: true})
	fork := w.proposal(t, "max: 6\n")
	fork.Branch = "tailplane/c4"
	if r, err := w.client.Propose(ctx, fork); err != nil || r.Number == 3 {
		t.Errorf("a fork's branch of that name: %+v, %v", r, err)
	}
}

// FLEET-15: after a lost response, repeating the proposal creates everything only once.
func TestFLEET15_GitLabLostAnswers(t *testing.T) {
	for _, what := range []string{"/repository/commits", "/merge_requests"} {
		w, ctx := newGitLabChangeEnv(t), testContext(t)
		p := w.proposal(t, "max: 5\n")
		lost := 0
		w.Fault(func(r *http.Request) *forgetest.Fault {
			if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, what) && lost == 0 {
				lost++
				return &forgetest.Fault{After: true, Drop: true}
			}
			return nil
		})
		if _, err := w.client.Propose(ctx, p); ClassOf(err) != Unavailable {
			t.Errorf("%s with a lost answer: %v", what, err)
		}
		r, err := w.client.Propose(ctx, p)
		switch {
		case err != nil:
			t.Errorf("%s: %v", what, err)
		case len(w.MergeRequests(configProject)) != 1:
			t.Errorf("%s: len(w.MergeRequests(configProject)) != 1, %+v, %v, %d, %d",
				what, r, err, len(w.MergeRequests(configProject)), len(w.Log(configProject, p.Branch)))
		case len(w.Log(configProject, p.Branch)) != 2:
			t.Errorf("%s: len(w.Log(configProject, p.Branch)) != 2, %+v, %v, %d, %d",
				what, r, err, len(w.MergeRequests(configProject)), len(w.Log(configProject, p.Branch)))
		}
	}
}

// PL-06: an approval covers the commit that it was given for. GitLab reports only its time, so an
// approval does not cover later pushes.
func TestPL06_GitLabApprovals(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	var at atomic.Int64
	at.Store(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC).Unix())
	w.Clock(func() time.Time { return time.Unix(at.Load(), 0) })
	r, err := w.client.Propose(ctx, w.proposal(t, "max: 5\n"))
	if err != nil {
		t.Fatal(err)
	}
	at.Add(60)
	w.Approve(configProject, 1, "erin")
	r, err = w.client.Request(ctx, r.Number)
	switch {
	case err != nil:
		t.Fatal(err)
	case len(r.Reviews) != 1:
		t.Fatalf("len(r.Reviews) = %v, want 1", len(r.Reviews))
	case r.Reviews[0].By != "erin":
		t.Fatalf("r.Reviews[0].By = %q, want %q", r.Reviews[0].By, "erin")
	case !r.Reviews[0].Approved:
		t.Fatalf("r.Reviews[0].Approved is false; %+v, %v", r, err)
	case r.Reviews[0].Head != r.Head:
		t.Fatalf("r.Reviews[0].Head = %q, want %q", r.Reviews[0].Head, r.Head)
	case r.Reviews[0].At.Unix() != at.Load():
		t.Fatalf("r.Reviews[0].At.Unix() = %v, want %v", r.Reviews[0].At.Unix(), at.Load())
	}
	at.Add(60)
	more := "max: 500\n"
	w.Push(configProject, "tailplane/c1", "mallory", "sneak\n\nCo-authored-by: erin <erin@example.com>", map[string]*string{configFile: &more})
	r, err = w.client.Request(ctx, r.Number)
	switch {
	case err != nil:
		t.Errorf("after a push: %v", err)
	case len(r.Reviews) != 1:
		t.Errorf("after a push: len(r.Reviews) = %v, want 1", len(r.Reviews))
	case r.Reviews[0].Head != "":
		t.Errorf("after a push: r.Reviews[0].Head = %q, want none", r.Reviews[0].Head)
	}
	for _, name := range []string{"mallory", "mallory@example.com", "erin@example.com", "alice@example.com"} {
		if !slices.Contains(r.Authors, name) {
			t.Errorf("%s is not an author of it: %v", name, r.Authors)
		}
	}
	w.Approve(configProject, 1, "frank") // in the same second as the push: it is not known which commit frank saw
	switch r, err = w.client.Request(ctx, r.Number); {
	case err != nil:
		t.Errorf("at the time of the push: %v", err)
	case len(r.Reviews) != 2:
		t.Errorf("at the time of the push: len(r.Reviews) = %v, want 2", len(r.Reviews))
	case r.Reviews[1].Head != "":
		t.Errorf("at the time of the push: r.Reviews[1].Head = %q, want none", r.Reviews[1].Head)
	}
	w.SetStatus(configProject, r.Head, "plan", "failed")
	switch r, err = w.client.Request(ctx, r.Number); {
	case err != nil:
		t.Error(err)
	case len(r.Checks) != 1:
		t.Errorf("len(r.Checks) = %v, want 1", len(r.Checks))
	case r.Checks[0].Name != "plan":
		t.Errorf("r.Checks[0].Name = %q, want %q", r.Checks[0].Name, "plan")
	case r.Checks[0].State != "failed":
		t.Errorf("r.Checks[0].State = %q, want %q", r.Checks[0].State, "failed")
	}
}

// PL-06: exactly the reviewed commit is merged.
func TestPL06_GitLabMerge(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	r, err := w.client.Propose(ctx, w.proposal(t, "max: 5\n"))
	if err != nil {
		t.Fatal(err)
	}
	developer := w.changesOf(t, w.AddToken(forgetest.GitLabToken{Level: 30, Scopes: []string{"api"}}))
	if err := developer.Merge(ctx, 1, r.Head); ClassOf(err) != Forbidden {
		t.Errorf("by a user without merge rights: %v", err)
	}
	w.Refuse(configProject, "not_approved")
	if err := w.client.Merge(ctx, 1, r.Head); ClassOf(err) != Invalid {
		t.Errorf("against the rules: %v", err)
	}
	for status, blocked := range map[string]bool{"not_approved": true, "ci_must_pass": true, "conflict": true, "need_rebase": true, "draft_status": true, "new_reason": true, "checking": false} {
		w.Refuse(configProject, status)
		if got, err := w.client.Request(ctx, 1); err != nil || (got.Blocked != "") != blocked {
			t.Errorf("%s: %q, %v", status, got.Blocked, err)
		}
	}
	w.Refuse(configProject, "")
	more := "max: 500\n"
	w.Push(configProject, "tailplane/c1", "mallory", "sneak", map[string]*string{configFile: &more})
	if err := w.client.Merge(ctx, 1, r.Head); ClassOf(err) != Conflict {
		t.Errorf("another head: %v", err)
	}
	if err := w.client.Merge(ctx, 1, ""); ClassOf(err) != Invalid {
		t.Errorf("any head: %v", err)
	}
	if text, _ := w.File(configProject, "main", configFile); text != "max: 3\n" {
		t.Fatalf("main has %q", text)
	}
	r, err = w.client.Request(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.Fault(func(req *http.Request) *forgetest.Fault {
		if strings.HasSuffix(req.URL.Path, "/merge") {
			return &forgetest.Fault{After: true, Drop: true}
		}
		return nil
	})
	if err := w.client.Merge(ctx, 1, r.Head); err != nil {
		t.Errorf("with a lost answer: %v", err)
	}
	w.Fault(func(req *http.Request) *forgetest.Fault {
		if strings.HasSuffix(req.URL.Path, "/merge") {
			return &forgetest.Fault{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"state":"opened"}`}
		}
		return nil
	})
	w.ChangeMergeRequest(configProject, 1, func(mr *forgetest.GitLabMergeRequest) { mr.State = "locked" })
	if err := w.client.Merge(ctx, 1, r.Head); ClassOf(err) != Unavailable {
		t.Errorf("that is still being merged: %v", err)
	}
	w.ChangeMergeRequest(configProject, 1, func(mr *forgetest.GitLabMergeRequest) { mr.State = "merged" })
	w.Fault(nil)
	if err := w.client.Merge(ctx, 1, r.Head); err != nil {
		t.Errorf("once more: %v", err)
	}
	if text, _ := w.File(configProject, "main", configFile); text != more {
		t.Errorf("main has %q", text)
	}
	switch got, err := w.client.Request(ctx, 1); {
	case err != nil:
		t.Error(err)
	case !got.Merged:
		t.Errorf("got.Merged is false; got = %+v, %v", got, err)
	case got.Open:
		t.Errorf("got.Open is true; got = %+v, %v", got, err)
	}
	if w.Log(configProject, "tailplane/c1") != nil {
		t.Error("its branch is left")
	}
}

func TestGitLabWithdraw(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	if _, err := w.client.Propose(ctx, w.proposal(t, "max: 5\n")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.client.Withdraw(ctx, 1, "no thanks"); err != nil {
			t.Error(err)
		}
	}
	switch mrs := w.MergeRequests(configProject); {
	case mrs[0].State != "closed":
		t.Errorf("mrs[0].State = %q, want %q", mrs[0].State, "closed")
	case !slices.Equal(mrs[0].Notes, []string{"no thanks"}):
		t.Errorf("mrs[0].Notes (-want +got):\n%s", cmp.Diff([]string{"no thanks"}, mrs[0].Notes))
	case w.Log(configProject, "tailplane/c1") != nil:
		t.Errorf(`w.Log(configProject, "tailplane/c1") is not nil; %+v`, mrs)
	}
	text := "x"
	w.Push(configProject, "feature", "carol", "mine", map[string]*string{"x": &text})
	w.AddMergeRequest(configProject, forgetest.GitLabMergeRequest{Source: "feature", Target: "main", Author: "carol"})
	w.AddMergeRequest(configProject, forgetest.GitLabMergeRequest{Source: "tailplane/x", Target: "main", SHA: w.Log(configProject, "main")[0].ID, Fork: true})
	w.Forget()
	for _, n := range []int{2, 3} {
		if err := w.client.Withdraw(ctx, n, "no thanks"); ClassOf(err) != Invalid || len(w.writes()) != 0 {
			t.Errorf("a merge request that Tailplane did not open: %v, wrote %v", err, w.writes())
		}
	}
}

func TestGitLabCheckChanges(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	if id, err := w.client.CheckChanges(ctx); err != nil || id.Missing != nil {
		t.Errorf("%+v, %v", id, err)
	}
	for why, test := range map[string]struct {
		token forgetest.GitLabToken
		want  Class
	}{
		"without api":                {forgetest.GitLabToken{Level: 40, Scopes: []string{"read_api", "write_repository"}}, Forbidden},
		"a user who only reads":      {forgetest.GitLabToken{Level: 20, Scopes: []string{"api"}}, Forbidden},
		"a user who does not see it": {forgetest.GitLabToken{Scopes: []string{"api"}}, NotFound},
	} {
		if id, err := w.changesOf(t, w.AddToken(test.token)).CheckChanges(ctx); ClassOf(err) != test.want || test.want == Forbidden && id.Missing == nil {
			t.Errorf("%s: %+v, %v", why, id, err)
		}
	}
	none, err := NewGitLab(Config{URL: w.URL, Credential: map[string][]byte{"access_token": []byte(w.token)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{none.Merge(ctx, 1, strings.Repeat("a", 40)), none.Withdraw(ctx, 1, "")} {
		if ClassOf(err) != Invalid {
			t.Errorf("for no project: %v", err)
		}
	}
	for _, scope := range []string{"https://elsewhere.example.com/a/b", w.URL + "/", w.URL + "/group", w.URL + "/a/../b", "a/b"} {
		if _, err := NewGitLab(Config{URL: w.URL, ScopeURL: scope, Credential: map[string][]byte{"access_token": []byte("x")}}); err == nil {
			t.Errorf("%q is taken for a project", scope)
		}
	}
}

// FL-04 for changes: every failure has its class, and nothing is written twice.
func TestFL04_GitLabChangeFaults(t *testing.T) {
	json := http.Header{"Content-Type": {"application/json"}}
	for why, test := range map[string]struct {
		fault forgetest.Fault
		want  Class
	}{
		"401":    {forgetest.Fault{Status: 401, Header: json, Body: `{"message":"401 Unauthorized"}`}, Refused},
		"403":    {forgetest.Fault{Status: 403, Header: json, Body: `{"message":"403 Forbidden"}`}, Forbidden},
		"429":    {forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"9"}}}, RateLimited},
		"500":    {forgetest.Fault{Status: 500}, Unavailable},
		"null":   {forgetest.Fault{Status: 200, Header: json, Body: "null"}, Unavailable},
		"[null]": {forgetest.Fault{Status: 200, Header: json, Body: "[null]"}, Unavailable},
		"portal": {forgetest.Fault{Status: 200, Header: http.Header{"Content-Type": {"text/html"}}, Body: "<h1>"}, Unavailable},
		"drop":   {forgetest.Fault{Drop: true}, Unavailable},
	} {
		w, ctx := newGitLabChangeEnv(t), testContext(t)
		p := w.proposal(t, "max: 5\n")
		head := w.Log(configProject, "main")[0].ID
		for name, do := range map[string]func(context.Context, *GitLab) error{
			"CheckChanges": func(ctx context.Context, g *GitLab) error { _, err := g.CheckChanges(ctx); return err },
			"ReadFile":     func(ctx context.Context, g *GitLab) error { _, err := g.ReadFile(ctx, "main", configFile); return err },
			"Propose":      func(ctx context.Context, g *GitLab) error { _, err := g.Propose(ctx, p); return err },
			"Request":      func(ctx context.Context, g *GitLab) error { _, err := g.Request(ctx, 1); return err },
			"Merge":        func(ctx context.Context, g *GitLab) error { return g.Merge(ctx, 1, head) },
			"Withdraw":     func(ctx context.Context, g *GitLab) error { return g.Withdraw(ctx, 1, "no") },
			"Touched":      func(ctx context.Context, g *GitLab) error { _, err := g.Touched(ctx, "main", head); return err },
		} {
			w.Fault(func(*http.Request) *forgetest.Fault { return &test.fault })
			w.Forget()
			err := do(ctx, w.changesOf(t, w.token))
			if ClassOf(err) != test.want {
				t.Errorf("%s: %s: %v", why, name, err)
			}
			if n := len(w.writes()); n > 1 {
				t.Errorf("%s: %s wrote %v", why, name, w.writes())
			}
		}
	}
}

// An incomplete file or list of commits is an error.
func TestGitLabChangePartial(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	if _, err := w.client.Propose(ctx, w.proposal(t, "max: 5\n")); err != nil {
		t.Fatal(err)
	}
	json := http.Header{"Content-Type": {"application/json"}, "X-Next-Page": {""}}
	answer := func(part, body string) {
		w.Fault(func(r *http.Request) *forgetest.Fault {
			if strings.Contains(r.URL.Path, part) {
				return &forgetest.Fault{Status: http.StatusOK, Header: json, Body: body}
			}
			return nil
		})
	}
	answer("/repository/files/", fmt.Sprintf(`{"file_path":%q,"encoding":"base64","content":"bWF4","content_sha256":"00","last_commit_id":%q}`, configFile, strings.Repeat("a", 40)))
	if _, err := w.client.ReadFile(ctx, "main", configFile); ClassOf(err) != Unavailable {
		t.Errorf("a file of another sum: %v", err)
	}
	answer("/merge_requests/1/commits", "[]")
	if r, err := w.client.Request(ctx, 1); ClassOf(err) != Unavailable || r.Authors != nil {
		t.Errorf("no commits: %+v, %v", r, err)
	}
	answer("/merge_requests/1/approvals", "{}")
	if _, err := w.client.Request(ctx, 1); ClassOf(err) != Unavailable {
		t.Errorf("no approvals: %v", err)
	}
	w.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/statuses") {
			return &forgetest.Fault{Status: http.StatusForbidden, Header: json, Body: `{"message":"403 Forbidden"}`}
		}
		return nil
	})
	if r, err := w.client.Request(ctx, 1); err != nil || r.ChecksKnown {
		t.Errorf("checks that may not be read: %+v, %v", r, err)
	}
	w.Fault(nil)
	w.Lag(configProject, 1_000)
	f, err := w.client.ReadFile(ctx, "tailplane/c1", configFile)
	if err != nil {
		t.Fatal(err)
	}
	p := w.proposal(t, "max: 8\n")
	p.Was = f.Version
	short, cancel := context.WithCancel(ctx)
	w.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/merge_requests/1") {
			cancel()
		}
		return nil
	})
	if _, err := w.client.Propose(short, p); !errors.Is(err, context.Canceled) {
		t.Errorf("a request that never takes its commit up: %v", err)
	}
}
