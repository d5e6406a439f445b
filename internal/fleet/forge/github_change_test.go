package forge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

const poolFile = "fleet/pools.yaml"

// gitHubChangeEnv is a repository with a configuration, and a client that may change it.
type gitHubChangeEnv struct {
	*gitHubEnv
	repository int64
	g          *forge.GitHub
}

func newGitHubChangeEnv(t *testing.T) *gitHubChangeEnv {
	c := &gitHubChangeEnv{gitHubEnv: newGitHubEnv(t)}
	c.ChangeInstallation(c.installation, func(in *forgetest.GitHubInstallation) {
		in.Permissions = map[string]string{"contents": "write", "pull_requests": "write", "metadata": "read", "checks": "read", "statuses": "read"}
	})
	c.repository = c.AddRepository("acme/config", false)
	c.Push(c.repository, "main", forgetest.GitHubCommit{Message: "begin"}, map[string]*string{poolFile: new("max: 5 # five\n"), "README.md": new("# hello\n")})
	c.g = c.client(t, func(x *forge.Config) { x.ScopeURL = c.URL + "/acme/config" })
	return c
}

func (c *gitHubChangeEnv) proposal(t *testing.T, branch, content string) forge.Proposal {
	t.Helper()
	f, err := c.g.ReadFile(testContext(t), branch, poolFile)
	if err != nil {
		t.Fatal(err)
	}
	return forge.Proposal{Base: "main", Branch: "tailplane/c1", Path: poolFile, Was: f.Version, Content: []byte(content), Message: "More\n\nTailplane-Change: c1\n",
		Author: forge.Person{Name: "amy@acme.dev", Email: "amy@acme.dev"}, Title: "More", Body: "for the release", Labels: []string{"tailplane/risk-medium"}}
}

func writes(calls []forgetest.Call) (n int) {
	for _, c := range calls {
		if c.Method != http.MethodGet && !strings.HasSuffix(c.Path, "/access_tokens") {
			n++
		}
	}
	return n
}

