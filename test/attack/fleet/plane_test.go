package fleet

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// forgeShown returns a forge as the plane shows it.
func (y *env) forgeShown(t *testing.T, p *testenv.Person, name string) (f plane.Forge) {
	t.Helper()
	var all []plane.Forge
	if a := y.Request(t, p, http.MethodGet, "/api/v1/forges", ""); a.Status != http.StatusOK || json.Unmarshal(a.Data, &all) != nil {
		t.Fatalf("forges: %d %s", a.Status, a.Body)
	}
	if i := slices.IndexFunc(all, func(f plane.Forge) bool { return f.Name == name }); i >= 0 {
		return all[i]
	}
	t.Fatalf("there is no forge %s: %+v", name, all)
	return f
}

// PL-07. The fleet and a forge fail in turn. The plane invents nothing in the meantime: values without a source are null or
// unknown, and known values stay at their last report. A hold is shown in force only after the forge confirms it. A
// forge that is away is named. The API server: TestPL07_TheAPIServerGoesAway of internal/plane/kube.
//
// Guard: kube.poolState, controller.(*reconciler).forge.
func TestPL07_SourcesDie(t *testing.T) {
	y := start(t)
	alice := y.Visitor(t, "alice-fleet", "alice@example.com")
	y.pool(t, "pl7-nix", "github", 3)
	y.pool(t, "pl7-docker", "gitlab", 3)
	y.atGitHub(t, "pl7-hub", []string{"pl7-nix"})
	y.atGitLab(t, "pl7-lab", []string{"pl7-docker"})
	y.active(t, "pl7-hub")
	y.active(t, "pl7-lab")
	state := func(forge, org, pool string) string {
		shown, a := y.shown(t, alice, forge, org, pool)
		if a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		return shown.State
	}
	both := func(want string) func() bool {
		return func() bool {
			y.managersRun(t)
			return state("github", "pl7-hub", "pl7-nix") == want && state("gitlab", "pl7-lab", "pl7-docker") == want
		}
	}
	attacktest.Eventually(t, attacktest.Long, "both are shown active", both(plane.PoolActive))

	t.Run("the fleet", func(t *testing.T) {
		shown, _ := y.shown(t, alice, "github", "pl7-hub", "pl7-nix")
		y.without(t, func() {
			// An organisation that enrolls in the meantime is unknown, and every number of it is null.
			y.enroll(t, "pl7-new", "github", y.github.URL+"/pl7-new", []string{"pl7-nix"})
			var fresh plane.Pool
			attacktest.Eventually(t, attacktest.Long, "the new one is shown", func() bool {
				var a attacktest.PlaneReply
				fresh, a = y.shown(t, alice, "github", "pl7-new", "pl7-nix")
				return a.Status == http.StatusOK
			})
			switch {
			case fresh.State != plane.StateUnknown:
				t.Errorf("the new enrollment is shown: fresh.State = %q, want %q", fresh.State, plane.StateUnknown)
			case fresh.Counts != (plane.Counts{}):
				t.Errorf("the new enrollment is shown: fresh.Counts = %v, want %v", fresh.Counts, (plane.Counts{}))
			case fresh.EffectiveMax != nil:
				t.Errorf("the new enrollment is shown: fresh.EffectiveMax = %v, want nil", fresh.EffectiveMax)
			case fresh.Allocated != nil:
				t.Errorf("the new enrollment is shown: fresh.Allocated = %v, want nil", fresh.Allocated)
			case fresh.ScaleSetID != nil:
				t.Errorf("the new enrollment is shown: fresh.ScaleSetID = %v, want nil", fresh.ScaleSetID)
			}
			y.hold(t, "pl7", "alice@example.com", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "pl7-hub"}, Mode: v1alpha1.HoldPause})
			attacktest.Eventually(t, attacktest.Long, "the hold is shown", func() bool { return state("github", "pl7-hub", "pl7-nix") == plane.PoolPausing })
			attacktest.Always(t, 3*time.Second, "it is not shown in force", func() bool { return state("github", "pl7-hub", "pl7-nix") == plane.PoolPausing })
			now, _ := y.shown(t, alice, "github", "pl7-hub", "pl7-nix")
			switch {
			case now.Allocated == nil:
				t.Error("the known state: now.Allocated is nil")
			case *now.Allocated != *shown.Allocated:
				t.Errorf("the known state: *now.Allocated = %v, want %v", *now.Allocated, *shown.Allocated)
			case now.ScaleSetID == nil:
				t.Error("the known state: now.ScaleSetID is nil")
			case *now.ScaleSetID != *shown.ScaleSetID:
				t.Errorf("the known state: *now.ScaleSetID = %v, want %v", *now.ScaleSetID, *shown.ScaleSetID)
			}
		})
		attacktest.Eventually(t, attacktest.Long, "the fleet is back", func() bool {
			if state("github", "pl7-hub", "pl7-nix") == plane.PoolPaused {
				if n := y.maxOf(t, attacktest.SharedRunners, "pl7-hub-pl7-nix"); n != 0 {
					t.Fatalf("it is shown as paused, but may have %d", n)
				}
				return true
			}
			return false
		})
	})
	attacktest.Eventually(t, attacktest.Long, "all is as it was", both(plane.PoolActive))

	t.Run("a forge", func(t *testing.T) {
		t.Cleanup(func() { y.gitlab.Fault(nil) })
		began := time.Now()
		y.gitlab.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: http.StatusBadGateway} })
		y.hold(t, "pl7-lab", "alice@example.com", v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{Org: "pl7-lab"}, Mode: v1alpha1.HoldPause})
		var f plane.Forge
		attacktest.Eventually(t, attacktest.Long, "it is named", func() bool {
			y.look(t, "pl7-lab")
			if s := state("gitlab", "pl7-lab", "pl7-docker"); s == plane.PoolPaused || s == plane.PoolDrained {
				t.Fatalf("it is shown as %s, but GitLab was not reached", s)
			}
			f = y.forgeShown(t, alice, "gitlab")
			return f.Reachable != nil && !*f.Reachable
		})
		b, err := json.Marshal(f)
		y.must(t, err)
		if f.ObservedAt.Before(began.Add(-time.Minute)) || !strings.Contains(string(b), "nswer") {
			t.Errorf("why, and since when: %s", b)
		}
		switch hub := y.forgeShown(t, alice, "github"); {
		case hub.Reachable == nil:
			t.Error("the other one is shown: hub.Reachable is nil")
		case !*hub.Reachable:
			t.Errorf("the other one is shown: *hub.Reachable is false; %+v", hub)
		case state("github", "pl7-hub", "pl7-nix") != plane.PoolActive:
			t.Errorf(`the other one is shown: state("github", "pl7-hub", "pl7-nix") != plane.PoolActive; %+v`, hub)
		}
		y.gitlab.Fault(nil)
		attacktest.Eventually(t, attacktest.Long, "it is confirmed", func() bool { return state("gitlab", "pl7-lab", "pl7-docker") == plane.PoolPaused })
		attacktest.Eventually(t, attacktest.Long, "it answers again", func() bool {
			y.look(t, "pl7-lab")
			f = y.forgeShown(t, alice, "gitlab")
			return f.Reachable != nil && *f.Reachable
		})
	})
}
