package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// DesiredWorkloads returns the desired workloads of an enrollment, one for each of its pools that exists.
// [Check] decides whether the enrollment may have them.
func DesiredWorkloads(
	e *v1alpha1.RunnerEnrollment,
	forge v1alpha1.ForgeType,
	pools map[string]*v1alpha1.RunnerPool,
	shared string,
) []DesiredWorkload {
	var all []DesiredWorkload
	for _, use := range e.Spec.Pools {
		if pool := pools[use.Name]; pool != nil {
			all = append(all, DesiredWorkload{use.Name, NamespaceOf(e, shared), ShapeHash(e, forge, pool, use)})
		}
	}
	return all
}

// ShapeHash returns a hash of the settings that cannot change in place. GitHub reads the labels of a
// scale set only when the scale set is created. GitLab runners can change in place, so their shape
// is constant.
func ShapeHash(e *v1alpha1.RunnerEnrollment, forge v1alpha1.ForgeType, pool *v1alpha1.RunnerPool, use v1alpha1.EnrolledPool) string {
	if forge == v1alpha1.GitLab {
		return "gitlab"
	}
	labels := slices.Sorted(slices.Values(RunsOn(pool, e.Name)))
	sum := sha256.Sum256([]byte(strings.Join(append(labels, e.Spec.ConfigURL, RunnerGroupName(e, use)), "\n")))
	return hex.EncodeToString(sum[:8])
}

// RunnerGroupName returns the runner group of a pool. It is empty for GitHub's default group.
func RunnerGroupName(e *v1alpha1.RunnerEnrollment, use v1alpha1.EnrolledPool) string {
	if use.RunnerGroup == "" && use.Type == v1alpha1.UseOrgPlusUser {
		return "tailplane-" + WorkloadName(e.Name, use.Name, 1)
	}
	return use.RunnerGroup
}

// Next decides what to do with an enrollment. It does not modify its input.
func Next(f Facts, now time.Time) Step {
	d := &decision{Facts: f, now: now}
	if !f.Enrollment.DeletionTimestamp.IsZero() {
		d.offboard()
	} else {
		d.active()
	}
	slices.SortFunc(d.Open, Key.Compare)
	return d.Step
}

type decision struct {
	Facts
	now time.Time
	Step
	progress string // the current work, as text for people
	failure  Failure
}

// addFor adds an action for each workload that matches is. It reports whether it added any.
func (d *decision) addFor(kind ActionKind, of []Workload, is func(Workload) bool) bool {
	before := len(d.Actions)
	for _, w := range of {
		if is(w) {
			d.Actions = append(d.Actions, Action{Kind: kind, Workload: w.Key})
		}
	}
	return len(d.Actions) > before
}

func (d *decision) add(kind ActionKind) { d.Actions = append(d.Actions, Action{Kind: kind}) }

// active handles an enrollment that is not being deleted.
func (d *decision) active() {
	has := len(d.Facts.Workloads) > 0
	barred := d.violation("", EffectBlock)
	stopped := d.violation("", EffectStop)
	switch {
	case !d.Listed:
		d.keepOpen()
		d.progress = "The state is incomplete: a list failed."
		d.report(cmp.Or(d.Enrollment.Status.Phase, v1alpha1.PhaseRequested), Condition{"Ready", Unknown, ReasonListIncomplete, d.progress})
	case d.Approved.Status != Yes && !has:
		d.report(v1alpha1.PhaseRequested, Condition{"Ready", No, d.Approved.Reason, d.Approved.Message})
	case d.Approved.Status == No:
		d.suspend(d.Approved.Reason, d.Approved.Message)
	case d.Approved.Status == Unknown:
		d.keepOpen()
		d.report(
			cmp.Or(d.Enrollment.Status.Phase, v1alpha1.PhaseApproved),
			Condition{"Ready", Unknown, d.Approved.Reason, d.Approved.Message},
		)
	case stopped != nil && has:
		d.suspend(stopped.Reason, stopped.Message)
	case barred != nil:
		d.keepOpen()
		d.report(v1alpha1.PhaseFailed, Condition{"Ready", No, barred.Reason, barred.Message})
	case !d.HasFinalizer:
		d.add(AddFinalizer) // before any object is created that needs a cleanup
		d.report(v1alpha1.PhaseApproved, Condition{"Ready", No, ReasonProvisioning, "It is approved."})
	case d.Credential.Valid == No && d.Credential.InUse != Yes:
		d.suspend(cmp.Or(d.Credential.Reason, ReasonInvalid), d.Credential.Message)
	default:
		d.provision()
	}
}

