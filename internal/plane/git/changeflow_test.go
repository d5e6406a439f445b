//go:build unix

package git_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// PLANE-11, FLEET-15: from a preview to the live object, at both forges. The diff is that of the real file.
func TestPLANE11_Flow(t *testing.T) {
	everywhere(t, func(t *testing.T, f *env) {
		var seen plane.Preview
		if code := f.do("olga@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerPool", "name": "gh-nix", "patch": json.RawMessage(`{"scaling":{"max":8}}`)}, &seen); code != "" {
			t.Fatal(code)
		}
		switch {
		case seen.Refused != "":
			t.Fatalf("seen.Refused = %q, want none", seen.Refused)
		case !seen.Platform:
			t.Fatalf("seen.Platform is false; seen = %+v", seen)
		case seen.Risk.Level != "medium":
			t.Fatalf("seen.Risk.Level = %q, want %q", seen.Risk.Level, "medium")
		case !strings.Contains(seen.Diff, f.raised[0]+"\n"+f.raised[1]+"\n"):
			t.Fatalf("seen.Diff = %q does not contain %q", seen.Diff, f.raised[0]+"\n"+f.raised[1]+"\n")
		case seen.Note != f.layout.Note():
			t.Fatalf("seen.Note = %q, want %q", seen.Note, f.layout.Note())
		}
		if f.onMain() != f.text {
			t.Error("a preview changed the file")
		}
		body := editBody("RunnerPool", "gh-nix", `{"scaling":{"max":8}}`)
		body["version"], body["title"] = seen.Version, "More nix runners"
		var c plane.Change
		if code := f.do("olga@platform.dev", "POST", "/changes", body, &c); code != "" {
			t.Fatal(code)
		}
		switch {
		case c.State != "open":
			t.Fatalf("c.State = %q, want %q", c.State, "open")
		case c.Number == 0:
			t.Fatalf("c.Number = %v", c.Number)
		case c.Proposer != "olga@platform.dev":
			t.Fatalf("c.Proposer = %q, want %q", c.Proposer, "olga@platform.dev")
		case c.Diff != seen.Diff:
			t.Fatalf("c.Diff = %q, want %q", c.Diff, seen.Diff)
		}
		var again plane.Change
		switch code := f.do("olga@platform.dev", "POST", "/changes", body, &again); {
		case code != "":
			t.Errorf("the same again: code = %q, want none", code)
		case again.ID != c.ID:
			t.Errorf("the same again: again.ID = %q, want %q", again.ID, c.ID)
		case again.Head != c.Head:
			t.Errorf("the same again: again.Head = %q, want %q", again.Head, c.Head)
		}
		decide := map[string]any{"head": c.Head, "reason": "the nodes carry it"}
		if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/merge", decide, nil); code != problem.Conflict {
			t.Errorf("merged without approval: %s", code)
		}
		if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/approve", decide, &c); code != "" || c.State != "approved" {
			t.Fatal(code, c.State)
		}
		// Of several concurrent merges one succeeds.
		f.mu.Lock()
		f.caller = "pat@platform.dev"
		f.mu.Unlock()
		var wg sync.WaitGroup
		merged := make([]int, 5)
		for i := range merged {
			wg.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), "POST", plane.Base+"/changes/"+c.ID+"/merge", strings.NewReader(`{"head":"`+c.Head+`","reason":"now"}`))
				r.Host = "dashboard"
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				f.api.ServeHTTP(w, r)
				merged[i] = w.Code
			})
		}
		wg.Wait()
		good := 0
		for _, code := range merged {
			if code == http.StatusOK {
				good++
			} else if code != http.StatusConflict {
				t.Errorf("a merge was answered %d", code)
			}
		}
		switch {
		case good != 1:
			t.Errorf("good = %v, want 1; merged = %v", good, merged)
		case !strings.Contains(f.onMain(), f.kept):
			t.Errorf("f.onMain() = %q does not contain %q; merged = %v", f.onMain(), f.kept, merged)
		case strings.Count(f.onMain(), "#") != strings.Count(f.text, "#"):
			t.Errorf("got %v, want %v; merged = %v", strings.Count(f.onMain(), "#"), strings.Count(f.text, "#"), merged)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var watching sync.WaitGroup
		watching.Go(func() { f.watch.Run(ctx) })
		defer watching.Wait()
		defer cancel()
		f.state(c.ID, "merged")
		f.apply("RunnerPool", "gh-nix")
		f.state(c.ID, "applied")
		if o, _ := f.changes.Plane.Store.Get(plane.KindChange, c.ID); o.(plane.Change).MergedAt == nil || o.(plane.Change).AppliedAt == nil {
			t.Errorf("the time of the application is not set: %+v", o)
		}
		for who, want := range map[string]problem.Code{"pat@platform.dev": "", "amy@acme.dev": problem.NotFound, "nobody@example.com": problem.NotAuthorized} {
			if code := f.do(who, "GET", "/changes/"+c.ID, nil, nil); code != want {
				t.Errorf("%s may look: %s", who, code)
			}
		}
	})
}

