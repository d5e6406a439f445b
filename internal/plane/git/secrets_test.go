//go:build unix

package git_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// FLEET-12: the plane's forge credential is in no response, diff, title, commit, audit entry or object, even when the forge repeats it in
// an error. A proposed credential never reaches the forge.
func TestFLEET12_Changes(t *testing.T) {
	for _, at := range []string{"github", "gitlab"} {
		t.Run(at, func(t *testing.T) {
			f := newEnv(t, at)
			canary := "ghp_" + strings.Repeat("c4n4ry", 6)
			for where, body := range map[string]map[string]any{
				"patch":  editBody("RunnerPool", "gh-nix", `{"image":"x","runsOn":["`+canary+`"]}`),
				"reason": {"kind": "RunnerPool", "name": "gh-nix", "patch": map[string]any{"scaling": map[string]any{"max": 7}}, "reason": "with " + canary},
				"title":  {"kind": "RunnerPool", "name": "gh-nix", "patch": map[string]any{"scaling": map[string]any{"max": 7}}, "reason": "more", "title": "with " + canary},
				"spec":   {"kind": "RunnerPool", "name": "new", "spec": map[string]any{"image": "glrt-" + strings.Repeat("c4n4ry", 6)}, "reason": "more"},
			} {
				if code := f.do("olga@platform.dev", "POST", "/changes", body, nil); code != problem.Validation {
					t.Errorf("a credential as %s: %q", where, code)
				}
			}
			if code := f.do("olga@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerPool", "name": "gh-nix", "patch": map[string]any{"image": canary}}, nil); code != problem.Validation {
				t.Errorf("its preview: %q", code)
			}
			if n := f.made(); strings.Contains(n, "c4n4ry") || f.requests() != 0 {
				t.Fatalf("%d changes were made: %s", f.requests(), n)
			}

			var c plane.Change
			if code := f.do("olga@platform.dev", "POST", "/changes", editBody("RunnerPool", "gh-nix", `{"scaling":{"max":7}}`), &c); code != "" {
				t.Fatal(code)
			}
			tokens := f.echoes()
			for _, path := range []string{"approve", "merge", "close"} {
				body := map[string]any{"head": c.Head, "reason": "now"}
				if path == "close" {
					delete(body, "head")
				}
				if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/"+path, body, nil); code == "" {
					t.Errorf("%s went well at a forge that fails", path)
				}
			}
			if code := f.do("olga@platform.dev", "POST", "/changes/preview", map[string]any{"kind": "RunnerPool", "name": "gh-nix", "patch": map[string]any{"scaling": map[string]any{"max": 9}}}, nil); code == "" {
				t.Error("a preview without a forge")
			}
			secrets := append(f.secrets, tokens()...)
			if len(secrets) == 0 {
				t.Fatal("no secrets to search for")
			}
			said := f.said.String() + f.made() + fmt.Sprintf("%+v", f.entries)
			for _, s := range secrets {
				if strings.Contains(said, s) {
					t.Errorf("%.8s… is in %s", s, said)
				}
			}
			if said := f.said.String() + f.made(); strings.Contains(said, "c4n4ry") { // the audit log masks it when it writes
				t.Errorf("the refused text is in %s", said)
			}
		})
	}
}

// PL-09: the bot that writes changes is not a reviewer. Its approval at the forge does not count, and the plane never makes it approve.
func TestPL09_TheBotApprovesNothing(t *testing.T) {
	for _, at := range []string{"github", "gitlab"} {
		t.Run(at, func(t *testing.T) {
			f := newEnv(t, at)
			var c plane.Change
			if code := f.do("olga@platform.dev", "POST", "/changes", editBody("RunnerPool", "gh-nix", `{"scaling":{"max":7}}`), &c); code != "" {
				t.Fatal(code)
			}
			if f.github != nil {
				f.github.Review(f.repository, c.Number, "tailplane[bot]", "APPROVED")
			} else {
				f.gitlab.Approve("platform/fleet", int64(c.Number), "tailplane-bot")
			}
			decide := map[string]any{"head": c.Head, "reason": "the bot likes it"}
			if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/merge", decide, nil); code != problem.Conflict || f.onMain() != text {
				t.Errorf("merged with the bot's word: %q", code)
			}
			if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/approve", decide, nil); code != "" {
				t.Fatal(code)
			}
			if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/merge", decide, nil); code != "" {
				t.Fatal(code)
			}
			for _, call := range f.calls() {
				if call.Method != http.MethodGet && (strings.HasSuffix(call.Path, "/reviews") || strings.HasSuffix(call.Path, "/approve")) {
					t.Errorf("the bot reviewed: %+v", call)
				}
			}
		})
	}
}

// calls returns the requests to the forge.
func (f *env) calls() []forgetest.Call {
	if f.github != nil {
		return f.github.Calls()
	}
	return f.gitlab.Calls()
}

// requests returns the number of changes at the forge.
func (f *env) requests() int {
	if f.github != nil {
		return len(f.github.Pulls(f.repository))
	}
	return len(f.gitlab.MergeRequests("platform/fleet"))
}

// made returns everything that the plane has written, at the forge and in the cluster.
func (f *env) made() string {
	f.Helper()
	var stored corev1.ConfigMapList
	f.must(f.admin.List(f.Context(), &stored, client.InNamespace(f.ns)))
	out := fmt.Sprintf("%+v", stored.Items)
	if f.github != nil {
		for _, p := range f.github.Pulls(f.repository) {
			out += fmt.Sprintf("%+v %+v", p, f.github.Commit(f.repository, p.Head))
		}
		return out
	}
	for _, r := range f.gitlab.MergeRequests("platform/fleet") {
		out += fmt.Sprintf("%+v %+v", r, f.gitlab.Log("platform/fleet", r.Source))
	}
	return out
}

// echoes makes the forge fail from now on and repeat the credentials of each request. It returns a function that returns those.
func (f *env) echoes() func() []string {
	var seen []string
	fault := func(r *http.Request) *forgetest.Fault {
		said := r.Header.Get("Authorization") + r.Header.Get("Private-Token")
		_, token, _ := strings.Cut(" "+said, " ")
		f.mu.Lock()
		defer f.mu.Unlock()
		seen = append(seen, strings.TrimPrefix(token, "Bearer "))
		return &forgetest.Fault{Status: http.StatusUnprocessableEntity, Body: `{"message":"` + said + `"}`}
	}
	if f.github != nil {
		f.github.Fault(fault)
	} else {
		f.gitlab.Fault(fault)
	}
	return func() []string { f.mu.Lock(); defer f.mu.Unlock(); return seen }
}
