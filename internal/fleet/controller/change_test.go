//go:build unix

package controller

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// FLEET-08: a new credential of a GitHub organisation gets a new name, and the older copy goes when
// no object references it. A credential that GitHub refuses changes nothing.
func TestFLEET08_GitHub(t *testing.T) {
	p := newGitHubEnv(t)
	first := p.copies("acme")
	if len(first) != 1 {
		t.Fatalf("copies %q", first)
	}
	p.credential("acme", map[string]string{"github_token": "ghp_" + strings.Repeat("x", 30)})
	p.waitCondition("acme", "CredentialsValid", "False/Invalid")
	p.waitCondition("acme", "Degraded", "True/"+fleet.ReasonRotationFailed)
	switch s := p.set(p.shared, "acme-nix"); {
	case s.Secret != first[0]:
		t.Errorf("a bad credential has changed: s.Secret = %q, want %q", s.Secret, first[0])
	case s.Max == 0:
		t.Errorf("a bad credential has changed: s.Max = %v", s.Max)
	case p.get("acme").Status.Phase != v1alpha1.PhaseActive:
		t.Errorf(`a bad credential has changed: p.get("acme").Status.Phase != v1alpha1.PhaseActive; %+v`, s)
	}
	p.credential("acme", map[string]string{"github_token": p.github.AddToken("admin:org", "repo")})
	p.waitFor("only the new copy is left", func() bool {
		now := p.copies("acme")
		if s := p.set(p.shared, "acme-nix"); s == nil || !slices.Contains(now, s.Secret) {
			t.Fatalf("FLEET-08: the scale set %+v names a credential that is not among %q", s, now)
		}
		return len(now) == 1 && now[0] != first[0]
	})
	p.waitPhase("acme", v1alpha1.PhaseActive)
}

// FLEET-08: a GitLab runner with an old token is replaced. A second runner is created, and the old
// one ends when the new one works and its own job has ended.
func TestFLEET08_GitLab(t *testing.T) {
	t.Run("by age", func(t *testing.T) {
		replaced(t, &metav1.Duration{Duration: 24 * time.Hour}, func(p *env) {
			p.clockOffset.Add(int64(25 * time.Hour))
			p.patch(p.get("omega"), `{"metadata":{"annotations":{"test/poke":"1"}}}`)
		})
	})
	t.Run("requested", func(t *testing.T) {
		replaced(t, nil, func(p *env) { p.rotate("omega") })
	})
}

// replaced checks that a GitLab runner is replaced after due was called.
func replaced(t *testing.T, every *metav1.Duration, due func(*env)) {
	p := newGitLabEnv(t, func(e *v1alpha1.RunnerEnrollment) { e.Spec.Credentials.RotateEvery = every })
	first := p.gitlab.Runners()[0]
	job := p.gitlab.StartJob(first.ID, 7)
	due(p)
	p.waitFor("another runner has taken its place", func() bool {
		p.runManagers()
		r := p.gitlab.Runners()
		if r[0].ID != first.ID {
			t.Fatal("the first runner went while its job ran")
		}
		return len(r) == 2 && r[0].Paused && !r[1].Paused
	})
	p.gitlab.EndJob(job, "success")
	p.waitFor("only the new one is left", func() bool {
		p.runManagers()
		p.clockOffset.Add(int64(time.Second))
		r := p.gitlab.Runners()
		return len(r) == 1 && r[0].ID != first.ID && !p.exists(p.shared, isolation.TokenName("omega-docker"), &corev1.Secret{})
	})
	p.waitActive("omega")
}

// FLEET-08: the fleet is killed after each write while a GitHub organisation gets a new credential.
// The scale set always references an existing copy.
func TestFLEET08_KilledAtGitHub(t *testing.T) {
	p := newGitHubEnv(t)
	first := p.copies("acme")
	p.stop()
	p.credential("acme", map[string]string{"github_token": p.github.AddToken("admin:org", "repo")})
	n := p.runLifecycle(func() bool {
		now := p.copies("acme")
		s := p.set(p.shared, "acme-nix")
		if s == nil || !slices.Contains(now, s.Secret) {
			t.Fatalf("the scale set %+v names a credential that is not among %q", s, now)
		}
		return len(now) == 1 && now[0] != first[0]
	})
	t.Logf("%d lives", n)
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	switch s := p.set(p.shared, "acme-nix"); {
	case n < 3:
		t.Errorf("n = %v, want at least 3", n)
	case s.Max == 0:
		t.Errorf("s.Max = %v", s.Max)
	case len(p.github.ScaleSets()) != 1:
		t.Errorf("len(p.github.ScaleSets()) = %v, want 1", len(p.github.ScaleSets()))
	}
}