// PL-06: an approval does not count if the proposer, a co-author or a person who lost the role gives it. It does not count for another
// commit, or a second time.
func TestPL06_Flow(t *testing.T) {
	everywhere(t, func(t *testing.T, f *env) {
		var c plane.Change
		if code := f.do("amy@acme.dev", "POST", "/changes", editBody("RunnerEnrollment", "acme", `{"owners":["amy@acme.dev","ann@acme.dev","bob@acme.dev"]}`), &c); code != "" || c.Platform {
			t.Fatal(code, c)
		}
		approve := func(who, head string) problem.Code {
			return f.do(who, "POST", "/changes/"+c.ID+"/approve", map[string]any{"head": head, "reason": "good"}, &c)
		}
		merge := func(who, head string) problem.Code {
			return f.do(who, "POST", "/changes/"+c.ID+"/merge", map[string]any{"head": head, "reason": "now"}, &c)
		}
		for who, want := range map[string]problem.Code{"amy@acme.dev": problem.SelfApproval, "mel@acme.dev": problem.Forbidden, "gus@globex.dev": problem.NotFound} {
			if code := approve(who, c.Head); code != want {
				t.Errorf("%s: %s", who, code)
			}
		}
		if code := approve("ann@acme.dev", c.Head); code != "" {
			t.Fatal(code)
		}
		f.push(c.Branch, "mallory@acme.dev", strings.Replace(f.text, f.node[0], f.node[1], 1))
		if code := merge("ann@acme.dev", c.Head); code != problem.Conflict {
			t.Errorf("a later push was merged: %s", code)
		}
		if code := approve("ann@acme.dev", c.Head); code != problem.Conflict {
			t.Errorf("the reviewed commit is not the head: %s", code)
		}
		if f.onMain() != f.text {
			t.Fatal("it is on main")
		}
		// A quota needs more than another administrator of the organisation.
		var quota plane.Change
		if code := f.do("amy@acme.dev", "POST", "/changes", editBody("RunnerEnrollment", "acme", `{"quota":{"cpu":"64"}}`), nil); code != problem.Conflict {
			t.Errorf("a push was overwritten: %s", code)
		}
		if code := f.do("amy@acme.dev", "POST", "/changes/"+c.ID+"/close", map[string]any{"reason": "another person pushes to it"}, &c); code != "" || c.State != "closed" {
			t.Fatal(code, c.State)
		}
		if code := f.do("amy@acme.dev", "POST", "/changes", editBody("RunnerEnrollment", "acme", `{"quota":{"cpu":"64"}}`), &quota); code != "" || !quota.Platform {
			t.Fatal(code, quota)
		}
		c = quota
		if code := approve("ann@acme.dev", c.Head); code != problem.Forbidden {
			t.Errorf("an administrator of the organisation: %s", code)
		}
		if code := approve("pat@platform.dev", c.Head); code != "" {
			t.Fatal(code)
		}
		f.mu.Lock()
		f.pat = false
		f.mu.Unlock()
		if code := merge("ann@acme.dev", c.Head); code != problem.Conflict {
			t.Errorf("the approver has lost the role: %s", code)
		}
		f.mu.Lock()
		f.pat, f.now = true, f.now.Add(gitops.ApprovalLifetime+time.Hour)
		f.mu.Unlock()
		if code := merge("ann@acme.dev", c.Head); code != problem.Conflict {
			t.Errorf("an approval of last week: %s", code)
		}
		// A second edit continues the first and voids the approval.
		if code := approve("pat@platform.dev", c.Head); code != "" {
			t.Fatal(code)
		}
		old := c.Head
		switch code := f.do("ann@acme.dev", "POST", "/changes", editBody("RunnerEnrollment", "acme", `{"quota":{"pods":20}}`), &c); {
		case code != "":
			t.Fatalf("code = %q, want none", code)
		case c.ID != quota.ID:
			t.Fatalf("c.ID = %q, want %q", c.ID, quota.ID)
		case c.Head == old:
			t.Fatalf("c.Head = %q, the same as old", c.Head)
		case c.State != "open":
			t.Fatalf("c.State = %q, want %q", c.State, "open")
		}
		if code := merge("pat@platform.dev", old); code != problem.Conflict {
			t.Errorf("the commit before: %s", code)
		}
		if code := approve("pat@platform.dev", c.Head); code != "" {
			t.Fatal(code)
		}
		if code := merge("ann@acme.dev", c.Head); code != "" || f.onMain() == f.text {
			t.Errorf("%s, %s", code, f.onMain())
		}
		spec, _, err := f.layout.Spec([]byte(f.onMain()), gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"})
		if err != nil || !gitops.ContainsSpec(map[string]any{"quota": map[string]any{"cpu": "64", "pods": 20}}, spec) {
			t.Errorf("%v, %v", spec, err)
		}
	})
}

// PL-06: a person who may push to the repository cannot use a change of an organisation to bypass the approval of the platform. It does not
// help to add a later commit, or to create the branch, whose name can be guessed, before the change. A merge never contains more than the
// diff shows.
func TestPL06_MoreThanTheDiffShows(t *testing.T) {
	const evil = "apiVersion: tailplane.dev/v1alpha1\nkind: RunnerEnrollment\nmetadata: {name: globex}\nspec: {owners: [amy@acme.dev]}\n"
	own := func(owner string) map[string]any {
		return editBody("RunnerEnrollment", "acme", `{"owners":["amy@acme.dev","ann@acme.dev","`+owner+`"]}`)
	}
	ask := func(f *env, body map[string]any) (c plane.Change) {
		t.Helper()
		if code := f.do("amy@acme.dev", "POST", "/changes", body, &c); code != "" {
			f.Fatal(code)
		}
		return c
	}
	approve := func(f *env, who string, c plane.Change) problem.Code {
		return f.do(who, "POST", "/changes/"+c.ID+"/approve", map[string]any{"head": c.Head, "reason": "good"}, nil)
	}
	everywhere(t, func(t *testing.T, f *env) {
		body := own("bob@acme.dev")
		id := gitops.NewID("amy@acme.dev", "RunnerEnrollment/acme"+string(body["patch"].(json.RawMessage))+f.changes.Plane.Now().UTC().Format(time.DateOnly))
		f.pushTo(gitops.Branch(id), "fleet/globex.yaml", evil)
		c := ask(f, body)
		if c.ID != id {
			t.Fatalf("the change is %s, not %s", c.ID, id)
		}
		if !c.Platform || c.DiffOf == c.Head {
			t.Errorf("earlier commits of the branch are not reported: %+v", c)
		}
		if code := approve(f, "ann@acme.dev", c); code != problem.Forbidden {
			t.Errorf("it is approved as acme's own: %q", code)
		}
		if code := f.do("amy@acme.dev", "POST", "/changes/"+c.ID+"/close", map[string]any{"reason": "not so"}, nil); code != "" {
			t.Fatal(code)
		}

		c = ask(f, own("bea@acme.dev"))
		if c.Platform || c.DiffOf != c.Head {
			t.Fatalf("%+v", c)
		}
		pushed := func(by, content string) {
			was := c.Head
			f.commit(c.Branch, by, "fleet/globex.yaml", content)
			ctx, cancel := context.WithCancel(t.Context())
			var watching sync.WaitGroup
			watching.Go(func() { f.watch.Run(ctx) })
			for end := time.Now().Add(time.Minute); c.Head == was && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
				f.do("amy@acme.dev", "GET", "/changes/"+c.ID, nil, &c)
			}
			cancel()
			watching.Wait()
		}
		pushed("mallory@acme.dev", evil)
		if code := approve(f, "ann@acme.dev", c); code != problem.Forbidden {
			t.Errorf("the push is approved as acme's own change: %q", code)
		}
		if code := f.do("amy@acme.dev", "POST", "/changes", own("cid@acme.dev"), nil); code != problem.Conflict {
			t.Errorf("another edit hides the push: %q", code)
		}
		if code := approve(f, "pat@platform.dev", c); code != "" {
			t.Errorf("a platform-admin: %q", code)
		}
		pushed("pat-hub", evil+"# mine\n")
		if code := approve(f, "pat@platform.dev", c); code != problem.SelfApproval {
			t.Errorf("an author under another name: %q", code)
		}
	})
}

