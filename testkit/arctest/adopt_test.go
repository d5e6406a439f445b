//go:build unix

package arctest_test

import (
	"encoding/json"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/testkit/arctest"
)

// get reads a set from the server.
func (b *env) get(name string) *unstructured.Unstructured {
	b.t.Helper()
	u, err := b.client.Resource(resource(group, "autoscalingrunnersets")).Namespace(b.ns).Get(b.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return u
}

// adopt carries out decisions until there is nothing to do, and returns the last decision.
func (b *env) adopt(name string, held bool, now func() time.Time) (last arc.ExternalWrite) {
	b.t.Helper()
	sets := b.client.Resource(resource(group, "autoscalingrunnersets")).Namespace(b.ns)
	for range 20 {
		a := arc.NextExternalWrite(arc.ReadSet(b.get(name)), held, now())
		var err error
		switch {
		case a.Apply != nil:
			_, err = sets.Apply(b.t.Context(), name, a.Apply, metav1.ApplyOptions{FieldManager: arc.HoldManager, Force: true})
		case a.Patch != nil:
			_, err = sets.Patch(b.t.Context(), name, types.JSONPatchType, a.Patch, metav1.PatchOptions{FieldManager: arc.HoldManager})
		default:
			return a
		}
		// A conflict is a concurrent write: ARC updates the status of the set all the time.
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) {
			b.t.Fatal(err)
		}
	}
	b.t.Fatal("it does not end")
	return last
}

func spec(u *unstructured.Unstructured) string {
	b, err := json.Marshal(u.Object["spec"])
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// FLEET-16: an external scale set is held and released with exactly its earlier values, including fields that were
// not set. If another manager undoes a hold, it is named and its value stays. No trace of a hold is left, and nothing
// is deleted.
func TestFLEET16_Adopt(t *testing.T) {
	b := newBench(t, "0.14.2", false)
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	clock := func() time.Time { return now }

	// As a Helm chart writes it: updated and not applied, and without a minimum.
	helm := b.set("old", 0, 5)
	delete(helm["spec"].(map[string]any), "minRunners")
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(helm)}
	u.SetAPIVersion(group)
	if _, err := b.client.Resource(resource(group, "autoscalingrunnersets")).Namespace(b.ns).Create(t.Context(), u, metav1.CreateOptions{FieldManager: "helm"}); err != nil {
		t.Fatal(err)
	}
	p, _ := b.until("registered", "old", registered)
	before, id := spec(b.get("old")), p.Set.ID
	if a := b.adopt("old", false, clock); a.Failure.Reason != "" || spec(b.get("old")) != before {
		t.Errorf("without a hold: %+v, %s", a, spec(b.get("old")))
	}
	b.Assign(b.ns, "old", arctest.Job{ID: "a"})
	b.start("a")

	b.adopt("old", true, clock)
	p, s := b.until("held", "old", func(_ arc.Objects, s arc.State) bool { return s.Stopped == fleet.Yes && s.Registered == fleet.Yes })
	switch {
	case p.Set.Before == nil:
		t.Errorf("held: p.Set.Before is nil; %s", show(p, s))
	case p.Set.Before.Min != nil:
		t.Errorf("held: p.Set.Before.Min = %v, want nil; %s", p.Set.Before.Min, show(p, s))
	case *p.Set.Before.Max != 5:
		t.Errorf("held: *p.Set.Before.Max = %v, want 5; %s", *p.Set.Before.Max, show(p, s))
	case *s.Running != 1:
		t.Errorf("held: *s.Running = %v, want 1; %s", *s.Running, show(p, s))
	}

	// A GitOps engine that does not ignore the numbers writes the value from git, which has changed by now.
	git := map[string]any{"kind": "AutoscalingRunnerSet", "metadata": map[string]any{"name": "old"}, "spec": map[string]any{"maxRunners": int64(7)}}
	now = now.Add(time.Minute)
	if err := b.tryApply(group, "autoscalingrunnersets", git, "argocd-controller"); err != nil {
		t.Fatal(err)
	}
	if a := b.adopt("old", true, clock); a.Failure.Reason != arc.ReasonHoldOverwritten || !a.Wake.After(now) {
		t.Errorf("undone within a minute: %+v", a)
	}
	b.until("held again", "old", func(p arc.Objects, s arc.State) bool { return s.Stopped == fleet.Yes && p.Set.Max == 0 })
	now = now.Add(2 * time.Hour)
	if a := b.adopt("old", true, clock); a.Failure.Reason != "" {
		t.Errorf("two hours later: %+v", a)
	}

	b.adopt("old", false, clock)
	after := b.get("old")
	want := map[string]any{}
	if err := json.Unmarshal([]byte(before), &want); err != nil {
		t.Fatal(err)
	}
	want["maxRunners"] = 7
	if w, err := json.Marshal(want); err != nil || spec(after) != string(w) {
		t.Errorf("given back as %s, not %s", spec(after), w)
	}
	if _, left := after.GetAnnotations()[arc.HeldAnnotation]; left {
		t.Errorf("annotations: %v", after.GetAnnotations())
	}
	for _, f := range after.GetManagedFields() {
		if f.Manager == arc.HoldManager {
			t.Errorf("a hold still owns something: %v", f)
		}
	}
	// Its owner writes again and does not need to force conflicts.
	git["spec"] = map[string]any{"maxRunners": int64(8)}
	g := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(git)}
	g.SetAPIVersion(group)
	g.SetNamespace(b.ns)
	if _, err := b.client.Resource(resource(group, "autoscalingrunnersets")).Namespace(b.ns).Apply(t.Context(), "old", g, metav1.ApplyOptions{FieldManager: "argocd-controller"}); err != nil {
		t.Error(err)
	}
	p, _ = b.until("works on", "old", func(p arc.Objects, s arc.State) bool { return s.Registered == fleet.Yes && p.Set.Max == 8 })
	if p.Set.ID != id {
		t.Errorf("it was scale set %d, now it is %d", id, p.Set.ID)
	}
	b.finish("a")
}
