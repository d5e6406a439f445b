package plane

import ()

// The tables of the lists: the columns for search and sort, and the states.

func pools() table[Pool] {
	return table[Pool]{Kind: KindPool, Name: "PoolList", Columns: map[string]func(Pool) string{
		"name":  func(o Pool) string { return o.Name },
		"forge": func(o Pool) string { return o.Forge },
		"org":   func(o Pool) string { return o.OrgName },
		"type":  func(o Pool) string { return o.Type },
		"state": func(o Pool) string { return o.State },
		"busy":  func(o Pool) string { return sortableNumber(o.Counts.Busy) },
		"idle":  func(o Pool) string { return sortableNumber(o.Counts.Idle) },
	}, State: Pool.CurrentState, States: []string{PoolFailing, StateUnknown, PoolDegraded, PoolPausing, PoolDraining, PoolResuming, PoolProvisioning, PoolDrained, PoolPaused, PoolActive}}
}

func enrollments() table[Enrollment] {
	return table[Enrollment]{Kind: KindEnrollment, Name: "EnrollmentList", Columns: map[string]func(Enrollment) string{
		"name":      func(o Enrollment) string { return o.Name },
		"forge":     func(o Enrollment) string { return o.Forge },
		"isolation": func(o Enrollment) string { return o.Isolation },
		"phase":     func(o Enrollment) string { return o.Phase },
	}, State: Enrollment.CurrentState, States: []string{StateUnknown, "Requested", "Approved", "Provisioning", "Active", "Suspended", "Draining", "Offboarded", "Failed"}}
}

func holds() table[Hold] {
	return table[Hold]{Kind: KindHold, Name: "HoldList", Columns: map[string]func(Hold) string{
		"name":        func(o Hold) string { return o.Name },
		"scope":       func(o Hold) string { return o.Scope.String() },
		"mode":        func(o Hold) string { return string(o.Mode) },
		"reason":      func(o Hold) string { return o.Reason },
		"requestedBy": func(o Hold) string { return o.RequestedBy },
		"created":     func(o Hold) string { return sortableTime(&o.Created) },
		"expiresAt":   func(o Hold) string { return sortableTime(o.ExpiresAt) },
	}, State: Hold.CurrentState, States: []string{HoldApplying, HoldApplied, PoolDrained, HoldLifting, HoldExpired}}
}

func drifts() table[Drift] {
	return table[Drift]{Kind: KindDrift, Name: "DriftList", Columns: map[string]func(Drift) string{
		"org":       func(o Drift) string { return o.OrgName },
		"pool":      func(o Drift) string { return o.Pool },
		"field":     func(o Drift) string { return o.Field },
		"severity":  func(o Drift) string { return o.Severity },
		"evidence":  func(o Drift) string { return o.Evidence },
		"firstSeen": func(o Drift) string { return sortableTime(&o.FirstSeen) },
	}, State: Drift.CurrentState, States: []string{"error", "warning", "info", DriftExplained, DriftIgnored}}
}

func forges() table[Forge] {
	return table[Forge]{Kind: KindForge, Name: "ForgeList", Columns: map[string]func(Forge) string{
		"name": func(o Forge) string { return o.Name },
		"type": func(o Forge) string { return o.Type },
		"url":  func(o Forge) string { return o.URL },
	}, State: Forge.CurrentState, States: []string{"Reachable", "Unreachable", StateUnknown}}
}
