//go:build unix

package controller

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// waitCompared advances the clock for drift checks until an enrollment has the expected status.
func (p *env) waitCompared(org, what string, ok func(*v1alpha1.RunnerEnrollment) bool) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	at := time.Now()
	return p.waitStatus(org, what, func(e *v1alpha1.RunnerEnrollment) bool {
		p.runManagers()
		if ok(e) {
			return true
		}
		if time.Since(at) > 300*time.Millisecond { // the time that a reconcile takes
			p.clockOffset.Add(int64(6 * time.Minute))
			p.patch(p.get(org), `{"metadata":{"annotations":{"test/now":"`+decimal(p.clockOffset.Load())+`"}}}`)
			at = time.Now()
		}
		return false
	})
}

func found(e *v1alpha1.RunnerEnrollment, kind fleet.FindingKind) *v1alpha1.EnrollmentFinding {
	i := slices.IndexFunc(e.Status.Findings, func(f v1alpha1.EnrollmentFinding) bool { return f.Kind == string(kind) })
	if i < 0 {
		return nil
	}
	return &e.Status.Findings[i]
}

func drifted(e *v1alpha1.RunnerEnrollment) string {
	c := meta.FindStatusCondition(e.Status.Conditions, conditionDrifted)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

// FLEET-17: a person pauses a runner at GitLab. The finding is reported once it has lasted for a
// while, also over a restart. A missing answer of GitLab does not end the finding, and it goes when
// the pause is over.
func TestFLEET17_PausedOutside(t *testing.T) {
	p := newGitLabEnv(t)
	p.waitCompared("omega", "nothing is found", func(e *v1alpha1.RunnerEnrollment) bool {
		return drifted(e) == "False/"+"None" && len(e.Status.Findings) == 0
	})
	runner := p.gitlab.Runners()[0].ID
	p.gitlab.ChangeRunner(runner, func(r *forgetest.GitLabRunner) { r.Paused = true })
	e := p.waitCompared("omega", "it is reported", func(e *v1alpha1.RunnerEnrollment) bool {
		f := found(e, fleet.DriftPausedOutside)
		if f != nil && !f.Settled && drifted(e) != "False/None" {
			t.Errorf("reported immediately: %+v", e.Status.Conditions)
		}
		return drifted(e) == "True/PausedOutside"
	})
	first := found(e, fleet.DriftPausedOutside)
	switch {
	case first == nil:
		t.Fatal("finding: first is nil")
	case !first.Settled:
		t.Fatalf("finding: first.Settled is false; first = %+v, %+v", first, e.Status.Pools)
	case first.Severity != "warning":
		t.Fatalf("finding: first.Severity = %q, want %q", first.Severity, "warning")
	case first.Workload != "omega-docker":
		t.Fatalf("finding: first.Workload = %q, want %q", first.Workload, "omega-docker")
	case first.Next == "":
		t.Fatalf("finding: first.Next is empty; first = %+v, %+v", first, e.Status.Pools)
	case first.FirstSeen.IsZero():
		t.Fatalf("finding: first.FirstSeen.IsZero() is true; first = %+v, %+v", first, e.Status.Pools)
	case len(e.Status.Pools) != 1:
		t.Fatalf("finding: len(e.Status.Pools) = %v, want 1", len(e.Status.Pools))
	case !slices.Equal(e.Status.Pools[0].Drift, []string{"PausedOutside"}):
		t.Fatalf("finding: e.Status.Pools[0].Drift (-want +got):\n%s", cmp.Diff([]string{"PausedOutside"}, e.Status.Pools[0].Drift))
	}
	if now, _ := p.fleet.Metrics(); len(now.Workloads) != 1 || now.Workloads[0].Drift != 1 {
		t.Errorf("figures %+v", now)
	}
	events := func() (n int) {
		var list corev1.EventList
		p.must(p.admin.List(context.WithoutCancel(t.Context()), &list))
		for _, e := range list.Items {
			if e.InvolvedObject.Name == "omega" && e.InvolvedObject.UID == p.get("omega").UID && e.Reason == "PausedOutside" {
				n += max(int(e.Count), 1)
			}
		}
		return n
	}
	p.waitFor("an event reports it", func() bool { return events() > 0 })

	p.stop()
	p.start()
	p.gitlab.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: 503} })
	e = p.waitCompared("omega", "it stays, but cannot be confirmed", func(e *v1alpha1.RunnerEnrollment) bool {
		f := found(e, fleet.DriftPausedOutside)
		if f == nil {
			t.Fatal("without an answer it is no longer reported")
		}
		return f.Unconfirmed
	})
	switch f := found(e, fleet.DriftPausedOutside); {
	case !f.FirstSeen.Equal(&first.FirstSeen):
		t.Errorf("after a restart: f.FirstSeen = %v, want %v", f.FirstSeen, &first.FirstSeen)
	case f.ID != first.ID:
		t.Errorf("after a restart: f.ID = %q, want %q", f.ID, first.ID)
	case drifted(e) != "True/PausedOutside":
		t.Errorf(`after a restart: drifted(e) != "True/PausedOutside"; %+v, first = %+v`, f, first)
	}
	p.gitlab.Fault(nil)
	p.gitlab.ChangeRunner(runner, func(r *forgetest.GitLabRunner) { r.Paused = false })
	p.waitCompared("omega", "it is resolved", func(e *v1alpha1.RunnerEnrollment) bool {
		return drifted(e) == "False/None" && found(e, fleet.DriftPausedOutside) == nil && len(e.Status.Pools[0].Drift) == 0
	})
	if n := events(); n != 1 {
		t.Errorf("%d events", n)
	}
}