// FLEET-15: a change is one commit of its author, committed by the bot, on its own branch, in one
// request. Repeating it changes nothing. A different change adds a commit.
func TestFLEET15_GitHubPropose(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	p := c.proposal(t, "main", "max: 8 # five\n")
	r, err := c.g.Propose(ctx, p)
	switch {
	case err != nil:
		t.Fatal(err)
	case !r.Open:
		t.Fatalf("r.Open is false; %+v, %v", r, err)
	case r.Merged:
		t.Fatalf("r.Merged is true; %+v, %v", r, err)
	case r.Number != 1:
		t.Fatalf("r.Number = %v, want 1", r.Number)
	case r.Blocked != "":
		t.Fatalf("r.Blocked = %q, want none", r.Blocked)
	case !r.ChecksKnown:
		t.Fatalf("r.ChecksKnown is false; %+v, %v", r, err)
	}
	commit := c.Commit(c.repository, "tailplane/c1")
	switch {
	case commit.SHA != r.Head:
		t.Errorf("commit.SHA = %q, want %q", commit.SHA, r.Head)
	case commit.Files[poolFile] != "max: 8 # five\n":
		t.Errorf("commit.Files[poolFile] = %q, want %q", commit.Files[poolFile], "max: 8 # five\n")
	case commit.Files["README.md"] == "":
		t.Errorf(`commit.Files["README.md"] is empty; commit = %+v`, commit)
	case commit.AuthorEmail != "amy@acme.dev":
		t.Errorf("commit.AuthorEmail = %q, want %q", commit.AuthorEmail, "amy@acme.dev")
	case commit.CommitterName != forgetest.Bot:
		t.Errorf("commit.CommitterName = %q, want %q", commit.CommitterName, forgetest.Bot)
	case !strings.HasSuffix(commit.Message, "\nTailplane-Change: c1\n"):
		t.Errorf("commit.Message = %q does not end with %q", commit.Message, "\nTailplane-Change: c1\n")
	}
	if !slices.Contains(r.Authors, "amy@acme.dev") || !slices.Contains(r.Authors, forgetest.Bot) {
		t.Errorf("authors %v", r.Authors)
	}
	if c.Commit(c.repository, "main").Files[poolFile] != "max: 5 # five\n" {
		t.Error("main was changed")
	}
	pull := c.Pulls(c.repository)[0]
	switch {
	case pull.Title != "More":
		t.Errorf("pull.Title = %q, want %q", pull.Title, "More")
	case pull.Body != "for the release":
		t.Errorf("pull.Body = %q, want %q", pull.Body, "for the release")
	case pull.Base != "main":
		t.Errorf("pull.Base = %q, want %q", pull.Base, "main")
	case !slices.Equal(pull.Labels, []string{"tailplane/risk-medium"}):
		t.Errorf("pull.Labels (-want +got):\n%s", cmp.Diff([]string{"tailplane/risk-medium"}, pull.Labels))
	}
	c.Forget()
	switch again, err := c.g.Propose(ctx, p); {
	case err != nil:
		t.Errorf("the same again: %v", err)
	case again.Head != r.Head:
		t.Errorf("the same again: again.Head = %q, want %q", again.Head, r.Head)
	case writes(c.Calls()) != 0:
		t.Errorf("the same again: writes(c.Calls()) != 0; %v, %d", err, writes(c.Calls()))
	}
	c.ChangePull(c.repository, 1, func(p *forgetest.GitHubPull) { p.Labels = append(p.Labels, "theirs") })
	second := c.proposal(t, "tailplane/c1", "max: 9 # five\n")
	second.Labels, second.Title = []string{"tailplane/risk-high"}, "Even more"
	again, err := c.g.Propose(ctx, second)
	pulls := c.Pulls(c.repository)
	switch {
	case err != nil:
		t.Error(err)
	case again.Head == r.Head:
		t.Errorf("again.Head = %q, the same as r.Head", again.Head)
	case len(pulls) != 1:
		t.Errorf("len(pulls) = %v, want 1", len(pulls))
	case pulls[0].Title != "Even more":
		t.Errorf("pulls[0].Title = %q, want %q", pulls[0].Title, "Even more")
	case !slices.Equal(pulls[0].Labels, []string{"theirs", "tailplane/risk-high"}):
		t.Errorf("pulls[0].Labels (-want +got):\n%s", cmp.Diff([]string{"theirs", "tailplane/risk-high"}, pulls[0].Labels))
	}
	// A merge would change the file, and the files that another person added.
	c.Push(c.repository, "tailplane/c1", forgetest.GitHubCommit{Message: "mine"}, map[string]*string{"README.md": nil, "b.yaml": new("b")})
	for commit, want := range map[string][]string{again.Head: {poolFile}, c.Commit(c.repository, "tailplane/c1").SHA: {"README.md", "b.yaml", poolFile}} {
		slices.Sort(want)
		if got, err := c.g.Touched(ctx, "main", commit); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s touches %v, %v", commit, got, err)
		}
	}
	if _, err := c.g.Touched(ctx, "main", strings.Repeat("e", 40)); forge.ClassOf(err) != forge.NotFound {
		t.Errorf("a commit that is not there: %v", err)
	}
	// The first author's change comes too late: the branch has moved.
	if _, err := c.g.Propose(ctx, p); forge.ClassOf(err) != forge.Conflict {
		t.Errorf("from what was: %v", err)
	}
	// A new file, and a deleted file.
	created := p
	created.Branch, created.Path, created.Was = "tailplane/c2", "fleet/new file.yaml", ""
	switch r, err := c.g.Propose(ctx, created); {
	case err != nil:
		t.Error(err)
	case c.Commit(c.repository, "tailplane/c2").Files["fleet/new file.yaml"] == "":
		t.Errorf(`c.Commit(c.repository, "tailplane/c2").Files["fleet/new file.yaml"] == ""; %+v, %v`, r, err)
	case r.Number != 2:
		t.Errorf("r.Number = %v, want 2", r.Number)
	}
	gone := c.proposal(t, "main", "")
	gone.Branch, gone.Content = "tailplane/c3", nil
	if _, err := c.g.Propose(ctx, gone); err != nil {
		t.Error(err)
	} else if _, exists := c.Commit(c.repository, "tailplane/c3").Files[poolFile]; exists {
		t.Error("the file is still there")
	}
}

