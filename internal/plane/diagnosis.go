package plane

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// diagnosisInput holds all that is known of a pool of an organisation.
type diagnosisInput struct {
	Pool         Pool
	Enrollment   *Enrollment // nil: unknown
	Forge        *Forge      // nil: unknown
	Runners      []Runner
	RunnersKnown bool
	Events       []Event // newest first; nil: unknown
	Sources      []Source
}

// Finding is a problem, or possible problem, of the runners.
type Finding struct {
	Severity Severity `json:"severity" enum:"error,warning"`
	Cause    string   `json:"cause" doc:"a sentence"`
	Evidence string   `json:"evidence" doc:"the evidence; text from other people"`
	Next     string   `json:"next" doc:"the next step, a sentence"`
}

// diagnose returns the problems of the runners, worst first. Problems of the same severity are in the order in which a job meets them: the
// organisation, the forge, holds, capacity, runners. It uses only the facts.
func diagnose(f diagnosisInput) []Finding {
	out := []Finding{}
	report := func(severity Severity, cause, evidence, next string) {
		out = append(out, Finding{severity, cause, evidence, next})
	}
	f.checkEnrollment(report)
	f.checkForge(report)
	f.checkHolds(report)
	f.checkCapacity(report)
	f.checkRunners(report)
	f.checkEvents(report)
	f.checkSources(report)
	slices.SortStableFunc(out, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) })
	return out
}

type reportFinding func(severity Severity, cause, evidence, next string)

// checkEnrollment checks the organisation.
func (f diagnosisInput) checkEnrollment(report reportFinding) {
	if f.Enrollment == nil {
		return
	}
	if severity, reason, message := f.Enrollment.Trouble(); severity != "" {
		report(severity, "The organisation's enrollment is "+f.Enrollment.Phase+".", reason+": "+message, "Check the enrollment's conditions: tka fleet enrollments "+f.Enrollment.Name+".")
		return
	}
	if p := f.Enrollment.Phase; p != "Active" {
		report(SeverityWarning, "The organisation's enrollment is "+p+", not Active.", "phase "+p, "Wait, or check the enrollment's conditions.")
	}
}

// checkForge checks the forge.
func (f diagnosisInput) checkForge(report reportFinding) {
	if f.Forge == nil {
		return
	}
	if severity, reason, message := f.Forge.Trouble(); severity != "" {
		report(severity, "The forge "+f.Forge.Name+" does not respond.", reason+": "+message, "Try its URL, "+f.Forge.URL+", from the cluster.")
	}
}

// checkHolds checks the holds.
func (f diagnosisInput) checkHolds(report reportFinding) {
	if len(f.Pool.Holds) > 0 {
		report(SeverityWarning, "A hold pauses the pool: it takes no new jobs.", f.Pool.StateReason, "Ask the person who set the hold, or resume it: "+strings.Join(f.Pool.Holds, ", ")+".")
	}
}

// checkCapacity checks the maximum number of runners.
func (f diagnosisInput) checkCapacity(report reportFinding) {
	p := f.Pool
	if len(p.Holds) > 0 || p.EffectiveMax == nil {
		return
	}
	switch most := *p.EffectiveMax; {
	case most == 0:
		report(SeverityError, "The pool may have no runners, although no hold pauses it.", "effectiveMax 0", "Check the pool's budget: other organisations may use all of it.")
	case p.Counts.Busy != nil && *p.Counts.Busy >= most:
		report(SeverityWarning, "The pool has its maximum number of runners, and all of them are busy.", fmt.Sprintf("%d busy, maximum %d", *p.Counts.Busy, most), "Wait, or propose a higher scaling.max.")
	}
}

// checkRunners checks for runners that do not run.
func (f diagnosisInput) checkRunners(report reportFinding) {
	if p := f.Pool; len(p.Holds) == 0 && (p.State == PoolFailing || p.State == PoolDegraded) {
		severity, _, _ := p.Trouble()
		report(severity, "The pool is "+p.State+".", p.StateReason, "Check the runners and the events below.")
	}
	type trouble struct{ state, why string }
	counts, of, order := map[trouble]int{}, map[trouble]string{}, []trouble{}
	for _, r := range f.Runners {
		if r.State != RunnerFailed && r.State != RunnerOutdated && r.State != RunnerPending {
			continue
		}
		t := trouble{r.State, r.failureReason()}
		if t.state == RunnerPending && t.why == "" {
			continue // has just started
		}
		if counts[t]++; of[t] == "" {
			of[t], order = r.ID, append(order, t)
		}
	}
	for _, t := range order {
		severity, next := SeverityError, "Check its pod and its log: "+of[t]+"."
		switch t.state {
		case RunnerPending:
			severity, next = SeverityWarning, "Check quota, nodes and the image: "+of[t]+"."
		case RunnerOutdated:
			next = "Use a newer runner image."
		}
		noun := "runners are"
		if counts[t] == 1 {
			noun = "runner is"
		}
		report(severity, fmt.Sprintf("%d %s %s.", counts[t], noun, t.state), t.why, next)
	}
}

// failureReason returns the problem that a runner, its pod or one of its containers reports.
func (o Runner) failureReason() string {
	text := func(reason, message string) string { return strings.Trim(reason+": "+message, ": ") }
	if s := text(o.Reason, o.Message); s != "" {
		return s
	}
	if o.Pod == nil {
		return ""
	}
	for _, c := range o.Pod.Containers {
		if c.State == "Waiting" && c.Reason != "" && c.Reason != "ContainerCreating" && c.Reason != "PodInitializing" || c.ExitCode != nil && *c.ExitCode != 0 {
			return text("container "+c.Name+": "+c.Reason, c.Message)
		}
	}
	return text(o.Pod.Reason, o.Pod.Message)
}

// maxEventFindings is the maximum number of cluster warnings reported as findings.
const maxEventFindings = 5

// checkEvents adds warning events of the cluster.
func (f diagnosisInput) checkEvents(report reportFinding) {
	seen := map[string]bool{}
	for _, e := range f.Events {
		if e.Type != "Warning" || seen[e.Reason] || len(seen) == maxEventFindings {
			continue
		}
		seen[e.Reason] = true
		report(SeverityWarning, "The cluster reports a warning: "+e.Reason+".", e.Kind+" "+e.Name+": "+e.Message, "Check the pool's events.")
	}
}

// checkSources adds what could not be checked.
func (f diagnosisInput) checkSources(report reportFinding) {
	for _, s := range f.Sources {
		if s.Status == StatusDown {
			report(SeverityWarning, "The source "+s.Name+" is down, so this diagnosis may be out of date.", s.Message, "Check the plane's sources.")
		}
	}
	if !f.RunnersKnown {
		report(SeverityWarning, "The runners are not known.", "no source has reported them", "Check the plane's sources.")
	}
}
