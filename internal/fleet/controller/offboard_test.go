//go:build unix

package controller

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// runLifecycle repeatedly runs the fleet and kills it after its first write, until done returns true.
func (p *env) runLifecycle(done func() bool) (n int) {
	p.t.Helper()
	p.stop()
	for end := time.Now().Add(deadline); !done(); n++ {
		if time.Now().After(end) {
			p.t.Fatalf("not done after %d lives, the last one wrote %q", n, p.wire.writes())
		}
		p.start()
		w := p.wire
		w.mu.Lock()
		w.cut = func(_ int, write string) cut {
			if strings.Contains(write, "/runnerforges/") || strings.Contains(write, "/runnerpools/") {
				return notHere // not about an enrollment, and repeated after each start
			}
			return after
		}
		w.mu.Unlock()
		for !w.dead.Load() && !done() && time.Now().Before(end) {
			p.runManagers()
			time.Sleep(10 * time.Millisecond)
		}
		p.stop()
	}
	return n
}

// FLEET-07, FL-02: the fleet is killed after each write while a GitHub organisation ends. In the
// end nothing of it is left, and its credential existed until its scale set was gone.
func TestFLEET07_KilledAtGitHub(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	e := p.enrollGitHub("acme", []string{"nix"}, isolate)
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitFor("it has its share", func() bool { s := p.set("tailplane-org-acme", "acme-nix"); return s != nil && s.Max == 3 })
	p.arc.Assign("tailplane-org-acme", "acme-nix", arctest.Job{ID: "j1", Repository: "acme/app", Run: 11})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p.must(p.arc.Start(ctx, "j1"))
	p.must(p.admin.Delete(t.Context(), e))
	ended := false
	n := p.runLifecycle(func() bool {
		if s := p.set("tailplane-org-acme", "acme-nix"); !ended && s != nil && s.Max == 0 {
			if s.Ending {
				t.Fatal("it was deregistered while a job ran")
			}
			p.must(p.arc.Finish(t.Context(), "j1"))
			ended = true
		}
		secret := p.exists(p.ns, "acme-credential", &corev1.Secret{})
		if !secret && len(p.github.ScaleSets()) > 0 {
			t.Fatal("FL-02: the credential went before the scale set")
		}
		return !p.exists("", "acme", &v1alpha1.RunnerEnrollment{})
	})
	t.Logf("%d lives", n)
	switch left := p.waitGone("acme"); {
	case len(left) > 0:
		t.Errorf("left: len(left) = %v, want at most 0", len(left))
	case !ended:
		t.Errorf("left: ended is false; left = %q, %d, ended = %v", left, n, ended)
	case n < 5:
		t.Errorf("left: n = %v, want at least 5", n)
	}
	p.waitFor("its namespace goes", func() bool {
		ns := &corev1.Namespace{}
		return !p.exists("", "tailplane-org-acme", ns) || ns.DeletionTimestamp != nil
	})
}

// isolate gives an organisation its own namespace.
func isolate(e *v1alpha1.RunnerEnrollment) { e.Spec.Isolation = v1alpha1.IsolationNamespace }

// FLEET-07, FL-03: the fleet is killed after each write while a GitLab group is enrolled, and while
// it ends. It always has one runner, and none in the end.
func TestFLEET07_KilledAtGitLab(t *testing.T) {
	p := newEnv(t, "")
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	e := p.enrollGitLab("omega", []string{"docker"})
	n := p.runLifecycle(func() bool { return p.get("omega").Status.Phase == v1alpha1.PhaseActive })
	if r := p.gitlab.Runners(); len(r) != 1 {
		t.Fatalf("runners after %d lives: %+v", n, r)
	}
	p.must(p.admin.Delete(t.Context(), e))
	more := p.runLifecycle(func() bool {
		if len(p.gitlab.Runners()) > 0 && !p.exists(p.ns, "omega-credential", &corev1.Secret{}) {
			t.Fatal("FL-02: the credential went before the runner")
		}
		return !p.exists("", "omega", &v1alpha1.RunnerEnrollment{})
	})
	t.Logf("%d lives, and %d", n, more)
	switch left := p.waitGone("omega"); {
	case len(left) > 0:
		t.Errorf("left: len(left) = %v, want at most 0", len(left))
	case len(p.gitlab.Runners()) > 0:
		t.Errorf("left: len(p.gitlab.Runners()) > 0; left = %q, %+v, %d, more = %d", left, p.gitlab.Runners(), n, more)
	case n < 5:
		t.Errorf("left: n = %v, want at least 5", n)
	case more < 4:
		t.Errorf("left: more = %v, want at least 4", more)
	}
}

