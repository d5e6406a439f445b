package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// KeepExpired is how long a hold that has expired stays to be read.
const KeepExpired = 7 * 24 * time.Hour

// defaultGrace is how long mode Stop lets jobs run if the hold does not say.
const defaultGrace = 10 * time.Minute

// A Target is one workload, as holds know it.
type Target struct{ Forge, Org, Pool string }

// Holds says whether a hold is about a workload.
func Holds(s v1alpha1.HoldScope, t Target) bool {
	switch {
	case s.All:
		return true
	case s.Forge != "":
		return s.Forge == t.Forge
	case s.Org == "" && s.Pool == "":
		return false // the schema refuses it
	}
	return (s.Org == "" || s.Org == t.Org) && (s.Pool == "" || s.Pool == t.Pool)
}

// Lifted says whether a hold holds nothing any more. It expires at its time, not
// after it.
func Lifted(h *v1alpha1.RunnerHold, now time.Time) bool {
	return !h.DeletionTimestamp.IsZero() || h.Spec.ExpiresAt != nil && !now.Before(h.Spec.ExpiresAt.Time)
}

// A Capacity is how many runners a workload may have now, and which hold says so.
type Capacity struct {
	Min, Max int
	Mode     v1alpha1.HoldMode // empty: nothing holds it
	Hold     string            // the name of the strongest
	CancelAt time.Time         // with mode Stop: when jobs that still run are cancelled
	Wake     time.Time         // when the answer may be another though nothing changes; zero: never
}

// Effective is what holds leave of an allocation: nothing, while one of them is in
// force. Of several the strongest decides, and of equal ones the oldest. Nothing is
// remembered: when the last one has gone, the answer is what it was.
func Effective(t Target, s v1alpha1.PoolScaling, allocation int, holds []v1alpha1.RunnerHold, now time.Time) Capacity {
	var c Capacity
	var strongest *v1alpha1.RunnerHold
	for i := range holds {
		h := &holds[i]
		if !Holds(h.Spec.Scope, t) || Lifted(h, now) {
			continue
		}
		if h.Spec.ExpiresAt != nil {
			c.Wake = soonest(c.Wake, h.Spec.ExpiresAt.Time)
		}
		if h.Spec.Mode == v1alpha1.HoldStop {
			c.CancelAt = soonest(c.CancelAt, CancelAt(h))
		}
		if strongest == nil || stronger(h, strongest) {
			strongest = h
		}
	}
	if strongest == nil {
		c.Max = max(min(allocation, int(s.Max)), 0)
		c.Min = min(int(s.Min), c.Max)
		return c
	}
	c.Mode, c.Hold = strongest.Spec.Mode, strongest.Name
	if c.CancelAt.After(now) {
		c.Wake = soonest(c.Wake, c.CancelAt)
	}
	return c
}

// CancelAt is when a hold of mode Stop cancels what still runs.
func CancelAt(h *v1alpha1.RunnerHold) time.Time {
	grace := defaultGrace
	if h.Spec.Grace != nil {
		grace = max(h.Spec.Grace.Duration, 0)
	}
	return h.CreationTimestamp.Add(grace)
}

func strength(m v1alpha1.HoldMode) int {
	switch m {
	case v1alpha1.HoldStop:
		return 3
	case v1alpha1.HoldDrain:
		return 2
	}
	return 1 // a mode of a later version holds at least
}

func stronger(a, b *v1alpha1.RunnerHold) bool {
	if x, y := strength(a.Spec.Mode), strength(b.Spec.Mode); x != y {
		return x > y
	}
	return older(a.CreationTimestamp.Time, a.Name, b.CreationTimestamp.Time, b.Name)
}

// older decides between two objects of one kind.
func older(a time.Time, nameA string, b time.Time, nameB string) bool {
	if !a.Equal(b) {
		return a.Before(b)
	}
	return nameA < nameB
}

// soonest is the earlier of two times, of which zero is never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// A Listener is one AutoscalingListener of a scale set.
type Listener struct {
	Max *int // as it stands there; nil is 0, which ARC leaves out
}

// StoppedGitHub says whether a scale set is proved to take no new job: no listener of
// it would take one, and none of an older listener's pods is left. Without an answer
// from the cluster nothing is proved.
func StoppedGitHub(known bool, listeners []Listener, olderPods int) Answer {
	if !known {
		return Unknown
	}
	return Is(olderPods == 0 && !slices.ContainsFunc(listeners, func(l Listener) bool { return l.Max != nil && *l.Max > 0 }))
}