// suspend stops intake and deletes nothing, because its cause may be temporary.
func (d *decision) suspend(reason, message string) {
	d.addFor(StopIntake, d.Facts.Workloads, func(w Workload) bool { return w.Stopped != Yes && w.Object != No })
	d.report(v1alpha1.PhaseSuspended, Condition{"Ready", No, reason, message})
}

// violation returns the first violation with at least this effect. It considers one pool or, if
// pool is empty, the violations of the whole enrollment.
func (d *decision) violation(pool string, least Effect) *Violation {
	return d.firstViolation(func(v Violation) bool { return v.Pool == pool && v.Effect >= least })
}

// firstViolation returns the first violation that f selects; nil if there is none.
func (d *decision) firstViolation(f func(Violation) bool) *Violation {
	if i := slices.IndexFunc(d.Violations, f); i >= 0 {
		return &d.Violations[i]
	}
	return nil
}

// keepOpen keeps intake open for workloads that no rule stops: the leader of each pool, see leader.
// So a missing answer changes nothing.
func (d *decision) keepOpen() {
	for pool, of := range d.byPool() {
		if d.violation(pool, EffectStop) != nil || d.violation("", EffectStop) != nil {
			continue
		}
		d.openLeader(of)
	}
}

// byPool returns the workloads of each pool, the newest first.
func (d *decision) byPool() map[string][]Workload {
	m := map[string][]Workload{}
	for _, w := range d.Facts.Workloads {
		m[w.Pool] = append(m[w.Pool], w)
	}
	for _, of := range m {
		slices.SortFunc(of, func(a, b Workload) int {
			return cmp.Or(cmp.Compare(b.Revision, a.Revision), a.Key.Compare(b.Key))
		})
	}
	return m
}

// leader returns the workload that takes jobs until another one is ready: the newest ready one, or
// else the oldest.
func leader(of []Workload) (leader *Workload) {
	for i := range of {
		if of[i].Ending {
			continue
		}
		if leader = &of[i]; leader.Ready == Yes {
			break
		}
	}
	return leader
}

// openLeader opens the leader of a pool's workloads. It reports whether there is one.
func (d *decision) openLeader(of []Workload) bool {
	w := leader(of)
	if w != nil {
		d.Open = append(d.Open, w.Key)
	}
	return w != nil
}

// provision brings everything to the desired state, in order. It creates the prerequisites of a
// workload before the workload, and a replacement before the replaced workload ends.
func (d *decision) provision() {
	unbounded := d.Policies == No && d.Unbounded.Reason != ""
	if d.Namespace != Yes || d.Policies != Yes && !unbounded {
		if d.Namespace == No || d.Policies == No && !unbounded {
			d.add(EnsureNamespace)
		}
		d.progress = "Its namespace is being created."
	}
	baseline := d.Namespace == Yes && d.Policies == Yes
	copied := d.Forge != v1alpha1.GitHub || d.hasCopies() // until then no object may reference the copy
	if baseline && d.Credential.Valid == Yes && !copied {
		d.add(CopyCredential)
		d.progress = "Its credential is being copied."
	}
	if baseline && d.Access != Yes {
		if d.Access == No {
			d.add(EnsureAccess)
		}
		d.progress = "Permissions in its namespace are being granted."
	}
	ready := baseline && copied && d.Access == Yes && d.Credential.Valid == Yes
	pools := d.byPool()
	for _, w := range d.Facts.Desired {
		d.pool(w, pools[w.Pool], ready)
		delete(pools, w.Pool)
	}
	for pool, of := range pools { // pools in which it is not enrolled
		if d.violation(pool, EffectBlock) == nil {
			d.retire(of)
		}
	}
	d.deleteCopies()
	d.summary(unbounded)
}

// hasCopies reports whether every desired namespace has a copy of the current credential.
func (d *decision) hasCopies() bool {
	name := CredentialName(d.Enrollment.Name, d.Credential.Fingerprint)
	return !slices.ContainsFunc(d.Facts.Desired, func(w DesiredWorkload) bool {
		return !slices.Contains(d.Facts.Copies, CredentialCopy{w.Namespace, name})
	})
}