// FLEET-17: a runner that GitHub has but the cluster does not is only listed: it is not deleted,
// and it is not drift. A failed list does not change that.
func TestFLEET17_Ghost(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	ghost := p.github.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "acme-nix-abc12-runner-x1y2z"})
	p.github.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "laptop"})
	e := p.waitCompared("acme", "the ghost is listed", func(e *v1alpha1.RunnerEnrollment) bool {
		f := found(e, fleet.DriftGhost)
		return f != nil && f.Settled
	})
	first := found(e, fleet.DriftGhost)
	switch {
	case len(e.Status.Findings) != 1:
		t.Errorf("findings: len(e.Status.Findings) = %v, want 1", len(e.Status.Findings))
	case first.Subject != decimal(ghost):
		t.Errorf("findings: first.Subject = %q, want decimal(ghost)", first.Subject)
	case first.Severity != "info":
		t.Errorf("findings: first.Severity = %q, want %q", first.Severity, "info")
	case !strings.Contains(first.Evidence, `"acme-nix-abc12-runner-x1y2z"`):
		t.Errorf("findings: first.Evidence = %q does not contain %q", first.Evidence, `"acme-nix-abc12-runner-x1y2z"`)
	case drifted(e) != "False/None":
		t.Errorf(`findings: drifted(e) != "False/None"; %+v, %+v`, e.Status.Findings, e.Status.Pools)
	case len(e.Status.Pools[0].Drift) != 0:
		t.Errorf("findings: len(e.Status.Pools[0].Drift) = %v, want 0", len(e.Status.Pools[0].Drift))
	}
	if e.Status.Pools[0].SeenAt == nil {
		t.Errorf("the status does not record that GitHub had a runner of it: %+v", e.Status.Pools[0])
	}
	p.github.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/actions/runners") {
			return &forgetest.Fault{Status: 500}
		}
		return nil
	})
	p.waitCompared("acme", "it cannot be confirmed", func(e *v1alpha1.RunnerEnrollment) bool {
		f := found(e, fleet.DriftGhost)
		if f == nil {
			t.Fatal("a list that failed has ended a finding")
		}
		return f.Unconfirmed && f.FirstSeen.Equal(&first.FirstSeen)
	})
	p.github.Fault(nil)
	for _, c := range p.github.Calls() {
		if c.Method == http.MethodDelete {
			t.Errorf("deleted: %+v", c)
		}
	}
	p.github.RemoveRunner(ghost)
	p.waitCompared("acme", "it is deleted", func(e *v1alpha1.RunnerEnrollment) bool { return len(e.Status.Findings) == 0 })
}

// A runner group that a person opened to public repositories is reported at once, and as a problem
// of the enrollment.
func TestGroupOpened(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.github.AddRepository("acme/app", false)
	p.enrollGitHub("acme", []string{"nix"}, func(e *v1alpha1.RunnerEnrollment) {
		e.Spec.Pools[0] = v1alpha1.EnrolledPool{Name: "nix", Type: v1alpha1.UseOrgPlusUser, Repositories: []string{"acme/app"}, RunnerGroup: "tailplane-acme"}
	})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	if !p.github.ChangeGroup("acme", "tailplane-acme", func(g *forgetest.GitHubGroup) { g.AllowsPublic = true }) {
		t.Fatalf("groups %+v", p.github.Groups("acme"))
	}
	e := p.waitCompared("acme", "it is reported", func(e *v1alpha1.RunnerEnrollment) bool {
		c := meta.FindStatusCondition(e.Status.Conditions, "Degraded")
		return drifted(e) == "True/GroupDiffers" && c.Reason == "GroupDiffers"
	})
	if f := found(e, fleet.DriftGroup); f.Severity != "error" || f.Subject != "public repositories" {
		t.Errorf("%+v", e.Status.Findings)
	}
}

// FLEET-06: reapplying the manifests during a hold does not undo it, and the differences are
// reported as explained by the hold.
func TestFLEET06_AppliedAgain(t *testing.T) {
	p := newEnv(t, "0.14.2")
	pool := p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	enrolled := p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitFor("it has its share", func() bool { s := p.set(p.shared, "acme-nix"); return s != nil && s.Max == 2 })
	p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	p.waitFor("it is held", func() bool { return p.set(p.shared, "acme-nix").Max == 0 })
	for range 3 { // like a GitOps engine
		now := p.get("acme")
		now.Spec = enrolled.Spec
		p.must(ignoreStale(p.admin.Update(t.Context(), now)))
		is := &v1alpha1.RunnerPool{}
		if !p.exists("", "nix", is) {
			t.Fatal("no pool")
		}
		is.Spec = pool.Spec
		p.must(ignoreStale(p.admin.Update(t.Context(), is)))
	}
	e := p.waitCompared("acme", "the hold explains it", func(e *v1alpha1.RunnerEnrollment) bool {
		f := found(e, fleet.DriftCapacity)
		return f != nil && f.Settled && f.ExplainedBy == "freeze"
	})
	switch s := p.set(p.shared, "acme-nix"); {
	case s.Max != 0:
		t.Errorf("s.Max = %v, want 0", s.Max)
	case s.Min != 0:
		t.Errorf("s.Min = %v, want 0", s.Min)
	case drifted(e) != "False/None":
		t.Errorf(`drifted(e) != "False/None"; %+v, %+v`, s, e.Status.Conditions)
	case len(e.Status.Pools[0].Drift) != 0:
		t.Errorf("len(e.Status.Pools[0].Drift) = %v, want 0", len(e.Status.Pools[0].Drift))
	}
}