// FL-03, FLEET-08: a runner is created at GitLab and its token is lost, because the fleet was
// killed before it stored the token, or because the response was lost. The fleet finds the runner
// by its mark and resets or removes it. It never creates a second one.
func TestFL03_LostToken(t *testing.T) {
	p := newEnv(t, "")
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	lost := false
	p.gitlab.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/user/runners") && !lost {
			lost = true
			return &forgetest.Fault{Drop: true, After: true}
		}
		return nil
	})
	p.enrollGitLab("omega", []string{"docker"})
	p.start()
	p.wire.mu.Lock()
	p.wire.cut = func(_ int, write string) cut {
		if strings.Contains(write, "POST") && strings.Contains(write, "omega-docker-runner-token") {
			return before
		}
		return notHere
	}
	p.wire.mu.Unlock()
	p.waitFor("the fleet is dead", func() bool { p.clockOffset.Add(int64(time.Second)); return p.wire.dead.Load() })
	p.stop()
	p.start()
	p.waitFor("it is active", func() bool {
		p.runManagers()
		if n := len(p.gitlab.Runners()); n > 1 {
			t.Fatalf("%d runners", n)
		}
		p.clockOffset.Add(int64(time.Second))
		return p.get("omega").Status.Phase == v1alpha1.PhaseActive
	})
	if r := p.gitlab.Runners(); len(r) != 1 || !strings.Contains(r[0].Note, "omega-docker") {
		t.Errorf("runners %+v", r)
	}
}

// FL-02, FLEET-07: the App is uninstalled before the offboarding. After some refusals a person must
// decide, and the credential stays. Only the person's decision gives the scale set up, and its ID
// is recorded.
func TestFL02_AppUninstalled(t *testing.T) {
	p := newEnv(t, "")
	app, key := p.github.AddApp(t)
	p.github.AddAccount("acme", "")
	installation := p.github.Install(app, "acme", forgetest.Enough())
	p.arc = arctest.Start(t, arctest.Options{Cluster: p.cluster, Namespace: p.arcNS, Version: "0.14.2", GitHub: arctest.At(p.github, p.installed(installation))})
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.credential("acme", map[string]string{"github_app_id": decimal(app), "github_app_private_key": string(key)})
	p.enroll("acme", "github", p.github.URL+"/acme", []string{"nix"})
	p.start()
	e := p.waitPhase("acme", v1alpha1.PhaseActive)
	switch c := e.Status.Credential; {
	case c == nil:
		t.Error("credential: c is nil")
	case *c.AppID != app:
		t.Errorf("credential: *c.AppID = %v, want %v", *c.AppID, app)
	case *c.InstallationID != installation:
		t.Errorf("credential: *c.InstallationID = %v, want %v", *c.InstallationID, installation)
	}
	set := p.set(p.shared, "acme-nix")
	p.github.Uninstall(installation)
	p.must(p.admin.Delete(t.Context(), e))
	p.waitStatus("acme", "a person must decide", func(e *v1alpha1.RunnerEnrollment) bool {
		p.clockOffset.Add(int64(5 * time.Second))
		return e.Status.Phase == v1alpha1.PhaseFailed && e.Status.Offboard != nil && e.Status.Offboard.Step == v1alpha1.StepDeregister
	})
	if !p.exists(p.ns, "acme-credential", &corev1.Secret{}) || p.set(p.shared, "acme-nix") == nil {
		t.Fatal("an object was deleted without an answer from GitHub")
	}
	p.patch(p.get("acme"), `{"metadata":{"annotations":{"tailplane.dev/force-cleanup":"the organisation has gone"}}}`)
	if left := p.waitGone("acme"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if sets := p.github.ScaleSets(); len(sets) != 1 || sets[0].ID != set.ID {
		t.Errorf("GitHub has %+v, and %d was abandoned", sets, set.ID)
	}
}

// FL-02: the Secret of a GitLab group is deleted although the enrollment stays. Only its managers
// end. With a new Secret, the same runner serves the group again.
func TestFL02_GitLabWithoutItsSecret(t *testing.T) {
	p := newGitLabEnv(t)
	before := p.gitlab.Runners()[0]
	secret := &corev1.Secret{}
	if !p.exists(p.ns, "omega-credential", secret) {
		t.Fatal("there is no credential")
	}
	p.must(p.admin.Delete(t.Context(), secret))
	p.waitPhase("omega", v1alpha1.PhaseSuspended)
	p.waitFor("its managers end", func() bool { p.runManagers(); return *deploymentOf(p, "omega-docker").Spec.Replicas == 0 })
	p.waitCondition("omega", "CredentialsValid", "False/"+reasonNoSecret)
	p.credential("omega", map[string]string{"access_token": string(secret.Data["access_token"])})
	p.waitActive("omega")
	p.waitFor("it takes jobs again", func() bool {
		p.runManagers()
		r := p.gitlab.Runners()
		return len(r) == 1 && r[0].ID == before.ID && !r[0].Paused && *deploymentOf(p, "omega-docker").Spec.Replicas == 1
	})
}
