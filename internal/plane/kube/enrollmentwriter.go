package kube

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/strictjson"
)

// EnrollmentWriter writes enrollments when the plane approves them. It needs get, create, patch and delete on runnerenrollments. The admission
// policies must also let its service account write them.
type EnrollmentWriter struct {
	client   client.Client
	approver func(login string) bool
	now      func() time.Time
}

var _ plane.EnrollmentWriter = (*EnrollmentWriter)(nil)

// Enrollments returns the writer of enrollments. approver reports whether the fleet accepts a login's approval.
func (c *Connection) Enrollments(approver func(login string) bool) *EnrollmentWriter {
	return &EnrollmentWriter{client.WithFieldValidation(c.client, metav1.FieldValidationStrict), approver, c.now}
}

// enrollmentVerbs has, for each action, the verb that it needs, and the verb without which a caller may only request it.
var enrollmentVerbs = map[plane.EnrollmentAction]struct{ needed, toMake access.Verb }{
	plane.ActionRequest:  {needed: access.EnrollmentRequest},
	plane.ActionEdit:     {needed: access.EnrollmentRequest},
	plane.ActionApprove:  {needed: access.EnrollmentApprove},
	plane.ActionDecline:  {needed: access.EnrollmentDecline},
	plane.ActionRotate:   {access.RotateRequest, access.CredentialsRotate},
	plane.ActionOffboard: {access.OffboardRequest, access.EnrollmentOffboard},
}

// requirePermit returns an error unless p permits one of the verbs for one organisation. It does not trust the caller's own checks.
func (s *EnrollmentWriter) requirePermit(p access.Permit, verbs ...access.Verb) error {
	if p.Org() == "" {
		return problem.New(problem.Internal, "internal error").WithCause(errors.New("a permit without an organisation was used for an enrollment"))
	}
	var err error
	for _, v := range verbs {
		if err = p.Require(v, s.now()); err == nil {
			return nil
		}
	}
	return err
}

// checkPermit returns an error unless p permits the change.
func (s *EnrollmentWriter) checkPermit(p access.Permit, c plane.EnrollmentChange) error {
	verbs, known := enrollmentVerbs[c.Action]
	if !known || c.RecordOnly && verbs.toMake == "" {
		return problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("%q is not a change of an enrollment", c.Action))
	}
	if err := s.requirePermit(p, verbs.needed); err != nil {
		return err
	}
	if verbs.toMake != "" && !c.RecordOnly && !plane.ViewerOf(p).In(p.Org(), verbs.toMake) {
		refused := problem.New(problem.Forbidden, "Your role allows you to request this change but not to make it.")
		refused.Needed = &problem.Need{Verb: string(verbs.toMake), Org: p.Org()}
		return refused
	}
	return nil
}

func (s *EnrollmentWriter) read(ctx context.Context, org string) (*v1alpha1.RunnerEnrollment, error) {
	e := new(v1alpha1.RunnerEnrollment)
	switch err := s.client.Get(ctx, client.ObjectKey{Name: org}, e); {
	case apierrors.IsNotFound(err):
		return nil, problem.New(problem.NotFound, "The organisation does not exist, or you may not see it.", "List the organisations that you may see.")
	case err != nil:
		return nil, writeUnavailable("enrollment", fmt.Errorf("read the enrollment %s: %w", org, err))
	}
	return e, nil
}

// Get implements [plane.EnrollmentWriter].
func (s *EnrollmentWriter) Get(ctx context.Context, p access.Permit) (plane.Enrollment, error) {
	if err := s.requirePermit(p, access.EnrollmentRequest, access.EnrollmentApprove, access.EnrollmentDecline, access.OffboardRequest, access.RotateRequest); err != nil {
		return plane.Enrollment{}, err
	}
	e, err := s.read(ctx, p.Org())
	if err != nil {
		return plane.Enrollment{}, err
	}
	return s.convert(e), nil
}

func (s *EnrollmentWriter) convert(e *v1alpha1.RunnerEnrollment) plane.Enrollment {
	return enrollmentOf(e, s.now().UTC())
}

