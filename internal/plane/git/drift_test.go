//go:build unix

package git_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/git"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

const pool = "apiVersion: tailplane.dev/v1alpha1\nkind: RunnerPool\nmetadata: {name: %s}\nspec: {forge: github, runsOn: [nix], scaling: {min: %d, max: 5, budget: 20}}\n"

// driftEnv compares the repository of a flow with the flow's live objects.
type driftEnv struct {
	*env
	*plane.DriftCheck
	calls func() []forgetest.Call // at the forge
	fault func(func(*http.Request) *forgetest.Fault)
}

func newDriftEnv(t *testing.T, at, pattern string) *driftEnv {
	f := newEnv(t, at)
	kubetest.SkipIfShort(t)
	c, err := installed()
	f.must(err)
	api, err := kube.Connect(c.AdminConfig(), f.changes.Plane.Now)
	f.must(err)
	stored := api.Changes(f.ns)
	repository := f.changes.Repository.(*git.Repository)
	d := &driftEnv{env: f, DriftCheck: &plane.DriftCheck{Store: plane.NewStore(f.changes.Plane.Now), Now: f.changes.Plane.Now, Pattern: pattern, DryRunSpec: stored.DryRunSpec, Interval: time.Hour, Log: slog.New(slog.DiscardHandler),
		Read: func(ctx context.Context, path string) (gitops.File, error) {
			return repository.ReadFile(ctx, "", path)
		},
		Files: func(ctx context.Context) (plane.RepositoryFiles, error) { return repository.Files(ctx, pattern) },
		Live: func(ctx context.Context) (map[gitops.Ref]map[string]any, error) { // the objects of this test only
			all, err := stored.ListSpecs(ctx)
			for r := range all {
				if !strings.HasPrefix(r.Name, f.ns) {
					delete(all, r)
				}
			}
			return all, err
		}}}
	if f.github != nil {
		d.calls, d.fault = f.github.Calls, f.github.Fault
	} else {
		d.calls, d.fault = f.gitlab.Calls, f.gitlab.Fault
	}
	return d
}

// reconcile compares after wait, and returns what is reported.
func (d *driftEnv) reconcile(wait time.Duration) (found []string) {
	d.Helper()
	d.env.mu.Lock()
	d.env.now = d.env.now.Add(wait)
	d.env.mu.Unlock()
	d.must(d.Reconcile(d.Context()))
	for _, o := range d.Store.List(plane.KindDrift).Objects {
		x := o.(plane.Drift)
		found = append(found, strings.TrimPrefix(x.Workload, "RunnerPool/"+d.ns)+" "+x.Field)
		d.Logf("%s", x.Evidence)
	}
	slices.Sort(found)
	return found
}

func (d *driftEnv) same(got []string, want ...string) {
	d.Helper()
	if !slices.Equal(got, want) {
		d.Errorf("found %q, want %q", got, want)
	}
}

// In a repository with one file per object, an object that was never applied is reported until it is applied, at both forges. Without a new
// commit the forge is queried only for the branch's head.
func TestGitDriftOfFiles(t *testing.T) {
	for _, at := range []string{"github", "gitlab"} {
		t.Run(at, func(t *testing.T) {
			d := newDriftEnv(t, at, "fleet/{kind}/{name}.yaml")
			names := []string{d.ns + "-a", d.ns + "-b"}
			for _, name := range names {
				d.file = "fleet/runnerpool/" + name + ".yaml"
				d.push("main", "eve", fmt.Sprintf(pool, name, 0))
			}
			d.pushTo("main", "fleet/README.md", "# not an object\n")
			d.apply("RunnerPool", names[1])
			d.same(d.reconcile(0))
			d.same(d.reconcile(6*time.Minute), "-a Missing")
			before := d.calls()
			d.same(d.reconcile(time.Minute), "-a Missing")
			if requested := d.calls()[len(before):]; len(requested) != 1 || requested[0].Method != http.MethodGet {
				t.Errorf("without a commit the forge got the requests %v", requested)
			}
			d.file = "fleet/runnerpool/" + names[0] + ".yaml"
			d.apply("RunnerPool", names[0])
			d.same(d.reconcile(time.Minute))
		})
	}
}

