package fleet

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// silences lists the ways in which a forge gives no usable answer. why is the reason of the condition that reports
// it, where the fleet is certain to notice.
var silences = []struct{ name, why string }{
	{"429 with a pause", "Unknown/NotChecked"}, {"429", "Unknown/NotChecked"}, {"500", "Unknown/NotChecked"}, {"503 in HTML", "Unknown/NotChecked"},
	{"no connection", "Unknown/NotChecked"}, {"half an answer", "Unknown/NotChecked"}, {"no answer", ""}, {"empty pages", ""},
}

// silence returns the fault of a forge for one of these ways. nil means a normal answer.
func silence(name string, r *http.Request) *forgetest.Fault {
	f := says(http.StatusInternalServerError)
	switch name {
	case "429 with a pause":
		f = says(http.StatusTooManyRequests)
		f.Header.Set("Retry-After", "1")
	case "429":
		f = says(http.StatusTooManyRequests)
	case "503 in HTML":
		f = forgetest.Fault{Status: http.StatusServiceUnavailable, Header: http.Header{"Content-Type": {"text/html"}}, Body: "<h1>maintenance</h1>"}
	case "no connection":
		f = forgetest.Fault{Drop: true}
	case "half an answer":
		f = forgetest.Fault{Cut: 9}
	case "no answer":
		f = forgetest.Fault{Hang: true}
	case "empty pages":
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "/runners") && !strings.HasSuffix(r.URL.Path, "/jobs") && !strings.HasSuffix(r.URL.Path, "/managers") {
			return nil
		}
		f = forgetest.Fault{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: "[]"}
	}
	return &f
}