// Apply implements [plane.EnrollmentWriter]. A decline fails after any write to the enrollment meanwhile, such as an approval or a status,
// because the caller has not reviewed that. An end leaves an enrollment that is ending already as it is.
func (s *EnrollmentWriter) Apply(ctx context.Context, p access.Permit, c plane.EnrollmentChange) (out plane.Enrollment, changed bool, err error) {
	if err := s.checkPermit(p, c); err != nil {
		return out, false, err
	}
	api := dryRunClient(s.client, bool(c.DryRun))
	if c.Action == plane.ActionRequest {
		return s.create(ctx, api, p, c)
	}
	if c.Action == plane.ActionDecline {
		if err := s.checkApprover(p.Caller()); err != nil {
			return out, false, err
		}
	}
	e, err := s.read(ctx, p.Org())
	if err != nil {
		return out, false, err
	}
	switch {
	case c.Action == plane.ActionDecline:
		if err := checkDecline(e, c.Seen); err != nil {
			return out, false, err
		}
		err = api.Delete(ctx, e, client.Preconditions{UID: new(e.UID), ResourceVersion: new(e.ResourceVersion)})
	case c.Action == plane.ActionOffboard && !c.RecordOnly:
		err = client.IgnoreNotFound(api.Delete(ctx, e, client.Preconditions{UID: new(e.UID)}))
	case !e.DeletionTimestamp.IsZero():
		return out, false, problem.New(problem.Conflict, "The enrollment is already ending.", "Check its progress.")
	default:
		was := e.DeepCopy()
		if err := s.change(e, p.Caller(), c); err != nil {
			return out, false, err
		}
		err = api.Patch(ctx, e, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	}
	if err != nil {
		return out, false, s.refused(p.Org(), err)
	}
	return s.convert(e), true, nil
}

// create creates an unapproved enrollment. It accepts an existing one that the same request created.
func (s *EnrollmentWriter) create(ctx context.Context, api client.Client, p access.Permit, c plane.EnrollmentChange) (out plane.Enrollment, created bool, err error) {
	sum := sha256.Sum256([]byte(strings.Join([]string{p.Caller().Identity(), string(c.Key), string(c.Reason), string(c.Spec)}, "\x00")))
	request := hex.EncodeToString(sum[:])
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: p.Org(), Annotations: map[string]string{requestAnnotation: request}}}
	if e.Spec, err = parseSpec(c.Spec); err != nil {
		return out, false, err
	}
	e.Spec.Approval = nil
	setRequestedBy(e, p.Caller().Identity())
	switch err := api.Create(ctx, e); {
	case apierrors.IsAlreadyExists(err):
		is, err := s.read(ctx, p.Org())
		switch {
		case err != nil:
			return out, false, err
		case is.Annotations[requestAnnotation] != request:
			return out, false, problem.New(problem.Conflict, "The organisation is already enrolled or requested.", "Check its enrollment, and change that one.")
		}
		return s.convert(is), false, nil
	case err != nil:
		return out, false, s.refused(p.Org(), err)
	}
	return s.convert(e), true, nil
}

// change changes e as requested.
func (s *EnrollmentWriter) change(e *v1alpha1.RunnerEnrollment, by access.Caller, c plane.EnrollmentChange) error {
	switch {
	case c.RecordOnly:
		return s.recordRequest(e, by.Identity(), c)
	case c.Action == plane.ActionEdit:
		return s.edit(e, by.Identity(), c.Patch)
	case c.Action == plane.ActionApprove:
		if err := checkDigest(e, c.Seen); err != nil {
			return err
		}
		return s.setApproval(e, by)
	}
	// A rotation. An approved enrollment stays approved, with the caller as the approver.
	approved := isApproved(e)
	e.Spec.Credentials.RotateAt = new(metav1.NewTime(s.now().UTC().Truncate(time.Second)))
	if r := requestedAction(e); r != nil && r.What == plane.ActionRotate {
		delete(e.Annotations, v1alpha1.RequestedAnnotation)
	}
	if !approved {
		return nil
	}
	return s.setApproval(e, by)
}

// edit applies a merge patch to the spec. Any edit but one of owners and members voids the approval, and its author must not approve it.
func (s *EnrollmentWriter) edit(e *v1alpha1.RunnerEnrollment, by string, patch json.RawMessage) error {
	approved, digest, belonged := isApproved(e), fleet.Digest(e), fleet.IsMember(e, by)
	spec, err := mergeSpec(e.Spec, patch)
	if err != nil {
		return err
	}
	spec.Approval = e.Spec.Approval // an edit never approves
	e.Spec = spec
	switch {
	case fleet.Digest(e) == digest && (approved || !belonged || fleet.IsMember(e, by)): // only owners or members changed
	case approved:
		setRequestedBy(e, by)
	default: // also for a caller who leaves the organisation with this edit, who must not approve it afterwards
		setRequestedBy(e, append(requestedBy(e), by)...)
	}
	return nil
}

// recordRequest records the request for an action that the caller may not take. It keeps an equal request.
func (s *EnrollmentWriter) recordRequest(e *v1alpha1.RunnerEnrollment, by string, c plane.EnrollmentChange) error {
	if r := requestedAction(e); r != nil && r.What == c.Action && r.By == by && r.Reason == string(c.Reason) {
		return nil
	}
	text, err := json.Marshal(plane.EnrollmentAsked{What: c.Action, By: by, At: s.now().UTC().Truncate(time.Second), Reason: string(c.Reason)})
	if err == nil {
		annotate(e, v1alpha1.RequestedAnnotation, string(text))
	}
	return err
}

// checkDigest returns an error unless the enrollment still has the digest that the caller has reviewed.
func checkDigest(e *v1alpha1.RunnerEnrollment, digest string) error {
	if digest != fleet.Digest(e) {
		return problem.New(problem.Conflict, "The enrollment has changed since you reviewed it.", "Check its current state.")
	}
	return nil
}

