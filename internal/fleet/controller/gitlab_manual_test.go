//go:build unix

package controller

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// FLEET-03, FLEET-07, FLEET-08: of a runner that a person created, only its token is known.
// Managers use it, and the fleet sends no change to GitLab. A hold stops the managers and is
// applied when they are gone. A new token replaces the old one in the same workload. The end waits
// for a person, and the status says what to delete.
func TestFLEET07_TokenByHand(t *testing.T) {
	p := newEnv(t, "")
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 5, Budget: 20})
	var requested atomic.Int64
	p.gitlab.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.Contains(r.URL.Path, "runners") {
			requested.Add(1)
		}
		return nil
	})
	group := p.gitlab.AddGroup("omega")
	first, second := p.gitlab.AddRunner(forgetest.GitLabRunner{Group: group}), p.gitlab.AddRunner(forgetest.GitLabRunner{Group: group})
	p.credential("omega", map[string]string{"runner_token": first.Token})
	p.enroll("omega", "gitlab", p.gitlab.URL+"/omega", []string{"docker"})
	p.start()
	p.waitActive("omega")
	e := p.waitCondition("omega", "CredentialsValid", "True/RunnerTokenOnly")
	if e.Status.Credential == nil || e.Status.Pools[0].RunnerID != nil {
		t.Errorf("status %+v", e.Status)
	}
	reports := func(token string) bool {
		s := &corev1.Secret{}
		return p.exists(p.shared, "omega-docker-runner-config", s) && strings.Contains(string(s.Data["config.toml"]), token)
	}
	replicas := func() int32 { return *deploymentOf(p, "omega-docker").Spec.Replicas }
	p.waitFor("a manager runs with it", func() bool {
		p.runManagers()
		return reports(first.Token) && deploymentOf(p, "omega-docker").Status.ReadyReplicas == 1
	})

	h := p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	p.waitFor("its managers are stopped", func() bool { p.runManagers(); return replicas() == 0 })
	p.waitHold("freeze", "Applied", metav1.ConditionTrue)
	var pods corev1.PodList
	p.must(p.admin.List(t.Context(), &pods, client.InNamespace(p.shared))) // other namespaces still have managers of earlier tests
	if n := slices.IndexFunc(pods.Items, func(x corev1.Pod) bool { return x.Labels["app.kubernetes.io/instance"] == "omega-docker" }); n >= 0 {
		t.Errorf("applied, and a manager is left: %s", pods.Items[n].Name)
	}
	e = p.waitCondition("omega", reasonPauseByDrain, "True/"+reasonPauseByDrain)
	if !slices.Contains(e.Status.Pools[0].Drift, reasonPauseByDrain) {
		t.Errorf("the pool does not report how it is paused: %+v", e.Status.Pools[0])
	}
	p.stop()
	p.start()
	p.must(p.admin.Delete(t.Context(), h))
	p.waitFor("a manager runs again", func() bool { p.runManagers(); return replicas() == 1 })
	p.waitCondition("omega", reasonPauseByDrain, "False/"+fleet.ReasonNone)

	p.credential("omega", map[string]string{"runner_token": second.Token})
	p.waitFor("it has the other token", func() bool { p.runManagers(); return reports(second.Token) && !reports(first.Token) })
	if e = p.waitActive("omega"); len(e.Status.Pools) != 1 {
		t.Errorf("another token gives another workload: %+v", e.Status.Pools)
	}

	p.must(p.admin.Delete(t.Context(), e))
	e = p.waitStatus("omega", "a person must decide", func(e *v1alpha1.RunnerEnrollment) bool {
		p.runManagers()
		return meta.IsStatusConditionTrue(e.Status.Conditions, "DecisionNeeded")
	})
	switch c := meta.FindStatusCondition(e.Status.Conditions, "DecisionNeeded"); {
	case c.Reason != fleet.ReasonByHand:
		t.Errorf("c.Reason = %q, want %q", c.Reason, fleet.ReasonByHand)
	case !strings.Contains(c.Message, v1alpha1.ForceCleanupAnnotation):
		t.Errorf("c.Message = %q does not contain %q", c.Message, v1alpha1.ForceCleanupAnnotation)
	case e.Status.Phase != v1alpha1.PhaseFailed:
		t.Errorf("e.Status.Phase = %q, want %q", e.Status.Phase, v1alpha1.PhaseFailed)
	case replicas() != 0:
		t.Errorf("replicas() != 0; %s, %+v", e.Status.Phase, c)
	}
	if !p.exists(p.ns, "omega-credential", &corev1.Secret{}) || !p.exists(p.shared, "omega-docker-runner-token", &corev1.Secret{}) {
		t.Error("an object was deleted before a person confirmed that the runner is deleted")
	}
	p.patch(e, `{"metadata":{"annotations":{"tailplane.dev/force-cleanup":"both runners are deleted at GitLab"}}}`)
	if left := p.waitGone("omega"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	switch n := requested.Load(); {
	case n > 0:
		t.Errorf("the fleet queried GitLab about runners: n = %v, want at most 0", n)
	case len(p.gitlab.Runners()) != 2:
		t.Errorf("the fleet queried GitLab about runners: len(p.gitlab.Runners()) != 2; %d", n)
	case p.gitlab.Runners()[0].Paused:
		t.Errorf("the fleet queried GitLab about runners: p.gitlab.Runners()[0].Paused is true; %d", n)
	}
}

