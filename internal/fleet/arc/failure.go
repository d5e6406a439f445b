package arc

import (
	"cmp"
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
		return fleet.Failure{Reason: ReasonOutdated, Message: "GitHub rejects the runner because its version is too old. Update the runner image of the pool; until then it takes no job."}
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
	return fleet.Failure{Reason: ReasonCrashLoop, Message: fmt.Sprintf("The pod of runner %s failed %d times: %s", worst.Name, max(worst.Failures, 1), worst.failureReason())}
}

func (r Runner) failureReason() string {
	why := strings.Trim(sanitize(r.Reason)+": "+sanitize(r.Message), ": ")
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
	return fleet.Failure{Reason: ReasonCrashLoop, Message: fmt.Sprintf("%d runners ended within %v without a job; the last one: %s", len(c.ended), crashWindow, c.ended[len(c.ended)-1].runner.failureReason())}
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
	sorted := slices.SortedFunc(slices.Values(sets), func(a, b Set) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
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
	return fleet.Failure{Reason: ReasonConflict, Message: fmt.Sprintf("%s/%s uses the same GitHub scale set. The fleet changes neither: the first one that is deleted deletes the scale set for both.", other.Namespace, other.Name)}
}
