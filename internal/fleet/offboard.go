package fleet

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// offboard handles an enrollment that is being deleted. Intake stops, jobs end, and the forge
// deregisters the runners. Only then does end remove the objects that the runners needed, with the
// credential among the last. A deregistration without the credential hangs, and a deregistration
// before the jobs have ended kills them.
func (d *decision) offboard() {
	if !d.HasFinalizer {
		d.Report.Offboard = d.Enrollment.Status.Offboard // keep the last report while other finalizers keep the object
		d.report(v1alpha1.PhaseOffboarded, Condition{"Ready", No, ReasonOffboarding, "The fleet has no objects of it."})
		return
	}
	if d.Enrollment.Annotations[v1alpha1.OffboardAnnotation] == v1alpha1.OffboardKeep {
		d.keepOpen()
		d.add(RemoveFinalizer)
		d.report(v1alpha1.PhaseOffboarded, Condition{"Ready", No, ReasonKept, "Its runners stay, for an enrollment of the same name."})
		return
	}
	if !d.Listed {
		d.reportStep(v1alpha1.StepStopIntake, v1alpha1.PhaseDraining, "The state is incomplete: a list failed.")
		return
	}
	of := d.Facts.Workloads
	created := func(w Workload) bool { return w.Manual && w.Remote != No }
	deadline := d.Enrollment.DeletionTimestamp.Add(d.Enrollment.Spec.OffboardTimeout.Duration)
	switch {
	case d.addFor(StopIntake, of, func(w Workload) bool {
		return w.Stopped != Yes && (w.Object != No || w.Remote != No) && !d.abandoned(w)
	}):
		d.reportStep(v1alpha1.StepStopIntake, v1alpha1.PhaseDraining, "Its runners stop taking new jobs.")
	case slices.ContainsFunc(of, func(w Workload) bool { return !drained(w) && (w.Object != No || w.Remote != No) && !d.abandoned(w) }):
		if d.now.Before(deadline) {
			d.Wake = retry.Earliest(d.Wake, deadline)
			d.reportStep(v1alpha1.StepDrain, v1alpha1.PhaseDraining, "The last jobs are running.")
		} else {
			d.requireDecision(v1alpha1.StepDrain, v1alpha1.PhaseDraining, ReasonDrainTimeout, "Jobs still run. Wait, or stop them with a RunnerHold of mode Stop on this organisation.")
		}
	case d.blocked():
		d.requireDecision(
			v1alpha1.StepDrain,
			v1alpha1.PhaseDraining,
			ReasonMassDeletion,
			"Many enrollments were deleted at once. To continue, set the annotation "+
				v1alpha1.OffboardAnnotation+" to "+v1alpha1.OffboardConfirm+"; to keep its runners, to "+v1alpha1.OffboardKeep+".",
		)
	case slices.ContainsFunc(of, created):
		d.requireDecision(v1alpha1.StepDeregister, v1alpha1.PhaseFailed, ReasonByHand, manualDeletion(of[slices.IndexFunc(of, created)]))
	case d.addFor(Deregister, of, func(w Workload) bool { return w.Remote != No && w.Denied < MaxDenied }):
		d.reportStep(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "Its runners are being deregistered at the forge.")
	case slices.ContainsFunc(of, func(w Workload) bool {
		return d.leaks(w) && (d.Enrollment.Status.Offboard == nil || !slices.Contains(d.Enrollment.Status.Offboard.Leaked, w.RemoteID))
	}):
		// Record these ids before the objects that hold them are deleted.
		d.reportStep(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "The runners that stay at the forge are being recorded.")
	case d.stuck():
	case d.RunnerGroups == Yes:
		d.add(DeleteRunnerGroups)
		d.reportStep(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "The runner groups that the fleet created for it are being deleted.")
	case d.addFor(DeleteWorkloads, of, func(w Workload) bool { return w.Object != No }):
		d.reportStep(v1alpha1.StepDeleteWorkloads, v1alpha1.PhaseDraining, "The objects of its workloads are being deleted.")
	case d.RunnerGroups == Unknown && d.Enrollment.Annotations[v1alpha1.ForceCleanupAnnotation] == "":
		d.reportStep(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "It is unknown whether its runner groups still exist.")
	case d.Secrets != No:
		if d.Secrets == Yes {
			d.add(DeleteSecrets)
		}
		d.reportStep(v1alpha1.StepDeleteSecrets, v1alpha1.PhaseDraining, "Its Secrets are being deleted.")
	case d.OwnNamespace != No:
		if d.OwnNamespace == Yes {
			d.add(DeleteNamespace)
		}
		d.reportStep(v1alpha1.StepDeleteNamespace, v1alpha1.PhaseDraining, "Its namespace is being deleted.")
	case d.OtherObjects != No:
		d.reportStep(v1alpha1.StepDeleteNamespace, v1alpha1.PhaseDraining, "Objects with its label still exist.")
	default:
		d.add(RemoveFinalizer)
		d.reportStep(v1alpha1.StepDone, v1alpha1.PhaseOffboarded, "All of its objects are deleted.")
	}
}

