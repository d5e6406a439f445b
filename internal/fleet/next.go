package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// Want returns the desired workloads of an enrollment, one for each of its pools that exists.
// [Check] decides whether the enrollment may have them.
func Want(e *v1alpha1.RunnerEnrollment, forge v1alpha1.ForgeType, pools map[string]*v1alpha1.RunnerPool, shared string) []Wanted {
	var all []Wanted
	for _, use := range e.Spec.Pools {
		if pool := pools[use.Name]; pool != nil {
			all = append(all, Wanted{use.Name, NamespaceOf(e, shared), Shape(e, forge, pool, use)})
		}
	}
	return all
}

// Shape returns a hash of the settings that cannot change in place. GitHub reads the labels of a
// scale set only when the scale set is created. GitLab runners can change in place, so their shape
// is constant.
func Shape(e *v1alpha1.RunnerEnrollment, forge v1alpha1.ForgeType, pool *v1alpha1.RunnerPool, use v1alpha1.EnrolledPool) string {
	if forge == v1alpha1.GitLab {
		return "gitlab"
	}
	labels := slices.Sorted(slices.Values(RunsOn(pool, e.Name)))
	sum := sha256.Sum256([]byte(strings.Join(append(labels, e.Spec.ConfigURL, RunnerGroup(e, use)), "\n")))
	return hex.EncodeToString(sum[:8])
}

// RunnerGroup returns the runner group of a pool. It is empty for GitHub's default group.
func RunnerGroup(e *v1alpha1.RunnerEnrollment, use v1alpha1.EnrolledPool) string {
	if use.RunnerGroup == "" && use.Type == v1alpha1.UseOrgPlusUser {
		return "tailplane-" + WorkloadName(e.Name, use.Name, 1)
	}
	return use.RunnerGroup
}

// Next decides what to do with an enrollment. It does not modify its input.
func Next(f Facts, now time.Time) Step {
	d := &decision{Facts: f, now: now}
	if !f.Enrollment.DeletionTimestamp.IsZero() {
		d.end()
	} else {
		d.live()
	}
	slices.SortFunc(d.Open, func(a, b Key) int { return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name)) })
	return d.Step
}

type decision struct {
	Facts
	now time.Time
	Step
	progress string // the current work, as text for people
	trouble  Trouble
}

// do adds an action for each workload that matches is. It reports whether it added any.
func (d *decision) do(deed Deed, of []Workload, is func(Workload) bool) bool {
	before := len(d.Acts)
	for _, w := range of {
		if is(w) {
			d.Acts = append(d.Acts, Act{Deed: deed, Workload: w.Key})
		}
	}
	return len(d.Acts) > before
}

func (d *decision) set(deed Deed) { d.Acts = append(d.Acts, Act{Deed: deed}) }

// live handles an enrollment that is not being deleted.
func (d *decision) live() {
	has := len(d.Facts.Workloads) > 0
	barred := d.violation("", Bars)
	stopped := d.violation("", Stops)
	switch {
	case !d.Listed:
		d.openAsIs()
		d.progress = "Not everything could be listed."
		d.report(cmp.Or(d.Enrollment.Status.Phase, v1alpha1.PhaseRequested), Condition{"Ready", Unknown, ReasonListIncomplete, d.progress})
	case d.Approved.Status != Yes && !has:
		d.report(v1alpha1.PhaseRequested, Condition{"Ready", No, d.Approved.Reason, d.Approved.Message})
	case d.Approved.Status == No:
		d.suspend(d.Approved.Reason, d.Approved.Message)
	case d.Approved.Status == Unknown:
		d.openAsIs()
		d.report(cmp.Or(d.Enrollment.Status.Phase, v1alpha1.PhaseApproved), Condition{"Ready", Unknown, d.Approved.Reason, d.Approved.Message})
	case stopped != nil && has:
		d.suspend(stopped.Reason, stopped.Message)
	case barred != nil:
		d.openAsIs()
		d.report(v1alpha1.PhaseFailed, Condition{"Ready", No, barred.Reason, barred.Message})
	case !d.Held:
		d.set(Hold) // before any object is created that needs a cleanup
		d.report(v1alpha1.PhaseApproved, Condition{"Ready", No, ReasonProvisioning, "It is approved."})
	case d.Credential.Valid == No && d.Credential.InUse != Yes:
		d.suspend(cmp.Or(d.Credential.Reason, ReasonInvalid), d.Credential.Message)
	default:
		d.provision()
	}
}

