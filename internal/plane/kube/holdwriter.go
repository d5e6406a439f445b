package kube

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// HoldWriter makes, changes and lifts holds. It needs get, create, patch and delete on runnerholds.
type HoldWriter struct {
	client client.Client
	now    func() time.Time
}

// Holds returns the writer of holds.
func (c *Connection) Holds() *HoldWriter { return &HoldWriter{c.client, c.now} }

// checkPermit returns an error unless p permits v for the scope. The permit must be narrowed to the scope's organisation, or be for all.
func (s *HoldWriter) checkPermit(p access.Permit, v access.Verb, scope plane.Scope) error {
	if err := p.Require(v, s.now()); err != nil {
		return err
	}
	if scope.Org != "" && p.Org() == scope.Org || p.Everywhere() {
		return nil
	}
	return problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("a permit of %q was used for a hold of %v", p.Org(), scope))
}

// Create makes a hold in the name of the permit's caller. If the name exists, it returns that hold unchanged, provided the same caller sent
// the same request.
func (s *HoldWriter) Create(ctx context.Context, p access.Permit, d plane.HoldDraft, dryRun bool) (plane.Hold, bool, error) {
	if err := s.checkPermit(p, access.HoldsCreate, d.Scope); err != nil {
		return plane.Hold{}, false, err
	}
	h := &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: d.Name, Annotations: map[string]string{requestAnnotation: d.Digest}},
		Spec: v1alpha1.RunnerHoldSpec{Scope: v1alpha1.HoldScope{All: d.Scope.All, Forge: d.Scope.Forge, Org: d.Scope.Org, Pool: d.Scope.Pool}, Mode: v1alpha1.HoldMode(d.Mode),
			Reason: d.Reason, RequestedBy: p.Caller().Identity()}}
	if d.ExpiresAt != nil {
		h.Spec.ExpiresAt = new(metav1.NewTime(*d.ExpiresAt))
	}
	switch err := dryRunClient(s.client, dryRun).Create(ctx, h); {
	case apierrors.IsAlreadyExists(err):
		return s.existing(ctx, d, p.Caller().Identity())
	case apierrors.IsInvalid(err):
		return plane.Hold{}, false, problem.New(problem.Validation, "The API server rejects this hold.", "Check the names in its scope, and the reason.").WithCause(err)
	case err != nil:
		return plane.Hold{}, false, holdUnavailable("The API server did not confirm that the hold was created.", fmt.Errorf("create the hold %s: %w", d.Name, err))
	}
	o := holdOf(h, s.now().UTC())
	if d.Scope.Org != "" {
		o.HeldOrgs = []string{d.Scope.Org}
	}
	return o, true, nil
}

// existing returns the existing hold with the draft's name.
func (s *HoldWriter) existing(ctx context.Context, d plane.HoldDraft, by string) (plane.Hold, bool, error) {
	is := new(v1alpha1.RunnerHold)
	if err := s.client.Get(ctx, client.ObjectKey{Name: d.Name}, is); err != nil {
		return plane.Hold{}, false, holdUnavailable("The API server did not return the hold with this name.", fmt.Errorf("read the hold %s: %w", d.Name, err))
	}
	o := holdOf(is, s.now().UTC())
	if o.Digest != d.Digest || o.RequestedBy != by || o.Scope != d.Scope || o.Mode != d.Mode {
		return plane.Hold{}, false, problem.New(problem.Conflict, "A hold with this name exists already for a different request.", "Check "+d.Name+", and try again in a moment.")
	}
	if d.Scope.Org != "" {
		o.HeldOrgs = []string{d.Scope.Org}
	}
	return o, false, nil
}

// Lift deletes the hold only if its UID is that of h. A newer hold of the same name stays.
func (s *HoldWriter) Lift(ctx context.Context, p access.Permit, h plane.Hold, dryRun bool) error {
	if err := s.checkPermit(p, access.HoldsLift, h.Scope); err != nil {
		return err
	}
	switch err := dryRunClient(s.client, dryRun).Delete(ctx, &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: h.Name}}, client.Preconditions{UID: new(types.UID(h.UID))}); {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // deleted, or another hold has the name now
		return holdNotFound()
	case err != nil:
		return holdUnavailable("The API server did not confirm that the hold was lifted.", fmt.Errorf("lift the hold %s: %w", h.Name, err))
	}
	return nil
}

// Reschedule changes the expiry of the hold with the UID of h, if the hold has not changed since h was read.
func (s *HoldWriter) Reschedule(ctx context.Context, p access.Permit, h plane.Hold, end *time.Time, dryRun bool) (plane.Hold, error) {
	if err := s.checkPermit(p, access.HoldsLift, h.Scope); err != nil {
		return plane.Hold{}, err
	}
	is := new(v1alpha1.RunnerHold)
	switch err := s.client.Get(ctx, client.ObjectKey{Name: h.Name}, is); {
	case apierrors.IsNotFound(err):
		return plane.Hold{}, holdNotFound()
	case err != nil:
		return plane.Hold{}, holdUnavailable("The API server did not return the hold.", fmt.Errorf("read the hold %s: %w", h.Name, err))
	case string(is.UID) != h.UID || is.DeletionTimestamp != nil:
		return plane.Hold{}, holdNotFound()
	case holdOf(is, s.now().UTC()).Version != h.Version:
		return plane.Hold{}, problem.New(problem.Conflict, "The hold has changed in the meantime.", "Check the hold again.")
	}
	was := is.DeepCopy()
	is.Spec.ExpiresAt = nil
	if end != nil {
		is.Spec.ExpiresAt = new(metav1.NewTime(*end))
	}
	switch err := dryRunClient(s.client, dryRun).Patch(ctx, is, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); {
	case apierrors.IsNotFound(err):
		return plane.Hold{}, holdNotFound()
	case apierrors.IsConflict(err):
		return plane.Hold{}, problem.New(problem.Conflict, "The hold has changed in the meantime.", "Check the hold again.").WithCause(err)
	case err != nil:
		return plane.Hold{}, holdUnavailable("The API server did not confirm that the hold was changed.", fmt.Errorf("change the expiry of the hold %s: %w", h.Name, err))
	}
	return holdOf(is, s.now().UTC()), nil
}

func holdNotFound() error {
	return problem.New(problem.NotFound, "The hold no longer exists.", "List the holds that you may see.")
}

// holdUnavailable returns the problem for a request whose result is unknown.
func holdUnavailable(message string, err error) error {
	return problem.New(problem.Unavailable, message, "Check the holds, and try again in a moment. A repeated request finds an earlier result.").WithRetryAfter(time.Second).WithCause(err)
}
