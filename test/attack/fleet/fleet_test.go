package fleet

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// FL-01. An administrator of one organisation writes about the scale set, namespace, Secret, pool, group or nodes of
// another. The fleet refuses such an object: it creates nothing for it and sends no request to a forge. Through the
// API these objects do not exist for the administrator.
//
// Guard: fleet.Check; plane.(Scope).narrow, and plane.getObject with the objects that Viewer can see.
func TestFL01_AnotherOrganisationsThings(t *testing.T) {
	y := start(t)
	y.pool(t, "fl1-nix", "github", 3)
	y.pool(t, "fl1-own", "github", 3, func(s *v1alpha1.RunnerPoolSpec) { s.DedicatedTo = "fl1-b" })
	y.pool(t, "b-fl1-nix", "github", 3)
	y.pool(t, "fl1-docker", "gitlab", 3)
	y.pool(t, "fl1-adopted", "github", 3, func(s *v1alpha1.RunnerPoolSpec) {
		s.Adopt = &v1alpha1.PoolAdopt{Namespace: "tailplane-org-fl1-b", Name: "fl1-b-fl1-nix"}
	})
	y.atGitHub(t, "fl1-b", []string{"fl1-nix", "fl1-own"}, apart, func(e *v1alpha1.RunnerEnrollmentSpec) { e.Pools[1].Type = v1alpha1.UseDedicated })
	group := y.atGitLab(t, "fl1-l", []string{"fl1-docker"})
	y.atGitHub(t, "fl1-a", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.Owners = []string{"amy@acme.dev"} })
	for _, org := range []string{"fl1-b", "fl1-l", "fl1-a"} { // fl1-a is also the control: it gets its own objects
		y.active(t, org)
	}
	before := y.setOf(t, "tailplane-org-fl1-b", "fl1-b-fl1-nix")
	secret := y.secret(t, attacktest.FleetNamespace, "fl1-b-credential")

	t.Run("by object", func(t *testing.T) {
		m, asked := y.Mark(t), len(y.github.Calls())
		refused := map[string]string{}
		try := func(org, forge, at, why string, pools []string, change enrollment) {
			t.Helper()
			y.github.AddAccount(org, "")
			y.enroll(t, org, forge, at, pools, change)
			refused[org] = "True/" + why
		}
		hub := func(org, why string, pools []string, change enrollment) {
			t.Helper()
			y.credential(t, org, map[string]string{"github_token": y.github.AddToken("admin:org", "repo")})
			try(org, "github", y.github.URL+"/"+org, why, pools, change)
		}
		none := func(*v1alpha1.RunnerEnrollmentSpec) {}
		try("fl1-secret", "github", y.github.URL+"/fl1-secret", "SecretOfAnother", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.Credentials.SecretName = "fl1-b-credential" })
		hub("fl1-pool", "PoolDedicated", []string{"fl1-own"}, none)
		hub("fl1-pool2", "PoolDedicated", []string{"fl1-own"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.Pools[0].Type = v1alpha1.UseDedicated })
		hub("fl1", "NameTaken", []string{"b-fl1-nix"}, none) // its scale set would be fl1-b-fl1-nix
		hub("fl1-place", "ConfigURLTaken", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.ConfigURL = y.github.URL + "/FL1-B" })
		hub("fl1-slash", "ConfigURL", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.ConfigURL = y.github.URL + "/fl1-b/" })
		hub("fl1-forge", "ConfigURLInvalid", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.ConfigURL = y.gitlab.URL + "/fl1-l" })
		hub("fl1-cache", "CacheNamespace", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) {
			e.Network = &v1alpha1.EnrollmentNetwork{Caches: []v1alpha1.NetworkCache{{Namespace: "tailplane-org-fl1-b", PodSelector: map[string]string{"a": "b"}, Port: 80}}}
		})
		hub("fl1-reach", "EgressPrivate", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) {
			e.Network = &v1alpha1.EnrollmentNetwork{Egress: []v1alpha1.NetworkEgress{{CIDR: "10.0.0.0/24", Ports: []int32{8080}}}}
		})
		hub("fl1-nodes", "PlacementOfAnother", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) {
			e.Isolation = v1alpha1.IsolationNode
			e.Placement = &v1alpha1.EnrollmentPlacement{NodeSelector: map[string]string{v1alpha1.OrgLabel: "fl1-b"}}
		})
		hub("fl1-repo", "RepositoryOfAnother", []string{"fl1-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) {
			e.Pools[0].Type, e.Pools[0].Repositories = v1alpha1.UseOrgPlusUser, []string{"fl1-b/app"}
		})
		hub("fl1-adopt", "", []string{"fl1-adopted"}, none)
		y.credential(t, "fl1-group", map[string]string{"access_token": "glpat-of-nobody-0123456789"})
		y.gitlab.AddGroup("fl1-group")
		try("fl1-group", "gitlab", y.gitlab.URL+"/fl1-group", "GroupTaken", []string{"fl1-docker"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.GroupID = group })

		for org, why := range refused {
			y.says(t, org, "PolicyViolation", why)
			y.comes(t, org, "it is refused", func(e *v1alpha1.RunnerEnrollment) bool {
				return e.Status.Phase == v1alpha1.PhaseFailed || e.Status.Phase == v1alpha1.PhaseSuspended
			})
		}
		hers := fmt.Sprintf("%q", secret.Data["github_token"])
		for org := range refused {
			for _, kind := range things {
				made := slices.DeleteFunc(y.listed(t, kind, org), func(o string) bool {
					// Allowed are the credential that a person stored, and, where only one pool is refused, the
					// network policies that restrict the organisation's jobs.
					own := strings.HasPrefix(o, "Secret "+attacktest.SharedRunners+"/"+org+"-") || o == "NetworkPolicy "+attacktest.SharedRunners+"/tailplane-runner-egress-"+org
					return o == "Secret "+attacktest.FleetNamespace+"/"+org+"-credential" || own
				})
				if len(made) > 0 {
					t.Errorf("for %s the fleet created %q", org, made)
				}
			}
			for _, name := range y.listed(t, things[1], org) {
				namespace, name, _ := strings.Cut(strings.TrimPrefix(name, "Secret "), "/")
				if s := y.secret(t, namespace, name); s != nil && strings.Contains(fmt.Sprintf("%q", s.Data), hers) {
					t.Errorf("%s has the credential of fl1-b, in %s/%s", org, namespace, name)
				}
			}
			for _, k := range y.told(t, m) {
				if k.ObjectRef.Resource != "runnerenrollments" && (strings.Contains(k.RequestURI, org+"-fl1-") || k.ObjectRef.Namespace == "tailplane-org-fl1-b") {
					t.Errorf("for %s: %s", org, k)
				}
			}
		}
		if connects(y.policies(t, attacktest.SharedRunners), map[string]string{v1alpha1.OrgLabel: "fl1-cache"}, "tailplane-org-fl1-b", map[string]string{"a": "b"}, 80) {
			t.Error("jobs of fl1-cache may connect to the namespace of fl1-b")
		}
		for _, c := range y.github.Calls()[asked:] {
			// The fleet cannot even identify the organisation of these enrollments.
			for _, org := range []string{"fl1-secret", "fl1-place", "fl1-slash", "fl1-forge"} {
				if strings.HasSuffix(c.Path, "/"+org) || strings.Contains(c.Path, "/"+org+"/") {
					t.Errorf("the fleet queried GitHub about %s: %+v", org, c)
				}
			}
		}
	})

	t.Run("by the API", func(t *testing.T) {
		amy, alice := y.Visitor(t, "amy-fleet", "amy@acme.dev"), y.Visitor(t, "alice-fleet", "alice@example.com")
		y.Allowed(t, amy, true)
		a := y.Request(t, alice, "POST", "/api/v1/pools/github/fl1-b/fl1-nix/pause", `{"reason":"hers"}`)
		if a.Status != http.StatusOK && a.Status != http.StatusCreated {
			t.Fatalf("alice pauses: %d %s", a.Status, a.Body)
		}
		var holds v1alpha1.RunnerHoldList
		y.must(t, y.KubeClient.List(t.Context(), &holds))
		if len(holds.Items) != 1 {
			t.Fatalf("holds %+v", holds.Items)
		}
		hers := holds.Items[0]
		t.Cleanup(func() { y.drop(t, &hers) })
		attacktest.Eventually(t, attacktest.Long, "the plane shows it", func() bool { return y.Request(t, alice, "GET", "/api/v1/holds/"+hers.Name, "").Status == http.StatusOK })
		m := y.Mark(t)
		const pause = `{"reason":"mine"}`
		for _, x := range []struct {
			method, path, body string
			status             []int
		}{
			{"GET", "/api/v1/pools/github/fl1-b/fl1-nix", "", []int{404}},
			{"GET", "/api/v1/pools/github/fl1-b/fl1-own", "", []int{404}},
			{"GET", "/api/v1/enrollments/fl1-b", "", []int{404}},
			{"GET", "/api/v1/holds/" + hers.Name, "", []int{404}},
			{"DELETE", "/api/v1/holds/" + hers.Name, pause, []int{404}},
			{"POST", "/api/v1/pools/github/fl1-b/fl1-nix/pause", pause, []int{404}},
			{"POST", "/api/v1/pools/github/fl1-b/fl1-nix/resume", pause, []int{404}},
			{"POST", "/api/v1/pools/gitlab/fl1-l/fl1-docker/pause", pause, []int{404}},
			{"POST", "/api/v1/pools/github/fl1-a/fl1-own/pause", pause, []int{404}},
			{"POST", "/api/v1/pools/github/FL1-B/fl1-nix/pause", pause, []int{400, 404}},
			{"POST", "/api/v1/pools/github/fl1-a%2F..%2Ffl1-b/fl1-nix/pause", pause, []int{400, 404}},
			{"POST", "/api/v1/holds", `{"scope":{"org":"fl1-b"},"reason":"mine"}`, []int{403, 404}},
			{"POST", "/api/v1/holds", `{"scope":{"org":"fl1-b","pool":"fl1-nix"},"reason":"mine"}`, []int{403, 404}},
			{"POST", "/api/v1/holds", `{"scope":{"org":"fl1-a","pool":"fl1-own"},"reason":"mine"}`, []int{404}},
			{"POST", "/api/v1/holds", `{"scope":{"pool":"fl1-nix"},"reason":"mine"}`, []int{403}},
			{"POST", "/api/v1/holds", `{"scope":{"forge":"github"},"reason":"mine"}`, []int{403}},
			{"POST", "/api/v1/holds", `{"scope":{"all":true},"reason":"mine","confirm":"PAUSE ALL"}`, []int{403}},
			{"POST", "/api/v1/holds", `{"scope":{"org":"*"},"reason":"mine"}`, []int{400, 422}},
			{"POST", "/api/v1/holds", `{"scope":{"org":"fl1-a"},"org":"fl1-b","reason":"mine"}`, []int{400, 422}},
		} {
			switch a := y.Request(t, amy, x.method, x.path, x.body); {
			case !slices.Contains(x.status, a.Status):
				t.Errorf("x.status = %v does not contain %v; %s; %s; %s", x.status, a.Status, x.method, x.path, x.body)
			case strings.Contains(a.Body, "hers"):
				t.Errorf("a.Body = %q contains %q; %s; %s; %s", a.Body, "hers", x.method, x.path, x.body)
			case a.Err.Code == "":
				t.Errorf("a.Err.Code is empty; %s, %s, %s, %d, %s", x.method, x.path, x.body, a.Status, a.Body)
			}
		}
		for _, path := range []string{"/api/v1/pools", "/api/v1/enrollments", "/api/v1/holds", "/api/runners", "/api/v1/overview"} {
			switch a := y.Request(t, amy, "GET", path, ""); {
			case a.Status != http.StatusOK:
				t.Errorf("%s reveals others: a.Status = %v, want %v", path, a.Status, http.StatusOK)
			case strings.Contains(a.Body, "fl1-b"):
				t.Errorf("%s reveals others: a.Body = %q contains %q", path, a.Body, "fl1-b")
			case strings.Contains(a.Body, "fl1-l"):
				t.Errorf("%s reveals others: a.Body = %q contains %q", path, a.Body, "fl1-l")
			}
		}
		y.Untouched(t, m, "amy's request")
		e := y.RecordedBy(t, "amy@acme.dev")
		refusals := 0
		for _, x := range e {
			if x.Result == "refused" || x.Result == "failed" {
				refusals++
			}
		}
		if refusals < 10 {
			t.Errorf("the record has %d refusals of hers: %+v", refusals, e)
		}
		// Control: the administrator can hold her own pool, and nothing else changes.
		if a := y.Request(t, amy, "POST", "/api/v1/pools/github/fl1-a/fl1-nix/pause", pause); a.Status != http.StatusOK && a.Status != http.StatusCreated {
			t.Fatalf("her own: %d %s", a.Status, a.Body)
		}
		attacktest.Eventually(t, attacktest.Long, "her own is held", func() bool { return y.maxOf(t, attacktest.SharedRunners, "fl1-a-fl1-nix") == 0 })
		attacktest.Eventually(t, attacktest.Long, "the plane shows it", func() bool {
			shown, _ := y.shown(t, amy, "github", "fl1-a", "fl1-nix")
			return len(shown.Holds) > 0
		})
		if a := y.Request(t, amy, "POST", "/api/v1/pools/github/fl1-a/fl1-nix/resume", pause); a.Status != http.StatusOK {
			t.Errorf("lifting it: %d %s", a.Status, a.Body)
		}
		attacktest.Eventually(t, attacktest.Long, "it is lifted", func() bool { return y.maxOf(t, attacktest.SharedRunners, "fl1-a-fl1-nix") > 0 })
		if n := y.maxOf(t, "tailplane-org-fl1-b", "fl1-b-fl1-own"); n <= 0 {
			t.Errorf("fl1-b may have %d of its own", n)
		}
		var left v1alpha1.RunnerHold
		if err := y.KubeClient.Get(t.Context(), client.ObjectKeyFromObject(&hers), &left); err != nil || left.UID != hers.UID {
			t.Errorf("alice's hold: %v", err)
		}
	})
	switch now := y.setOf(t, "tailplane-org-fl1-b", "fl1-b-fl1-nix"); {
	case now == nil:
		t.Error("fl1-b has lost its scale set: now is nil")
	case now.GetUID() != before.GetUID():
		t.Errorf("fl1-b has lost its scale set: now.GetUID() != before.GetUID(); %v", now)
	case now.GetDeletionTimestamp() != nil:
		t.Errorf("fl1-b has lost its scale set: now.GetDeletionTimestamp() is not nil; %v", now)
	}
	if now := y.secret(t, attacktest.FleetNamespace, "fl1-b-credential"); now == nil || now.ResourceVersion != secret.ResourceVersion {
		t.Error("its credential was touched")
	}
}

