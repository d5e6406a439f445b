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

// A Gate records, for one workload, whether ARC deletes new scale sets. Every ARC deletes scale
// sets with another version than its own, and would delete a new one again at once. The Gate is
// stored as text in an annotation. Its zero value means that nothing was created yet.
type Gate struct {
	Version string    `json:"version"` // ARC version of the last creation
	Made    time.Time `json:"made"`
	Deleted int       `json:"deleted,omitempty"` // consecutive deletions
}

// ReadGate parses the text of [Gate.String]. Unreadable text counts as the zero value: ARC's
// deletion then shows again.
func ReadGate(s string) Gate {
	var g Gate
	if json.Unmarshal([]byte(s), &g) != nil || g.Deleted < 0 {
		return Gate{}
	}
	return g
}

// String returns the text for [ReadGate].
func (g Gate) String() string {
	b, err := json.Marshal(g)
	if err != nil {
		return "" // a year that JSON cannot represent: same as the zero value
	}
	return string(b)
}

// Making returns the state to store before the creation of a scale set for a version of ARC.
func (g Gate) Making(version string, now time.Time) Gate {
	deleted := g.Deleted
	if g.Version != version {
		deleted = 0
	}
	return Gate{Version: version, Made: now.UTC().Truncate(time.Second), Deleted: deleted}
}

// Gone returns the state to store when a created scale set is gone or is being deleted, and the
// fleet did not delete it.
func (g Gate) Gone(now time.Time) Gate {
	if g.Made.IsZero() {
		return g
	}
	if now.Sub(g.Made) < gateWindow {
		g.Deleted++
	} else {
		g.Deleted = 0 // ARC had accepted the scale set; others deleted it
	}
	if g.Deleted < maxGate {
		g.Made = time.Time{}
	}
	return g
}

// May reports whether the fleet may create a scale set. If not, it returns the reason and the time
// of the next try.
func (g Gate) May(version string, now time.Time) (fleet.Trouble, time.Time) {
	if until := g.Made.Add(gateBackOff); g.Version == version && g.Deleted >= maxGate && now.Before(until) {
		return fleet.Trouble{Reason: ReasonDeletes, Message: fmt.Sprintf("The actions-runner-controller deleted it %d times right after it was made for version %s: it is probably of another one. It is made again after %s.",
			g.Deleted, said(version), until.UTC().Format(time.RFC3339))}, until
	}
	return fleet.Trouble{}, time.Time{}
}