// suspend stops intake and deletes nothing, because its cause may be temporary.
func (d *decision) suspend(reason, message string) {
	d.do(StopIntake, d.Facts.Workloads, func(w Workload) bool { return w.Stopped != Yes && w.Object != No })
	d.report(v1alpha1.PhaseSuspended, Condition{"Ready", No, reason, message})
}

// violation returns the first violation with at least this effect. It considers one pool or, if
// pool is empty, the violations of the whole enrollment.
func (d *decision) violation(pool string, least Effect) *Violation {
	for i, v := range d.Violations {
		if v.Pool == pool && v.Effect >= least {
			return &d.Violations[i]
		}
	}
	return nil
}

// openAsIs keeps intake open for workloads that no rule stops: the leader of each pool, see leader.
// So a missing answer changes nothing.
func (d *decision) openAsIs() {
	for pool, of := range d.byPool() {
		if d.violation(pool, Stops) != nil || d.violation("", Stops) != nil {
			continue
		}
		if w := leader(of); w != nil {
			d.Open = append(d.Open, w.Key)
		}
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
			return cmp.Or(cmp.Compare(b.Revision, a.Revision), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
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

// provision brings everything to the desired state, in order. It creates the prerequisites of a
// workload before the workload, and a replacement before the replaced workload ends.
func (d *decision) provision() {
	unbounded := d.Policies == No && d.Unbounded.Reason != ""
	if d.Namespace != Yes || d.Policies != Yes && !unbounded {
		if d.Namespace == No || d.Policies == No && !unbounded {
			d.set(MakeNamespace)
		}
		d.progress = "Its namespace is being made."
	}
	ground := d.Namespace == Yes && d.Policies == Yes
	copied := d.Forge != v1alpha1.GitHub || d.copied() // until then no object may reference the copy
	if ground && d.Credential.Valid == Yes && !copied {
		d.set(CopyCredential)
		d.progress = "Its credential is being copied."
	}
	if ground && d.Access != Yes {
		if d.Access == No {
			d.set(MakeAccess)
		}
		d.progress = "Rights in its namespace are being given."
	}
	ready := ground && copied && d.Access == Yes && d.Credential.Valid == Yes
	pools := d.byPool()
	for _, w := range d.Facts.Wanted {
		d.pool(w, pools[w.Pool], ready)
		delete(pools, w.Pool)
	}
	for pool, of := range pools { // pools in which it is not enrolled
		if d.violation(pool, Bars) == nil {
			d.retire(of)
		}
	}
	d.dropCopies()
	d.summary(unbounded)
}

// copied reports whether every desired namespace has a copy of the current credential.
func (d *decision) copied() bool {
	name := CredentialName(d.Enrollment.Name, d.Credential.Fingerprint)
	return !slices.ContainsFunc(d.Facts.Wanted, func(w Wanted) bool { return !slices.Contains(d.Facts.Copies, Copy{w.Namespace, name}) })
}

// pool handles one pool. of lists its workloads, the newest first.
func (d *decision) pool(want Wanted, of []Workload, ready bool) {
	if d.violation(want.Pool, Stops) != nil {
		d.do(StopIntake, of, func(w Workload) bool { return w.Stopped != Yes && w.Object != No })
		return
	}
	if d.violation(want.Pool, Bars) != nil {
		if w := leader(of); w != nil {
			d.Open = append(d.Open, w.Key)
		}
		return
	}
	i := slices.IndexFunc(of, func(w Workload) bool {
		return w.Namespace == want.Namespace && w.Shape == want.Shape && !w.Ending
	})
	if i >= 0 && d.Forge == v1alpha1.GitLab && d.aged(of[i]) && ready && !of[i].Lost {
		i = -1 // create a second runner with its own token
	}
	if i < 0 {
		if w := leader(of); w != nil {
			d.Open = append(d.Open, w.Key)
		}
		if ready {
			d.begin(want)
		}
		d.progress = cmp.Or(d.progress, "Runners of the pool "+want.Pool+" are being made.")
		return
	}
	w := of[i]
	older := slices.Concat(of[:i], of[i+1:])
	switch {
	case w.Trouble.Reason != "":
		d.trouble = w.Trouble
	case w.Lost && w.Contacted == No:
		if ready {
			d.do(DropRunner, []Workload{w}, func(Workload) bool { return true })
		}
	case w.Lost && w.Contacted == Yes:
		if ready {
			d.do(ResetToken, []Workload{w}, func(Workload) bool { return true })
		}
	case (w.Object == No || !w.Current) && ready:
		d.do(Apply, []Workload{w}, func(Workload) bool { return true })
	}
	if w.Ready != Yes {
		d.progress = cmp.Or(d.progress, "Runners of the pool "+want.Pool+" are not registered yet.")
		if before := leader(older); before != nil { // it takes jobs until the new one can
			d.Open = append(d.Open, before.Key)
			return
		}
	}
	if !slices.ContainsFunc(older, func(o Workload) bool { return o.Stopped != Yes && (o.Object != No || o.Remote != No) }) {
		d.Open = append(d.Open, w.Key) // both open at once would exceed the maximum
	}
	d.retire(older)
}

// aged reports whether a GitLab runner must be replaced by one with another token.
func (d *decision) aged(w Workload) bool { return d.due(w.Since) }

// due reports whether a credential that was created at a given time needs a replacement: it is
// older than rotateEvery or than rotateAt.
func (d *decision) due(made time.Time) bool {
	c := d.Enrollment.Spec.Credentials
	if made.IsZero() {
		return false
	}
	var due time.Time
	if c.RotateEvery != nil && c.RotateEvery.Duration > 0 {
		due = made.Add(c.RotateEvery.Duration)
	}
	if at := c.RotateAt; at != nil && made.Before(at.Time) {
		due = soonest(due, at.Time)
	}
	if due.IsZero() {
		return false
	}
	if d.now.Before(due) {
		d.Wake = soonest(d.Wake, due)
		return false
	}
	return true
}

// begin creates a workload that does not exist yet.
func (d *decision) begin(want Wanted) {
	deed := Apply
	if d.Forge == v1alpha1.GitLab {
		deed = MakeRunner
	}
	d.Acts = append(d.Acts, Act{Deed: deed, Make: want})
}

// retire removes workloads that were replaced or are not wanted. It works like the end of an
// enrollment, but keeps the credential.
func (d *decision) retire(of []Workload) {
	if len(of) == 0 {
		return
	}
	d.progress = cmp.Or(d.progress, "Runners that are not wanted any more end.")
	switch {
	case d.do(StopIntake, of, func(w Workload) bool { return w.Stopped != Yes && (w.Object != No || w.Remote != No) }):
	case d.do(Deregister, of, func(w Workload) bool { return drained(w) && w.Remote != No && !w.ByHand && w.Denied < MaxDenied }):
	case d.do(DeleteWorkloads, of, func(w Workload) bool { return w.Remote == No && w.Object != No }):
	}
	for _, w := range of {
		if w.ByHand && w.Remote != No && w.Stopped == Yes && drained(w) {
			d.trouble = Trouble{ReasonByHand, byHand(w)}
		}
		if w.Denied >= MaxDenied {
			d.trouble = Trouble{ReasonCleanupSkipped, fmt.Sprintf("The forge refuses to have %q (%d) removed.", w.Name, w.RemoteID)}
		}
	}
}

// byHand describes what a person must do about a runner that a person created.
func byHand(w Workload) string {
	return fmt.Sprintf("The runner of %q was made by hand, and takes no jobs any more. Delete it at GitLab (the group's Build, Runners), then say so with the annotation %s: a reason.", w.Name, v1alpha1.ForceCleanupAnnotation)
}

func drained(w Workload) bool { return w.Jobs != nil && *w.Jobs == 0 }

// dropCopies deletes copies of older credentials after the newest copy is in use everywhere and no
// workload references the older ones.
func (d *decision) dropCopies() {
	if d.Credential.Valid != Yes || !d.copied() {
		return
	}
	var kept []Copy
	for _, w := range d.Facts.Wanted {
		kept = append(kept, Copy{w.Namespace, CredentialName(d.Enrollment.Name, d.Credential.Fingerprint)})
	}
	for _, w := range d.Facts.Workloads {
		if w.Object != No && w.Ready != Yes {
			return
		}
		for _, name := range w.Copies {
			kept = append(kept, Copy{w.Namespace, name})
		}
	}
	for _, c := range d.Facts.Copies {
		if !slices.Contains(kept, c) {
			d.Acts = append(d.Acts, Act{Deed: DropCopy, Copy: c})
		}
	}
}
