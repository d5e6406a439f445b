//go:build unix

package controller

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// createExternal creates a scale set like a Helm chart, without a minimum.
func (p *env) createExternal(name string) (namespace string) {
	p.t.Helper()
	namespace = p.cluster.Namespace(p.t)
	p.must(p.admin.Create(p.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "one"}, StringData: map[string]string{"github_token": "a token"}}))
	u := newARCObject(arc.SetKind)
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{"app.kubernetes.io/version": "0.14.2"})
	u.Object["spec"] = map[string]any{"githubConfigUrl": p.github.URL + "/old-org", "githubConfigSecret": "one", "runnerScaleSetName": name, "maxRunners": int64(5),
		"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "runner", "image": "runner:1"}}}}}
	p.must(p.admin.Create(p.t.Context(), u, client.FieldOwner("helm")))
	return namespace
}

// waitAdopted waits until an adopting pool has the expected status.
func (p *env) waitAdopted(name, what string, ok func(*v1alpha1.RunnerPool) bool) *v1alpha1.RunnerPool {
	p.t.Helper()
	o := &v1alpha1.RunnerPool{}
	p.waitFor(what, func() bool { return p.exists("", name, o) && ok(o) })
	return o
}

func reasonOf(o *v1alpha1.RunnerPool, kind string) string {
	c := meta.FindStatusCondition(o.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

// FLEET-16: a scale set of a Helm chart is shown, and the fleet writes nothing to it without a
// hold. A hold changes only its numbers, so its job continues. A conflicting writer is named. The
// original values are restored exactly, even if the pool was deleted while the fleet was down.
// Nothing is recreated or deleted.
func TestFLEET16_Adopted(t *testing.T) {
	p := newEnv(t, "0.14.2")
	ns := p.createExternal("old")
	adopts := func(o *v1alpha1.RunnerPool) { o.Spec.Adopt = &v1alpha1.PoolAdopt{Namespace: ns, Name: "old"} }
	p.pool("old", "github", v1alpha1.PoolScaling{Max: 5, Budget: 5}, adopts)
	p.pool("older", "github", v1alpha1.PoolScaling{Max: 5, Budget: 5}, func(o *v1alpha1.RunnerPool) { o.Spec.Adopt = &v1alpha1.PoolAdopt{Namespace: ns, Name: "nobody"} })
	p.start()
	o := p.waitAdopted("old", "it is shown", func(o *v1alpha1.RunnerPool) bool { return reasonOf(o, "Ready") == "True/Ready" })
	before := p.set(ns, "old")
	switch a := o.Status.Adopted; {
	case a == nil:
		t.Errorf("status: a is nil; %+v", o.Status)
	case *a.Max != 5:
		t.Errorf("status: *a.Max = %v, want 5; %+v", *a.Max, o.Status)
	case a.ScaleSetID == nil:
		t.Errorf("status: a.ScaleSetID is nil; %+v", o.Status)
	case *a.ScaleSetID != before.ID:
		t.Errorf("status: *a.ScaleSetID = %v, want %v; %+v", *a.ScaleSetID, before.ID, o.Status)
	case a.Hold != "":
		t.Errorf("status: a.Hold = %q, want none; %+v", a.Hold, o.Status)
	}
	p.waitAdopted("older", "there is none", func(o *v1alpha1.RunnerPool) bool { return reasonOf(o, "Ready") == "False/ScaleSetNotFound" })
	spec := func() string {
		u := newARCObject(arc.SetKind)
		if !p.exists(ns, "old", u) {
			t.Fatal("it was deleted")
		}
		b, err := json.Marshal(u.Object["spec"])
		p.must(err)
		return string(b)
	}
	old := spec()
	p.arc.Assign(ns, "old", arctest.Job{ID: "j1", Repository: "old-org/app", Run: 11})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p.must(p.arc.Start(ctx, "j1"))
	p.waitAdopted("old", "its job is counted", func(o *v1alpha1.RunnerPool) bool {
		a := o.Status.Adopted
		return a != nil && a.Busy != nil && *a.Busy == 1
	})
	var written []string
	wrote := func() []string {
		for _, w := range p.wire.writes() {
			if strings.Contains(w, "/autoscalingrunnersets/") {
				written = append(written, w)
			}
		}
		return written
	}
	if w := wrote(); len(w) > 0 {
		t.Errorf("without a hold were written %q", w)
	}

	p.hold("of-acme", v1alpha1.HoldScope{Org: "acme"}, v1alpha1.HoldPause) // the scale set belongs to no organisation
	h := p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldDrain)
	switch s := p.waitHold("freeze", "Applied", metav1.ConditionTrue).Status; {
	case s.Targets != 1:
		t.Errorf("hold: s.Targets = %v, want 1", s.Targets)
	case s.Applied != 1:
		t.Errorf("hold: s.Applied = %v, want 1", s.Applied)
	case s.RemainingJobs == nil:
		t.Error("hold: s.RemainingJobs is nil")
	case *s.RemainingJobs != 1:
		t.Errorf("hold: *s.RemainingJobs = %v, want 1", *s.RemainingJobs)
	}
	o = p.waitAdopted("old", "the hold is named", func(o *v1alpha1.RunnerPool) bool { return o.Status.Adopted != nil && o.Status.Adopted.Hold == "freeze" })
	switch s := p.set(ns, "old"); {
	case s.Min != 0:
		t.Errorf("held: s.Min = %v, want 0", s.Min)
	case s.Max != 0:
		t.Errorf("held: s.Max = %v, want 0", s.Max)
	case s.Before == nil:
		t.Error("held: s.Before is nil")
	case s.UID != before.UID:
		t.Errorf("held: s.UID = %q, want %q", s.UID, before.UID)
	case *o.Status.Adopted.Busy != 1:
		t.Errorf("held: *o.Status.Adopted.Busy = %v, want 1", *o.Status.Adopted.Busy)
	}

	// A GitOps engine that is not configured to ignore the numbers.
	git := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"maxRunners": int64(7)}}}
	git.SetGroupVersionKind(arc.Kind(arc.SetKind))
	git.SetNamespace(ns)
	git.SetName("old")
	p.must(p.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(git), client.ForceOwnership, client.FieldOwner("argocd-controller")))
	p.waitAdopted("old", "a client that undoes the hold is reported", func(o *v1alpha1.RunnerPool) bool {
		return reasonOf(o, "Degraded") == "True/"+arc.ReasonHoldOverwritten && o.Status.Adopted != nil && *o.Status.Adopted.Max == 0
	})
	p.must(p.arc.Finish(ctx, "j1"))
	p.waitHold("freeze", "Drained", metav1.ConditionTrue)
	wrote()
	p.stop()
	p.start() // it still knows the original values
	p.must(p.admin.Delete(t.Context(), h))
	back := func() bool {
		s := p.set(ns, "old")
		return s.Max == 7 && s.Before == nil
	}
	p.waitFor("it is given back", back)
	if now, want := spec(), strings.Replace(old, `"maxRunners":5`, `"maxRunners":7`, 1); now != want {
		t.Errorf("given back as %s, not %s", now, want)
	}

	p.hold("again", v1alpha1.HoldScope{Pool: "old"}, v1alpha1.HoldPause)
	p.waitHold("again", "Applied", metav1.ConditionTrue)
	wrote()
	p.stop()
	p.must(p.admin.Delete(t.Context(), o))
	p.start()
	p.waitFor("it is released", back)
	u := newARCObject(arc.SetKind)
	p.exists(ns, "old", u)
	for _, f := range u.GetManagedFields() {
		if f.Manager == arc.HoldManager || f.Manager == fieldManager {
			t.Errorf("the fleet still owns something: %v", f)
		}
	}
	if s := arc.ReadSet(u); s.UID != before.UID || s.ID != before.ID {
		t.Errorf("the scale set was replaced: %+v, was %+v", s, before)
	}
	for _, w := range wrote() {
		if strings.HasPrefix(w, "DELETE") {
			t.Errorf("deleted: %s", w)
		}
	}
}