// FLEET-08: the fleet is killed after each write while a GitLab runner is replaced. One of the
// runners always has a manager with its token. There are never three runners, and never two that
// take jobs: that would exceed the allocation.
func TestFLEET08_KilledAtGitLab(t *testing.T) {
	p := newGitLabEnv(t)
	first := p.gitlab.Runners()[0].ID
	p.stop()
	p.rotate("omega")
	n := p.runLifecycle(func() bool {
		p.clockOffset.Add(int64(time.Second))
		r := p.gitlab.Runners()
		works := slices.ContainsFunc(r, func(r forgetest.GitLabRunner) bool {
			return len(r.Managers) > 0 && p.exists(p.shared, isolation.TokenName(r.Description), &corev1.Secret{})
		})
		switch {
		case !works:
			t.Fatalf("runners: works is false; %+v", r)
		case len(r) > 2:
			t.Fatalf("runners: len(r) = %v, want at most 2", len(r))
		case len(r) == 2 && !r[0].Paused && !r[1].Paused:
			t.Fatalf("runners: len(r) == 2 && !r[0].Paused && !r[1].Paused; %+v", r)
		}
		return len(r) == 1 && r[0].ID != first && !p.exists(p.shared, isolation.TokenName("omega-docker"), &corev1.Secret{})
	})
	t.Logf("%d lives", n)
	if n < 4 {
		t.Errorf("only %d lives", n)
	}
	p.start()
	p.waitActive("omega")
}

// copies returns the names of an organisation's credentials in the namespace of its runners.
func (p *env) copies(org string) (names []string) {
	p.t.Helper()
	var list corev1.SecretList
	p.must(p.admin.List(p.t.Context(), &list, client.InNamespace(p.shared), client.MatchingLabels{v1alpha1.OrgLabel: org}))
	for _, s := range list.Items {
		names = append(names, s.Name)
	}
	return names
}

// rotate requests new tokens for an organisation in one minute, and advances the clock past that
// time.
func (p *env) rotate(org string) {
	p.t.Helper()
	p.clockOffset.Add(int64(time.Minute))
	p.patch(p.get(org), `{"spec":{"credentials":{"rotateAt":"`+time.Now().Add(time.Minute).UTC().Format(time.RFC3339)+`"}}}`)
}

// FLEET-19: five of eight enrollments are deleted at once. Intake stops, and nothing else happens
// until a person confirms. An enrollment with the value keep leaves its runners to an enrollment of
// the same name.
func TestFLEET19_MassDeletion(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	var orgs []string
	for i := range 8 {
		orgs = append(orgs, fmt.Sprintf("org-%d", i))
		p.enrollGitHub(orgs[i], []string{"nix"})
	}
	p.start()
	for _, org := range orgs {
		p.waitPhase(org, v1alpha1.PhaseActive)
		p.waitFor("its share", func() bool { s := p.set(p.shared, org+"-nix"); return s != nil && s.Max > 0 })
	}
	before := p.github.ScaleSets()
	for _, org := range orgs[:5] {
		p.must(p.admin.Delete(t.Context(), p.get(org)))
	}
	for _, org := range orgs[:5] {
		p.waitCondition(org, "DecisionNeeded", "True/"+fleet.ReasonMassDeletion)
		switch s := p.set(p.shared, org+"-nix"); {
		case s == nil:
			t.Errorf("s is nil; %s", org)
		case s.Max != 0:
			t.Errorf("s.Max = %v, want 0; %s", s.Max, org)
		case s.Ending:
			t.Errorf("s.Ending is true; %s, %+v", org, s)
		}
	}
	if now := p.github.ScaleSets(); len(now) != len(before) {
		t.Fatalf("scale sets %+v, were %+v", now, before)
	}
	retained := p.set(p.shared, "org-0-nix")
	spec := p.get("org-0").Spec
	p.patch(p.get("org-0"), `{"metadata":{"annotations":{"tailplane.dev/offboard":"keep"}}}`)
	p.waitFor("it is resumed", func() bool { return !p.exists("", "org-0", &v1alpha1.RunnerEnrollment{}) })
	p.must(p.admin.Create(t.Context(), &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "org-0"}, Spec: spec}))
	p.waitPhase("org-0", v1alpha1.PhaseActive)
	p.waitFor("it takes jobs again", func() bool { return p.set(p.shared, "org-0-nix").Max > 0 })
	if now := p.set(p.shared, "org-0-nix"); now.UID != retained.UID || now.ID != retained.ID {
		t.Errorf("it was registered again: %+v, was %+v", now, retained)
	}
	p.patch(p.get("org-1"), `{"metadata":{"annotations":{"tailplane.dev/offboard":"confirm"}}}`)
	if left := p.waitGone("org-1"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	if now := p.github.ScaleSets(); len(now) != len(before)-1 {
		t.Errorf("scale sets %+v", now)
	}
}