// checkDecline returns an error unless the enrollment has the digest and is only requested.
func checkDecline(e *v1alpha1.RunnerEnrollment, digest string) error {
	if err := checkDigest(e, digest); err != nil {
		return err
	}
	if !onlyRequested(e) {
		return problem.New(problem.Conflict, "The enrollment is no longer only a request: it is approved, or it has runners.", "To end it, offboard the organisation.")
	}
	return nil
}

// onlyRequested reports whether the enrollment is unapproved and the fleet has made nothing for it. The fleet adds its finalizer before it
// makes anything, and removes it last.
func onlyRequested(e *v1alpha1.RunnerEnrollment) bool {
	return e.Spec.Approval == nil && e.DeletionTimestamp.IsZero() && len(e.Finalizers) == 0 && len(e.Status.Pools) == 0 &&
		e.Status.Offboard == nil && (e.Status.Phase == "" || e.Status.Phase == v1alpha1.PhaseRequested)
}

// checkApprover returns an error if the fleet does not accept the caller's decisions about enrollments.
func (s *EnrollmentWriter) checkApprover(c access.Caller) error {
	switch {
	case c.Tagged() || c.Shared:
		return problem.New(problem.Forbidden, "Only a person of this tailnet can decide about an enrollment.")
	case !s.approver(c.Identity()):
		return problem.New(problem.Forbidden, "The fleet does not accept your approval.", "Ask a person who is listed in fleet.approvers.")
	}
	return nil
}

// setApproval sets the caller's approval of the enrollment's current content.
func (s *EnrollmentWriter) setApproval(e *v1alpha1.RunnerEnrollment, c access.Caller) error {
	by := c.Identity()
	own := func(message string) error {
		return problem.New(problem.SelfApproval, message, "Ask another platform-admin.")
	}
	if err := s.checkApprover(c); err != nil {
		return err
	}
	switch {
	case slices.ContainsFunc(requestedBy(e), func(l string) bool { return strings.EqualFold(l, by) }):
		return own("You requested a part of this enrollment.")
	case fleet.IsMember(e, by):
		return own("You are a member of this organisation.")
	}
	e.Spec.Approval = &v1alpha1.EnrollmentApproval{By: by, At: metav1.NewTime(s.now().UTC().Truncate(time.Second)), Digest: fleet.Digest(e)}
	return nil
}

// isApproved reports whether the plane's approval is for the enrollment's current content.
func isApproved(e *v1alpha1.RunnerEnrollment) bool {
	return e.Spec.Approval != nil && e.Spec.Approval.Digest == fleet.Digest(e)
}

// refused converts an error of a write to a problem.
func (s *EnrollmentWriter) refused(org string, err error) error {
	switch {
	case apierrors.IsConflict(err):
		return problem.New(problem.Conflict, "The enrollment has changed in the meantime.", "Check its current state, and send the request again.")
	case apierrors.IsNotFound(err):
		return problem.New(problem.NotFound, "The organisation no longer exists.", "List the organisations that you may see.")
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return problem.New(problem.Validation, "The API server rejects it: "+err.Error()).WithCause(err)
	case apierrors.IsForbidden(err):
		return problem.New(problem.Unavailable, "The API server does not allow the plane to write enrollments.", "The administrator of this server must check fleet.approval and the rights of its account.").WithRetryAfter(time.Minute).WithCause(err)
	}
	return writeUnavailable("enrollment", fmt.Errorf("write the enrollment %s: %w", org, err))
}

// parseSpec decodes a spec from a caller as strictly as the API server does.
func parseSpec(text json.RawMessage) (spec v1alpha1.RunnerEnrollmentSpec, err error) {
	if err := strictjson.UnmarshalKnown(text, &spec); err != nil {
		return spec, problem.New(problem.Validation, "The request is not a valid spec of a RunnerEnrollment: "+err.Error()+".")
	}
	return spec, nil
}

// mergeSpec returns the spec after a merge patch (RFC 7386).
func mergeSpec(spec v1alpha1.RunnerEnrollmentSpec, patch json.RawMessage) (v1alpha1.RunnerEnrollmentSpec, error) {
	var was, changes map[string]any
	text, err := json.Marshal(spec)
	if err == nil {
		err = json.Unmarshal(text, &was)
	}
	if err != nil {
		return spec, err
	}
	if err := json.Unmarshal(patch, &changes); err != nil {
		return spec, problem.New(problem.Validation, "The request is not a valid merge patch of a spec.")
	}
	if text, err = json.Marshal(gitops.MergePatch(was, changes)); err != nil {
		return spec, err
	}
	return parseSpec(text)
}

func setRequestedBy(e *v1alpha1.RunnerEnrollment, logins ...string) {
	slices.Sort(logins)
	text, _ := json.Marshal(slices.Compact(logins)) // strings can always be encoded
	annotate(e, v1alpha1.RequestedByAnnotation, string(text))
}

func annotate(e *v1alpha1.RunnerEnrollment, key, value string) {
	if e.Annotations == nil {
		e.Annotations = map[string]string{}
	}
	e.Annotations[key] = value
}
