package arc

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/fleet"
)

// Limits of the gate. A scale set that disappears within gateWindow of its creation was deleted by
// ARC itself. After maxGate such deletions, the fleet creates nothing for gateBackOff, unless ARC's
// version changes.
const (
	gateWindow  = 2 * time.Minute
	maxGate     = 2
	gateBackOff = time.Hour
)

// A CreationGate records, for one workload, whether ARC deletes new scale sets. Every ARC deletes scale
// sets with another version than its own, and would delete a new one again at once. The gate is
// stored as text in an annotation. Its zero value means that nothing was created yet.
type CreationGate struct {
	Version   string    `json:"version"` // ARC version of the last creation
	CreatedAt time.Time `json:"made"`
	Deleted   int       `json:"deleted,omitempty"` // consecutive deletions
}

// ParseCreationGate parses the text of [CreationGate.String]. Unreadable text counts as the zero value: ARC's
// deletion then shows again.
func ParseCreationGate(s string) CreationGate {
	var g CreationGate
	if json.Unmarshal([]byte(s), &g) != nil || g.Deleted < 0 {
		return CreationGate{}
	}
	return g
}

// String returns the text for [ParseCreationGate].
func (g CreationGate) String() string {
	b, err := json.Marshal(g)
	if err != nil {
		return "" // a year that JSON cannot represent: same as the zero value
	}
	return string(b)
}

// Created returns the state to store before the creation of a scale set for a version of ARC.
func (g CreationGate) Created(version string, now time.Time) CreationGate {
	deleted := g.Deleted
	if g.Version != version {
		deleted = 0
	}
	return CreationGate{Version: version, CreatedAt: now.UTC().Truncate(time.Second), Deleted: deleted}
}

// Removed returns the state to store when a created scale set is gone or is being deleted, and the
// fleet did not delete it.
func (g CreationGate) Removed(now time.Time) CreationGate {
	if g.CreatedAt.IsZero() {
		return g
	}
	if now.Sub(g.CreatedAt) < gateWindow {
		g.Deleted++
	} else {
		g.Deleted = 0 // ARC had accepted the scale set; others deleted it
	}
	if g.Deleted < maxGate {
		g.CreatedAt = time.Time{}
	}
	return g
}

// Allows reports whether the fleet may create a scale set. If not, it returns the reason and the time
// of the next try.
func (g CreationGate) Allows(version string, now time.Time) (fleet.Failure, time.Time) {
	if until := g.CreatedAt.Add(gateBackOff); g.Version == version && g.Deleted >= maxGate && now.Before(until) {
		return fleet.Failure{Reason: ReasonDeletes, Message: fmt.Sprintf("The actions-runner-controller deleted it %d times right after it was created for version %s. The controller probably has another version. The fleet creates it again after %s.",
			g.Deleted, sanitize(version), until.UTC().Format(time.RFC3339))}, until
	}
	return fleet.Failure{}, time.Time{}
}