// FLEET-15, PL-09: a base that moved is a conflict, and nothing is written.
func TestFLEET15_GitHubMoved(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	p := c.proposal(t, "main", "max: 8\n")
	c.Push(c.repository, "main", forgetest.GitHubCommit{Message: "theirs"}, map[string]*string{poolFile: new("max: 6\n")})
	c.Forget()
	if _, err := c.g.Propose(ctx, p); forge.ClassOf(err) != forge.Conflict || writes(c.Calls()) != 0 {
		t.Errorf("%v, %d writes", err, writes(c.Calls()))
	}
	same := c.proposal(t, "main", "max: 6\n")
	if _, err := c.g.Propose(ctx, same); forge.ClassOf(err) != forge.Conflict || writes(c.Calls()) != 0 {
		t.Errorf("content that is already there: %v", err)
	}
	// A change of another file does not matter.
	p = c.proposal(t, "main", "max: 8\n")
	c.Push(c.repository, "main", forgetest.GitHubCommit{Message: "other"}, map[string]*string{"README.md": new("x")})
	if _, err := c.g.Propose(ctx, p); err != nil {
		t.Error(err)
	}
	// Of two concurrent changes on one branch, one wins.
	a, b := c.proposal(t, "tailplane/c1", "max: 10\n"), c.proposal(t, "tailplane/c1", "max: 11\n")
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, p := range []forge.Proposal{a, b} {
		wg.Go(func() { _, errs[i] = c.g.Propose(ctx, p) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if forge.ClassOf(err) != forge.Conflict && forge.ClassOf(err) != forge.Unavailable {
			t.Error(err)
		}
	}
	content := c.Commit(c.repository, "tailplane/c1").Files[poolFile]
	if won > 1 || content != "max: 10\n" && content != "max: 11\n" {
		t.Errorf("%d won, %q: %v", won, content, errs)
	}
}

// If any response is lost, before or after its effect, repeating the proposal leads to the same
// result: one commit, one request.
func TestFLEET15_GitHubLostAnswers(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	for _, after := range []bool{false, true} {
		for lost := 1; ; lost++ {
			branch := fmt.Sprintf("tailplane/%v-%d", after, lost)
			p := c.proposal(t, "main", "max: 8\n")
			p.Branch = branch
			var mu sync.Mutex
			n, struck := 0, false
			c.Fault(func(r *http.Request) *forgetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "/access_tokens") {
					return nil
				}
				if n++; n != lost {
					return nil
				}
				struck = true
				return &forgetest.Fault{Drop: true, After: after}
			})
			before := len(c.Pulls(c.repository))
			_, err := c.g.Propose(ctx, p)
			c.Fault(nil)
			mu.Lock()
			done := !struck
			mu.Unlock()
			if done {
				if err != nil || lost < 4 {
					t.Fatalf("%d writes: %v", lost-1, err)
				}
				break
			}
			if forge.ClassOf(err) != forge.Unavailable {
				t.Fatalf("write %d: %v", lost, err)
			}
			r, err := c.g.Propose(ctx, p)
			pulls := c.Pulls(c.repository)
			switch {
			case err != nil:
				t.Errorf("write: %v; lost = %d; after = %v", err, lost, after)
			case len(pulls) != before+1:
				t.Errorf("write: len(pulls) = %v, want %v; lost = %d; after = %v", len(pulls), before+1, lost, after)
			case r.Head != c.Commit(c.repository, branch).SHA:
				t.Errorf("write: r.Head = %q, want c.Commit(c.repository, branch).SHA; lost = %d; after = %v", r.Head, lost, after)
			case !slices.Equal(pulls[before].Labels, p.Labels):
				t.Errorf("write: pulls[before].Labels (-want +got):\n%s", cmp.Diff(p.Labels, pulls[before].Labels))
			case c.Commit(c.repository, branch).Parent != c.Commit(c.repository, "main").SHA:
				t.Errorf(`write: c.Commit(c.repository, branch).Parent != c.Commit(c.repository, "main").SHA; lost = %d, after = %v, %+v, %v`,
					lost, after, r, err)
			}
		}
	}
}

