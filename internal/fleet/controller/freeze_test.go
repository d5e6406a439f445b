//go:build unix

package controller

import (
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// FLEET-05, FL-06: one write freezes 50 pools of a GitHub organisation, groups of a GitLab that
// answers, and a group of a GitLab that does not. All of the former are held, and the failures of
// the latter are listed. One deletion lifts the hold.
func TestFLEET05_FreezeAll(t *testing.T) {
	p := newEnv(t, "0.14.2")
	const n = 50
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("nix-%02d", i))
		p.pool(names[i], "github", v1alpha1.PoolScaling{Max: 2, Budget: 10})
	}
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	down := forgetest.NewGitLab(t)
	down.Clock(p.now)
	p.must(p.admin.Create(t.Context(), &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: "down"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitLab, URL: down.URL}}))
	p.pool("other", "down", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.enrollGitHub("acme", names)
	p.enrollGitLab("omega", []string{"docker"})
	group := down.AddGroup("zeta")
	p.credential("zeta", map[string]string{"access_token": down.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{group}})})
	p.enroll("zeta", "down", down.URL+"/zeta", []string{"other"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	speak := func() {
		p.runManagers()
		for _, r := range down.Runners() {
			down.Contact(r.Token, "s_zeta")
		}
	}
	for _, org := range []string{"omega", "zeta"} {
		p.waitStatus(org, "Active", func(e *v1alpha1.RunnerEnrollment) bool { speak(); return e.Status.Phase == v1alpha1.PhaseActive })
	}
	open := func() (open int) {
		for _, name := range names {
			if s := p.set(p.shared, "acme-"+name); s != nil && s.Max == 2 {
				open++
			}
		}
		return open
	}
	p.waitFor("all have their share", func() bool {
		return open() == n && !p.gitlab.Runners()[0].Paused && !down.Runners()[0].Paused
	})
	down.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Drop: true} })

	startedAt := time.Now()
	h := p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	var written, followed time.Duration
	p.waitFor("all but one are held", func() bool {
		if written == 0 && p.none(arc.SetKind) {
			written = time.Since(startedAt)
		} else if written != 0 && followed == 0 && p.none(arc.ListenerKind) {
			followed = time.Since(startedAt)
		}
		p.must(p.admin.Get(t.Context(), keyOf(h), h))
		return h.Status.Applied == n+1 && h.Status.Targets == n+2
	})
	t.Logf("after the write of the hold: all scale sets written by %v, followed by the fake ARC by %v, %d of %d workloads confirmed by %v", written, followed, h.Status.Applied, h.Status.Targets, time.Since(startedAt))
	p.waitFor("the failure is listed", func() bool {
		p.must(p.admin.Get(t.Context(), keyOf(h), h))
		return slices.Equal(h.Status.Failed, []v1alpha1.HoldFailure{{Pool: "other", Org: "zeta", Reason: "ForgeUnreachable"}})
	})
	p.waitHold("freeze", "Applied", metav1.ConditionFalse)
	down.Fault(nil)
	p.waitFor("the last one is held", func() bool {
		p.clockOffset.Add(int64(time.Second))
		p.must(p.admin.Get(t.Context(), keyOf(h), h))
		return h.Status.Applied == n+2
	})
	p.must(p.admin.Delete(t.Context(), h))
	p.waitFor("all resume", func() bool { return open() == n && !p.gitlab.Runners()[0].Paused && !down.Runners()[0].Paused })
}

// none reports whether no object of one of ARC's kinds may have runners.
func (p *env) none(kind string) bool {
	p.t.Helper()
	list := newARCList(kind)
	p.must(p.admin.List(p.t.Context(), list))
	for _, u := range list.Items {
		if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "maxRunners"); n > 0 {
			return false
		}
	}
	return true
}
