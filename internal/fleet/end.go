package fleet

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// end handles an enrollment that is being deleted. Intake stops, jobs end, and the forge
// deregisters the runners. Only then does end remove the objects that the runners needed, with the
// credential among the last. A deregistration without the credential hangs, and a deregistration
// before the jobs have ended kills them.
func (d *decision) end() {
	if !d.Held {
		d.Report.Offboard = d.Enrollment.Status.Offboard // keep the last report while other finalizers keep the object
		d.report(v1alpha1.PhaseOffboarded, Condition{"Ready", No, ReasonOffboarding, "Nothing of it is ours."})
		return
	}
	if d.Enrollment.Annotations[v1alpha1.OffboardAnnotation] == v1alpha1.OffboardKeep {
		d.openAsIs()
		d.set(Release)
		d.report(v1alpha1.PhaseOffboarded, Condition{"Ready", No, ReasonKept, "Its runners stay, for an enrollment of the same name."})
		return
	}
	if !d.Listed {
		d.at(v1alpha1.StepStopIntake, v1alpha1.PhaseDraining, "Not everything could be listed.")
		return
	}
	of := d.Facts.Workloads
	made := func(w Workload) bool { return w.ByHand && w.Remote != No }
	deadline := d.Enrollment.DeletionTimestamp.Add(d.Enrollment.Spec.OffboardTimeout.Duration)
	switch {
	case d.do(StopIntake, of, func(w Workload) bool { return w.Stopped != Yes && (w.Object != No || w.Remote != No) && !d.givenUp(w) }):
		d.at(v1alpha1.StepStopIntake, v1alpha1.PhaseDraining, "Its runners are told to take no more jobs.")
	case slices.ContainsFunc(of, func(w Workload) bool { return !drained(w) && (w.Object != No || w.Remote != No) && !d.givenUp(w) }):
		if d.now.Before(deadline) {
			d.Wake = soonest(d.Wake, deadline)
			d.at(v1alpha1.StepDrain, v1alpha1.PhaseDraining, "The last jobs run.")
		} else {
			d.decide(v1alpha1.StepDrain, v1alpha1.PhaseDraining, ReasonDrainTimeout, "Jobs still run. Wait, or stop them with a RunnerHold of mode Stop on this organisation.")
		}
	case d.guarded():
		d.decide(v1alpha1.StepDrain, v1alpha1.PhaseDraining, ReasonMassDeletion, "Many enrollments were deleted at once. To go on, set the annotation "+
			v1alpha1.OffboardAnnotation+" to "+v1alpha1.OffboardConfirm+"; to have its runners stay, to "+v1alpha1.OffboardKeep+".")
	case slices.ContainsFunc(of, made):
		d.decide(v1alpha1.StepDeregister, v1alpha1.PhaseFailed, ReasonByHand, byHand(of[slices.IndexFunc(of, made)]))
	case d.do(Deregister, of, func(w Workload) bool { return w.Remote != No && w.Denied < MaxDenied }):
		d.at(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "The forge is asked to forget its runners.")
	case slices.ContainsFunc(of, func(w Workload) bool {
		return d.leaks(w) && (d.Enrollment.Status.Offboard == nil || !slices.Contains(d.Enrollment.Status.Offboard.Leaked, w.RemoteID))
	}):
		// Record these ids before the objects that hold them are deleted.
		d.at(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "What stays at the forge is written down.")
	case d.stuck():
	case d.RunnerGroups == Yes:
		d.set(DropRunnerGroups)
		d.at(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "The runner groups that were made for it are deleted.")
	case d.do(DeleteWorkloads, of, func(w Workload) bool { return w.Object != No }):
		d.at(v1alpha1.StepDeleteWorkloads, v1alpha1.PhaseDraining, "What is left of its workloads is deleted.")
	case d.RunnerGroups == Unknown && d.Enrollment.Annotations[v1alpha1.ForceCleanupAnnotation] == "":
		d.at(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "It is not known whether its runner groups are left.")
	case d.Secrets != No:
		if d.Secrets == Yes {
			d.set(DeleteSecrets)
		}
		d.at(v1alpha1.StepDeleteSecrets, v1alpha1.PhaseDraining, "Its Secrets are deleted.")
	case d.OwnNamespace != No:
		if d.OwnNamespace == Yes {
			d.set(DeleteNamespace)
		}
		d.at(v1alpha1.StepDeleteNamespace, v1alpha1.PhaseDraining, "Its namespace is deleted.")
	case d.AnythingElse != No:
		d.at(v1alpha1.StepDeleteNamespace, v1alpha1.PhaseDraining, "Something with its label is left.")
	default:
		d.set(Release)
		d.at(v1alpha1.StepDone, v1alpha1.PhaseOffboarded, "All of it has gone.")
	}
}