// FLEET-01, FLEET-11, FL-01: a violation is reported, and nothing is created for it: no object, and
// no request to a forge with another organisation's credential.
func TestFLEET11_Refused(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.pool("dedicated", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40}, func(p *v1alpha1.RunnerPool) { p.Spec.DedicatedTo = "acme" })
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	refused := map[string]string{}
	try := func(org, reason string, pools []string, change func(*v1alpha1.RunnerEnrollment)) {
		p.github.AddAccount(org, "")
		p.enroll(org, "github", p.github.URL+"/"+org, pools, change)
		refused[org] = reason
	}
	try("thief", fleet.ReasonSecretOfAnother, []string{"nix"}, func(e *v1alpha1.RunnerEnrollment) { e.Spec.Credentials.SecretName = "acme-credential" })
	try("squatter", fleet.ReasonConfigURLTaken, []string{"nix"}, func(e *v1alpha1.RunnerEnrollment) { e.Spec.ConfigURL = p.github.URL + "/ACME" })
	try("guest", fleet.ReasonPoolDedicated, []string{"dedicated"}, func(*v1alpha1.RunnerEnrollment) {})
	try("lost", fleet.ReasonForgeMismatch, []string{"docker"}, func(*v1alpha1.RunnerEnrollment) {})
	try("nosy", fleet.ReasonCacheNamespace, []string{"nix"}, func(e *v1alpha1.RunnerEnrollment) {
		e.Spec.Network = &v1alpha1.EnrollmentNetwork{Caches: []v1alpha1.NetworkCache{{Namespace: "tailplane-org-acme", PodSelector: map[string]string{"a": "b"}, Port: 80}}}
	})
	calls := len(p.github.Calls())
	for org, reason := range refused {
		p.waitCondition(org, "PolicyViolation", "True/"+reason)
		p.waitStatus(org, "not created", func(e *v1alpha1.RunnerEnrollment) bool {
			return e.Status.Phase == v1alpha1.PhaseFailed || e.Status.Phase == v1alpha1.PhaseSuspended
		})
	}
	metrics, _ := p.fleet.Metrics()
	for _, w := range metrics.Workloads {
		if _, is := refused[w.Org]; is && !w.Failing {
			t.Errorf("%s is refused, but counts as valid: %+v", w.Org, w)
		}
	}
	for org := range refused {
		for _, kind := range []groupVersionKind{arc.Kind(arc.SetKind + "List"), corev1.SchemeGroupVersion.WithKind("SecretList"), corev1.SchemeGroupVersion.WithKind("NamespaceList")} {
			if created := p.labelled(kind, org); len(created) > 0 {
				t.Errorf("for %s the fleet created %q", org, created)
			}
		}
	}
	for _, c := range p.github.Calls()[calls:] {
		for org := range refused {
			if strings.Contains(c.Path, "/"+org) {
				t.Errorf("the fleet queried GitHub about %s: %+v", org, c)
			}
		}
	}
	if s := p.set(p.shared, "acme-nix"); s == nil || s.Ending {
		t.Errorf("acme has %+v", s)
	}
}