// The files are listed once per commit. If the list is incomplete, it is an error.
func TestFiles(t *testing.T) {
	for _, at := range []string{"github", "gitlab"} {
		t.Run(at, func(t *testing.T) {
			d := newDriftEnv(t, at, "fleet/{kind}/{name}.yaml")
			for _, path := range []string{"fleet/runnerpool/a.yaml", "fleet/runnerpool/b.yml", "fleet/runnerhold/c.yaml", "fleet/runnerpool/d/e.yaml", "other/runnerpool/f.yaml"} {
				d.pushTo("main", path, "x")
			}
			files, err := d.Files(t.Context())
			switch {
			case err != nil:
				t.Error(err)
			case len(files.Blobs) != 1:
				t.Errorf("len(files.Blobs) = %v, want 1", len(files.Blobs))
			case len(files.Blobs["fleet/runnerpool/a.yaml"]) != 40:
				t.Errorf(`len(files.Blobs["fleet/runnerpool/a.yaml"]) = %v, want 40`, len(files.Blobs["fleet/runnerpool/a.yaml"]))
			case len(files.Commit) != 40:
				t.Errorf("len(files.Commit) = %v, want 40", len(files.Commit))
			}
			before := len(d.calls())
			switch again, err := d.Files(t.Context()); {
			case err != nil:
				t.Errorf("again: %v; %d", err, len(d.calls())-before)
			case again.Commit != files.Commit:
				t.Errorf("again: again.Commit = %q, want %q; %d", again.Commit, files.Commit, len(d.calls())-before)
			case len(d.calls()) != before+1:
				t.Errorf("again: len(d.calls()) = %v, want %v; %d", len(d.calls()), before+1, len(d.calls())-before)
			}
			d.pushTo("main", "fleet/runnerpool/a.yaml", "y")
			switch later, err := d.Files(t.Context()); {
			case err != nil:
				t.Errorf("after a commit: %v", err)
			case later.Commit == files.Commit:
				t.Errorf("after a commit: later.Commit = %q, the same as files.Commit", later.Commit)
			case later.Blobs["fleet/runnerpool/a.yaml"] == files.Blobs["fleet/runnerpool/a.yaml"]:
				t.Errorf(`after a commit: later.Blobs["fleet/runnerpool/a.yaml"] = %q, the same as files.Blobs["fleet/runnerpool/a.yaml"]`,
					later.Blobs["fleet/runnerpool/a.yaml"])
			}
			d.pushTo("main", "fleet/runnerpool/b.yaml", "z")
			if d.github != nil {
				d.github.TreeLimit(d.repository, 2)
				if _, err := d.Files(t.Context()); problem.CodeOf(err) != problem.TooLarge {
					t.Errorf("a part is reported: %v", err)
				}
				d.github.TreeLimit(d.repository, 100_000)
			}
			d.fault(func(r *http.Request) *forgetest.Fault {
				if strings.Contains(r.URL.Path, "/trees/") || strings.HasSuffix(r.URL.Path, "/tree") {
					return &forgetest.Fault{Status: http.StatusBadGateway}
				}
				return nil
			})
			if _, err := d.Files(t.Context()); problem.CodeOf(err) != problem.Unavailable {
				t.Errorf("the forge is away: %v", err)
			}
			d.fault(nil)
			if all, err := d.Files(t.Context()); err != nil || len(all.Blobs) != 2 {
				t.Errorf("%+v, %v", all, err)
			}
		})
	}
}

// Drift between git and a real API server: in a field, in an object that only one side has, and in one that the API server would refuse.
// Unknown state is not drift.
func TestGitDrift(t *testing.T) {
	d := newDriftEnv(t, "github", file)
	f, check, store, look, same := d.env, d.DriftCheck, d.Store, d.reconcile, d.same
	names := []string{f.ns + "-a", f.ns + "-b", f.ns + "-c"}
	write := func(least int) {
		f.push("main", "eve", fmt.Sprintf(pool, names[0], least)+"---\n"+fmt.Sprintf(pool, names[1], 0)+"--- # notes\n")
	}
	write(0)
	f.apply("RunnerPool", names[0])
	same(look(0))
	same(look(6*time.Minute), "-b Missing")
	f.apply("RunnerPool", names[1])
	same(look(time.Minute))

	// A live object is changed, and one is made that is not in git.
	live := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerPool", "metadata": map[string]any{"name": names[0]}}}
	f.must(f.admin.Patch(t.Context(), live, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"scaling":{"max":8}}}`))))
	extra := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerPool", "metadata": map[string]any{"name": names[2]},
		"spec": map[string]any{"forge": "github", "runsOn": []any{"nix"}, "scaling": map[string]any{"max": int64(1), "budget": int64(1)}}}}
	f.must(f.admin.Create(t.Context(), extra))
	same(look(time.Minute))
	same(look(6*time.Minute), "-a spec.scaling.max", "-c Unwritten")

	// The forge is down: the drift stays, and its source says so.
	f.github.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: http.StatusBadGateway} })
	if err := check.Reconcile(t.Context()); err == nil {
		t.Error("the forge is down, but there is no error")
	}
	if l := store.List(plane.KindDrift); len(l.Objects) != 2 || l.Sources[0].Status != plane.StatusDegraded {
		t.Errorf("%+v", l)
	}
	f.github.Fault(nil)

	// An object that would be refused is reported. Corrected drift is gone.
	f.must(f.admin.Delete(t.Context(), extra))
	write(9)
	same(look(time.Minute))
	same(look(6*time.Minute), "-a Refused")
	write(0)
	f.apply("RunnerPool", names[0])
	same(look(time.Minute))
	switch s := store.Sources(); {
	case len(s) == 0:
		t.Errorf("len(s) = %v", len(s))
	case s[0].Name != plane.DriftSource:
		t.Errorf("s[0].Name = %q, want %q", s[0].Name, plane.DriftSource)
	case s[0].Status != plane.StatusOK:
		t.Errorf("s[0].Status = %q, want %q", s[0].Status, plane.StatusOK)
	}
}
