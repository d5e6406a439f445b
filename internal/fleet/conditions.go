package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// summary reports the status of an enrollment that is provisioning or provisioned.
func (d *decision) summary(unbounded bool) {
	desired, registered := 0, 0
	for _, w := range d.Facts.Desired {
		desired++
		if slices.ContainsFunc(d.Facts.Workloads, func(x Workload) bool { return x.Pool == w.Pool && x.Ready == Yes }) {
			registered++
		}
	}
	phase, ready := v1alpha1.PhaseActive, Condition{"Ready", Yes, ReasonActive, "All of its pools take jobs."}
	bad := d.poolViolation()
	switch {
	case unbounded:
		phase, ready = v1alpha1.PhaseFailed, Condition{"Ready", No, d.Unbounded.Reason, d.Unbounded.Message}
	case d.failure.Reason != "":
		phase, ready = v1alpha1.PhaseFailed, Condition{"Ready", No, d.failure.Reason, d.failure.Message}
	case bad != nil:
		phase, ready = v1alpha1.PhaseFailed, Condition{"Ready", No, bad.Reason, bad.Message}
	case registered < desired && d.restarts():
		ready = Condition{"Ready", No, ReasonRestarts, fmt.Sprintf("The job listener or manager of %d of %d pools restarts, because its number of allowed runners changed.", desired-registered, desired)}
	case registered < desired:
		phase, ready = v1alpha1.PhaseProvisioning, Condition{"Ready", No, ReasonProvisioning, cmp.Or(d.progress, "Not every pool is registered.")}
	}
	d.report(phase, ready, Condition{"Registered", AnswerOf(registered == desired), map[bool]string{true: ReasonRegistered, false: ReasonNotRegistered}[registered == desired],
		fmt.Sprintf("%d of %d pools are registered.", registered, desired)})
}

// restartGrace is how long a restart of listeners or managers may take.
const restartGrace = 2 * time.Minute

// restarts reports whether an active enrollment lacks only listeners or managers that restart. ARC
// creates a new listener for every change of the number of runners, and the phase should not flap
// because of that.
func (d *decision) restarts() bool {
	since := d.now
	if c := meta.FindStatusCondition(d.Enrollment.Status.Conditions, "Ready"); c != nil && c.Status != metav1.ConditionTrue {
		since = c.LastTransitionTime.Time
	}
	until := since.Add(restartGrace)
	if d.Enrollment.Status.Phase != v1alpha1.PhaseActive || !d.now.Before(until) {
		return false
	}
	for _, w := range d.Facts.Desired {
		if !slices.ContainsFunc(d.Facts.Workloads, func(x Workload) bool {
			return x.Pool == w.Pool && (x.Ready == Yes || x.Object == Yes && x.Remote == Yes && x.RemoteID != 0 && !x.Ending)
		}) {
			return false
		}
	}
	d.Wake = retry.Earliest(d.Wake, until)
	return true
}

// poolViolation returns the first violation that keeps a pool from being created.
func (d *decision) poolViolation() *Violation {
	for i, v := range d.Violations {
		if v.Effect >= EffectBlock {
			return &d.Violations[i]
		}
	}
	return nil
}

// report writes the phase and all conditions: the given ones, and the others as derived from the
// facts.
func (d *decision) report(phase v1alpha1.EnrollmentPhase, given ...Condition) {
	c := append(given, d.Approved)
	say := func(kind string, a Answer, yes, no, unknown string, message string) {
		if !slices.ContainsFunc(c, func(x Condition) bool { return x.Type == kind }) {
			c = append(c, Condition{kind, a, map[Answer]string{Yes: yes, No: no, Unknown: unknown}[a], message})
		}
	}
	say("CredentialsValid", d.Credential.Valid, cmp.Or(d.Credential.Reason, ReasonValid), cmp.Or(d.Credential.Reason, ReasonInvalid), cmp.Or(d.Credential.Reason, ReasonNotChecked), d.Credential.Message)
	say("NamespaceReady", d.Namespace, ReasonReady, ReasonNotReady, ReasonNotChecked, "")
	say("PolicyReady", d.Policies, ReasonReady, cmp.Or(d.Unbounded.Reason, ReasonNotReady), ReasonNotChecked, d.Unbounded.Message)
	say("Registered", Unknown, ReasonRegistered, ReasonNotRegistered, ReasonNotChecked, "")
	say("Progressing", AnswerOf(len(d.Actions) > 0 || d.progress != ""), ReasonProvisioning, ReasonNone, "", d.progress)
	degraded := d.failure
	switch {
	case degraded.Reason != "":
	case d.Credential.Valid == No && d.Credential.InUse == Yes:
		degraded = Failure{ReasonRotationFailed, "The new credential is not valid, so the fleet still uses the previous one: " + d.Credential.Message}
	case d.Forge == v1alpha1.GitHub && d.oldKey():
		degraded = Failure{ReasonRotationDue, "Its credential is older than rotateEvery, or a rotation was requested. Create another key in the App's settings and store it in the Secret."}
	}
	say("Degraded", AnswerOf(degraded.Reason != ""), degraded.Reason, ReasonNone, "", degraded.Message)
	if len(d.Violations) > 0 {
		var texts []string
		for _, v := range d.Violations {
			texts = append(texts, v.Message)
		}
		worst := slices.MaxFunc(d.Violations, func(a, b Violation) int { return cmp.Compare(a.Effect, b.Effect) })
		say("PolicyViolation", AnswerOf(worst.Effect >= EffectBlock), worst.Reason, worst.Reason, "", strings.Join(texts, " "))
	}
	say("PolicyViolation", No, "", ReasonNone, "", "")
	say("DecisionNeeded", No, "", ReasonNone, "", "")
	d.Report = Report{Phase: phase, Conditions: c, Offboard: d.Report.Offboard}
}

// oldKey reports whether a person must create another key of the GitHub App.
func (d *decision) oldKey() bool {
	c := d.Enrollment.Status.Credential
	return c != nil && c.CreatedAt != nil && d.rotationDue(c.CreatedAt.Time)
}