// PL-05: a caller does not learn whether another organisation's file is valid.
func TestPL05_BrokenFileOfAnother(t *testing.T) {
	everywhere(t, func(t *testing.T, f *env) {
		f.commit("main", "platform", f.file, "kind: [")
		for who, want := range map[string]problem.Code{"amy@acme.dev": problem.NotFound, "pat@platform.dev": problem.Conflict} {
			if code := f.do(who, "POST", "/changes", editBody("RunnerEnrollment", "globex", `{"owners":["x@globex.dev"]}`), nil); code != want {
				t.Errorf("%s: %q, want %q", who, code, want)
			}
		}
	})
}

// PL-05: a person who has lost the role in an organisation does not see an earlier proposal by sending it again.
func TestPL05_RepeatedWithoutTheRole(t *testing.T) {
	f := newEnv(t, "github")
	body := map[string]any{"kind": "RunnerEnrollment", "name": "globex", "reason": "our builds wait", "spec": json.RawMessage(`{"forge":"github","configURL":"https://github.com/globex","credentials":{"secretName":"globex-app"},"pools":[{"name":"gh-nix","type":"Shared"}]}`)}
	for range 2 {
		if code := f.do("ivy@initech.dev", "POST", "/changes", body, nil); code != "" {
			t.Fatal(code)
		}
	}
	f.mu.Lock()
	f.pat = false // and the role from the settings
	f.mu.Unlock()
	if code := f.do("ivy@initech.dev", "POST", "/changes", body, nil); code != problem.NotFound {
		t.Errorf("once more: %q", code)
	}
}

