//go:build unix

package controller

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/testkit/arctest"
)

// FLEET-03, FL-06: a pause lets the running job finish, and is reported as applied only when no
// listener takes another job. Lifting it restores the earlier state, also after a restart of the
// fleet. Of two holds, lifting one leaves the other in force. The status reports stranded jobs, as
// the listener counts them.
func TestFLEET03_PauseAndResume(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Min: 1, Max: 3, Budget: 20})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	full := func() bool { s := p.set(p.shared, "acme-nix"); return s != nil && s.Max == 3 && s.Min == 1 }
	p.waitFor("it has its share", full)
	p.arc.Assign(p.shared, "acme-nix", arctest.Job{ID: "j1", Repository: "acme/app", Run: 11})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p.must(p.arc.Start(ctx, "j1"))
	// GitHub assigns another job, which gets no runner before the maximum becomes 0: it is
	// stranded.
	p.arc.Assign(p.shared, "acme-nix", arctest.Job{ID: "late", Repository: "acme/app", Run: 21})
	p.waitStatus("acme", "jobs that GitHub gave it", func(e *v1alpha1.RunnerEnrollment) bool {
		return len(e.Status.Pools) == 1 && is(e.Status.Pools[0].Assigned, 2) && e.Status.Pools[0].Stranded == nil
	})

	first := p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	second := p.hold("drain", v1alpha1.HoldScope{Org: "acme"}, v1alpha1.HoldDrain)
	h := p.waitHold("freeze", "Applied", metav1.ConditionTrue)
	if h.Status.Targets != 1 || h.Status.Applied != 1 {
		t.Errorf("status %+v", h.Status)
	}
	e := p.waitStatus("acme", "held", func(e *v1alpha1.RunnerEnrollment) bool {
		return len(e.Status.Pools) == 1 && e.Status.Pools[0].Hold == "drain" && *e.Status.Pools[0].EffectiveMax == 0
	})
	if *e.Status.Pools[0].Allocated != 3 {
		t.Errorf("a hold has changed the allocation: %+v", e.Status.Pools[0])
	}
	if _, _, running := p.arc.Jobs(p.shared, "acme-nix"); running != 1 {
		t.Errorf("%d jobs run: the pause killed one", running)
	}
	h = p.waitHold("drain", "Drained", metav1.ConditionFalse)
	if h.Status.RemainingJobs == nil || *h.Status.RemainingJobs != 1 {
		t.Errorf("remaining jobs of %+v", h.Status)
	}
	p.waitStatus("acme", "a job that is stranded", func(e *v1alpha1.RunnerEnrollment) bool {
		return is(e.Status.Pools[0].Assigned, 2) && is(e.Status.Pools[0].Stranded, 1)
	})
	switch f, known := p.fleet.Metrics(); {
	case !known:
		t.Errorf("figures: known is false; %+v", f)
	case len(f.Workloads) != 1:
		t.Errorf("figures: len(f.Workloads) = %v, want 1", len(f.Workloads))
	case f.Workloads[0].Stranded == nil:
		t.Error("figures: f.Workloads[0].Stranded is nil")
	case *f.Workloads[0].Stranded != 1:
		t.Errorf("figures: *f.Workloads[0].Stranded = %v, want 1", *f.Workloads[0].Stranded)
	}
	p.must(p.arc.Finish(t.Context(), "j1"))
	p.waitHold("drain", "Drained", metav1.ConditionTrue)

	p.stop()
	p.start()
	p.must(p.admin.Delete(t.Context(), first))
	p.waitStatus("acme", "held by the other one", func(e *v1alpha1.RunnerEnrollment) bool { return e.Status.Pools[0].Hold == "drain" })
	if s := p.set(p.shared, "acme-nix"); s.Max != 0 {
		t.Errorf("lifting one of two holds resumed runners: %+v", s)
	}
	p.must(p.admin.Delete(t.Context(), second))
	p.waitFor("all is as it was", full)
	p.must(p.arc.Start(ctx, "late"))
	p.waitStatus("acme", "nothing stranded", func(e *v1alpha1.RunnerEnrollment) bool {
		return is(e.Status.Pools[0].Assigned, 1) && e.Status.Pools[0].Stranded == nil
	})
	p.arc.Assign(p.shared, "acme-nix", arctest.Job{ID: "j2", Repository: "acme/app", Run: 12})
	p.must(p.arc.Start(ctx, "j2"))
	p.expiresMeanwhile(full)
}

// FLEET-04, FL-06: a hold that expires while the fleet is down is reported as expired after the
// start. It stays readable for a week, and then the fleet deletes it.
func (p *env) expiresMeanwhile(full func() bool) {
	p.t.Helper()
	h := p.hold("brief", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	until := metav1.NewTime(p.now().Add(time.Hour))
	p.patch(h, fmt.Sprintf(`{"spec":{"expiresAt":%q}}`, until.UTC().Format(time.RFC3339)))
	p.waitHold("brief", "Applied", metav1.ConditionTrue)
	p.stop()
	p.start()
	p.waitHold("brief", "Applied", metav1.ConditionTrue)
	if full() {
		p.t.Error("it does not hold any more, but it has not expired")
	}
	p.stop()
	p.clockOffset.Add(int64(2 * time.Hour))
	p.start()
	p.waitFor("it is expired", full)
	o := p.waitHold("brief", "Applied", metav1.ConditionFalse)
	if c := meta.FindStatusCondition(o.Status.Conditions, "Applied"); c.Reason != fleet.ReasonExpired {
		p.t.Errorf("it reports %+v", c)
	}
	p.stop()
	p.clockOffset.Add(int64(8 * 24 * time.Hour))
	p.start()
	p.waitFor("it is deleted", func() bool { return !p.exists("", "brief", &v1alpha1.RunnerHold{}) })
}

func is(n *int32, want int32) bool { return n != nil && *n == want }

// FLEET-03: a GitLab runner counts as paused when a fresh read confirms it. It finishes its job,
// and with mode Drain its managers end afterwards.
func TestFLEET03_GitLab(t *testing.T) {
	p := newGitLabEnv(t)
	runner := p.gitlab.Runners()[0].ID
	job := p.gitlab.StartJob(runner, 7)
	h := p.hold("drain", v1alpha1.HoldScope{Pool: "docker"}, v1alpha1.HoldDrain)
	p.waitHold("drain", "Applied", metav1.ConditionTrue)
	if r := p.gitlab.Runners()[0]; !r.Paused {
		t.Errorf("applied, and the runner is not paused: %+v", r)
	}
	replicas := func() int32 {
		var d = deploymentOf(p, "omega-docker")
		return *d.Spec.Replicas
	}
	if n := replicas(); n != 1 {
		t.Errorf("%d managers while a job runs", n)
	}
	p.gitlab.EndJob(job, "success")
	p.waitFor("the managers go", func() bool { return replicas() == 0 })
	p.runManagers()
	p.waitHold("drain", "Drained", metav1.ConditionTrue)
	p.must(p.admin.Delete(t.Context(), h))
	p.waitFor("it takes jobs again", func() bool { p.runManagers(); return !p.gitlab.Runners()[0].Paused && replicas() == 1 })
}
