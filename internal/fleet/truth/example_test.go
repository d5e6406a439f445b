package truth_test

import (
	"fmt"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/truth"
)

// A person paused a runner at GitLab. The second check reports it. Each check gets the findings of
// the previous one.
func ExampleCheck() {
	org := truth.Org{Name: "acme", Forge: v1alpha1.GitLab, Whole: fleet.Yes, Listed: fleet.Yes, Workloads: []truth.Workload{{
		Pool: "gl-nix", Name: "acme-gl-nix", Allocated: 4, Capacity: fleet.Capacity{Max: 4},
		Cluster: truth.Cluster{Object: fleet.Yes, Intake: fleet.Yes, Pods: new(1)},
		Remote:  truth.Remote{Exists: fleet.Yes, ID: 7, Paused: fleet.Yes, Contacted: fleet.Yes, Online: fleet.Yes},
	}}}
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	var stands []truth.Finding
	for range 2 {
		stands = truth.Check(org, stands, now)
		fmt.Println(now.Format(time.TimeOnly), len(truth.Drift(stands, now)), "to be told")
		now = now.Add(5 * time.Minute) // real callers use truth.Next
	}
	for _, f := range stands {
		fmt.Printf("%s %s: %s since %s. %s\n", f.Severity, f.Workload, f.Kind, f.FirstSeen.Format(time.TimeOnly), f.Evidence)
	}
	// Output:
	// 12:00:00 0 to be told
	// 12:05:00 1 to be told
	// warning acme-gl-nix: PausedOutside since 12:00:00. It is paused at the forge, and nothing here says so.
}