// FL-01, PL-05: a caller sees broken rules of its own organisation. A platform administrator sees all.
func TestFL01_Rules(t *testing.T) {
	f := newEnv(t, "github")
	f.changes.BrokenRules = func(context.Context, gitops.Ref, map[string]any) ([]plane.Rule, error) {
		return []plane.Rule{{Org: "acme", Pool: "gh-nix", Reason: "PoolDedicated"}, {Org: "globex", Reason: "ConfigURLTaken"}}, nil
	}
	var seen plane.Preview
	switch code := f.do("amy@acme.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerEnrollment", "name": "acme", "patch": json.RawMessage(`{"owners":["amy@acme.dev"]}`)}, &seen); {
	case code != "":
		t.Errorf("code = %q, want none", code)
	case len(seen.Rules) != 1:
		t.Errorf("len(seen.Rules) = %v, want 1", len(seen.Rules))
	case seen.Rules[0].Org != "acme":
		t.Errorf("seen.Rules[0].Org = %q, want %q", seen.Rules[0].Org, "acme")
	}
	if code := f.do("pat@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerPool", "name": "gh-nix", "patch": json.RawMessage(`{"scaling":{"max":7}}`)}, &seen); code != "" || len(seen.Rules) != 2 {
		t.Errorf("%s, %+v", code, seen.Rules)
	}
}

