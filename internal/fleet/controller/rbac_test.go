//go:build unix

package controller

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// FLEET-14: the permissions in the manifests are enough for the whole life of organisations of both
// forges, in the shared namespace and in their own. An external scale set (FLEET-16) is held with
// the permission that the chart grants for its namespace only.
func TestFLEET14_Rights(t *testing.T) {
	p := newEnv(t, "0.14.2")
	manifests, err := os.ReadFile("../../../deploy/fleet/rbac-fleet.yaml")
	p.must(err)
	text := strings.NewReplacer("namespace: tailplane-fleet", "namespace: "+p.ns, "namespace: arc-systems", "namespace: "+p.arcNS).Replace(string(manifests))
	p.must(p.cluster.Apply(t.Context(), []byte(text)))
	p.must(p.admin.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "tailplane-fleet"}}))
	path, err := p.cluster.ServiceAccountKubeconfig(t.Context(), p.ns, "tailplane-fleet", t.TempDir())
	p.must(err)
	p.config, err = kube.Config(path)
	p.must(err)
	p.change = func(c *Controllers) { c.Isolation.Account = "tailplane-fleet" }
	old := p.createExternal("old")
	p.pool("old", "github", v1alpha1.PoolScaling{Max: 5, Budget: 5}, func(o *v1alpha1.RunnerPool) { o.Spec.Adopt = &v1alpha1.PoolAdopt{Namespace: old, Name: "old"} })
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.enrollGitHub("acme", []string{"nix"}, isolate)
	p.enrollGitLab("omega", []string{"docker"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitActive("omega")
	p.heldByRights(old)
	for _, org := range []string{"acme", "omega"} {
		p.must(p.admin.Delete(t.Context(), p.get(org)))
		if left := p.waitGone(org); len(left) > 0 {
			t.Errorf("left of %s: %q", org, left)
		}
	}
}

// adoptRights returns the chart's permissions for holds on external scale sets, rendered for one of
// fleet.adoptNamespaces.
func (p *env) adoptRights(namespace string) []byte {
	p.t.Helper()
	template, err := os.ReadFile("../../../charts/tailplane/templates/rbac-fleet.yaml")
	p.must(err)
	_, text, begins := strings.Cut(string(template), "{{- range $ns := $f.adoptNamespaces }}\n")
	text, _, ends := strings.Cut(text, "{{- end }}")
	text = strings.NewReplacer("{{ $ns }}", namespace, "{{- $labels | nindent 4 }}", "of: test", "{{ toYaml $account }}", "- {kind: ServiceAccount, name: tailplane-fleet, namespace: "+p.ns+"}").Replace(text)
	switch {
	case !begins:
		p.t.Fatalf("the chart differs: begins is false; text = %s", text)
	case !ends:
		p.t.Fatalf("the chart differs: ends is false; text = %s", text)
	case strings.Contains(text, "{{"):
		p.t.Fatalf("the chart differs: text = %q contains %q", text, "{{")
	}
	return []byte(text)
}

// heldByRights creates a hold for everything. An external scale set is held only where the chart
// grants the permission. Otherwise the pool and the hold report the problem.
func (p *env) heldByRights(namespace string) {
	p.t.Helper()
	h := p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	p.waitAdopted("old", "it may not be held", func(o *v1alpha1.RunnerPool) bool { return reasonOf(o, "Degraded") == "True/AdoptForbidden" })
	if s := p.set(namespace, "old"); s.Max != 5 || s.Before != nil {
		p.t.Errorf("held without a right: %+v", s)
	}
	p.waitFor("the hold names it", func() bool {
		o := &v1alpha1.RunnerHold{}
		return p.exists("", h.Name, o) && o.Status.Targets == 3 && o.Status.Applied == 2 && len(o.Status.Failed) == 1 && o.Status.Failed[0].Pool == "old"
	})
	p.must(p.cluster.Apply(p.t.Context(), p.adoptRights(namespace)))
	p.waitFor("it is held with the chart's rights", func() bool {
		p.clockOffset.Add(int64(time.Second))
		s := p.set(namespace, "old")
		return s.Max == 0 && s.Before != nil
	})
	p.waitHold("freeze", "Applied", metav1.ConditionTrue)
	p.waitAdopted("old", "that is resolved", func(o *v1alpha1.RunnerPool) bool { return reasonOf(o, "Degraded") != "True/AdoptForbidden" })
	p.must(p.admin.Delete(p.t.Context(), h))
	p.waitFor("it is given back", func() bool { s := p.set(namespace, "old"); return s.Max == 5 && s.Before == nil })
}

// Mode Stop lets jobs run for its grace period and then cancels them at GitHub. If the credential
// may not cancel them, they continue, and the enrollment reports the reason.
func TestStopCancels(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.enrollGitHub("acme", []string{"nix"})
	p.github.AddRepository("acme/app", false)
	run := p.github.AddRun(forgetest.GitHubRun{Repository: "acme/app"})
	p.github.AddAccount("beta", "")
	p.credential("beta", map[string]string{"github_token": p.github.AddToken("admin:org")})
	p.enroll("beta", "github", p.github.URL+"/beta", []string{"nix"})
	p.github.AddRepository("beta/app", false)
	other := p.github.AddRun(forgetest.GitHubRun{Repository: "beta/app"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitFor("all have their share", func() bool {
		s, b := p.set(p.shared, "acme-nix"), p.set(p.shared, "beta-nix")
		return s != nil && s.Max == 3 && b != nil && b.Max == 3
	})
	p.arc.Assign(p.shared, "beta-nix", arctest.Job{ID: "b1", Repository: "beta/app", Run: other})
	p.arc.Assign(p.shared, "acme-nix", arctest.Job{ID: "j1", Repository: "acme/app", Run: run})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p.must(p.arc.Start(ctx, "j1"))
	p.must(p.arc.Start(ctx, "b1"))
	p.hold("stop", v1alpha1.HoldScope{Org: "acme"}, v1alpha1.HoldStop)
	p.hold("stop-beta", v1alpha1.HoldScope{Org: "beta"}, v1alpha1.HoldStop)
	p.waitHold("stop-beta", "Applied", metav1.ConditionTrue)
	p.waitHold("stop", "Applied", metav1.ConditionTrue)
	if s := p.github.Run(run).Status; s != "in_progress" {
		t.Fatalf("the run is %s before the grace is over", s)
	}
	p.clockOffset.Add(int64(11 * time.Minute))
	for _, org := range []string{"acme", "beta"} {
		p.patch(p.get(org), `{"metadata":{"annotations":{"test/poke":"1"}}}`)
	}
	p.waitFor("the run is cancelled", func() bool { return p.github.Run(run).Status != "in_progress" })
	p.must(p.arc.Cancel(t.Context(), "acme/app", run))
	p.waitHold("stop", "Drained", metav1.ConditionTrue)
	e := p.waitCondition("beta", "Degraded", "True/"+reasonMayNotCancel)
	if c := meta.FindStatusCondition(e.Status.Conditions, "Degraded"); !strings.Contains(c.Message, "may not end the jobs of beta-nix") || p.github.Run(other).Status != "in_progress" {
		t.Errorf("%s, and the run is %s", c.Message, p.github.Run(other).Status)
	}
	switch f, known := p.fleet.Metrics(); {
	case !known:
		t.Errorf("figures: known is false; %+v", f)
	case len(f.Workloads) != 2:
		t.Errorf("figures: len(f.Workloads) = %v, want 2", len(f.Workloads))
	case f.Workloads[0].Failing:
		t.Errorf("figures: f.Workloads[0].Failing is true; %+v", f)
	}
}

// Mode Stop at GitLab: jobs that the token may not cancel continue. The runner still takes no new
// jobs, and the enrollment reports the missing permission as long as it is missing.
func TestStopCancelsAtGitLab(t *testing.T) {
	const project = 7
	p := newGitLabEnv(t)
	token := ""
	s := &corev1.Secret{}
	if p.exists(p.ns, "omega-credential", s) {
		token = string(s.Data["access_token"])
	}
	p.gitlab.ChangeToken(token, func(k *forgetest.GitLabToken) { k.Scopes = []string{"create_runner", "manage_runner", "read_api"} })
	p.gitlab.RestrictCancel(project, forgetest.NoOne)
	runner := p.gitlab.Runners()[0].ID
	job := p.gitlab.StartJob(runner, project)
	p.hold("stop", v1alpha1.HoldScope{Org: "omega"}, v1alpha1.HoldStop)
	p.waitHold("stop", "Applied", metav1.ConditionTrue)
	p.clockOffset.Add(int64(11 * time.Minute))
	p.patch(p.get("omega"), `{"metadata":{"annotations":{"test/poke":"1"}}}`)
	denied := func(what, reported string) {
		t.Helper()
		p.waitStatus("omega", what, func(e *v1alpha1.RunnerEnrollment) bool {
			c := meta.FindStatusCondition(e.Status.Conditions, "Degraded")
			return c != nil && c.Status == metav1.ConditionTrue && c.Reason == reasonMayNotCancel && strings.Contains(c.Message, "needs the scope api") && strings.Contains(c.Message, reported)
		})
	}
	requested := func() (n int) {
		for _, c := range p.gitlab.Calls() {
			if c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/cancel") {
				n++
			}
		}
		return n
	}
	looks := func(n int) { // each reconcile reads the running jobs again
		t.Helper()
		before := len(p.gitlab.Calls())
		p.waitFor("it is checked again", func() bool { return len(p.gitlab.Calls()) >= before+n })
	}
	denied("the scope is too small", "insufficient_scope")
	looks(6)
	denied("it is still reported, though it is not requested each time", "insufficient_scope")
	if n := requested(); n > 1 {
		t.Errorf("%d requests for the end of one job in half a minute", n)
	}
	p.gitlab.ChangeToken(token, func(k *forgetest.GitLabToken) { k.Scopes = []string{"api"} })
	p.clockOffset.Add(int64(time.Minute))
	denied("the project does not allow cancelling", "403 Forbidden")
	if j, _ := p.gitlab.Job(job); j.Status != "running" || !p.gitlab.Runners()[0].Paused {
		t.Errorf("job %+v, runner %+v", j, p.gitlab.Runners()[0])
	}
	p.gitlab.RestrictCancel(project, forgetest.Maintainer)
	p.clockOffset.Add(int64(time.Minute))
	p.waitFor("the job is cancelled", func() bool { j, _ := p.gitlab.Job(job); return j.Status == "canceled" })
	p.waitCondition("omega", "Degraded", "False/"+fleet.ReasonNone)
	p.waitHold("stop", "Drained", metav1.ConditionTrue)
}

// FLEET-02, FLEET-11: a pool for some repositories gets its own runner group, which goes with the
// organisation. Without runner groups, no runner is registered.
func TestRunnerGroups(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.github.AddRepository("acme/app", false)
	p.github.AddRepository("acme/site", true)
	some := func(repository string) func(*v1alpha1.RunnerEnrollment) {
		return func(e *v1alpha1.RunnerEnrollment) {
			e.Spec.Pools[0].Type, e.Spec.Pools[0].Repositories = v1alpha1.UseOrgPlusUser, []string{repository}
		}
	}
	p.enrollGitHub("acme", []string{"nix"}, some("acme/app"))
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	if s := p.set(p.shared, "acme-nix"); s.RunnerGroup != "tailplane-acme-nix" || len(p.github.Groups("acme")) != 2 {
		t.Errorf("scale set %+v, groups %+v", s, p.github.Groups("acme"))
	}
	p.github.AddGroup(forgetest.GitHubGroup{Account: "acme", Name: "somebody's", Visibility: "all"})
	p.must(p.admin.Delete(t.Context(), p.get("acme")))
	if left := p.waitGone("acme"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if groups := p.github.Groups("acme"); len(groups) != 2 || groups[1].Name != "somebody's" {
		t.Errorf("groups %+v", groups)
	}
	p.enrollGitHub("acme", []string{"nix"}, some("acme/site"))
	p.waitCondition("acme", "Degraded", "True/"+reasonNoGroups)
	if s := p.set(p.shared, "acme-nix"); s != nil {
		t.Errorf("registered for a public repository: %+v", s)
	}
}