// FLEET-10: without ARC, a GitHub organisation waits and reports the reason. It continues by itself
// when ARC is installed.
func TestFLEET10_InstalledLater(t *testing.T) {
	p := newEnv(t, "")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitStatus("acme", arc.ReasonMissing, func(e *v1alpha1.RunnerEnrollment) bool { // False, or Unknown if ARC's kinds do not exist
		c := meta.FindStatusCondition(e.Status.Conditions, "Ready")
		return c != nil && c.Status != metav1.ConditionTrue && c.Reason == arc.ReasonMissing
	})
	p.installARC("0.13.1", false)
	e := p.waitPhase("acme", v1alpha1.PhaseActive)
	if !slices.Contains(e.Status.Pools[0].Drift, reasonNoLabels) {
		t.Errorf("ARC 0.13 does not support labels, but no condition reports it: %+v", e.Status.Pools)
	}
	// An upgrade keeps the scale set, because its label gets the new version in time.
	set := p.set(p.shared, "acme-nix")
	start, err := p.arc.Upgrade(t.Context(), "0.14.2")
	p.must(err)
	p.waitFor("its label follows", func() bool { return p.set(p.shared, "acme-nix").Version == "0.14.2" })
	p.must(start(t.Context()))
	p.waitPhase("acme", v1alpha1.PhaseActive)
	if now := p.set(p.shared, "acme-nix"); now.UID != set.UID || now.ID != set.ID {
		t.Errorf("the upgrade has lost %+v: %+v", set, now)
	}
}

// FLEET-10, FLEET-03: with the strategy eventual, ARC takes no jobs after a hold until the running
// job has ended, and the status reports that. Runners that repeatedly end before they take a job
// are reported, although ARC 0.14 deletes and replaces each of them.
func TestFLEET10_Eventual(t *testing.T) {
	p := newEnv(t, "")
	p.installARC("0.14.2", true)
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 4})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitFor("it has its share", func() bool { s := p.set(p.shared, "acme-nix"); return s != nil && s.Max == 2 })
	p.arc.Assign(p.shared, "acme-nix", arctest.Job{ID: "j1", Repository: "acme/app", Run: 11})
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	p.must(p.arc.Start(ctx, "j1"))
	h := p.hold("freeze", v1alpha1.HoldScope{All: true}, v1alpha1.HoldPause)
	p.waitHold("freeze", "Applied", metav1.ConditionTrue)
	p.must(p.admin.Delete(ctx, h))
	waits := func(e *v1alpha1.RunnerEnrollment) bool {
		return len(e.Status.Pools) == 1 && slices.Contains(e.Status.Pools[0].Drift, arc.ReasonResumeWaits)
	}
	p.waitStatus("acme", arc.ReasonResumeWaits, waits)
	p.must(p.arc.Finish(ctx, "j1"))
	p.waitStatus("acme", "jobs are taken again", func(e *v1alpha1.RunnerEnrollment) bool {
		return !waits(e) && e.Status.Phase == v1alpha1.PhaseActive && meta.IsStatusConditionTrue(e.Status.Conditions, "Ready")
	})
	p.arc.Crash(p.shared, "acme-nix", "ErrImagePull")
	p.arc.Assign(p.shared, "acme-nix", arctest.Job{ID: "j2", Repository: "acme/app", Run: 12}, arctest.Job{ID: "j3", Repository: "acme/app", Run: 13})
	p.waitStatus("acme", "runners that end without a job", func(e *v1alpha1.RunnerEnrollment) bool {
		c := meta.FindStatusCondition(e.Status.Conditions, "Degraded")
		return c != nil && c.Reason == arc.ReasonCrashLoop && strings.Contains(c.Message, "ended within") && strings.Contains(c.Message, "ErrImagePull")
	})
	p.arc.Crash(p.shared, "acme-nix", "")
}

// FLEET-10: in a namespace that ARC does not watch, the fleet creates nothing and the enrollment
// reports it. In a watched namespace, it works.
func TestFLEET10_WatchesOther(t *testing.T) {
	p := newEnv(t, "")
	p.arc = arctest.Start(t, arctest.Options{Cluster: p.cluster, Namespace: p.arcNS, Version: "0.14.2", Watch: p.shared, GitHub: arctest.At(p.github, nil)})
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 4})
	p.enrollGitHub("beta", []string{"nix"}, func(e *v1alpha1.RunnerEnrollment) { e.Spec.Isolation = v1alpha1.IsolationNamespace })
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	p.waitCondition("beta", "Ready", "False/"+arc.ReasonWatchesOther)
	if s := p.set("tailplane-org-beta", "beta-nix"); s != nil {
		t.Errorf("it was created anyway: %+v", s)
	}
}