// PL-06, PL-09: only exactly the reviewed commit is merged, if the branch's rules allow it, and the
// authors of pushed commits are known.
func TestPL06_GitHubMerge(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	r, err := c.g.Propose(ctx, c.proposal(t, "main", "max: 8\n"))
	if err != nil {
		t.Fatal(err)
	}
	pushed := c.Push(c.repository, "tailplane/c1", forgetest.GitHubCommit{AuthorName: "Mallory", AuthorEmail: "m@example.com", AuthorLogin: "mallory",
		Message: "more\n\nco-authored-by: Eve E <eve@example.com>\nTailplane-Change: c1\n"}, map[string]*string{poolFile: new("max: 99\n")})
	failure(t, c.g.Merge(ctx, 1, r.Head), forge.Conflict)
	if c.Commit(c.repository, "main").Files[poolFile] != "max: 5 # five\n" {
		t.Fatal("another commit than the reviewed one was merged")
	}
	failure(t, c.g.Merge(ctx, 1, ""), forge.Invalid)
	c.Protect(c.repository, "main", 1)
	now, err := c.g.Request(ctx, 1)
	switch {
	case err != nil:
		t.Error(err)
	case now.Head != pushed:
		t.Errorf("now.Head = %q, want %q", now.Head, pushed)
	case now.Blocked == "":
		t.Errorf("now.Blocked is empty; %+v, %v", now, err)
	}
	for _, name := range []string{"amy@acme.dev", "mallory", "m@example.com", "Mallory", "eve@example.com", "Eve E"} {
		if !slices.Contains(now.Authors, name) {
			t.Errorf("%s wrote some of it: %v", name, now.Authors)
		}
	}
	failure(t, c.g.Merge(ctx, 1, pushed), forge.Invalid)
	c.Review(c.repository, 1, "pat", "CHANGES_REQUESTED")
	c.Review(c.repository, 1, "pat", "APPROVED")
	c.ChangePull(c.repository, 1, func(p *forgetest.GitHubPull) {
		p.Checks = []forgetest.GitHubCheck{{Name: "plan", State: "success"}, {Name: "lint", State: "failure", Status: true}}
	})
	now, err = c.g.Request(ctx, 1)
	switch {
	case err != nil:
		t.Error(err)
	case now.Blocked != "":
		t.Errorf("now.Blocked = %q, want none", now.Blocked)
	case len(now.Reviews) != 2:
		t.Errorf("len(now.Reviews) = %v, want 2", len(now.Reviews))
	case now.Reviews[0].Approved:
		t.Errorf("now.Reviews[0].Approved is true; %+v, %v", now, err)
	case !now.Reviews[1].Approved:
		t.Errorf("now.Reviews[1].Approved is false; %+v, %v", now, err)
	case now.Reviews[1].By != "pat":
		t.Errorf("now.Reviews[1].By = %q, want %q", now.Reviews[1].By, "pat")
	case now.Reviews[1].Head != pushed:
		t.Errorf("now.Reviews[1].Head = %q, want %q", now.Reviews[1].Head, pushed)
	case !slices.Equal(now.Checks, []forge.Check{{Name: "lint", State: "failure"}, {Name: "plan", State: "success"}}):
		t.Errorf("now.Checks (-want +got):\n%s",
			cmp.Diff([]forge.Check{{Name: "lint", State: "failure"}, {Name: "plan", State: "success"}}, now.Checks))
	}
	c.ChangeInstallation(c.installation, func(in *forgetest.GitHubInstallation) { delete(in.Permissions, "checks") })
	switch now, err := c.g.Request(ctx, 1); {
	case err != nil:
		t.Errorf("checks that may not be: %v", err)
	case now.ChecksKnown:
		t.Errorf("checks that may not be: now.ChecksKnown is true; %+v, %v", now, err)
	case now.Checks != nil:
		t.Errorf("checks that may not be: now.Checks = %v, want nil", now.Checks)
	}
	// The repository permits one merge method. The response is lost, but the merge took effect.
	c.ChangeRepository(c.repository, func(r *forgetest.GitHubRepository) { r.Squash = true })
	c.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/merge") {
			return &forgetest.Fault{Drop: true, After: true}
		}
		return nil
	})
	if err := c.g.Merge(ctx, 1, pushed); err != nil {
		t.Error(err)
	}
	c.Fault(nil)
	if err := c.g.Merge(ctx, 1, pushed); err != nil || c.Commit(c.repository, "main").Files[poolFile] != "max: 99\n" {
		t.Errorf("again: %v", err)
	}
	switch now, err := c.g.Request(ctx, 1); {
	case err != nil:
		t.Error(err)
	case now.Open:
		t.Errorf("now.Open is true; %+v, %v", now, err)
	case !now.Merged:
		t.Errorf("now.Merged is false; %+v, %v", now, err)
	}
	p := c.proposal(t, "main", "max: 7\n")
	if _, err := c.g.Propose(ctx, p); forge.ClassOf(err) != forge.Conflict {
		t.Errorf("to a closed pull request: %v", err)
	}
	// A conflict with a later merge is reported.
	p.Branch = "tailplane/c2"
	r, err = c.g.Propose(ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	c.Push(c.repository, "main", forgetest.GitHubCommit{}, map[string]*string{poolFile: new("max: 1\n")})
	if now, err := c.g.Request(ctx, r.Number); err != nil || !strings.Contains(now.Blocked, "conflict") {
		t.Errorf("%+v, %v", now, err)
	}
	// The bot never writes a review at GitHub, so it approves nothing.
	for _, call := range c.Calls() {
		if call.Method != http.MethodGet && strings.HasSuffix(call.Path, "/reviews") {
			t.Errorf("%+v", call)
		}
	}
	for range 2 {
		if err := c.g.Withdraw(ctx, r.Number, "no thanks"); err != nil {
			t.Error(err)
		}
	}
	switch got := c.Pulls(c.repository)[r.Number-1]; {
	case got.State != "closed":
		t.Errorf("got.State = %q, want %q", got.State, "closed")
	case !slices.Equal(got.Comments, []string{"no thanks"}):
		t.Errorf("got.Comments (-want +got):\n%s", cmp.Diff([]string{"no thanks"}, got.Comments))
	case c.Commit(c.repository, "tailplane/c2").SHA != "":
		t.Errorf(`c.Commit(c.repository, "tailplane/c2").SHA != ""; got = %+v`, got)
	}
}

