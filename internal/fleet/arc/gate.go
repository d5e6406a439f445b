package arc

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/fleet"
)

// How the gate works: what goes within gateWindow of being made was deleted by ARC
// itself; after maxGate times nothing is made for gateBackOff, unless ARC's version
// changes.
const (
	gateWindow  = 2 * time.Minute
	maxGate     = 2
	gateBackOff = time.Hour
)

// A Gate remembers, for one workload, whether ARC deletes what is made for it: every
// ARC deletes scale sets that carry another version than its own, and what is made
// again at once would be deleted at once. It is kept as text, beside what else is
// remembered of the workload. Its zero value is that nothing was made yet.
type Gate struct {
	Version string    `json:"version"` // that things were made for
	Made    time.Time `json:"made"`
	Deleted int       `json:"deleted,omitempty"` // how often that was deleted, in a row
}

// ReadGate reads what [Gate.String] wrote. What cannot be read is as if nothing had
// been made: then ARC's answer comes again.
func ReadGate(s string) Gate {
	var g Gate
	if json.Unmarshal([]byte(s), &g) != nil || g.Deleted < 0 {
		return Gate{}
	}
	return g
}

// String is for [ReadGate].
func (g Gate) String() string {
	b, err := json.Marshal(g)
	if err != nil {
		return "" // a year that JSON has no form for: as if nothing had been made
	}
	return string(b)
}

// Making is to be kept before a scale set is made, for a version of ARC.
func (g Gate) Making(version string, now time.Time) Gate {
	deleted := g.Deleted
	if g.Version != version {
		deleted = 0
	}
	return Gate{Version: version, Made: now.UTC().Truncate(time.Second), Deleted: deleted}
}

// Gone is to be kept when a scale set that was made is no longer there, or is being
// deleted, and nobody of ours did that.
func (g Gate) Gone(now time.Time) Gate {
	if g.Made.IsZero() {
		return g
	}
	if now.Sub(g.Made) < gateWindow {
		g.Deleted++
	} else {
		g.Deleted = 0 // somebody deleted what ARC had let pass
	}
	if g.Deleted < maxGate {
		g.Made = time.Time{}
	}
	return g
}

// May says whether a scale set may be made, and if not, why and when it may.
func (g Gate) May(version string, now time.Time) (fleet.Trouble, time.Time) {
	if until := g.Made.Add(gateBackOff); g.Version == version && g.Deleted >= maxGate && now.Before(until) {
		return fleet.Trouble{Reason: ReasonDeletes, Message: fmt.Sprintf("The actions-runner-controller deleted it %d times right after it was made for version %s: it is probably of another one. It is made again after %s.",
			g.Deleted, said(version), until.UTC().Format(time.RFC3339))}, until
	}
	return fleet.Trouble{}, time.Time{}
}