// If two pools adopt one scale set, the older one gets it. A scale set of the fleet cannot be
// adopted.
func TestAdoptedTwice(t *testing.T) {
	p := newEnv(t, "0.14.2")
	ns := p.createExternal("old")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.enrollGitHub("acme", []string{"nix"})
	of := func(namespace, name string) func(*v1alpha1.RunnerPool) {
		return func(o *v1alpha1.RunnerPool) { o.Spec.Adopt = &v1alpha1.PoolAdopt{Namespace: namespace, Name: name} }
	}
	one := v1alpha1.PoolScaling{Max: 1, Budget: 1}
	p.pool("a-first", "github", one, of(ns, "old"))
	p.pool("b-second", "github", one, of(ns, "old"))
	p.pool("ours", "github", one, of(p.shared, "acme-nix"))
	p.pool("lab", "gitlab", one, of(ns, "old"))
	// It takes jobs of an organisation, so the organisation's status shows it, and its drift check
	// includes it.
	p.enrollGitHub("old-org", []string{"nix"}, func(e *v1alpha1.RunnerEnrollment) { e.Spec.ConfigURL = p.github.URL + "/Old-Org" })
	p.github.AddRunner(forgetest.GitHubRunner{Place: "old-org", Name: "old-x7k2p-runner-left1"})
	p.change = func(c *Controllers) { c.DriftCheckInterval = time.Second }
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitStatus("old-org", "it is reported as adopted, with a runner that the cluster does not have", func(e *v1alpha1.RunnerEnrollment) bool {
		if len(e.Status.Adopted) != 1 || len(e.Status.Findings) != 1 {
			return false
		}
		a, f := e.Status.Adopted[0], e.Status.Findings[0]
		return a.Name == "a-first" && a.Namespace == ns && a.Workload == "old" && a.ScaleSetID != nil && *a.Max == 5 && f.Kind == "Ghost" && f.Pool == "a-first" && f.Workload == "old"
	})
	p.waitAdopted("a-first", "the older one has it", func(o *v1alpha1.RunnerPool) bool { return reasonOf(o, "Ready") == "True/Ready" })
	p.waitAdopted("b-second", "the younger one has not", func(o *v1alpha1.RunnerPool) bool {
		return reasonOf(o, "Ready") == "False/AdoptedTwice" && o.Status.Adopted == nil
	})
	p.waitAdopted("ours", "it is the fleet's", func(o *v1alpha1.RunnerPool) bool { return reasonOf(o, "Ready") == "False/ScaleSetOurs" })
	p.waitAdopted("lab", "it is GitHub's", func(o *v1alpha1.RunnerPool) bool { return strings.HasPrefix(reasonOf(o, "Ready"), "False/") })
	h := p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	if s := p.waitHold("freeze", "Applied", metav1.ConditionTrue).Status; s.Targets != 3 {
		t.Errorf("one external set and two of the fleet's sets are %d targets", s.Targets)
	}
	p.must(p.admin.Delete(t.Context(), h))
	p.waitFor("both resume", func() bool { return p.set(ns, "old").Max == 5 && p.set(p.shared, "acme-nix").Max == 2 })
}
