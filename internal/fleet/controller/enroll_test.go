//go:build unix

package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// FLEET-02: a GitHub organisation gets runners after its enrollment, and is offboarded.
func TestFLEET02_GitHub(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 5, Budget: 20})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	e := p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitFor("it has its share", func() bool {
		s := p.set(p.shared, "acme-nix")
		return s != nil && s.Max > 0 && s.ID > 0
	})
	switch {
	case len(e.Status.Pools) != 1:
		t.Errorf("status: len(e.Status.Pools) = %v, want 1", len(e.Status.Pools))
	case e.Status.Pools[0].ScaleSetID == nil:
		t.Error("status: e.Status.Pools[0].ScaleSetID is nil")
	case e.Status.Credential == nil:
		t.Error("status: e.Status.Credential is nil")
	case e.Status.Credential.Kind != v1alpha1.CredentialGitHubToken:
		t.Errorf("status: e.Status.Credential.Kind = %q, want %q", e.Status.Credential.Kind, v1alpha1.CredentialGitHubToken)
	}
	p.must(p.admin.Delete(t.Context(), e))
	if left := p.waitGone("acme"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if sets := p.github.ScaleSets(); len(sets) != 0 {
		t.Errorf("scale sets at GitHub: %+v", sets)
	}
}

// FLEET-02: a GitLab group gets managers with their own token, and is offboarded together with its
// runner.
func TestFLEET02_GitLab(t *testing.T) {
	p := newEnv(t, "") // it needs no ARC
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 5, Budget: 20})
	p.enrollGitLab("omega", []string{"docker"})
	p.start()
	p.waitActive("omega")
	p.waitFor("it takes jobs", func() bool {
		r := p.gitlab.Runners()
		return len(r) == 1 && !r[0].Paused && len(r[0].Tags) == 2
	})
	e := p.waitStatus("omega", "a share", func(e *v1alpha1.RunnerEnrollment) bool {
		return len(e.Status.Pools) == 1 && e.Status.Pools[0].EffectiveMax != nil && *e.Status.Pools[0].EffectiveMax > 0
	})
	runner := p.gitlab.Runners()[0]
	switch s := e.Status.Pools[0]; {
	case s.RunnerID == nil:
		t.Error("status: s.RunnerID is nil")
	case *s.RunnerID != runner.ID:
		t.Errorf("status: *s.RunnerID = %v, want %v", *s.RunnerID, runner.ID)
	case s.Workload != "omega-docker":
		t.Errorf("status: s.Workload = %q, want %q", s.Workload, "omega-docker")
	}
	job := p.gitlab.StartJob(runner.ID, 7)
	p.must(p.admin.Delete(t.Context(), e))
	p.waitFor("it takes no new jobs", func() bool { return p.gitlab.Runners()[0].Paused })
	p.waitPhase("omega", v1alpha1.PhaseDraining)
	if len(p.gitlab.Runners()) != 1 {
		t.Fatal("its runner went while a job ran")
	}
	p.gitlab.EndJob(job, "success")
	if left := p.waitGone("omega"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if r := p.gitlab.Runners(); len(r) != 0 {
		t.Errorf("runners at GitLab: %+v", r)
	}
}

// FLEET-20: if many organisations start in the shared namespace at once, each policy is written
// once, even though their reconciles are concurrent. A restarted fleet writes nothing there.
func TestFLEET20_PoliciesAreWrittenOnce(t *testing.T) {
	p := newEnv(t, "0.14.2")
	const n = 12
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 1, Budget: n})
	for i := range n {
		p.enrollGitHub(fmt.Sprintf("org-%02d", i), []string{"nix"})
	}
	p.start()
	for i := range n {
		p.waitPhase(fmt.Sprintf("org-%02d", i), v1alpha1.PhaseActive)
	}
	written := func() (of map[string]int) {
		of = map[string]int{}
		for _, w := range p.wire.writes() {
			if path := strings.Fields(w)[1]; strings.Contains(path, "/networkpolicies/") {
				of[path[strings.LastIndexByte(path, '/')+1:]]++
			}
		}
		return of
	}
	of := written()
	for i := range n {
		if name := fmt.Sprintf("tailplane-runner-egress-org-%02d", i); of[name] != 1 {
			t.Errorf("%s was written %d times", name, of[name])
		}
	}
	if len(of) != n+1 { // plus the one that denies everything
		t.Errorf("written: %v", of)
	}
	// Frequent reconciles do not read all objects in the namespace each time.
	since, policies, looks := time.Now(), p.wire.reads("networkpolicies", "tailplane-runner-egress-org-00"), p.wire.reads("runnerenrollments", "org-00")
	for i := range 4 {
		p.patch(p.get("org-00"), fmt.Sprintf(`{"spec":{"owners":["amy-%d@acme.dev"]}}`, i))
		p.waitStatus("org-00", "another owner", func(e *v1alpha1.RunnerEnrollment) bool { return e.Status.ObservedGeneration == e.Generation })
	}
	policies, looks = p.wire.reads("networkpolicies", "tailplane-runner-egress-org-00")-policies, p.wire.reads("runnerenrollments", "org-00")-looks
	if looks < 4 || policies > 1+int(time.Since(since)/(20*time.Second)) {
		t.Errorf("%d reconciles have read the policy %d times", looks, policies)
	}
	p.stop()
	p.start()
	p.pool("other", "github", v1alpha1.PoolScaling{Max: 1, Budget: 1}) // shows the end of the first reconciles
	p.patch(p.get("org-00"), `{"spec":{"pools":[{"name":"nix","type":"Shared"},{"name":"other","type":"Shared"}]}}`)
	p.waitStatus("org-00", "another pool", func(e *v1alpha1.RunnerEnrollment) bool {
		return e.Status.Phase == v1alpha1.PhaseActive && len(e.Status.Pools) == 2
	})
	if again := written(); len(again) > 0 {
		t.Errorf("a restarted fleet has written %v", again)
	}
}
