package planefleet

import (
	"github.com/tailplane/tailplane/internal/plane"
)

// The tables of the lists: the columns for search and sort, and the states.

func pools() plane.Table[Pool] {
	return plane.Table[Pool]{Kind: plane.KindPool, Name: "PoolList", Columns: map[string]func(Pool) string{
		"name":  func(o Pool) string { return o.Name },
		"forge": func(o Pool) string { return o.Forge },
		"org":   func(o Pool) string { return o.OrgName },
		"type":  func(o Pool) string { return o.Type },
		"state": func(o Pool) string { return o.State },
		"busy":  func(o Pool) string { return plane.Number(o.Counts.Busy) },
		"idle":  func(o Pool) string { return plane.Number(o.Counts.Idle) },
	}, State: Pool.Stands, States: []string{Failing, Unknown, Degraded, Pausing, Draining, Resuming, Provisioning, Drained, Paused, Active}}
}

func enrollments() plane.Table[Enrollment] {
	return plane.Table[Enrollment]{Kind: plane.KindEnrollment, Name: "EnrollmentList", Columns: map[string]func(Enrollment) string{
		"name":      func(o Enrollment) string { return o.Name },
		"forge":     func(o Enrollment) string { return o.Forge },
		"isolation": func(o Enrollment) string { return o.Isolation },
		"phase":     func(o Enrollment) string { return o.Phase },
	}, State: Enrollment.Stands, States: []string{Unknown, "Requested", "Approved", "Provisioning", "Active", "Suspended", "Draining", "Offboarded", "Failed"}}
}

func holds() plane.Table[Hold] {
	return plane.Table[Hold]{Kind: plane.KindHold, Name: "HoldList", Columns: map[string]func(Hold) string{
		"name":        func(o Hold) string { return o.Name },
		"scope":       func(o Hold) string { return o.Scope.String() },
		"mode":        func(o Hold) string { return string(o.Mode) },
		"reason":      func(o Hold) string { return o.Reason },
		"requestedBy": func(o Hold) string { return o.RequestedBy },
		"created":     func(o Hold) string { return plane.Sortable(&o.Created) },
		"expiresAt":   func(o Hold) string { return plane.Sortable(o.ExpiresAt) },
	}, State: Hold.Stands, States: []string{Applying, Applied, Drained, Lifting, Expired}}
}

func drifts() plane.Table[Drift] {
	return plane.Table[Drift]{Kind: plane.KindDrift, Name: "DriftList", Columns: map[string]func(Drift) string{
		"org":       func(o Drift) string { return o.OrgName },
		"pool":      func(o Drift) string { return o.Pool },
		"field":     func(o Drift) string { return o.Field },
		"severity":  func(o Drift) string { return o.Severity },
		"evidence":  func(o Drift) string { return o.Evidence },
		"firstSeen": func(o Drift) string { return plane.Sortable(&o.FirstSeen) },
	}, State: Drift.Stands, States: []string{"error", "warning", "info", Explained, Ignore}}
}

func forges() plane.Table[Forge] {
	return plane.Table[Forge]{Kind: plane.KindForge, Name: "ForgeList", Columns: map[string]func(Forge) string{
		"name": func(o Forge) string { return o.Name },
		"type": func(o Forge) string { return o.Type },
		"url":  func(o Forge) string { return o.URL },
	}, State: Forge.Stands, States: []string{"Reachable", "Unreachable", Unknown}}
}
