package plane

import (
	"context"
	"errors"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
)

// ChangesSource is the name of the source that provides changes to the plane's store.
const ChangesSource = "kubernetes:changes"

// currentChange returns the change with its current state at the forge. The permit must allow its verb for the change's organisation.
func (d *ChangeService) currentChange(ctx context.Context, p access.Permit, id string) (StoredChange, error) {
	if err := d.checkRepository(); err != nil {
		return StoredChange{}, err
	}
	k, err := d.Store.Get(ctx, id)
	if err != nil {
		return k, err
	}
	if _, err := p.In(k.Org); err != nil {
		return StoredChange{}, err
	}
	r, err := d.Repository.PullRequest(ctx, k.Number)
	if err != nil {
		return k, err
	}
	k.Change = k.Observe(r)
	return k, nil
}

// decide reads a change, decides about it, and stores the result. The permit must allow its verb for the change's organisation.
func (d *ChangeService) decide(ctx context.Context, p access.Permit, id string, reason Reason, decide func(k *StoredChange) error) (StoredChange, error) {
	if err := reason.check(); err != nil {
		return StoredChange{}, err
	}
	k, err := d.currentChange(ctx, p, id)
	if err == nil {
		err = decide(&k)
	}
	if err != nil {
		return k, err
	}
	return d.save(ctx, k)
}

// save stores a change. It sets MergedAt and AppliedAt when the change first reaches these states.
func (d *ChangeService) save(ctx context.Context, k StoredChange) (StoredChange, error) {
	now := d.Plane.Now().UTC().Truncate(time.Second)
	if k.MergedAt == nil && (k.State == gitops.StateMerged || k.State == gitops.StateApplied) {
		k.MergedAt = new(now)
	}
	if k.AppliedAt == nil && k.State == gitops.StateApplied {
		k.AppliedAt = new(now)
	}
	return d.Store.Save(ctx, k)
}

// answer puts a stored change into the plane's store and returns it.
func (d *ChangeService) answer(p access.Permit, k StoredChange, err error) (Envelope[Change], error) {
	if err != nil {
		return Envelope[Change]{}, err
	}
	o := NewChange(k, d.Plane.Now().UTC())
	d.Plane.Store.Set(KindChange, ChangesSource, o)
	return newEnvelope(d.Plane, "Change", o.For(ViewerOf(p)).(Change), d.Plane.Store.Revision(), nil), nil
}

// approveChange approves a change. The permit must allow its verb for the change's organisation.
func (d *ChangeService) approveChange(ctx context.Context, p access.Permit, req DecideRequest) (Envelope[Change], error) {
	k, err := d.decide(ctx, p, req.ID, req.Reason, func(k *StoredChange) (err error) {
		if err := mayApprove(p, *k); req.Head == k.Head && err != nil {
			return err
		}
		c := p.Caller()
		k.Change, err = k.Approve(c.Identity(), string(c.Device.ID), req.Head, d.Plane.Now())
		return changeProblem(err)
	})
	return d.answer(p, k, err)
}

// mayApprove returns a Forbidden error if the caller's approval of the change would not count.
func mayApprove(p access.Permit, k StoredChange) error {
	verb := approvalVerb(k.Platform)
	if ViewerOf(p).In(k.Org, verb) {
		return nil
	}
	why := "This change affects more than one organisation"
	if k.DiffOf != k.Head {
		why = "This change has a push that was made at the forge"
	}
	refused := problem.New(problem.Forbidden, why+", so a platform-admin must approve it.", "Ask a platform-admin.")
	refused.Needed = &problem.Need{Verb: string(verb), Org: k.Org}
	return refused
}

// mergeChange uses up the approval before it merges at the forge. If the forge's response is lost, [ChangePoller] determines the result.
func (d *ChangeService) mergeChange(ctx context.Context, p access.Permit, req DecideRequest) (Envelope[Change], error) {
	k, err := d.decide(ctx, p, req.ID, req.Reason, func(k *StoredChange) (err error) {
		may := func(a gitops.Approval) bool { return d.StillAllowed(ctx, a, k.Org, approvalVerb(k.Platform)) }
		k.Change, err = k.Merge(p.Caller().Identity(), req.Head, may, d.Plane.Now())
		return changeProblem(err)
	})
	if err != nil {
		return Envelope[Change]{}, err
	}
	return d.finish(ctx, p, k)
}

// finish merges the change at the forge and saves the result.
func (d *ChangeService) finish(ctx context.Context, p access.Permit, k StoredChange) (e Envelope[Change], err error) {
	mergeErr := d.Repository.Merge(ctx, k.Number, k.Head)
	switch pr, _ := errors.AsType[*problem.Error](mergeErr); {
	case mergeErr == nil:
		k.Change = k.Observe(gitops.Request{Head: k.Head, Merged: true})
	case pr != nil && pr.Code != problem.Unavailable && pr.Code != problem.RateLimited:
		k.Change = k.MergeRefused(pr.Message)
	default: // unknown result: the change stays as it is until Watch determines it
		return e, mergeErr
	}
	if k, err = d.save(ctx, k); err == nil {
		err = mergeErr
	}
	return d.answer(p, k, err)
}

// closeChange closes a change without a merge.
func (d *ChangeService) closeChange(ctx context.Context, p access.Permit, req CloseRequest) (Envelope[Change], error) {
	k, err := d.decide(ctx, p, req.ID, req.Reason, func(k *StoredChange) error {
		switch {
		case !isOpen(string(k.State)):
			return changeProblem(gitops.ErrNotOpen)
		case k.Proposer != p.Caller().Identity() && !ViewerOf(p).In(k.Org, access.ConfigApprove):
			return problem.New(problem.Forbidden, "Only the proposer or an approver can close a change.")
		}
		return d.withdraw(ctx, p, k, "Closed", req.Reason)
	})
	return d.answer(p, k, err)
}

// declineChange closes an open change that is not approved, at the commit that the caller has reviewed. The permit must allow its verb for the
// change's organisation.
func (d *ChangeService) declineChange(ctx context.Context, p access.Permit, req DecideRequest) (Envelope[Change], error) {
	k, err := d.decide(ctx, p, req.ID, req.Reason, func(k *StoredChange) error {
		switch {
		case k.State == gitops.StateApproved:
			return problem.New(problem.Conflict, "The change is approved already.", "Close the change if it must not be merged.")
		case k.State != gitops.StateOpen:
			return changeProblem(gitops.ErrNotOpen)
		case k.Head != req.Head:
			return changeProblem(gitops.ErrHeadChanged)
		}
		if err := mayApprove(p, *k); err != nil {
			return err
		}
		return d.withdraw(ctx, p, k, "Declined", req.Reason)
	})
	return d.answer(p, k, err)
}

// withdraw closes the pull request with a comment that names the caller and the reason, and then closes the change.
func (d *ChangeService) withdraw(ctx context.Context, p access.Permit, k *StoredChange, done string, reason Reason) error {
	if hasCredential(reason) {
		return credentialRefused("reason")
	}
	if err := d.Repository.Close(ctx, k.Number, gitops.ClosingComment(done, p.Caller().Identity(), string(reason))); err != nil {
		return err
	}
	k.State, k.Approvals = gitops.StateClosed, nil
	return nil
}
