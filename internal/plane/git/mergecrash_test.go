//go:build unix

package git_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// crashingRepository is a repository at whose Merge the process ends, before or after the forge receives the request.
type crashingRepository struct {
	plane.Repository
	after bool
}

func (m crashingRepository) Merge(ctx context.Context, number int, head string) error {
	if m.after {
		if err := m.Repository.Merge(ctx, number, head); err != nil {
			return err
		}
	}
	runtime.Goexit() // no later code runs
	return nil
}

// PLANE-18: the replica is killed in the middle of a merge. Its successor determines the true state: merged, if the forge did it, and
// otherwise open again. The approval is used up either way. So nothing is merged twice, and no approval is used twice.
func TestPLANE18_Merge(t *testing.T) {
	for _, at := range []string{"github", "gitlab"} {
		for _, after := range []bool{false, true} {
			name := at + "/before the forge"
			if after {
				name = at + "/after the forge"
			}
			t.Run(name, func(t *testing.T) {
				f := newEnv(t, at)
				var c plane.Change
				if code := f.do("olga@platform.dev", "POST", "/changes", editBody("RunnerPool", "gh-nix", `{"scaling":{"max":8}}`), &c); code != "" {
					t.Fatal(code)
				}
				decide := map[string]any{"head": c.Head, "reason": "the nodes carry it"}
				if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/approve", decide, nil); code != "" {
					t.Fatal(code)
				}
				repository := f.changes.Repository
				f.changes.Repository = crashingRepository{repository, after}
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					f.mu.Lock()
					f.caller = access.Login("pat@platform.dev")
					f.mu.Unlock()
					r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, plane.Base+"/changes/"+c.ID+"/merge", strings.NewReader(`{"head":"`+c.Head+`","reason":"now"}`))
					r.Host = "dashboard"
					r.Header.Set("Content-Type", "application/json")
					f.api.ServeHTTP(httptest.NewRecorder(), r)
					t.Error("the merge was answered")
				}()
				<-ended
				f.changes.Repository = repository
				if c = f.state(c.ID, "merging"); len(c.Approvals) != 0 {
					t.Errorf("the approval is still there: %+v", c.Approvals)
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { defer close(done); f.watch.Run(ctx) }() // as the next replica does
				defer func() { cancel(); <-done }()
				if after {
					f.state(c.ID, "merged", "applied")
				} else {
					f.state(c.ID, "open")
					if f.onMain() != text {
						t.Error("it is on main, but not reported")
					}
				}
				if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/merge", decide, nil); code != problem.Conflict {
					t.Errorf("once more with the same approval: %q", code)
				}
				if after != strings.Contains(f.onMain(), "max: 8 # what the nodes carry") {
					t.Errorf("the file is\n%s", f.onMain())
				}
				if after {
					return
				}
				for _, what := range []string{"approve", "merge"} {
					if code := f.do("pat@platform.dev", "POST", "/changes/"+c.ID+"/"+what, decide, nil); code != "" {
						t.Fatalf("%s again: %s", what, code)
					}
				}
				f.state(c.ID, "merged", "applied")
			})
		}
	}
}