// FL-04. A forge that answers 429 or 5xx, partially, with empty pages or not at all has given no information. The
// fleet therefore deletes and closes nothing, and reports nothing as paused or gone. This also applies to a fleet
// that starts in the meantime. A condition gives the reason. The same applies while ARC is away, has another version,
// or deletes its objects: the fleet does not recreate them again and again.
//
// Guard: forge.ClassOf and controller.(*forgeSession).check; (*look).askRunner; fleet.StoppedGitHub; arc.Choose and
// arc.(CreationGate).Allows.
func TestFL04_NoAnswer(t *testing.T) {
	y := start(t)
	y.pool(t, "fl4-nix", "github", 3)
	y.pool(t, "fl4-docker", "gitlab", 3)
	y.atGitHub(t, "fl4-hub", []string{"fl4-nix"})
	y.atGitHub(t, "fl4-goes", []string{"fl4-nix"})
	y.atGitLab(t, "fl4-lab", []string{"fl4-docker"})
	y.atGitLab(t, "fl4-leaves", []string{"fl4-docker"})
	for _, org := range []string{"fl4-hub", "fl4-goes", "fl4-lab", "fl4-leaves"} {
		y.active(t, org)
	}
	runner := func(org string) (r forgetest.GitLabRunner, there bool) { return y.runnerOf(org + "-fl4-docker") }
	hub := func() bool {
		return y.maxOf(t, attacktest.SharedRunners, "fl4-hub-fl4-nix") == 3 && y.atGitHubHas("fl4-hub-fl4-nix")
	}
	lab := func() bool {
		r, there := runner("fl4-lab")
		return there && !r.Paused && len(y.listed(t, things[5], "fl4-lab")) == 1 && y.secret(t, attacktest.SharedRunners, "fl4-lab-fl4-docker-runner-token") != nil
	}
	attacktest.Eventually(t, attacktest.Long, "all take jobs", func() bool { y.managersRun(t); return hub() && lab() })
	// untaken fails if any object was deleted since the mark, or a forge received a deletion.
	untaken := func(t *testing.T, m attacktest.LogMark, asked int) {
		t.Helper()
		for _, k := range y.told(t, m) {
			if strings.HasPrefix(k.Verb, "delete") {
				t.Errorf("it requested to %s", k)
			}
		}
		for _, c := range y.gitlab.Calls()[asked:] {
			if c.Method != http.MethodGet {
				t.Errorf("it requested GitLab to %s %s", c.Method, c.Path)
			}
		}
	}
	unspoiled := func() { y.github.Fault(nil); y.gitlab.Fault(nil) }
	t.Cleanup(unspoiled)

	for _, s := range silences {
		t.Run(s.name, func(t *testing.T) {
			defer unspoiled()
			m, atHub, atLab := y.Mark(t), 0, 0
			y.without(t, func() {
				f := func(r *http.Request) *forgetest.Fault { return silence(s.name, r) }
				y.github.Fault(f)
				y.gitlab.Fault(f)
				atHub, atLab = len(y.github.Calls()), len(y.gitlab.Calls())
			})
			attacktest.Eventually(t, attacktest.Long, "both got requests", func() bool {
				if s.why == "" { // not every request fails, or not soon
					return len(y.gitlab.Calls()) > atLab
				}
				return len(y.gitlab.Calls()) > atLab && len(y.github.Calls()) > atHub
			})
			if s.why != "" {
				y.says(t, "fl4-hub", "CredentialsValid", s.why)
				y.says(t, "fl4-lab", "CredentialsValid", s.why)
			}
			attacktest.Always(t, 2*time.Second, "both take jobs", func() bool { return hub() && lab() })
			untaken(t, m, atLab)
		})
	}
	for _, org := range []string{"fl4-hub", "fl4-goes", "fl4-lab", "fl4-leaves"} {
		y.says(t, org, "CredentialsValid", "True/")
	}

	t.Run("an end", func(t *testing.T) {
		defer unspoiled()
		m, atLab := y.Mark(t), len(y.gitlab.Calls())
		y.gitlab.Fault(func(r *http.Request) *forgetest.Fault { return silence("503 in HTML", r) })
		y.denied.Store(y.github.URL+"/fl4-goes", true) // GitHub is away for ARC
		defer y.denied.Delete(y.github.URL + "/fl4-goes")
		y.leave(t, "fl4-leaves")
		y.leave(t, "fl4-goes")
		whole := func() bool {
			_, there := runner("fl4-leaves")
			return there && !y.gone(t, "fl4-leaves") && y.secret(t, attacktest.FleetNamespace, "fl4-leaves-credential") != nil && len(y.listed(t, things[5], "fl4-leaves")) == 1 &&
				!y.gone(t, "fl4-goes") && y.secret(t, attacktest.FleetNamespace, "fl4-goes-credential") != nil && y.atGitHubHas("fl4-goes-fl4-nix")
		}
		attacktest.Eventually(t, attacktest.Long, "GitLab and ARC got requests", func() bool {
			u := y.setOf(t, attacktest.SharedRunners, "fl4-goes-fl4-nix")
			return len(y.gitlab.Calls()) > atLab && u != nil && u.GetDeletionTimestamp() != nil
		})
		attacktest.Always(t, 3*time.Second, "nothing goes", whole)
		for _, k := range y.told(t, m) {
			if strings.HasPrefix(k.Verb, "delete") && k.ObjectRef.Resource != "autoscalingrunnersets" {
				t.Errorf("it requested to %s", k)
			}
		}
		for _, f := range []forgetest.Fault{*silence("429 with a pause", nil), says(http.StatusInternalServerError), {Drop: true}, says(http.StatusNotFound)} {
			asked := len(y.gitlab.Calls())
			y.gitlab.Fault(toDeletion(f))
			attacktest.Eventually(t, attacktest.Long, "GitLab got a request to delete it", func() bool {
				y.managersRun(t)
				return slices.ContainsFunc(y.gitlab.Calls()[asked:], func(c forgetest.Call) bool { return c.Method == http.MethodDelete && c.Status == f.Status })
			})
			attacktest.Always(t, time.Second, "it does not count as deleted", whole)
		}
		y.gitlab.Fault(nil)
		y.denied.Delete(y.github.URL + "/fl4-goes")
		for _, org := range []string{"fl4-goes", "fl4-leaves"} {
			attacktest.Eventually(t, attacktest.Long, org+" goes", func() bool { y.managersRun(t); return y.gone(t, org) })
		}
		if _, there := runner("fl4-leaves"); there || y.atGitHubHas("fl4-goes-fl4-nix") {
			t.Error("a forge still has it")
		}
	})

	t.Run("a hold", func(t *testing.T) {
		defer unspoiled()
		y.gitlab.Fault(func(r *http.Request) *forgetest.Fault { return silence("500", r) })
		start, err := y.arc.Upgrade(t.Context(), "0.14.2") // no controller runs; its listeners continue
		y.must(t, err)
		back := func() { y.must(t, start(t.Context())) }
		for _, org := range []string{"fl4-hub", "fl4-lab"} {
			y.hold(t, org, "alice@example.com", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: org}, Mode: v1alpha1.HoldPause})
		}
		attacktest.Eventually(t, attacktest.Long, "it is written", func() bool { return y.maxOf(t, attacktest.SharedRunners, "fl4-hub-fl4-nix") == 0 })
		attacktest.Always(t, 3*time.Second, "neither is reported as applied", func() bool {
			_, a := y.applied(t, "fl4-hub")
			_, b := y.applied(t, "fl4-lab")
			return !a && !b
		})
		back()
		y.gitlab.Fault(nil)
		attacktest.Eventually(t, attacktest.Long, "both are confirmed", func() bool {
			_, a := y.applied(t, "fl4-hub")
			_, b := y.applied(t, "fl4-lab")
			r, _ := runner("fl4-lab")
			if b && !r.Paused {
				t.Fatal("it is reported as applied, but the runner takes jobs")
			}
			return a && b
		})
		for _, org := range []string{"fl4-hub", "fl4-lab"} {
			y.drop(t, &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: org}})
		}
		attacktest.Eventually(t, attacktest.Long, "all take jobs again", func() bool { y.managersRun(t); return hub() && lab() })
	})

	t.Run("ARC is not running", func(t *testing.T) {
		m := y.Mark(t)
		_, err := y.arc.Upgrade(t.Context(), "0.14.2")
		y.must(t, err)
		y.must(t, y.Clientset.AppsV1().Deployments("arc-systems").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
		y.says(t, "fl4-hub", "Degraded", "True/ARCMissing")
		y.atGitHub(t, "fl4-new", []string{"fl4-nix"})
		y.says(t, "fl4-new", "Ready", "False/ARCMissing")
		attacktest.Always(t, 2*time.Second, "existing objects stay, and no object is created", func() bool { return hub() && y.setOf(t, attacktest.SharedRunners, "fl4-new-fl4-nix") == nil })
		untaken(t, m, len(y.gitlab.Calls()))
		start, err := y.arc.Upgrade(t.Context(), "0.14.2")
		y.must(t, err)
		y.must(t, start(t.Context()))
		y.active(t, "fl4-new")
	})

	t.Run("ARC is of another version", func(t *testing.T) {
		m := y.Mark(t)
		start, err := y.arc.Upgrade(t.Context(), "0.15.0")
		y.must(t, err)
		y.must(t, start(t.Context())) // and it deletes the previous version's scale sets, whichever tool created them
		y.says(t, "fl4-hub", "Degraded", "True/ARCVersionUnsupported")
		attacktest.Eventually(t, attacktest.Long, "ARC has deleted it", func() bool { return y.setOf(t, attacktest.SharedRunners, "fl4-hub-fl4-nix") == nil })
		attacktest.Always(t, 3*time.Second, "it is not created again", func() bool { return y.setOf(t, attacktest.SharedRunners, "fl4-hub-fl4-nix") == nil })
		untaken(t, m, len(y.gitlab.Calls()))
		if y.secret(t, attacktest.FleetNamespace, "fl4-hub-credential") == nil {
			t.Error("its credential was deleted")
		}
		start, err = y.arc.Upgrade(t.Context(), "0.14.2")
		y.must(t, err)
		y.must(t, start(t.Context()))
		attacktest.Eventually(t, attacktest.Long, "it is created again", hub)
	})
	t.Run("ARC deletes the new objects", func(t *testing.T) {
		y.arc.Lie("0.13.1")
		t.Cleanup(func() { y.arc.Lie("0.14.2") })
		m := y.Mark(t)
		made := func() (n int) {
			for _, k := range y.told(t, m) {
				if k.ObjectRef.Resource == "autoscalingrunnersets" && strings.HasPrefix(k.ObjectRef.Name, "fl4-loop-") {
					n++
				}
			}
			return n
		}
		y.atGitHub(t, "fl4-loop", []string{"fl4-nix"})
		y.says(t, "fl4-loop", "Degraded", "True/ARCDeletesScaleSets")
		attacktest.Always(t, 5*time.Second, "it is not created again", func() bool { y.look(t, "fl4-loop"); return made() == 2 })
		if y.atGitHubHas("fl4-loop-fl4-nix") {
			t.Error("GitHub has it")
		}
	})
}