// at reports the progress of the offboarding.
func (d *decision) at(step v1alpha1.OffboardStep, phase v1alpha1.EnrollmentPhase, message string, more ...Condition) {
	o := &v1alpha1.OffboardStatus{Step: step, Since: metav1.NewTime(d.now), Message: message}
	if was := d.Enrollment.Status.Offboard; was != nil {
		if was.Step == step {
			o.Since = was.Since
		}
		o.Leaked = slices.Clone(was.Leaked)
	}
	for _, w := range d.Facts.Workloads {
		if d.leaks(w) && !slices.Contains(o.Leaked, w.RemoteID) {
			o.Leaked = append(o.Leaked, w.RemoteID)
		}
	}
	slices.Sort(o.Leaked)
	d.progress = message
	if len(o.Leaked) > 0 {
		d.trouble = Trouble{ReasonCleanupSkipped, "These stay at the forge: " + strings.Trim(fmt.Sprint(o.Leaked), "[]") + "."}
	}
	d.Report.Offboard = o
	d.report(phase, append(more, Condition{"Ready", No, ReasonOffboarding, message})...)
}

// decide reports that a person must decide.
func (d *decision) decide(step v1alpha1.OffboardStep, phase v1alpha1.EnrollmentPhase, reason, message string) {
	d.at(step, phase, message, Condition{"DecisionNeeded", Yes, reason, message})
}

// guarded reports whether irreversible actions are blocked. Once set, the block stays until a
// person confirms, even if the number of deleted enrollments changes.
func (d *decision) guarded() bool {
	if d.Enrollment.Annotations[v1alpha1.OffboardAnnotation] == v1alpha1.OffboardConfirm {
		return false
	}
	return d.Pruned || slices.ContainsFunc(d.Enrollment.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == "DecisionNeeded" && c.Status == metav1.ConditionTrue && c.Reason == ReasonMassDeletion
	})
}

// givenUp reports whether the operator leaves a workload at the forge. A GitLab runner does nothing
// without its managers, so that is only recorded. A person must order the removal of ARC's
// finalizers.
func (d *decision) givenUp(w Workload) bool {
	if w.Remote == No || w.Denied < MaxDenied {
		return false
	}
	return d.Forge == v1alpha1.GitLab || d.Enrollment.Annotations[v1alpha1.ForceCleanupAnnotation] != ""
}

// leaks reports whether a part of a workload with a known id stays at the forge.
func (d *decision) leaks(w Workload) bool { return d.givenUp(w) && w.RemoteID != 0 }

// stuck handles scale sets that GitHub refuses to remove.
func (d *decision) stuck() bool {
	if d.Forge != v1alpha1.GitHub {
		return false
	}
	if d.do(ForceRelease, d.Facts.Workloads, func(w Workload) bool { return d.givenUp(w) && w.Object != No }) {
		d.at(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "Its scale sets are given up.")
		return true
	}
	if slices.ContainsFunc(d.Facts.Workloads, func(w Workload) bool { return w.Remote != No && !d.givenUp(w) }) {
		d.decide(v1alpha1.StepDeregister, v1alpha1.PhaseFailed, ReasonCleanupSkipped,
			"GitHub refuses to have its scale sets removed. Install the App again, or give them up with the annotation "+v1alpha1.ForceCleanupAnnotation+": a reason.")
		return true
	}
	return false
}