// reportStep reports the progress of the offboarding.
func (d *decision) reportStep(step v1alpha1.OffboardStep, phase v1alpha1.EnrollmentPhase, message string, more ...Condition) {
	o := &v1alpha1.OffboardStatus{Step: step, Since: metav1.NewTime(d.now), Message: message}
	if old := d.Enrollment.Status.Offboard; old != nil {
		if old.Step == step {
			o.Since = old.Since
		}
		o.Leaked = slices.Clone(old.Leaked)
	}
	for _, w := range d.Facts.Workloads {
		if d.leaks(w) && !slices.Contains(o.Leaked, w.RemoteID) {
			o.Leaked = append(o.Leaked, w.RemoteID)
		}
	}
	slices.Sort(o.Leaked)
	d.progress = message
	if len(o.Leaked) > 0 {
		d.failure = Failure{ReasonCleanupSkipped, "These stay at the forge: " + strings.Trim(fmt.Sprint(o.Leaked), "[]") + "."}
	}
	d.Report.Offboard = o
	d.report(phase, append(more, Condition{"Ready", No, ReasonOffboarding, message})...)
}

// requireDecision reports that a person must decide.
func (d *decision) requireDecision(step v1alpha1.OffboardStep, phase v1alpha1.EnrollmentPhase, reason, message string) {
	d.reportStep(step, phase, message, Condition{"DecisionNeeded", Yes, reason, message})
}

// blocked reports whether irreversible actions are blocked. Once set, the block stays until a
// person confirms, even if the number of deleted enrollments changes.
func (d *decision) blocked() bool {
	if d.Enrollment.Annotations[v1alpha1.OffboardAnnotation] == v1alpha1.OffboardConfirm {
		return false
	}
	return d.Pruned || slices.ContainsFunc(d.Enrollment.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == "DecisionNeeded" && c.Status == metav1.ConditionTrue && c.Reason == ReasonMassDeletion
	})
}

// abandoned reports whether the operator leaves a workload at the forge. A GitLab runner does nothing
// without its managers, so that is only recorded. A person must order the removal of ARC's
// finalizers.
func (d *decision) abandoned(w Workload) bool {
	if w.Remote == No || w.Denied < MaxDenied {
		return false
	}
	return d.Forge == v1alpha1.GitLab || d.Enrollment.Annotations[v1alpha1.ForceCleanupAnnotation] != ""
}

// leaks reports whether a part of a workload with a known id stays at the forge.
func (d *decision) leaks(w Workload) bool { return d.abandoned(w) && w.RemoteID != 0 }

// stuck handles scale sets that GitHub refuses to remove.
func (d *decision) stuck() bool {
	if d.Forge != v1alpha1.GitHub {
		return false
	}
	if d.addFor(ForceRelease, d.Facts.Workloads, func(w Workload) bool { return d.abandoned(w) && w.Object != No }) {
		d.reportStep(v1alpha1.StepDeregister, v1alpha1.PhaseDraining, "Its scale sets are being abandoned.")
		return true
	}
	if slices.ContainsFunc(d.Facts.Workloads, func(w Workload) bool { return w.Remote != No && !d.abandoned(w) }) {
		d.requireDecision(
			v1alpha1.StepDeregister,
			v1alpha1.PhaseFailed,
			ReasonCleanupSkipped,
			"GitHub refuses to remove its scale sets. Install the App again, or abandon them with the annotation "+v1alpha1.ForceCleanupAnnotation+": a reason.",
		)
		return true
	}
	return false
}
