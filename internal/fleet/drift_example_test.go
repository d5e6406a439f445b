package fleet_test

import (
	"fmt"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A person paused a runner at GitLab. The second check reports it. Each check gets the findings of
// the previous one.
func ExampleCheckDrift() {
	org := fleet.DriftInput{Name: "acme", Forge: v1alpha1.GitLab, Complete: fleet.Yes, Listed: fleet.Yes, Workloads: []fleet.DriftWorkload{{
		Pool: "gl-nix", Name: "acme-gl-nix", Allocated: 4, Capacity: fleet.Capacity{Max: 4},
		Cluster: fleet.ClusterState{Object: fleet.Yes, Intake: fleet.Yes, Pods: new(1)},
		Remote:  fleet.ForgeState{Exists: fleet.Yes, ID: 7, Paused: fleet.Yes, Contacted: fleet.Yes, Online: fleet.Yes},
	}}}
	now := time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)
	var current []fleet.Finding
	for range 2 {
		current = fleet.CheckDrift(org, current, now)
		fmt.Println(now.Format(time.TimeOnly), len(fleet.UnexplainedFindings(current, now)), "to be reported")
		now = now.Add(5 * time.Minute) // real callers use fleet.NextDriftCheck
	}
	for _, f := range current {
		fmt.Printf("%s %s: %s since %s. %s\n", f.Severity, f.Workload, f.Kind, f.FirstSeen.Format(time.TimeOnly), f.Evidence)
	}
	// Output:
	// 12:00:00 0 to be reported
	// 12:05:00 1 to be reported
	// warning acme-gl-nix: PausedOutside since 12:00:00. It is paused at the forge, but no hold or allocation requires it.
}
