package planejobs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
)

// Facts holds all that is known of a pool of an organisation.
type Facts struct {
	Pool         planefleet.Pool
	Enrollment   *planefleet.Enrollment // nil: unknown
	Forge        *planefleet.Forge      // nil: unknown
	Runners      []Runner
	RunnersKnown bool
	Events       []Event // newest first; nil: unknown
	Sources      []plane.Source
}

// Finding is a problem, or possible problem, of the runners.
type Finding struct {
	Severity plane.Severity `json:"severity" enum:"error,warning"`
	Cause    string         `json:"cause" doc:"a sentence"`
	Evidence string         `json:"evidence" doc:"what says so; other people's text"`
	Next     string         `json:"next" doc:"what to do now, a sentence"`
}

// Diagnose returns the problems of the runners, worst first. Problems of the same severity are in the order in which a job meets them: the
// organisation, the forge, holds, capacity, runners. It uses only the facts.
func Diagnose(f Facts) []Finding {
	out := []Finding{}
	say := func(severity plane.Severity, cause, evidence, next string) {
		out = append(out, Finding{severity, cause, evidence, next})
	}
	f.enrolled(say)
	f.reached(say)
	f.held(say)
	f.capacity(say)
	f.broken(say)
	f.told(say)
	f.unknown(say)
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) })
	return out
}

type says func(severity plane.Severity, cause, evidence, next string)

// enrolled checks the organisation.
func (f Facts) enrolled(say says) {
	if f.Enrollment == nil {
		return
	}
	if severity, reason, message := f.Enrollment.Trouble(); severity != "" {
		say(severity, "The organisation's enrollment is "+f.Enrollment.Phase+".", reason+": "+message, "Look at the enrollment's conditions: tka fleet enrollments "+f.Enrollment.Name+".")
		return
	}
	if p := f.Enrollment.Phase; p != "Active" {
		say(plane.Warning, "The organisation's enrollment is "+p+", and not Active.", "phase "+p, "Wait, or look at the enrollment's conditions.")
	}
}

// reached checks the forge.
func (f Facts) reached(say says) {
	if f.Forge == nil {
		return
	}
	if severity, reason, message := f.Forge.Trouble(); severity != "" {
		say(severity, "The forge "+f.Forge.Name+" does not answer.", reason+": "+message, "Try its URL, "+f.Forge.URL+", from the cluster.")
	}
}

// held checks the holds.
func (f Facts) held(say says) {
	if len(f.Pool.Holds) > 0 {
		say(plane.Warning, "It is held: it takes no new job.", f.Pool.StateReason, "Ask who set the hold, or resume it: "+strings.Join(f.Pool.Holds, ", ")+".")
	}
}

// capacity checks the maximum number of runners.
func (f Facts) capacity(say says) {
	p := f.Pool
	if len(p.Holds) > 0 || p.EffectiveMax == nil {
		return
	}
	switch most := *p.EffectiveMax; {
	case most == 0:
		say(plane.Error, "It may have no runner, and nobody holds it.", "effectiveMax 0", "Look at the pool's budget: other organisations may have all of it.")
	case p.Counts.Busy != nil && *p.Counts.Busy >= most:
		say(plane.Warning, "All runners that it may have are busy.", fmt.Sprintf("%d busy, %d at most", *p.Counts.Busy, most), "Wait, or propose a higher scaling.max.")
	}
}

// broken checks for runners that do not run.
func (f Facts) broken(say says) {
	if p := f.Pool; len(p.Holds) == 0 && (p.State == planefleet.Failing || p.State == planefleet.Degraded) {
		severity, _, _ := p.Trouble()
		say(severity, "The pool is "+p.State+".", p.StateReason, "See the runners and the events below.")
	}
	type trouble struct{ state, why string }
	counts, of, order := map[trouble]int{}, map[trouble]string{}, []trouble{}
	for _, r := range f.Runners {
		if r.State != Failed && r.State != Outdated && r.State != Pending {
			continue
		}
		t := trouble{r.State, r.why()}
		if t.state == Pending && t.why == "" {
			continue // has just started
		}
		if counts[t]++; of[t] == "" {
			of[t], order = r.ID, append(order, t)
		}
	}
	for _, t := range order {
		severity, next := plane.Error, "Look at its pod and its log: "+of[t]+"."
		switch t.state {
		case Pending:
			severity, next = plane.Warning, "Look at quota, nodes and the image: "+of[t]+"."
		case Outdated:
			next = "Use a newer runner image."
		}
		noun := "runners are"
		if counts[t] == 1 {
			noun = "runner is"
		}
		say(severity, fmt.Sprintf("%d %s %s.", counts[t], noun, t.state), t.why, next)
	}
}

// why returns the problem that a runner, its pod or one of its containers reports.
func (o Runner) why() string {
	said := func(reason, message string) string { return strings.Trim(reason+": "+message, ": ") }
	if s := said(o.Reason, o.Message); s != "" {
		return s
	}
	if o.Pod == nil {
		return ""
	}
	for _, c := range o.Pod.Containers {
		if c.State == "Waiting" && c.Reason != "" && c.Reason != "ContainerCreating" && c.Reason != "PodInitializing" || c.ExitCode != nil && *c.ExitCode != 0 {
			return said("container "+c.Name+": "+c.Reason, c.Message)
		}
	}
	return said(o.Pod.Reason, o.Pod.Message)
}

// maxTold is the maximum number of cluster warnings reported as findings.
const maxTold = 5

// told adds warning events of the cluster.
func (f Facts) told(say says) {
	seen := map[string]bool{}
	for _, e := range f.Events {
		if e.Type != "Warning" || seen[e.Reason] || len(seen) == maxTold {
			continue
		}
		seen[e.Reason] = true
		say(plane.Warning, "The cluster warns: "+e.Reason+".", e.Kind+" "+e.Name+": "+e.Message, "Look at the pool's events.")
	}
}

// unknown adds what could not be checked.
func (f Facts) unknown(say says) {
	for _, s := range f.Sources {
		if s.Status == plane.Down {
			say(plane.Warning, "The source "+s.Name+" is down: what is said here may be old.", s.Message, "Look at the plane's sources.")
		}
	}
	if !f.RunnersKnown {
		say(plane.Warning, "It is not known which runners there are.", "no source has said", "Look at the plane's sources.")
	}
}
