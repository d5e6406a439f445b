//go:build unix

package controller

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// FLEET-13: new labels create a second scale set with another name. The old one takes no more jobs,
// ends when its last job has ended, and goes. Together they never exceed the maximum.
func TestFLEET13_OtherLabels(t *testing.T) {
	p := newEnv(t, "0.14.2")
	pool := p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitFor("it has its share", func() bool { s := p.set(p.shared, "acme-nix"); return s != nil && s.Max == 3 })
	p.arc.Assign(p.shared, "acme-nix", arctest.Job{ID: "j1", Repository: "acme/app", Run: 11})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p.must(p.arc.Start(ctx, "j1"))

	p.patch(pool, `{"spec":{"runsOn":["self-hosted","nix","large"]}}`)
	both := func() (old, next *arc.Set) {
		old, next = p.set(p.shared, "acme-nix"), p.set(p.shared, "acme-nix-r2")
		if old != nil && next != nil && old.Max > 0 && next.Max > 0 {
			t.Fatalf("both may have runners: %d and %d", old.Max, next.Max)
		}
		if old == nil || old.Ending {
			if _, _, running := p.arc.Jobs(p.shared, "acme-nix"); running > 0 {
				t.Fatal("the old one goes while a job runs")
			}
		}
		return old, next
	}
	p.waitFor("the new one takes the jobs", func() bool {
		old, next := both()
		return next != nil && next.Max == 3 && old != nil && old.Max == 0
	})
	if _, _, running := p.arc.Jobs(p.shared, "acme-nix"); running != 1 {
		t.Errorf("%d jobs run on the old one", running)
	}
	for name, want := range map[string][]string{"acme-nix": {"self-hosted", "nix"}, "acme-nix-r2": {"self-hosted", "nix", "large"}} {
		u := newARCObject(arc.SetKind)
		if !p.exists(p.shared, name, u) {
			t.Fatalf("there is no %s", name)
		}
		if labels, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "runnerScaleSetLabels"); !slices.Equal(labels, want) {
			t.Errorf("%s has the labels %q", name, labels)
		}
	}
	p.must(p.arc.Finish(t.Context(), "j1"))
	p.waitFor("the old one is deleted", func() bool { old, _ := both(); return old == nil })
	p.waitPhase("acme", v1alpha1.PhaseActive)
	if sets := p.github.ScaleSets(); len(sets) != 1 || sets[0].Name != "acme-nix-r2" {
		t.Errorf("GitHub has %+v", sets)
	}
}

// FLEET-13: another owner uses a GitHub scale set with the name that the fleet's would have. GitHub
// would return the same one, so the fleet creates none and the other continues. When the other is
// deleted, the fleet creates its scale set. An offboarding in the meantime does not touch the other.
func TestFLEET13_UnmanagedScaleSet(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	others := p.cluster.Namespace(t)
	p.must(p.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: others, Name: "theirs"}, StringData: map[string]string{"github_token": p.github.AddToken("admin:org")}}))
	p.github.AddAccount("acme", "")
	stranger := newARCObject(arc.SetKind)
	stranger.SetNamespace(others)
	stranger.SetName("runners")
	stranger.SetLabels(map[string]string{"app.kubernetes.io/version": "0.14.2"})
	stranger.Object["spec"] = map[string]any{"githubConfigUrl": p.github.URL + "/ACME", "githubConfigSecret": "theirs", "runnerScaleSetName": "Acme-Nix", "minRunners": int64(0), "maxRunners": int64(2),
		"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "runner", "image": "image.invalid/runner:1"}}}}}
	p.must(p.admin.Create(t.Context(), stranger))
	p.waitFor("the external scale set is registered", func() bool { s := p.set(others, "runners"); return s != nil && s.ID > 0 })
	before := p.set(others, "runners")
	untouched := func() {
		t.Helper()
		switch now := p.set(others, "runners"); {
		case now == nil:
			t.Fatal("the external scale set: now is nil")
		case now.Ending:
			t.Fatalf("the external scale set: now.Ending is true; %+v, before = %+v", now, before)
		case now.UID != before.UID:
			t.Fatalf("the external scale set: now.UID = %q, want %q", now.UID, before.UID)
		case now.ID != before.ID:
			t.Fatalf("the external scale set: now.ID = %v, want %v", now.ID, before.ID)
		case now.Max != before.Max:
			t.Fatalf("the external scale set: now.Max = %v, want %v", now.Max, before.Max)
		}
		if !slices.ContainsFunc(p.github.ScaleSets(), func(s forgetest.GitHubScaleSet) bool { return s.ID == before.ID }) {
			t.Fatal("the external scale set is deleted at GitHub")
		}
	}
	e := p.enrollGitHub("acme", []string{"nix"})
	p.start()
	for range 2 { // also for an enrollment that is created again
		p.waitCondition("acme", "Ready", "False/"+arc.ReasonConflict)
		if p.set(p.shared, "acme-nix") != nil {
			t.Error("the fleet's scale set was created")
		}
		untouched()
		spec := e.Spec
		p.must(p.admin.Delete(t.Context(), e))
		if left := p.waitGone("acme"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		untouched()
		p.credential("acme", map[string]string{"github_token": p.github.AddToken("admin:org", "repo")})
		e = &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme"}, Spec: spec}
		p.must(p.admin.Create(t.Context(), e))
	}
	p.must(p.admin.Delete(t.Context(), stranger))
	p.waitPhase("acme", v1alpha1.PhaseActive)
}