// PL-09: proposals for files outside the repository, files that forges run, other branches, or
// objects of others are refused.
func TestPL09_GitHubProposals(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	good := c.proposal(t, "main", "x")
	c.Forget()
	for why, change := range map[string]func(*forge.Proposal){
		"out of it":                      func(p *forge.Proposal) { p.Path = "../other/fleet.yaml" },
		"out of it, later":               func(p *forge.Proposal) { p.Path = "fleet/../../x.yaml" },
		"absolute":                       func(p *forge.Proposal) { p.Path = "/etc/x.yaml" },
		"git's own":                      func(p *forge.Proposal) { p.Path = "a/.GIT/config" },
		"what runs":                      func(p *forge.Proposal) { p.Path = ".github/workflows/x.yaml" },
		"two lines":                      func(p *forge.Proposal) { p.Path = "a\nb" },
		"no path":                        func(p *forge.Proposal) { p.Path = "" },
		"the base itself":                func(p *forge.Proposal) { p.Branch = "main" },
		"another's branch":               func(p *forge.Proposal) { p.Branch = "feature/x" },
		"a branch that ends":             func(p *forge.Proposal) { p.Branch = "tailplane/../main" },
		"a base with Tailplane's prefix": func(p *forge.Proposal) { p.Base = "tailplane/c0" },
		"a base with a ?":                func(p *forge.Proposal) { p.Base = "main?x=" },
		"no author":                      func(p *forge.Proposal) { p.Author = forge.Person{} },
		"no message":                     func(p *forge.Proposal) { p.Message = "" },
		"another's label":                func(p *forge.Proposal) { p.Labels = []string{"approved"} },
		"nothing goes":                   func(p *forge.Proposal) { p.Content, p.Was = nil, "" },
	} {
		p := good
		change(&p)
		if _, err := c.g.Propose(ctx, p); forge.ClassOf(err) != forge.Invalid {
			t.Errorf("%s: %v", why, err)
		}
	}
	if len(c.Calls()) != 0 {
		t.Errorf("GitHub got %d requests", len(c.Calls()))
	}
	org := c.client(t)
	if _, err := org.Propose(ctx, good); forge.ClassOf(err) != forge.Invalid {
		t.Errorf("at an organisation: %v", err)
	}
	// A pull request of a person's own branch cannot be withdrawn.
	c.Push(c.repository, "feature", forgetest.GitHubCommit{}, map[string]*string{"x": new("y")})
	r, err := c.g.Propose(ctx, good)
	if err != nil {
		t.Fatal(err)
	}
	c.ChangePull(c.repository, r.Number, func(p *forgetest.GitHubPull) { p.Head = "feature" })
	failure(t, c.g.Withdraw(ctx, r.Number, ""), forge.Invalid)
	failure(t, c.g.Withdraw(ctx, 77, ""), forge.NotFound)
}