// FL-06. Of overlapping holds the strongest is in force. Lifting one keeps the others. A hold that expires while the
// fleet is stopped ends when it starts. A restart and a repeated apply of the manifests change nothing. One write
// freezes fifty pools, and the status names pools that could not be frozen. Only the plane may write another person
// as requester or approver; any other writer may use only its own name.
//
// Guard: fleet.Effective, fleet.HoldLifted, fleet.ReportHold; plane.(*FleetService).mayLift; the policies
// tailplane-fleet-holds and -writers of the chart.
func TestFL06_Holds(t *testing.T) {
	y := start(t)
	const by = "alice@example.com"
	y.pool(t, "fl6-nix", "github", 3)
	y.atGitHub(t, "fl6", []string{"fl6-nix"}, func(e *v1alpha1.RunnerEnrollmentSpec) { e.Owners = []string{"amy@acme.dev"} })
	y.active(t, "fl6")
	open := func() bool { return y.maxOf(t, attacktest.SharedRunners, "fl6-fl6-nix") == 3 }
	shut := func() bool { return y.maxOf(t, attacktest.SharedRunners, "fl6-fl6-nix") == 0 }
	inForce := func(name string) func(*v1alpha1.RunnerEnrollment) bool {
		return func(e *v1alpha1.RunnerEnrollment) bool {
			return len(e.Status.Pools) == 1 && e.Status.Pools[0].Hold == name
		}
	}
	attacktest.Eventually(t, attacktest.Long, "it has its share", open)

	t.Run("overlapping", func(t *testing.T) {
		all := y.hold(t, "fl6-all", by, v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{All: true}, Mode: v1alpha1.HoldPause})
		org := y.hold(t, "fl6-org", "amy@acme.dev", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl6"}, Mode: v1alpha1.HoldDrain})
		pool := y.hold(t, "fl6-pool", "amy@acme.dev", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl6", Pool: "fl6-nix"}, Mode: v1alpha1.HoldPause})
		y.comes(t, "fl6", "the strongest hold is in force", inForce("fl6-org"))
		attacktest.Eventually(t, attacktest.Long, "all are confirmed", func() bool {
			for _, name := range []string{"fl6-all", "fl6-org", "fl6-pool"} {
				if _, is := y.applied(t, name); is && !shut() {
					t.Fatalf("%s is reported as applied, but may have runners", name)
				} else if !is {
					return false
				}
			}
			return true
		})
		y.must(t, y.KubeClient.Delete(t.Context(), org))
		y.comes(t, "fl6", "the oldest of the others is in force", inForce("fl6-all"))
		y.must(t, y.KubeClient.Delete(t.Context(), all))
		y.comes(t, "fl6", "the last one is in force", inForce("fl6-pool"))
		attacktest.Always(t, time.Second, "it stays paused", shut)
		y.must(t, y.KubeClient.Delete(t.Context(), pool))
		attacktest.Eventually(t, attacktest.Long, "all is as it was", open)
	})

	t.Run("no runner exists", func(t *testing.T) {
		ends := metav1.NewTime(time.Now().Add(8 * time.Second))
		y.hold(t, "fl6-ends", by, v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl6"}, Mode: v1alpha1.HoldPause, ExpiresAt: &ends})
		stays := y.hold(t, "fl6-stays", by, v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Pool: "fl6-nix"}, Mode: v1alpha1.HoldPause})
		attacktest.Eventually(t, attacktest.Long, "it is paused", shut)
		again := fmt.Appendf(nil, `{apiVersion: tailplane.dev/v1alpha1, kind: RunnerPool, metadata: {name: fl6-nix}, spec: {forge: github, runsOn: [self-hosted, fl6-nix], scaling: {max: 3, budget: 30}}}
---
{apiVersion: tailplane.dev/v1alpha1, kind: RunnerEnrollment, metadata: {name: fl6}, spec: {forge: github, configURL: "%s/fl6", isolation: None, owners: [amy@acme.dev], pools: [{name: fl6-nix, type: Shared}], credentials: {secretName: fl6-credential}}}`, y.github.URL)
		y.without(t, func() {
			y.must(t, y.Cluster.Apply(t.Context(), again))
			<-time.After(time.Until(ends.Time))
			if !shut() {
				t.Error("it was resumed without a request")
			}
		})
		y.comes(t, "fl6", "only what has not expired holds", inForce("fl6-stays"))
		y.must(t, y.Cluster.Apply(t.Context(), again)) // and again while the fleet runs
		attacktest.Always(t, 2*time.Second, "it stays paused", shut)
		attacktest.Eventually(t, attacktest.Long, "the expiry is recorded", func() bool {
			s, _ := y.applied(t, "fl6-ends")
			return meta.IsStatusConditionTrue(s.Conditions, "Expired")
		})
		y.must(t, y.KubeClient.Delete(t.Context(), stays))
		attacktest.Eventually(t, attacktest.Long, "nothing holds it", open)
		// The same state; only the end of the hold opens the pool again.
		ends = metav1.NewTime(time.Now().Add(5 * time.Second))
		y.hold(t, "fl6-short", by, v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl6"}, Mode: v1alpha1.HoldPause, ExpiresAt: &ends})
		attacktest.Eventually(t, attacktest.Long, "it is paused", shut)
		y.without(t, func() { <-time.After(time.Until(ends.Time)) })
		attacktest.Eventually(t, attacktest.Long, "it had expired when the fleet restarted", open)
	})

	t.Run("its owner", func(t *testing.T) {
		alice, amy := y.Visitor(t, "alice-fleet", by), y.Visitor(t, "amy-fleet", "amy@acme.dev")
		y.Allowed(t, amy, true)
		y.hold(t, "fl6-all", by, v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{All: true}, Mode: v1alpha1.HoldPause})
		attacktest.Eventually(t, attacktest.Long, "both show it", func() bool {
			shown, _ := y.shown(t, amy, "github", "fl6", "fl6-nix")
			return slices.Contains(shown.Holds, "fl6-all")
		})
		if a := y.Request(t, amy, "POST", "/api/v1/pools/github/fl6/fl6-nix/pause", `{"reason":"mine"}`); a.Status >= 300 {
			t.Fatalf("amy pauses: %d %s", a.Status, a.Body)
		}
		var lifted struct{ Lifted, Remaining []string }
		attacktest.Eventually(t, attacktest.Long, "the plane shows it", func() bool {
			shown, _ := y.shown(t, amy, "github", "fl6", "fl6-nix")
			return len(shown.Holds) == 2
		})
		if a := y.Request(t, amy, "POST", "/api/v1/pools/github/fl6/fl6-nix/resume", `{"reason":"mine"}`); a.Status != http.StatusOK || json.Unmarshal(a.Data, &lifted) != nil {
			t.Errorf("amy resumes her pool: %d %s", a.Status, a.Body)
		}
		if len(lifted.Lifted) != 1 || !slices.Equal(lifted.Remaining, []string{"fl6-all"}) {
			t.Errorf("%+v", lifted)
		}
		for _, x := range []struct{ method, path string }{{"DELETE", "/api/v1/holds/fl6-all"}, {"POST", "/api/v1/pools/github/fl6/fl6-nix/resume"}} {
			if a := y.Request(t, amy, x.method, x.path, `{"reason":"mine","confirm":"LIFT ALL"}`); a.Status < 400 {
				t.Errorf("amy lifts everything by %s: %d %s", x.path, a.Status, a.Body)
			}
		}
		attacktest.Always(t, time.Second, "it stays paused", shut)
		for _, body := range []string{`{"scope":{"org":"fl6"},"reason":"x","requestedBy":"pat@platform.example"}`, `{"scope":{"org":"fl6"},"reason":"x","spec":{"requestedBy":"pat@platform.example"}}`} {
			if a := y.Request(t, alice, "POST", "/api/v1/holds", body); a.Status != http.StatusBadRequest && a.Status != http.StatusUnprocessableEntity {
				t.Errorf("%s: %d %s", body, a.Status, a.Body)
			}
		}
		var holds v1alpha1.RunnerHoldList
		y.must(t, y.KubeClient.List(t.Context(), &holds))
		for _, h := range holds.Items {
			if h.Spec.RequestedBy == "pat@platform.example" {
				t.Errorf("stored in pat's name: %+v", h)
			}
		}
	})

	t.Run("a client's text", func(t *testing.T) {
		mallory, masters := y.somebody(t, "mallory@acme.dev"), y.writer(t, "argo")
		hold := func(by string) *v1alpha1.RunnerHold {
			return &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: "fl6-forged"}, Spec: v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "fl6"}, Mode: v1alpha1.HoldPause, Reason: "x", RequestedBy: by}}
		}
		for _, name := range []string{"pat@platform.example", "MALLORY@acme.dev", "mallory@acme.dev ", ""} {
			if err := mallory.Create(t.Context(), hold(name), client.DryRunAll); err == nil {
				t.Errorf("mallory holds in the name of %q", name)
			}
		}
		if err := mallory.Create(t.Context(), hold("mallory@acme.dev"), client.DryRunAll); err != nil {
			t.Errorf("in her own name: %v", err)
		}
		e := y.get(t, "fl6")
		approved := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"approval":{"by":"pat@platform.example","at":"2026-01-01T00:00:00Z","digest":"sha256:`+strings.Repeat("0", 64)+`"}}}`))
		for who, c := range map[string]client.Client{"mallory": mallory, "amy, who owns it": y.somebody(t, "amy@acme.dev"), "the account that applies reviewed changes": masters, "the fleet": y.ClientFor(t, y.fleetConfig(t))} {
			if err := c.Patch(t.Context(), e.DeepCopy(), approved, client.DryRunAll); err == nil || !apierrors.IsForbidden(err) {
				t.Errorf("%s approves: %v", who, err)
			}
		}
		if err := masters.Patch(t.Context(), e.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"members":["*@acme.dev"]}}`)), client.DryRunAll); err != nil {
			t.Errorf("the control: %v", err)
		}
	})

	t.Run("fifty pools", func(t *testing.T) {
		const n = 50
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("fl6-%02d", i))
			y.pool(t, names[i], "github", 2)
		}
		y.pool(t, "fl6-docker", "gitlab", 2)
		y.atGitHub(t, "fl6-many", names)
		y.atGitLab(t, "fl6-down", []string{"fl6-docker"})
		y.active(t, "fl6-many")
		y.active(t, "fl6-down")
		shares := func() (open int) {
			most := y.maxima(t, attacktest.SharedRunners)
			for _, name := range names {
				if most["fl6-many-"+name] == 2 {
					open++
				}
			}
			return open
		}
		attacktest.Eventually(t, attacktest.Long, "all take jobs", func() bool {
			y.managersRun(t)
			r, _ := y.runnerOf("fl6-down-fl6-docker")
			return shares() == n && !r.Paused
		})
		y.gitlab.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Drop: true} })
		t.Cleanup(func() { y.gitlab.Fault(nil) })
		m, began := y.Mark(t), time.Now()
		h := y.hold(t, "fl6-freeze", by, v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{All: true}, Mode: v1alpha1.HoldPause})
		var s v1alpha1.RunnerHoldStatus
		attacktest.Eventually(t, attacktest.Long, "all that can be are frozen", func() bool {
			s, _ = y.applied(t, h.Name)
			return s.Targets == n+2 && s.Applied == n+1
		})
		t.Logf("%d of %d held and confirmed %v after the write (the row says 10 s for 99 %%), by %d writes", s.Applied, s.Targets, time.Since(began).Round(time.Millisecond), len(y.told(t, m)))
		attacktest.Eventually(t, attacktest.Long, "the others are named", func() bool {
			var is bool
			s, is = y.applied(t, h.Name)
			return !is && slices.Equal(s.Failed, []v1alpha1.HoldFailure{{Pool: "fl6-docker", Org: "fl6-down", Reason: "ForgeUnreachable"}})
		})
		if got := shares(); got != 0 {
			t.Errorf("%d workloads that are reported as held may have runners", got)
		}
		y.gitlab.Fault(nil)
		attacktest.Eventually(t, attacktest.Long, "the last one is frozen", func() bool { _, is := y.applied(t, h.Name); return is })
		y.must(t, y.KubeClient.Delete(t.Context(), h))
		attacktest.Eventually(t, attacktest.Long, "all resume", func() bool { return shares() == n })
	})
}

// fleetConfig returns the client configuration of the fleet's account.
func (y *env) fleetConfig(t *testing.T) *rest.Config {
	t.Helper()
	path, err := y.Cluster.ServiceAccountKubeconfig(t.Context(), attacktest.FleetNamespace, "tailplane-fleet", t.TempDir())
	y.must(t, err)
	return attacktest.ClientConfig(t, path)
}