// Held is how one of the workloads that a hold is about stands.
type Held struct {
	Org, Pool string
	Stopped   Answer // proved to take no new job
	Jobs      *int   // that still run; nil: not known
	Managers  int    // GitLab's, which modes Drain and Stop end when the jobs have
	Reason    string // why the answers are not better, in a word: ForgeUnreachable
}

// Reasons of a hold's conditions.
const (
	ReasonApplied     = "Applied"          // every workload is proved to take no new job
	ReasonApplying    = "Applying"         // not every one yet
	ReasonUnreachable = "ForgeUnreachable" // the forge, or what works for it in the cluster, does not answer
	ReasonDrained     = "Drained"          // no job is left
	ReasonDraining    = "Draining"         // jobs are left
	ReasonExpired     = "Expired"          // its time is over
	ReasonInForce     = "InForce"          // it holds
)

// A HoldReport is what is to be said of a hold.
type HoldReport struct {
	Targets, Applied, Drained int
	RemainingJobs             *int // nil: not known
	Failed                    []v1alpha1.HoldFailure
	Conditions                []Condition
	Delete                    bool      // it expired long enough ago
	Wake                      time.Time // zero: when something changes
}

// maxFailed is how many failures the status has room for.
const maxFailed = 100

// ReportHold says how far a hold has come.
func ReportHold(h *v1alpha1.RunnerHold, held []Held, now time.Time) HoldReport {
	if h.Spec.ExpiresAt != nil && !now.Before(h.Spec.ExpiresAt.Time) {
		end := h.Spec.ExpiresAt.Time
		message := "It ended at " + end.UTC().Format(time.RFC3339) + "."
		return HoldReport{RemainingJobs: new(int), Delete: !now.Before(end.Add(KeepExpired)), Wake: end.Add(KeepExpired),
			Conditions: []Condition{{"Ready", No, ReasonExpired, message}, {"Applied", No, ReasonExpired, message}, {"Expired", Yes, ReasonExpired, message}}}
	}
	r := HoldReport{Targets: len(held), RemainingJobs: new(int)}
	if h.Spec.ExpiresAt != nil {
		r.Wake = h.Spec.ExpiresAt.Time
	}
	ends := h.Spec.Mode == v1alpha1.HoldDrain || h.Spec.Mode == v1alpha1.HoldStop
	for _, w := range slices.SortedFunc(slices.Values(held), func(a, b Held) int { return cmp.Or(cmp.Compare(a.Org, b.Org), cmp.Compare(a.Pool, b.Pool)) }) {
		if w.Stopped == Yes {
			r.Applied++
		} else if w.Reason != "" && len(r.Failed) < maxFailed {
			r.Failed = append(r.Failed, v1alpha1.HoldFailure{Pool: w.Pool, Org: w.Org, Reason: w.Reason})
		}
		switch {
		case w.Jobs == nil:
			r.RemainingJobs = nil
		case r.RemainingJobs != nil:
			*r.RemainingJobs += *w.Jobs
		}
		if w.Stopped == Yes && w.Jobs != nil && *w.Jobs == 0 && (!ends || w.Managers == 0) {
			r.Drained++
		}
	}
	of := func(what Answer, yes, no, rest string, n int) (Answer, string, string) {
		if what == Yes {
			return Yes, yes, fmt.Sprintf("All %d workloads.", r.Targets)
		}
		return No, no, fmt.Sprintf("%d of %d workloads%s.", n, r.Targets, rest)
	}
	applying := ReasonApplying
	if len(r.Failed) > 0 {
		applying = r.Failed[0].Reason
	}
	applied, why, text := of(Is(r.Applied == r.Targets), ReasonApplied, applying, " take no new job", r.Applied)
	r.Conditions = []Condition{{"Ready", applied, why, text}, {"Applied", applied, why, text}}
	drained, why, text := of(Is(r.Drained == r.Targets), ReasonDrained, ReasonDraining, " have no job left", r.Drained)
	r.Conditions = append(r.Conditions, Condition{"Drained", drained, why, text}, Condition{"Expired", No, ReasonInForce, ""})
	return r
}