func TestGitHubReadFile(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	f, err := c.g.ReadFile(ctx, "main", poolFile)
	switch {
	case err != nil:
		t.Error(err)
	case string(f.Content) != "max: 5 # five\n":
		t.Errorf("string(f.Content) = %q, want %q", string(f.Content), "max: 5 # five\n")
	case f.Commit != c.Commit(c.repository, "main").SHA:
		t.Errorf(`f.Commit = %q, want c.Commit(c.repository, "main").SHA`, f.Commit)
	}
	long := strings.Repeat("# a line of many\n", 500)
	c.Push(c.repository, "main", forgetest.GitHubCommit{}, map[string]*string{poolFile: &long, "empty.yaml": new("")})
	if f, err := c.g.ReadFile(ctx, "main", poolFile); err != nil || string(f.Content) != long {
		t.Error(len(f.Content), err)
	}
	switch f, err := c.g.ReadFile(ctx, "main", "empty.yaml"); {
	case err != nil:
		t.Errorf("an empty one: %v", err)
	case len(f.Content) != 0:
		t.Errorf("an empty one: len(f.Content) = %v, want 0", len(f.Content))
	case f.Version == "":
		t.Errorf("an empty one: f.Version is empty; %+v, %v", f, err)
	}
	switch f, err := c.g.ReadFile(ctx, "main", "none.yaml"); {
	case err != nil:
		t.Errorf("none: %v", err)
	case f.Version != "":
		t.Errorf("none: f.Version = %q, want none", f.Version)
	case f.Commit == "":
		t.Errorf("none: f.Commit is empty; %+v, %v", f, err)
	}
	if _, err := c.g.ReadFile(ctx, "none", poolFile); forge.ClassOf(err) != forge.NotFound {
		t.Errorf("no branch: %v", err)
	}
	for why, x := range map[string]struct {
		body  map[string]any
		class forge.Class
	}{
		"half of it":  {map[string]any{"type": "file", "encoding": "base64", "sha": strings.Repeat("a", 40), "content": "bWF4"}, forge.Unavailable},
		"too large":   {map[string]any{"type": "file", "encoding": "none", "sha": strings.Repeat("a", 40), "content": ""}, forge.Invalid},
		"a symlink":   {map[string]any{"type": "symlink", "target": "/etc/passwd"}, forge.Invalid},
		"no base64":   {map[string]any{"type": "file", "encoding": "base64", "sha": "x", "content": "%"}, forge.Unavailable},
		"a directory": {nil, forge.Unavailable},
	} {
		text, _ := json.Marshal(x.body)
		if x.body == nil {
			text = []byte("[]")
		}
		c.Fault(func(r *http.Request) *forgetest.Fault {
			if strings.Contains(r.URL.Path, "/contents/") {
				return &forgetest.Fault{Status: 200, Body: string(text), Header: http.Header{"Content-Type": {"application/json"}}}
			}
			return nil
		})
		if f, err := c.g.ReadFile(ctx, "main", poolFile); forge.ClassOf(err) != x.class || f.Content != nil {
			t.Errorf("%s: %+v, %v", why, f, err)
		}
	}
	// In a repository that is not visible any more, no file counts as missing.
	c.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.Contains(r.URL.Path, "/contents/") || strings.Contains(r.URL.Path, "/git/commits/") {
			return &forgetest.Fault{Status: 404, Body: `{"message":"Not Found"}`}
		}
		return nil
	})
	if _, err := c.g.ReadFile(ctx, "main", poolFile); forge.ClassOf(err) != forge.NotFound {
		t.Errorf("hidden: %v", err)
	}
}