// PL-09: an object that the API server would refuse, a missing object, and a moved file.
func TestPL09_Flow(t *testing.T) {
	f := newEnv(t, "github")
	var seen plane.Preview
	ask := func(patch string) problem.Code {
		return f.do("pat@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerPool", "name": "gh-nix", "patch": json.RawMessage(patch)}, &seen)
	}
	if code := ask(`{"scaling":{"min":9}}`); code != "" || seen.Refused == "" {
		t.Errorf("min above max: %s, %+v", code, seen)
	}
	if code := ask(`{"scalling":{"min":1}}`); code != "" || !strings.Contains(seen.Refused, "scalling") {
		t.Errorf("an unknown key: %s, %q", code, seen.Refused)
	}
	if code := f.do("pat@platform.dev", "POST", "/changes", editBody("RunnerPool", "gh-nix", `{"scalling":{"min":1}}`), nil); code != problem.Validation {
		t.Errorf("it was proposed: %s", code)
	}
	for _, x := range []struct {
		kind, name, patch string
		want              problem.Code
	}{{"RunnerPool", "../gh-nix", `{}`, problem.Validation}, {"RunnerHold", "a", `{}`, problem.Validation}, {"RunnerPool", "gh-docker", `{"forge":"x"}`, problem.NotFound}, {"RunnerPool", "gh-nix", `{"forge":"a","forge":"b"}`, problem.Validation},
		{"RunnerPool", "gh-nix", `[]`, problem.Validation}} {
		if code := f.do("pat@platform.dev", "POST", "/changes", editBody(x.kind, x.name, x.patch), nil); code != x.want {
			t.Errorf("%+v: %s", x, code)
		}
	}
	if code := ask(`{"scaling":{"max":7}}`); code != "" {
		t.Fatal(code)
	}
	f.push("main", "eve", strings.Replace(text, "max: 5", "max: 6", 1))
	body := editBody("RunnerPool", "gh-nix", `{"scaling":{"max":7}}`)
	body["version"] = seen.Version
	if code := f.do("pat@platform.dev", "POST", "/changes", body, nil); code != problem.Conflict {
		t.Errorf("the base has moved: %s", code)
	}
	if n := len(f.github.Pulls(f.repository)); n != 0 {
		t.Errorf("%d pull requests", n)
	}
	// A file that is too large stays unchanged. A long diff is cut when it is stored.
	f.push("main", "eve", text+"# "+strings.Repeat("x", 520<<10)+"\n")
	if code := ask(`{"scaling":{"max":9}}`); code != problem.Conflict {
		t.Errorf("a huge file: %s", code)
	}
	f.push("main", "eve", strings.Replace(text, "spec:\n", "spec:\n  image: "+strings.Repeat("y", 300<<10)+"\n", 1))
	switch code := f.do("pat@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerPool", "name": "gh-nix", "remove": true}, &seen); {
	case code != "":
		t.Errorf("a long diff: code = %q, want none", code)
	case len(seen.Diff) > 257<<10:
		t.Errorf("a long diff: len(seen.Diff) = %v, want at most %v", len(seen.Diff), 257<<10)
	case !strings.Contains(seen.Diff, "the diff is longer"):
		t.Errorf("a long diff: seen.Diff = %q does not contain %q", seen.Diff, "the diff is longer")
	}
	// The forge is down: nothing is made, and the caller receives an error.
	f.github.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: http.StatusBadGateway} })
	if code := ask(`{"scaling":{"max":9}}`); code != problem.Unavailable {
		t.Errorf("without the forge: %s", code)
	}
}

