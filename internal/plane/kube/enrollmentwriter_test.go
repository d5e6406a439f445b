//go:build unix

package kube

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// PL-06, PL-08: where the plane approves, it writes an enrollment as requested. A caller that wrote some of it, or belongs to the
// organisation, cannot approve it. It can be declined while it is only requested. An approval covers the reviewed content, and any change
// voids it. A permit for another organisation or action does not count.
func TestPL06_Enrollments(t *testing.T) {
	p := newWriterEnv(t)
	org := "newco-" + p.Namespace[len(p.Namespace)-6:]
	api, err := Connect(p.Config, time.Now)
	p.Must(err)
	s := api.Enrollments(func(login string) bool { return login != "quinn@platform.dev" })
	permit := func(who string, verb access.Verb) access.Permit {
		t.Helper()
		admin := func(login string) access.Holder {
			return access.Holder{Login: access.Login(login), Role: access.PlaneRole{Name: access.PlatformAdmin}}
		}
		policy := access.PlanePolicy{Capability: "tailplane.dev/cap/plane", Settings: []access.Holder{admin("pat@platform.dev"), admin("paula@platform.dev"), admin("quinn@platform.dev"),
			{Login: "nora@newco.dev", Role: access.PlaneRole{Name: access.OrgAdmin, Orgs: []string{org}}}}}
		out, err := access.DecidePlane(access.Caller{Login: access.Login(who), Via: access.ViaTailnet, Device: access.Device{ID: "n1", Name: "laptop"}}, verb, policy, time.Now())
		p.Must(err)
		out, err = out.In(org)
		p.Must(err)
		return out
	}
	refused := func(err error, want problem.Code) {
		t.Helper()
		if problem.CodeOf(err) != want {
			t.Fatalf("%v, want %s", err, want)
		}
	}
	stored := func() *v1alpha1.RunnerEnrollment {
		t.Helper()
		e := new(v1alpha1.RunnerEnrollment)
		p.Must(p.Admin.Get(t.Context(), client.ObjectKey{Name: org}, e))
		return e
	}
	stands := func() fleet.Condition {
		return fleet.Approved(stored(), true, func(string) bool { return true })
	}
	change := func(who access.Permit, c plane.EnrollmentChange) (plane.Enrollment, error) {
		e, _, err := s.Apply(t.Context(), who, c)
		return e, err
	}
	create := func(who access.Permit, spec json.RawMessage, key string, dryRun plane.Flag) (plane.Enrollment, bool, error) {
		return s.Apply(t.Context(), who, plane.EnrollmentChange{Action: plane.ActionRequest, Spec: spec, Key: plane.IdempotencyKey(key), DryRun: dryRun})
	}
	edit := func(who access.Permit, patch json.RawMessage, dryRun plane.Flag) (plane.Enrollment, error) {
		return change(who, plane.EnrollmentChange{Action: plane.ActionEdit, Patch: patch, DryRun: dryRun})
	}
	decide := func(who access.Permit, a plane.EnrollmentAction, digest string, dryRun plane.Flag) (plane.Enrollment, error) {
		return change(who, plane.EnrollmentChange{Action: a, Seen: digest, DryRun: dryRun})
	}
	spec := json.RawMessage(`{"forge":"github","configURL":"https://github.com/` + org + `","pools":[{"name":"gh-nix"}],"credentials":{"secretName":"x"},"owners":["nora@newco.dev"]}`)
	nora := permit("nora@newco.dev", access.EnrollmentRequest)

	// It is requested.
	_, _, err = create(permit("nora@newco.dev", access.OffboardRequest), spec, "r1", false)
	refused(err, problem.Internal)
	if _, _, err := create(nora, json.RawMessage(`{"forge":"github","colour":"red"}`), "r1", false); problem.CodeOf(err) != problem.Validation || !strings.Contains(err.Error(), "colour") {
		t.Fatal(err)
	}
	_, _, err = create(nora, json.RawMessage(`{"forge":"github","configURL":"https://github.com/x","pools":[],"credentials":{"secretName":"x"}}`), "r1", false)
	refused(err, problem.Validation)
	switch e, created, err := create(nora, spec, "r1", true); {
	case err != nil:
		t.Fatal(err)
	case !created:
		t.Fatalf("created is false; %+v, %v", e, err)
	case e.Name != org:
		t.Fatalf("e.Name = %q, want %q", e.Name, org)
	}
	if err := p.Admin.Get(t.Context(), client.ObjectKey{Name: org}, new(v1alpha1.RunnerEnrollment)); !apierrors.IsNotFound(err) {
		t.Fatalf("a dry run: %v", err)
	}
	requested, created, err := create(nora, spec, "r1", false)
	switch {
	case err != nil:
		t.Fatal(err)
	case !created:
		t.Fatalf("created is false; requested = %+v, %v", requested, err)
	case requested.Approval != nil:
		t.Fatalf("requested.Approval = %v, want nil", requested.Approval)
	case requested.RequestedBy[0] != "nora@newco.dev":
		t.Fatalf("requested.RequestedBy[0] = %q, want %q", requested.RequestedBy[0], "nora@newco.dev")
	case requested.Digest != fleet.Digest(stored()):
		t.Fatalf("requested.Digest = %q, want fleet.Digest(stored())", requested.Digest)
	}
	switch e, created, err := create(nora, spec, "r1", false); {
	case err != nil:
		t.Fatalf("the same again: %v", err)
	case created:
		t.Fatalf("the same again: created is true; %+v, %v", e, err)
	case e.Digest != requested.Digest:
		t.Fatalf("the same again: e.Digest = %q, want %q", e.Digest, requested.Digest)
	}
	_, _, err = create(permit("pat@platform.dev", access.EnrollmentRequest), spec, "r2", false)
	refused(err, problem.Conflict)
	if c := stands(); c.Status != fleet.No {
		t.Fatalf("%+v", c)
	}

	// It is declined at the reviewed digest, and only while nothing was made for it.
	declines := func(who string) access.Permit { return permit(who, access.EnrollmentDecline) }
	_, err = decide(permit("pat@platform.dev", access.EnrollmentApprove), plane.ActionDecline, requested.Digest, false)
	refused(err, problem.Internal)
	_, err = decide(declines("pat@platform.dev"), plane.ActionDecline, "sha256:0", false)
	refused(err, problem.Conflict)
	_, err = decide(declines("quinn@platform.dev"), plane.ActionDecline, requested.Digest, false)
	refused(err, problem.Forbidden)
	for what, put := range map[string]func(e *v1alpha1.RunnerEnrollment){
		"it has a workload":    func(e *v1alpha1.RunnerEnrollment) { e.Finalizers = []string{v1alpha1.FleetFinalizer} },
		"it stands further on": func(e *v1alpha1.RunnerEnrollment) { e.Status.Phase = v1alpha1.PhaseSuspended },
		"it has pools":         func(e *v1alpha1.RunnerEnrollment) { e.Status.Pools = []v1alpha1.EnrolledPoolStatus{{Name: "gh-nix"}} },
	} {
		was := stored()
		is := was.DeepCopy()
		put(is)
		p.Must(p.Admin.Patch(t.Context(), is.DeepCopy(), client.MergeFrom(was)))
		p.Must(p.Admin.Status().Patch(t.Context(), is.DeepCopy(), client.MergeFrom(was)))
		if _, err := decide(declines("pat@platform.dev"), plane.ActionDecline, requested.Digest, false); problem.CodeOf(err) != problem.Conflict || !strings.Contains(err.Error(), "no longer only a request") {
			t.Errorf("%s: %v", what, err)
		}
		p.Must(p.Admin.Status().Patch(t.Context(), was.DeepCopy(), client.MergeFrom(is)))
		p.Must(p.Admin.Patch(t.Context(), was.DeepCopy(), client.MergeFrom(is)))
	}
	if _, err := decide(declines("pat@platform.dev"), plane.ActionDecline, requested.Digest, true); err != nil || stored().UID == "" {
		t.Fatalf("a dry run: %v", err)
	}
	if e, err := decide(declines("pat@platform.dev"), plane.ActionDecline, requested.Digest, false); err != nil || e.Name != org {
		t.Fatalf("%+v, %v", e, err)
	}
	_, err = decide(declines("pat@platform.dev"), plane.ActionDecline, requested.Digest, false)
	refused(err, problem.NotFound)
	if _, created, err := create(nora, spec, "r1", false); err != nil || !created {
		t.Fatalf("requested again: %v", err)
	}

	// Another caller than the requester approves it, at the reviewed digest.
	approves := func(who string) access.Permit { return permit(who, access.EnrollmentApprove) }
	if e, err := edit(permit("pat@platform.dev", access.EnrollmentRequest), json.RawMessage(`{"quota":{"pods":7}}`), false); err != nil || len(e.RequestedBy) != 2 {
		t.Fatalf("%+v, %v", e, err)
	}
	_, err = decide(approves("paula@platform.dev"), plane.ActionApprove, requested.Digest, false)
	refused(err, problem.Conflict)
	digest := fleet.Digest(stored())
	_, err = decide(approves("pat@platform.dev"), plane.ActionApprove, digest, false)
	refused(err, problem.SelfApproval)
	_, err = decide(approves("quinn@platform.dev"), plane.ActionApprove, digest, false)
	refused(err, problem.Forbidden)
	_, err = edit(nora, json.RawMessage(`{"members":["paula@platform.dev"]}`), false)
	p.Must(err)
	_, err = decide(approves("paula@platform.dev"), plane.ActionApprove, digest, false)
	refused(err, problem.SelfApproval)
	if e, err := edit(permit("paula@platform.dev", access.EnrollmentRequest), json.RawMessage(`{"members":null}`), true); err != nil || !slices.Contains(e.RequestedBy, "paula@platform.dev") {
		t.Errorf("a member that leaves the organisation counts as an author: %+v, %v", e, err)
	}
	_, err = edit(nora, json.RawMessage(`{"members":null}`), false)
	p.Must(err)
	if _, err := decide(approves("paula@platform.dev"), plane.ActionApprove, digest, true); err != nil || stored().Spec.Approval != nil {
		t.Fatalf("a dry run: %v", err)
	}
	switch e, err := decide(approves("paula@platform.dev"), plane.ActionApprove, digest, false); {
	case err != nil:
		t.Fatal(err)
	case e.Approval == nil:
		t.Fatal("e.Approval is nil")
	case e.Approval.By != "paula@platform.dev":
		t.Fatalf("e.Approval.By = %q, want %q", e.Approval.By, "paula@platform.dev")
	case e.Approval.Digest != digest:
		t.Fatalf("e.Approval.Digest = %q, want %q", e.Approval.Digest, digest)
	}
	if c := stands(); c.Status != fleet.Yes {
		t.Fatalf("%+v", c)
	}
	_, err = decide(declines("pat@platform.dev"), plane.ActionDecline, digest, false)
	refused(err, problem.Conflict)

	// The rotation keeps it approved. A caller that may only request it does so.
	_, err = change(permit("nora@newco.dev", access.RotateRequest), plane.EnrollmentChange{Action: plane.ActionRotate})
	refused(err, problem.Forbidden)
	switch e, err := change(permit("nora@newco.dev", access.RotateRequest), plane.EnrollmentChange{Action: plane.ActionRotate, RecordOnly: true, Reason: "a laptop was lost"}); {
	case err != nil:
		t.Fatal(err)
	case e.Requested == nil:
		t.Fatal("e.Requested is nil")
	case e.Requested.By != "nora@newco.dev":
		t.Fatalf("e.Requested.By = %q, want %q", e.Requested.By, "nora@newco.dev")
	}
	if c := stands(); c.Status != fleet.Yes {
		t.Fatalf("to ask voids the approval: %+v", c)
	}
	_, err = change(permit("pat@platform.dev", access.RotateRequest), plane.EnrollmentChange{Action: plane.ActionRotate})
	refused(err, problem.SelfApproval)
	switch e, err := change(permit("paula@platform.dev", access.RotateRequest), plane.EnrollmentChange{Action: plane.ActionRotate}); {
	case err != nil:
		t.Fatal(err)
	case e.Requested != nil:
		t.Fatalf("e.Requested = %v, want nil", e.Requested)
	case e.Rotation.At == nil:
		t.Fatal("e.Rotation.At is nil")
	}
	if c := stands(); c.Status != fleet.Yes || stored().Spec.Credentials.RotateAt == nil {
		t.Fatalf("%+v", c)
	}

	// Any other edit voids the approval, and its author cannot approve it.
	switch e, err := edit(permit("paula@platform.dev", access.EnrollmentRequest), json.RawMessage(`{"isolation":"Namespace"}`), false); {
	case err != nil:
		t.Fatal(err)
	case len(e.RequestedBy) != 1:
		t.Fatalf("len(e.RequestedBy) = %v, want 1", len(e.RequestedBy))
	case e.RequestedBy[0] != "paula@platform.dev":
		t.Fatalf("e.RequestedBy[0] = %q, want %q", e.RequestedBy[0], "paula@platform.dev")
	}
	if c := stands(); c.Reason != fleet.ReasonApprovalVoid {
		t.Fatalf("%+v", c)
	}
	_, err = edit(nora, json.RawMessage(`{"approval":{"by":"pat@platform.dev","at":"2026-01-01T00:00:00Z","digest":"`+fleet.Digest(stored())+`"}}`), false)
	p.Must(err)
	if c := stands(); c.Reason != fleet.ReasonApprovalVoid {
		t.Fatalf("an editor approves: %+v", c)
	}

	// It ends.
	if e, err := change(permit("nora@newco.dev", access.OffboardRequest), plane.EnrollmentChange{Action: plane.ActionOffboard, RecordOnly: true, Reason: "we move"}); err != nil || e.Requested.What != plane.ActionOffboard {
		t.Fatalf("%+v, %v", e, err)
	}
	_, err = change(permit("nora@newco.dev", access.OffboardRequest), plane.EnrollmentChange{Action: plane.ActionOffboard})
	refused(err, problem.Forbidden)
	if _, err := change(permit("pat@platform.dev", access.OffboardRequest), plane.EnrollmentChange{Action: plane.ActionOffboard, DryRun: true}); err != nil {
		t.Fatal(err)
	}
	stored()
	_, err = change(permit("pat@platform.dev", access.OffboardRequest), plane.EnrollmentChange{Action: plane.ActionOffboard})
	p.Must(err)
	_, err = s.Get(t.Context(), nora)
	refused(err, problem.NotFound)
}