// Either all authors of a change are known, or the result is an error.
func TestGitHubManyCommits(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	if _, err := c.g.Propose(ctx, c.proposal(t, "main", "max: 8\n")); err != nil {
		t.Fatal(err)
	}
	push := func(n int) {
		for i := range n {
			c.Push(c.repository, "tailplane/c1", forgetest.GitHubCommit{AuthorEmail: fmt.Sprintf("p%d@example.com", i)}, map[string]*string{"x": new(fmt.Sprint(i))})
		}
	}
	push(149)
	if r, err := c.g.Request(ctx, 1); err != nil || !slices.Contains(r.Authors, "p148@example.com") {
		t.Error(err)
	}
	push(120)
	if _, err := c.g.Request(ctx, 1); forge.ClassOf(err) != forge.Unavailable {
		t.Errorf("more than GitHub lists: %v", err)
	}
}

func TestGitHubCheckChanges(t *testing.T) {
	c := newGitHubChangeEnv(t)
	ctx := testContext(t)
	if id, err := c.g.CheckChanges(ctx); err != nil || id.InstallationID != c.installation {
		t.Errorf("%+v, %v", id, err)
	}
	c.ChangeInstallation(c.installation, func(in *forgetest.GitHubInstallation) {
		in.Permissions = map[string]string{"contents": "read", "metadata": "read"}
	})
	id, err := c.g.CheckChanges(ctx)
	if e := failure(t, err, forge.Forbidden); !slices.Equal(id.Missing, []string{"contents: write", "pull_requests: write"}) || !strings.Contains(e.Message, "contents: write") {
		t.Errorf("%+v, %v", id, err)
	}
	if _, err := c.g.Propose(ctx, c.proposal(t, "main", "max: 8\n")); forge.ClassOf(err) != forge.Forbidden {
		t.Error(err)
	}
	if _, err := c.client(t).CheckChanges(ctx); forge.ClassOf(err) != forge.Invalid {
		t.Error(err)
	}
	byToken := func(x *forge.Config) {
		x.ScopeURL, x.Credential = c.URL+"/acme/config", map[string][]byte{"github_token": []byte(c.AddToken("repo"))}
	}
	if id, err := c.client(t, byToken).CheckChanges(ctx); err != nil || id.Kind != forge.GitHubTokenKind {
		t.Errorf("%+v, %v", id, err)
	}
	c.RenameRepository(c.repository, "acme/renamed")
	if _, err := c.client(t, byToken).CheckChanges(ctx); forge.ClassOf(err) != forge.Conflict {
		t.Error(err)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.g.CheckChanges(done); err == nil {
		t.Error("a request without a user")
	}
}