// FLEET-17, FL-04: no failure of a forge removes a runner: nothing is deleted, and an offboarding
// waits.
func TestFLEET17_NoAnswer(t *testing.T) {
	p := newGitLabEnv(t)
	var writes []string
	count := func() (n int) {
		for _, c := range p.gitlab.Calls() {
			if c.Method == http.MethodDelete {
				n++
			}
		}
		return n
	}
	for _, f := range []forgetest.Fault{{Status: 503}, {Status: 429}, {Drop: true}, {Status: 404, Body: "<html>"}, {Cut: 10}} {
		p.gitlab.Fault(func(*http.Request) *forgetest.Fault { return &f })
		requested := len(p.gitlab.Calls())
		p.waitFor("the forge gets a request and does not answer", func() bool {
			p.clockOffset.Add(int64(10 * time.Second))
			p.patch(p.get("omega"), fmt.Sprintf(`{"metadata":{"annotations":{"test/poke":"%d"}}}`, p.clockOffset.Load()))
			time.Sleep(100 * time.Millisecond)
			return len(p.gitlab.Calls()) > requested+1
		})
		writes = p.wire.writes()
	}
	for _, w := range writes {
		if strings.HasPrefix(w, "DELETE") {
			t.Errorf("deleted without an answer: %s", w)
		}
	}
	p.gitlab.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: 503} })
	p.must(p.admin.Delete(t.Context(), p.get("omega")))
	p.waitPhase("omega", v1alpha1.PhaseDraining)
	switch n := count(); {
	case n != 0:
		t.Errorf("n = %v, want 0", n)
	case !p.exists(p.ns, "omega-credential", &corev1.Secret{}):
		t.Errorf(`p.exists(p.ns, "omega-credential", &corev1.Secret{}) is false; %d`, n)
	case !p.exists(p.shared, isolation.TokenName("omega-docker"), &corev1.Secret{}):
		t.Errorf(`p.exists(p.shared, isolation.TokenName("omega-docker"), &corev1.Secret{}) is false; %d`, n)
	}
	f := &v1alpha1.RunnerForge{}
	p.waitFor("the forge is reported as unreachable", func() bool {
		p.must(p.admin.Get(t.Context(), client.ObjectKey{Name: "gitlab"}, f))
		return meta.IsStatusConditionFalse(f.Status.Conditions, "Reachable")
	})
	p.gitlab.Fault(nil)
	p.waitFor("it is deleted", func() bool {
		p.clockOffset.Add(int64(5 * time.Second))
		return !p.exists("", "omega", &v1alpha1.RunnerEnrollment{})
	})
	if r := p.gitlab.Runners(); len(r) != 0 {
		t.Errorf("runners %+v", r)
	}
}

// FLEET-12, FL-03: logs, events, status and metrics of the fleet contain no token and no key.
func TestFLEET12_Canary(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.enrollGitHub("acme", []string{"nix"})
	p.enrollGitLab("omega", []string{"docker"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	e := p.waitActive("omega")
	metrics, ok := p.fleet.Metrics()
	if !ok || len(metrics.Workloads) != 2 {
		t.Errorf("figures %+v, %v", metrics, ok)
	}
	var events corev1.EventList
	p.must(p.admin.List(context.WithoutCancel(t.Context()), &events))
	reported := fmt.Sprintf("%s %+v %+v %+v %+v", p.log.String(), p.get("acme").Status, e.Status, metrics, events)
	var secrets corev1.SecretList
	p.must(p.admin.List(t.Context(), &secrets, client.HasLabels{v1alpha1.OrgLabel}))
	found := 0
	for _, s := range secrets.Items {
		for key, value := range s.Data {
			if key != "config.toml" {
				found++
				if strings.Contains(reported, string(value)) {
					t.Errorf("the %s of %s is leaked", key, s.Name)
				}
			}
		}
	}
	for _, r := range p.gitlab.Runners() {
		if strings.Contains(reported, r.Token) {
			t.Error("the token of a runner is leaked")
		}
	}
	if found < 4 {
		t.Errorf("%d secrets were searched", found)
	}
}
