//go:build unix

package planegit_test

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

	"github.com/tailplane/tailplane/internal/fleet/change"
	"github.com/tailplane/tailplane/internal/fleet/forge/forgetest"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planedrift"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/plane/planekube"
)

// Drift between git and what is live: what the repository
// says, and what is live on a real API server, differ in a field, in an object that only
// one of them has, and in one that would be refused. What nobody knows is no drift.
func TestGitDrift(t *testing.T) {
	f := newFlow(t, "github")
	c, err := installed()
	f.must(err)
	kept, err := planekube.NewChanges(c.AdminConfig(), f.ns)
	f.must(err)
	const pool = "apiVersion: tailplane.dev/v1alpha1\nkind: RunnerPool\nmetadata: {name: %s}\nspec: {forge: github, runsOn: [nix], scaling: {min: %d, max: 5, budget: 20}}\n"
	names := []string{f.ns + "-a", f.ns + "-b", f.ns + "-c"}
	write := func(least int) {
		f.push("main", "eve", fmt.Sprintf(pool, names[0], least)+"---\n"+fmt.Sprintf(pool, names[1], 0)+"--- # notes\n")
	}
	write(0)
	board := plane.NewBoard(f.desk.Plane.Now)
	check := &planedrift.Check{Board: board, Now: f.desk.Plane.Now, Pattern: file, Would: kept.Would, Every: time.Hour, Log: slog.New(slog.DiscardHandler),
		Read: func(ctx context.Context, path string) (planechange.File, error) {
			return f.desk.Repository.ReadFile(ctx, "", path)
		},
		Live: func(ctx context.Context) (map[change.Ref]map[string]any, error) { // those of this test
			all, err := kept.All(ctx)
			for r := range all {
				if !strings.HasPrefix(r.Name, f.ns) {
					delete(all, r)
				}
			}
			return all, err
		}}
	look := func(wait time.Duration) (found []string) {
		t.Helper()
		f.mu.Lock()
		f.now = f.now.Add(wait)
		f.mu.Unlock()
		f.must(check.Look(t.Context()))
		for _, o := range board.List(plane.KindDrift).Objects {
			d := o.(planefleet.Drift)
			found = append(found, strings.TrimPrefix(d.Workload, "RunnerPool/"+f.ns)+" "+d.Field)
			t.Log(d.Evidence)
		}
		slices.Sort(found)
		return found
	}
	same := func(got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("found %q, want %q", got, want)
		}
	}
	f.apply("RunnerPool", names[0])
	same(look(0))
	same(look(6*time.Minute), "-b Missing")
	f.apply("RunnerPool", names[1])
	same(look(time.Minute))

	// Somebody changes what is live, and makes what nobody wrote.
	live := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerPool", "metadata": map[string]any{"name": names[0]}}}
	f.must(f.admin.Patch(t.Context(), live, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"scaling":{"max":8}}}`))))
	extra := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerPool", "metadata": map[string]any{"name": names[2]},
		"spec": map[string]any{"forge": "github", "runsOn": []any{"nix"}, "scaling": map[string]any{"max": int64(1), "budget": int64(1)}}}}
	f.must(f.admin.Create(t.Context(), extra))
	same(look(time.Minute))
	same(look(6*time.Minute), "-a spec.scaling.max", "-c Unwritten")

	// The forge is away: what was found stays, and its source says so.
	f.github.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: http.StatusBadGateway} })
	if err := check.Look(t.Context()); err == nil {
		t.Error("the forge is away, and nothing is wrong")
	}
	if l := board.List(plane.KindDrift); len(l.Objects) != 2 || l.Sources[0].Status != plane.Degraded {
		t.Errorf("%+v", l)
	}
	f.github.Fault(nil)

	// What would be refused is told; what is mended is gone.
	f.must(f.admin.Delete(t.Context(), extra))
	write(9)
	same(look(time.Minute))
	same(look(6*time.Minute), "-a Refused")
	write(0)
	f.apply("RunnerPool", names[0])
	same(look(time.Minute))
	if s := board.Sources(); len(s) == 0 || s[0].Name != planedrift.Source || s[0].Status != plane.OK {
		t.Errorf("%+v", s)
	}
}
