package arc

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/internal/fleet"
)

// maxFailures is how often a runner's pod may fail before the fleet reports it. ARC itself tries
// five times.
const maxFailures = 3

// failure returns the worst problem that a person must solve.
func (p Objects) failure() fleet.Failure {
	if set := p.Set; set != nil && set.Phase == Outdated {
		return fleet.Failure{
			Reason:  ReasonOutdated,
			Message: "GitHub rejects the runner because its version is too old. Update the runner image of the pool; until then it takes no job.",
		}
	}
	var worst *Runner
	for i := range p.Runners {
		r := &p.Runners[i]
		if bad := r.Phase == Failed || r.Failures >= maxFailures; bad && (worst == nil || r.LastFailure.After(worst.LastFailure)) {
			worst = r
		}
	}
	if worst == nil {
		return fleet.Failure{}
	}
	return fleet.Failure{
		Reason:  ReasonCrashLoop,
		Message: fmt.Sprintf("The pod of runner %s failed %d times: %s", worst.Name, max(worst.Failures, 1), worst.failureReason()),
	}
}

func (r Runner) failureReason() string {
	why := strings.Trim(shortLine(r.Reason)+": "+shortLine(r.Message), ": ")
	if why == "" {
		return "the reason is unknown."
	}
	return why + "."
}

// crashWindow is how long a runner that ended without a job is remembered. maxCrashes of them make a
// crash loop.
const (
	crashWindow = 10 * time.Minute
	maxCrashes  = 5
)

// A CrashTracker remembers the runners of one scale set that ended before they took a job. ARC 0.14
// endlessly replaces a runner whose pod fails, so no object shows the problem. The state is lost on
// a restart and builds up again within minutes. The zero value is ready to use.
type CrashTracker struct {
	alive map[types.UID]Runner
	ended []endedRunner
}

type endedRunner struct {
	at     time.Time
	runner Runner
}

// Observe compares the current runners with those of the last call. desired is the number that the
// listener requested. Runners that end because the listener requests fewer are not crashes.
func (c *CrashTracker) Observe(runners []Runner, desired int, now time.Time) {
	alive := make(map[types.UID]Runner, len(runners))
	for _, r := range runners {
		alive[r.UID] = r
	}
	for uid, r := range c.alive {
		if _, is := alive[uid]; !is && r.Job == nil && r.Phase != Succeeded && !r.Ready && (r.Failures > 0 || len(runners) < desired) {
			c.ended = append(c.ended, endedRunner{now, r})
		}
	}
	c.alive = alive
	c.ended = slices.DeleteFunc(c.ended, func(e endedRunner) bool { return now.Sub(e.at) >= crashWindow })
}

// Failure reports whether runners repeatedly end before they take a job.
func (c *CrashTracker) Failure() fleet.Failure {
	if len(c.ended) < maxCrashes {
		return fleet.Failure{}
	}
	return fleet.Failure{
		Reason: ReasonCrashLoop,
		Message: fmt.Sprintf(
			"%d runners ended within %v without a job; the last one: %s",
			len(c.ended),
			crashWindow,
			c.ended[len(c.ended)-1].runner.failureReason(),
		),
	}
}

// Conflicts finds GitHub scale sets that several objects use. ARC reuses an existing scale set of
// the same name, and the deletion of any of the objects deletes it for all. The result maps each
// such object to another one.
func Conflicts(sets []Set) map[fleet.Key]fleet.Key {
	type place struct {
		url, group, name string
		id               int64
	}
	first := map[place]fleet.Key{}
	urls := map[string]string{} // cache of normalised URLs; there are only few
	conflicts := map[fleet.Key]fleet.Key{}
	sorted := slices.SortedFunc(slices.Values(sets), func(a, b Set) int { return a.Compare(b.Key) })
	for _, s := range sorted {
		url, known := urls[s.ConfigURL]
		if !known {
			url = s.ConfigURL
			if p, ok := fleet.ParseConfigURL(url); ok {
				url = p.String()
			}
			urls[s.ConfigURL] = url
		}
		group := strings.ToLower(s.RunnerGroup)
		if group == "default" {
			group = "" // GitHub's name of the default group
		}
		places := []place{{url: url, group: group, name: strings.ToLower(s.ScaleSet)}}
		if s.ID > 0 {
			places = append(places, place{url: url, id: s.ID})
		}
		for _, at := range places {
			other, taken := first[at]
			switch {
			case !taken:
				first[at] = s.Key
			case other != s.Key:
				conflicts[s.Key] = other
				if _, has := conflicts[other]; !has {
					conflicts[other] = s.Key
				}
			}
		}
	}
	return conflicts
}

// ConflictFailure returns the problem of a set whose scale set another object uses too.
func ConflictFailure(other fleet.Key) fleet.Failure {
	return fleet.Failure{
		Reason: ReasonConflict,
		Message: fmt.Sprintf(
			"%s/%s uses the same GitHub scale set. The fleet changes neither: the first one that is deleted deletes the scale set for both.",
			other.Namespace,
			other.Name,
		),
	}
}

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
		return fleet.Failure{
			Reason: ReasonDeletes,
			Message: fmt.Sprintf(
				"The actions-runner-controller deleted it %d times right after it was created for version %s. The controller probably has another version. The fleet creates it again after %s.",
				g.Deleted,
				shortLine(version),
				until.UTC().Format(time.RFC3339),
			),
		}, until
	}
	return fleet.Failure{}, time.Time{}
}