// pool handles one pool. of lists its workloads, the newest first.
func (d *decision) pool(want DesiredWorkload, of []Workload, ready bool) {
	if d.violation(want.Pool, EffectStop) != nil {
		d.addFor(StopIntake, of, func(w Workload) bool { return w.Stopped != Yes && w.Object != No })
		return
	}
	if d.violation(want.Pool, EffectBlock) != nil {
		d.openLeader(of)
		return
	}
	i := slices.IndexFunc(of, func(w Workload) bool {
		return w.Namespace == want.Namespace && w.Shape == want.Shape && !w.Ending
	})
	if i >= 0 && d.Forge == v1alpha1.GitLab && d.rotationDue(of[i].Since) && ready && !of[i].Lost {
		i = -1 // create a second runner with its own token
	}
	if i < 0 {
		d.openLeader(of)
		switch {
		case !ready:
		case d.Forge == v1alpha1.GitLab:
			d.Actions = append(d.Actions, Action{Kind: CreateRunner, Create: want})
		default:
			d.Actions = append(d.Actions, Action{Kind: ApplyWorkload, Create: want})
		}
		d.progress = cmp.Or(d.progress, "Runners of the pool "+want.Pool+" are being created.")
		return
	}
	w := of[i]
	older := slices.Concat(of[:i], of[i+1:])
	switch {
	case w.Failure.Reason != "":
		d.failure = w.Failure
	case !ready:
	case w.Lost && w.Contacted == No:
		d.Actions = append(d.Actions, Action{Kind: DeleteRunner, Workload: w.Key})
	case w.Lost && w.Contacted == Yes:
		d.Actions = append(d.Actions, Action{Kind: ResetToken, Workload: w.Key})
	case w.Object == No || !w.Current:
		d.Actions = append(d.Actions, Action{Kind: ApplyWorkload, Workload: w.Key})
	}
	if w.Ready != Yes {
		d.progress = cmp.Or(d.progress, "Runners of the pool "+want.Pool+" are not registered yet.")
		if d.openLeader(older) { // it takes jobs until the new one can
			return
		}
	}
	if !slices.ContainsFunc(older, func(o Workload) bool { return o.Stopped != Yes && (o.Object != No || o.Remote != No) }) {
		d.Open = append(d.Open, w.Key) // both open at once would exceed the maximum
	}
	d.retire(older)
}

// rotationDue reports whether a credential that was created at a given time needs a replacement: it is
// older than rotateEvery or than rotateAt.
func (d *decision) rotationDue(created time.Time) bool {
	c := d.Enrollment.Spec.Credentials
	if created.IsZero() {
		return false
	}
	var due time.Time
	if c.RotateEvery != nil && c.RotateEvery.Duration > 0 {
		due = created.Add(c.RotateEvery.Duration)
	}
	if at := c.RotateAt; at != nil && created.Before(at.Time) {
		due = retry.Earliest(due, at.Time)
	}
	if due.IsZero() {
		return false
	}
	if d.now.Before(due) {
		d.Wake = retry.Earliest(d.Wake, due)
		return false
	}
	return true
}

// retire removes workloads that were replaced or are not wanted. It works like the end of an
// enrollment, but keeps the credential.
func (d *decision) retire(of []Workload) {
	if len(of) == 0 {
		return
	}
	d.progress = cmp.Or(d.progress, "Runners that are no longer desired are being removed.")
	switch {
	case d.addFor(StopIntake, of, func(w Workload) bool { return w.Stopped != Yes && (w.Object != No || w.Remote != No) }):
	case d.addFor(Deregister, of, func(w Workload) bool { return drained(w) && w.Remote != No && !w.Manual && w.Denied < MaxDenied }):
	case d.addFor(DeleteWorkloads, of, func(w Workload) bool { return w.Remote == No && w.Object != No }):
	}
	for _, w := range of {
		if w.Manual && w.Remote != No && w.Stopped == Yes && drained(w) {
			d.failure = Failure{ReasonByHand, manualDeletion(w)}
		}
		if w.Denied >= MaxDenied {
			d.failure = Failure{ReasonCleanupSkipped, fmt.Sprintf("The forge refuses to remove %q (%d).", w.Name, w.RemoteID)}
		}
	}
}

// manualDeletion describes what a person must do about a runner that a person created.
func manualDeletion(w Workload) string {
	return fmt.Sprintf(
		"The runner of %q was created manually and takes no jobs any more. Delete it at GitLab (the group's Build, Runners), then confirm with the annotation %s: a reason.",
		w.Name,
		v1alpha1.ForceCleanupAnnotation,
	)
}

func drained(w Workload) bool { return w.Jobs != nil && *w.Jobs == 0 }