// FLEET-15: a moved base is a conflict in every format, and nothing is proposed. A field without a key is neither shown nor written. The
// API server is not queried about the result of a Tofu stack.
func TestFLEET15_MovedBase(t *testing.T) {
	for _, x := range formats() {
		t.Run(x.name, func(t *testing.T) {
			f := newEnvOf(t, "github", x)
			var seen plane.Preview
			body := editBody("RunnerPool", "gh-nix", `{"scaling":{"max":7}}`)
			if code := f.do("pat@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerPool", "name": "gh-nix", "patch": body["patch"]}, &seen); code != "" {
				t.Fatal(code)
			}
			f.push("main", "eve", strings.Replace(f.text, "# Runners", "# The runners", 1))
			body["version"] = seen.Version
			if code := f.do("pat@platform.dev", "POST", "/changes", body, nil); code != problem.Conflict {
				t.Errorf("the base has moved: %s", code)
			}
			preview := func(kind, patch string) problem.Code {
				return f.do("pat@platform.dev", "POST", "/changes/preview", map[string]any{"kind": kind, "name": "gh-nix", "patch": json.RawMessage(patch)}, &seen)
			}
			if f.layout.Note() == "" {
				return
			}
			if code := preview("RunnerPool", `{"scaling":{"max":7},"image":"x"}`); code != problem.Validation {
				t.Errorf("a field without a key: %s", code)
			}
			if code := preview("RunnerForge", `{"url":"https://evil.example"}`); code != problem.Validation {
				t.Errorf("a kind without a stack: %s", code)
			}
			switch code := preview("RunnerPool", `{"scaling":{"min":9}}`); {
			case code != "":
				t.Errorf("min above max is left to the plan: code = %q, want none", code)
			case seen.Refused != "":
				t.Errorf("min above max is left to the plan: seen.Refused = %q, want none", seen.Refused)
			case seen.Note == "":
				t.Errorf("min above max is left to the plan: seen.Note is empty; code = %s, seen = %+v", code, seen)
			}
			if n := len(f.github.Pulls(f.repository)); n != 0 {
				t.Errorf("%d pull requests", n)
			}
		})
	}
}

// git can apply the preview's diff to the file, and the diff changes no other file.
func TestFLEET15_PreviewApplies(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("SKIP git: it is not here")
	}
	for _, x := range formats() {
		t.Run(x.name, func(t *testing.T) { newEnvOf(t, "gitlab", x).gitApplies(git) })
	}
}

func (f *env) gitApplies(git string) {
	t := f.T
	var seen plane.Preview
	if code := f.do("pat@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerEnrollment", "name": "acme", "patch": json.RawMessage(`{"quota":{"pods":9},"owners":["amy@acme.dev"]}`)}, &seen); code != "" {
		t.Fatal(code)
	}
	dir := t.TempDir()
	run := func(stdin string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), git, args...)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(stdin)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("", "init", "-q")
	f.must(os.MkdirAll(filepath.Join(dir, filepath.Dir(f.file)), 0o755))
	f.must(os.WriteFile(filepath.Join(dir, f.file), []byte(f.text), 0o644))
	run("", "add", ".")
	run("", "commit", "-qm", "begin")
	run(seen.Diff, "apply")
	if got := run("", "diff", "--name-only"); got != f.file+"\n" {
		t.Errorf("applied, it changes %q, want %s", got, f.file)
	}
}