// A person's runner has its own tags, so it serves one pool. With an access_token in its place, the
// fleet creates a runner, and the old one ends.
func TestTokenByHandServesOnePool(t *testing.T) {
	p := newEnv(t, "")
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 5, Budget: 20})
	p.pool("nix", "gitlab", v1alpha1.PoolScaling{Max: 5, Budget: 20})
	group := p.gitlab.AddGroup("omega")
	own := p.gitlab.AddRunner(forgetest.GitLabRunner{Group: group})
	p.credential("omega", map[string]string{"runner_token": own.Token})
	p.enroll("omega", "gitlab", p.gitlab.URL+"/omega", []string{"docker", "nix"})
	p.start()
	e := p.waitCondition("omega", "CredentialsValid", "False/"+fleet.ReasonInvalid)
	if p.exists(p.shared, "omega-docker-runner-token", &corev1.Secret{}) {
		t.Error("an object was created")
	}
	p.patch(e, `{"spec":{"pools":[{"name":"docker","type":"Shared"}]}}`)
	p.waitActive("omega")
	p.waitFor("a manager runs with it", func() bool { p.runManagers(); return *deploymentOf(p, "omega-docker").Spec.Replicas == 1 })
	p.credential("omega", map[string]string{"access_token": p.gitlab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{group}})})
	p.waitStatus("omega", "a person is informed", func(e *v1alpha1.RunnerEnrollment) bool {
		p.runManagers()
		c := meta.FindStatusCondition(e.Status.Conditions, "Degraded")
		return c != nil && c.Reason == fleet.ReasonByHand
	})
	switch r := p.gitlab.Runners(); {
	case len(r) != 2:
		t.Errorf("len(r) = %v, want 2", len(r))
	case r[1].Paused:
		t.Errorf("r[1].Paused is true; %+v", r)
	case *deploymentOf(p, "omega-docker").Spec.Replicas != 0:
		t.Errorf(`*deploymentOf(p, "omega-docker").Spec.Replicas != 0; %+v`, r)
	}
	p.patch(p.get("omega"), `{"metadata":{"annotations":{"tailplane.dev/force-cleanup":"it is deleted at GitLab"}}}`)
	p.waitFor("the other one ends", func() bool {
		p.runManagers()
		return !p.exists(p.shared, "omega-docker-runner-token", &corev1.Secret{})
	})
}