// deleteCopies deletes copies of older credentials after the newest copy is in use everywhere and no
// workload references the older ones.
func (d *decision) deleteCopies() {
	if d.Credential.Valid != Yes || !d.hasCopies() {
		return
	}
	var retained []CredentialCopy
	for _, w := range d.Facts.Desired {
		retained = append(retained, CredentialCopy{w.Namespace, CredentialName(d.Enrollment.Name, d.Credential.Fingerprint)})
	}
	for _, w := range d.Facts.Workloads {
		if w.Object != No && w.Ready != Yes {
			return
		}
		for _, name := range w.Copies {
			retained = append(retained, CredentialCopy{w.Namespace, name})
		}
	}
	for _, c := range d.Facts.Copies {
		if !slices.Contains(retained, c) {
			d.Actions = append(d.Actions, Action{Kind: DeleteCopy, Copy: c})
		}
	}
}

// summary reports the status of an enrollment that is provisioning or provisioned.
func (d *decision) summary(unbounded bool) {
	desired, registered := len(d.Facts.Desired), 0
	for _, w := range d.Facts.Desired {
		if slices.ContainsFunc(d.Facts.Workloads, func(x Workload) bool { return x.Pool == w.Pool && x.Ready == Yes }) {
			registered++
		}
	}
	phase, ready := v1alpha1.PhaseActive, Condition{"Ready", Yes, ReasonActive, "All of its pools take jobs."}
	bad := d.firstViolation(func(v Violation) bool { return v.Effect >= EffectBlock })
	switch {
	case unbounded:
		phase, ready = v1alpha1.PhaseFailed, Condition{"Ready", No, d.Unbounded.Reason, d.Unbounded.Message}
	case d.failure.Reason != "":
		phase, ready = v1alpha1.PhaseFailed, Condition{"Ready", No, d.failure.Reason, d.failure.Message}
	case bad != nil:
		phase, ready = v1alpha1.PhaseFailed, Condition{"Ready", No, bad.Reason, bad.Message}
	case registered < desired && d.restarts():
		ready = Condition{
			"Ready",
			No,
			ReasonRestarts,
			fmt.Sprintf(
				"The job listener or manager of %d of %d pools restarts, because its number of allowed runners changed.",
				desired-registered,
				desired,
			),
		}
	case registered < desired:
		phase, ready = v1alpha1.PhaseProvisioning, Condition{
			"Ready",
			No,
			ReasonProvisioning,
			cmp.Or(d.progress, "Not every pool is registered."),
		}
	}
	d.report(
		phase,
		ready,
		Condition{
			"Registered",
			AnswerOf(registered == desired),
			map[bool]string{true: ReasonRegistered, false: ReasonNotRegistered}[registered == desired],
			fmt.Sprintf("%d of %d pools are registered.", registered, desired),
		},
	)
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

// report writes the phase and all conditions: the given ones, and the others as derived from the
// facts.
func (d *decision) report(phase v1alpha1.EnrollmentPhase, given ...Condition) {
	c := append(given, d.Approved)
	say := func(kind string, a Answer, yes, no, unknown string, message string) {
		if !slices.ContainsFunc(c, func(x Condition) bool { return x.Type == kind }) {
			c = append(c, Condition{kind, a, map[Answer]string{Yes: yes, No: no, Unknown: unknown}[a], message})
		}
	}
	say(
		"CredentialsValid",
		d.Credential.Valid,
		cmp.Or(d.Credential.Reason, ReasonValid),
		cmp.Or(d.Credential.Reason, ReasonInvalid),
		cmp.Or(d.Credential.Reason, ReasonNotChecked),
		d.Credential.Message,
	)
	say("NamespaceReady", d.Namespace, ReasonReady, ReasonNotReady, ReasonNotChecked, "")
	say("PolicyReady", d.Policies, ReasonReady, cmp.Or(d.Unbounded.Reason, ReasonNotReady), ReasonNotChecked, d.Unbounded.Message)
	say("Registered", Unknown, ReasonRegistered, ReasonNotRegistered, ReasonNotChecked, "")
	say("Progressing", AnswerOf(len(d.Actions) > 0 || d.progress != ""), ReasonProvisioning, ReasonNone, "", d.progress)
	degraded := d.failure
	switch {
	case degraded.Reason != "":
	case d.Credential.Valid == No && d.Credential.InUse == Yes:
		degraded = Failure{
			ReasonRotationFailed,
			"The new credential is not valid, so the fleet still uses the previous one: " + d.Credential.Message,
		}
	case d.Forge == v1alpha1.GitHub && d.oldKey():
		degraded = Failure{
			ReasonRotationDue,
			"Its credential is older than rotateEvery, or a rotation was requested. Create another key in the App's settings and store it in the Secret.",
		}
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