// PLANE-04, PLANE-09, ID-12: every operation for every kind of caller, on a change of the platform and on one of acme. No request decides
// anything, because the head to approve or merge is wrong.
func TestPLANE04_Changes(t *testing.T) {
	f := newEnv(t, "github")
	var shared, acme plane.Change
	if code := f.do("olga@platform.dev", "POST", "/changes", editBody("RunnerPool", "gh-nix", `{"scaling":{"max":8}}`), &shared); code != "" {
		t.Fatal(code)
	}
	if code := f.do("amy@acme.dev", "POST", "/changes", editBody("RunnerEnrollment", "acme", `{"owners":["amy@acme.dev"]}`), &acme); code != "" {
		t.Fatal(code)
	}
	f.state(acme.ID, "open") // the plane knows both now
	patch := func(kind, name string) map[string]any {
		return map[string]any{"kind": kind, "name": name, "patch": json.RawMessage(`{"forge":"gitlab"}`)}
	}
	head := map[string]any{"head": "0", "reason": "matrix"}
	var got strings.Builder
	for _, who := range []string{"pat@platform.dev", "olga@platform.dev", "amy@acme.dev", "ann@acme.dev", "mel@acme.dev", "gus@globex.dev", "mallory@evil.example"} {
		var list []plane.Change
		code := f.do(who, "GET", "/changes", nil, &list)
		fmt.Fprintf(&got, "%s lists %d%s\n", strings.SplitN(who, "@", 2)[0], len(list), code)
		for _, c := range []struct {
			of         string
			id         string
			kind, name string
		}{{"shared", shared.ID, "RunnerPool", "gh-nix"}, {"acme", acme.ID, "RunnerEnrollment", "acme"}} {
			fmt.Fprintf(&got, "  %-6s preview %s, get %s, approve %s, merge %s", c.of, f.do(who, "POST", "/changes/preview", patch(c.kind, c.name), nil), f.do(who, "GET", "/changes/"+c.id, nil, nil),
				f.do(who, "POST", "/changes/"+c.id+"/approve", head, nil), f.do(who, "POST", "/changes/"+c.id+"/merge", head, nil))
			if who != "pat@platform.dev" && who != "ann@acme.dev" && (who != "olga@platform.dev" || c.of != "shared") && (who != "amy@acme.dev" || c.of != "acme") {
				fmt.Fprintf(&got, ", close %s", f.do(who, "POST", "/changes/"+c.id+"/close", map[string]any{"reason": "matrix"}, nil))
			}
			got.WriteString("\n")
		}
	}
	const want = `pat lists 2
  shared preview , get , approve conflict, merge conflict
  acme   preview , get , approve conflict, merge conflict
olga lists 2
  shared preview , get , approve forbidden, merge forbidden
  acme   preview , get , approve forbidden, merge forbidden, close forbidden
amy lists 1
  shared preview not_found, get not_found, approve not_found, merge not_found, close not_found
  acme   preview , get , approve self_approval, merge conflict
ann lists 1
  shared preview not_found, get not_found, approve not_found, merge not_found
  acme   preview , get , approve conflict, merge conflict
mel lists 1
  shared preview not_found, get not_found, approve forbidden, merge forbidden, close not_found
  acme   preview , get , approve forbidden, merge forbidden, close forbidden
gus lists 0
  shared preview not_found, get not_found, approve not_found, merge not_found, close not_found
  acme   preview not_found, get not_found, approve not_found, merge not_found, close not_found
mallory lists 0not_authorized_user
  shared preview not_authorized_user, get not_authorized_user, approve not_authorized_user, merge not_authorized_user, close not_authorized_user
  acme   preview not_authorized_user, get not_authorized_user, approve not_authorized_user, merge not_authorized_user, close not_authorized_user
`
	if got.String() != want {
		t.Errorf("%s\nwant\n%s", got.String(), want)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range f.entries {
		if e.Verb == "" || e.Actor.Login == "" {
			t.Errorf("an entry has no actor or no object: %+v", e)
		}
	}
	if len(f.entries) < 60 {
		t.Errorf("%d entries", len(f.entries))
	}
}
