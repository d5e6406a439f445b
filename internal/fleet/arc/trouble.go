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

// maxFailures is how often the pod of a runner may fail before somebody is told. ARC
// itself tries five times.
const maxFailures = 3

// trouble is what a person must see to, the worst first.
func (p Parts) trouble() fleet.Trouble {
	if set := p.Set; set != nil && set.Phase == Outdated {
		return fleet.Trouble{Reason: ReasonOutdated, Message: "GitHub takes the runner for too old: update the runner image of the pool. Until then it takes no job."}
	}
	var worst *Runner
	for i := range p.Runners {
		r := &p.Runners[i]
		if bad := r.Phase == Failed || r.Failures >= maxFailures; bad && (worst == nil || r.LastFailure.After(worst.LastFailure)) {
			worst = r
		}
	}
	if worst == nil {
		return fleet.Trouble{}
	}
	return fleet.Trouble{Reason: ReasonCrashLoop, Message: fmt.Sprintf("The pod of runner %s failed %d times: %s", worst.Name, max(worst.Failures, 1), worst.why())}
}

func (r Runner) why() string {
	why := strings.Trim(said(r.Reason)+": "+said(r.Message), ": ")
	if why == "" {
		return "nothing says why."
	}
	return why + "."
}

// churnWindow is how long a runner that ended without a job is remembered, and
// maxChurn how many of them make a crash loop.
const (
	churnWindow = 10 * time.Minute
	maxChurn    = 5
)

// A Churn remembers the runners of one scale set that ended before they took a job:
// ARC 0.14 deletes a runner whose pod fails and makes another one, for ever, so no
// object tells. What it knows is lost in a restart, and comes back within minutes. Its
// zero value knows nothing.
type Churn struct {
	alive map[types.UID]Runner
	ended []ended
}

type ended struct {
	at     time.Time
	runner Runner
}

// Look is told the runners that there are now, and the number that its listener asked
// for. Runners that are given up because fewer are asked for are no crash.
func (c *Churn) Look(runners []Runner, desired int, now time.Time) {
	alive := make(map[types.UID]Runner, len(runners))
	for _, r := range runners {
		alive[r.UID] = r
	}
	for uid, r := range c.alive {
		if _, is := alive[uid]; !is && r.Job == nil && r.Phase != Succeeded && !r.Ready && (r.Failures > 0 || len(runners) < desired) {
			c.ended = append(c.ended, ended{now, r})
		}
	}
	c.alive = alive
	c.ended = slices.DeleteFunc(c.ended, func(e ended) bool { return now.Sub(e.at) >= churnWindow })
}

// Trouble says whether runners end again and again before they take a job.
func (c *Churn) Trouble() fleet.Trouble {
	if len(c.ended) < maxChurn {
		return fleet.Trouble{}
	}
	return fleet.Trouble{Reason: ReasonCrashLoop, Message: fmt.Sprintf("%d runners ended within %v without a job; the last one: %s", len(c.ended), churnWindow, c.ended[len(c.ended)-1].runner.why())}
}

// Conflicts finds the scale sets of GitHub's that several objects work with: ARC takes
// one that has the name already instead of making another, and whichever object is
// deleted first deletes it for all. The answer names, for each object, another one.
func Conflicts(sets []Set) map[fleet.Key]fleet.Key {
	type place struct {
		url, group, name string
		id               int64
	}
	first := map[place]fleet.Key{}
	urls := map[string]string{} // as they are written, of which there are few
	conflicts := map[fleet.Key]fleet.Key{}
	sorted := slices.SortedFunc(slices.Values(sets), func(a, b Set) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	for _, s := range sorted {
		url, known := urls[s.ConfigURL]
		if !known {
			url = s.ConfigURL
			if p, ok := fleet.ParsePlace(url); ok {
				url = p.String()
			}
			urls[s.ConfigURL] = url
		}
		group := strings.ToLower(s.RunnerGroup)
		if group == "default" {
			group = "" // what GitHub calls it
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

// Conflict is the trouble of a set that another object works with too.
func Conflict(other fleet.Key) fleet.Trouble {
	return fleet.Trouble{Reason: ReasonConflict, Message: fmt.Sprintf("%s/%s works with the same scale set of GitHub's. Neither is touched: whichever is deleted first deletes it for both.", other.Namespace, other.Name)}
}
