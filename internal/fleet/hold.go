package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// ExpiredHoldRetention is how long an expired hold stays readable before the operator deletes it.
const ExpiredHoldRetention = 7 * 24 * time.Hour

// defaultGrace is how long jobs may run under mode Stop if the hold sets no grace.
const defaultGrace = 10 * time.Minute

// A Target identifies one workload for the scope of a hold.
type Target struct{ Forge, Org, Pool string }

// ScopeIncludes reports whether the scope of a hold includes a workload.
func ScopeIncludes(s v1alpha1.HoldScope, t Target) bool {
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

// HoldLifted reports whether a hold no longer applies. A hold expires exactly at its time, not after
// it.
func HoldLifted(h *v1alpha1.RunnerHold, now time.Time) bool {
	return !h.DeletionTimestamp.IsZero() || h.Spec.ExpiresAt != nil && !now.Before(h.Spec.ExpiresAt.Time)
}

// A Capacity is the number of runners that a workload may have now, and the hold that limits it.
type Capacity struct {
	Min, Max int
	Mode     v1alpha1.HoldMode // empty: no hold applies
	Hold     string            // name of the strongest hold
	CancelAt time.Time         // with mode Stop: when running jobs are cancelled
	Wake     time.Time         // when the result can change without an event; zero: never
}

// Effective applies holds to an allocation. The capacity is zero while a hold is in force. The
// strongest hold decides; among equally strong holds, the oldest. Effective keeps no state: without
// holds it returns the original capacity again.
func Effective(t Target, s v1alpha1.PoolScaling, allocation int, holds []v1alpha1.RunnerHold, now time.Time) Capacity {
	var c Capacity
	var strongest *v1alpha1.RunnerHold
	for i := range holds {
		h := &holds[i]
		if !ScopeIncludes(h.Spec.Scope, t) || HoldLifted(h, now) {
			continue
		}
		if h.Spec.ExpiresAt != nil {
			c.Wake = retry.Earliest(c.Wake, h.Spec.ExpiresAt.Time)
		}
		if h.Spec.Mode == v1alpha1.HoldStop {
			c.CancelAt = retry.Earliest(c.CancelAt, CancelAt(h))
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
		c.Wake = retry.Earliest(c.Wake, c.CancelAt)
	}
	return c
}

// CancelAt returns the time when a hold of mode Stop cancels the jobs that still run.
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
	return 1 // a mode of a later version at least holds
}

func stronger(a, b *v1alpha1.RunnerHold) bool {
	if x, y := strength(a.Spec.Mode), strength(b.Spec.Mode); x != y {
		return x > y
	}
	return CompareAge(a, b) < 0
}

// CompareAge orders two objects of one kind by age, the oldest first, then by name.
func CompareAge(a, b metav1.Object) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
}

// ByName returns objects of one kind by name.
func ByName[T any, P interface {
	*T
	GetName() string
}](items []T) map[string]P {
	all := make(map[string]P, len(items))
	for i := range items {
		all[P(&items[i]).GetName()] = &items[i]
	}
	return all
}

// A Listener is one AutoscalingListener of a scale set.
type Listener struct {
	Max *int // as stored; nil means 0, which ARC omits
}

// StoppedGitHub reports whether a scale set is proven to take no new jobs: none of its listeners
// would take one, and no pod of an older listener is left. If the cluster gave no answer (known is
// false), the result is Unknown.
func StoppedGitHub(known bool, listeners []Listener, olderPods int) Answer {
	if !known {
		return Unknown
	}
	return AnswerOf(olderPods == 0 && !slices.ContainsFunc(listeners, func(l Listener) bool { return l.Max != nil && *l.Max > 0 }))
}

// HeldPool is the state of one workload in the scope of a hold.
type HeldPool struct {
	Org, Pool string
	Stopped   Answer // proven to take no new job
	Jobs      *int   // number of running jobs; nil: not known
	Managers  int    // GitLab managers; modes Drain and Stop end them after the jobs
	Reason    string // one-word reason for an incomplete answer, such as ForgeUnreachable
}

// Reasons of a hold's conditions.
const (
	ReasonApplied     = "Applied"          // every workload is proven to take no new job
	ReasonApplying    = "Applying"         // some workloads are not proven to have stopped yet
	ReasonUnreachable = "ForgeUnreachable" // the forge, or its controller in the cluster, does not answer
	ReasonDrained     = "Drained"          // no jobs are left
	ReasonDraining    = "Draining"         // jobs are left
	ReasonExpired     = "Expired"          // the hold has expired
	ReasonInForce     = "InForce"          // the hold is in force
)

// A HoldReport is the status to write for a hold.
type HoldReport struct {
	Targets, Applied, Drained int
	RemainingJobs             *int // nil: not known
	Failed                    []v1alpha1.HoldFailure
	Conditions                []Condition
	Delete                    bool      // the hold expired more than ExpiredHoldRetention ago
	Wake                      time.Time // zero: when something changes
}

// maxFailed is the maximum number of failures in the status.
const maxFailed = 100

// ReportHold returns the progress of a hold.
func ReportHold(h *v1alpha1.RunnerHold, held []HeldPool, now time.Time) HoldReport {
	if h.Spec.ExpiresAt != nil && !now.Before(h.Spec.ExpiresAt.Time) {
		end := h.Spec.ExpiresAt.Time
		message := "It ended at " + end.UTC().Format(time.RFC3339) + "."
		return HoldReport{RemainingJobs: new(int), Delete: !now.Before(end.Add(ExpiredHoldRetention)), Wake: end.Add(ExpiredHoldRetention),
			Conditions: []Condition{
				{"Ready", No, ReasonExpired, message},
				{"Applied", No, ReasonExpired, message},
				{"Expired", Yes, ReasonExpired, message},
			}}
	}
	r := HoldReport{Targets: len(held), RemainingJobs: new(int)}
	if h.Spec.ExpiresAt != nil {
		r.Wake = h.Spec.ExpiresAt.Time
	}
	ends := h.Spec.Mode == v1alpha1.HoldDrain || h.Spec.Mode == v1alpha1.HoldStop
	for _, w := range slices.SortedFunc(slices.Values(held), func(a, b HeldPool) int { return cmp.Or(cmp.Compare(a.Org, b.Org), cmp.Compare(a.Pool, b.Pool)) }) {
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
	applied, why, text := of(AnswerOf(r.Applied == r.Targets), ReasonApplied, applying, " take no new job", r.Applied)
	r.Conditions = []Condition{{"Ready", applied, why, text}, {"Applied", applied, why, text}}
	drained, why, text := of(AnswerOf(r.Drained == r.Targets), ReasonDrained, ReasonDraining, " have no job left", r.Drained)
	r.Conditions = append(r.Conditions, Condition{"Drained", drained, why, text}, Condition{"Expired", No, ReasonInForce, ""})
	return r
}
