package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/cli"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// An enrollmentStore stores enrollments in memory, for tests of the command line. Package planekube/act has the real one with all of its
// rules.
type enrollmentStore map[string]plane.Enrollment

func (r enrollmentStore) Get(_ context.Context, p access.Permit) (plane.Enrollment, error) {
	e, there := r[p.Org()]
	if !there {
		return e, problem.New(problem.NotFound, "There is no such organisation.")
	}
	return e, nil
}

func (r enrollmentStore) Apply(ctx context.Context, p access.Permit, c plane.EnrollmentChange) (plane.Enrollment, bool, error) {
	e, there := r[p.Org()]
	switch {
	case c.Action == plane.ActionRequest && there:
		return e, false, nil
	case c.Action == plane.ActionRequest:
		var is struct {
			ConfigURL, Isolation string
			Pools                []plane.EnrolledPool
		}
		if err := json.Unmarshal(c.Spec, &is); err != nil {
			return e, false, err
		}
		e = plane.Enrollment{ID: p.Org(), Name: p.Org(), ConfigURL: is.ConfigURL, Isolation: is.Isolation, Pools: is.Pools, Phase: "Requested", RequestedBy: []string{p.Caller().Identity()}, Digest: "sha256:1"}
	case (c.Action == plane.ActionApprove || c.Action == plane.ActionDecline) && c.Seen != e.Digest:
		return e, false, problem.New(problem.Conflict, "It is not what was looked at.")
	case !there:
		_, err := r.Get(ctx, p)
		return e, false, err
	case c.RecordOnly:
		e.Requested = &plane.EnrollmentAsked{What: c.Action, By: p.Caller().Identity(), Reason: string(c.Reason)}
	case c.Action == plane.ActionApprove:
		e.Approval = &plane.EnrollmentApproval{By: p.Caller().Identity(), Digest: c.Seen}
	case c.Action == plane.ActionRotate:
		e.Rotation.At = new(time.Now())
	}
	switch {
	case bool(c.DryRun):
	case !c.RecordOnly && (c.Action == plane.ActionDecline || c.Action == plane.ActionOffboard):
		delete(r, p.Org())
	default:
		r[p.Org()] = e
	}
	return e, true, nil
}

// The command line requests, declines or approves an organisation as shown, rotates its credential and ends it. An immediate change with
// large effects requires its phrase.
func TestEnroll(t *testing.T) {
	env := newPlaneEnv(t)
	stored := enrollmentStore{}
	tka := func(exit int, want string, args ...string) string {
		t.Helper()
		code, out, errs := env.tka(t, args...)
		if code != exit || !strings.Contains(out+errs, want) {
			t.Errorf("%q: exit %d, %s%s, want %d %q", args, code, out, errs, exit, want)
		}
		return out
	}
	request := []string{"request", "newco", "--forge", "github", "--pool", "nix,dind", "--reason", "our builds wait"}
	tka(output.ExitRefused, "You need enrollment.request on all organisations; you have operator@*", request...)
	env.role = "platform-admin"
	tka(output.ExitUnreachable, "No configuration repository is set", request...)
	env.enroll.Writer = stored
	tka(output.ExitUsage, "needs --reason", "request", "newco", "--forge", "github", "--pool", "nix")
	tka(output.ExitUsage, "needs --forge and --pool", "request", "newco", "--reason", "x")
	tka(output.ExitRefused, "The forge \"nowhere\" does not exist", "request", "newco", "--forge", "nowhere", "--pool", "nix", "--reason", "x")
	tka(output.ExitOK, "newco would be written. Nothing was changed.", append(request, "--dry-run")...)
	tka(output.ExitOK, "newco is written.", request...)
	tka(output.ExitOK, "newco was already requested.", request...)
	switch e := stored["newco"]; {
	case len(e.Pools) != 2:
		t.Errorf("len(e.Pools) = %v, want 2", len(e.Pools))
	case e.ConfigURL != "https://github.com/newco":
		t.Errorf("e.ConfigURL = %q, want %q", e.ConfigURL, "https://github.com/newco")
	case e.Isolation != "None":
		t.Errorf("e.Isolation = %q, want %q", e.Isolation, "None")
	}

	tka(output.ExitUsage, `--confirm "DECLINE newco"`, "decline", "newco", "--reason", "x")
	tka(output.ExitNotReady, "not what was looked at", "decline", "newco", "--reason", "x", "--seen", "sha256:0")
	tka(output.ExitOK, "The plane would decline it. Nothing was changed.", "decline", "newco", "--reason", "x", "--dry-run")
	if len(stored) != 1 {
		t.Error("the enrollment is declined")
	}
	tka(output.ExitOK, "newco is declined: the plane deleted the enrollment.", "decline", "newco", "--reason", "x", "--confirm", "DECLINE newco")
	tka(output.ExitFailed, "There is no such organisation.", "decline", "newco", "--reason", "x", "--dry-run")
	tka(output.ExitOK, "newco is written.", request...)
	tka(output.ExitUsage, `--confirm "APPROVE newco"`, "approve", "newco", "--reason", "x")
	tka(output.ExitNotReady, "not what was looked at", "approve", "newco", "--reason", "x", "--seen", "sha256:0")
	tka(output.ExitOK, "newco at https://github.com/newco, isolation None, pools nix, dind", "approve", "newco", "--reason", "x", "--dry-run")
	if stored["newco"].Approval != nil {
		t.Error("the enrollment is approved")
	}
	tka(output.ExitOK, "newco is approved", "approve", "newco", "--reason", "x", "--confirm", "APPROVE newco")
	var l struct {
		APIVersion, Kind string
		Result           plane.Outcome
	}
	switch out := tka(output.ExitOK, "", "rotate", "newco", "--reason", "lost", "-o", "json"); {
	case json.Unmarshal([]byte(out), &l) != nil:
		t.Errorf("json.Unmarshal([]byte(out), &l) is not nil; out = %s", out)
	case l.Kind != "EnrollmentOutcome":
		t.Errorf("l.Kind = %q, want %q", l.Kind, "EnrollmentOutcome")
	case l.Result.Done != "written":
		t.Errorf("l.Result.Done = %q, want %q", l.Result.Done, "written")
	case l.Result.Enrollment.Rotation.At == nil:
		t.Error("l.Result.Enrollment.Rotation.At is nil")
	}
	env.role = "org-admin"
	tka(output.ExitOK, "newco: the plane recorded a request for the platform administrators.", "offboard", "newco", "--reason", "we move")
	if a := stored["newco"].Requested; a == nil || a.What != plane.ActionOffboard {
		t.Errorf("%+v", a)
	}
	env.role = "platform-admin"
	tka(output.ExitOK, "newco would be written", "offboard", "newco", "--reason", "they move", "--dry-run")
	tka(output.ExitUsage, `--confirm "OFFBOARD newco"`, "offboard", "newco", "--reason", "they move")
	if len(stored) != 1 {
		t.Error("the enrollment is deleted")
	}
	if out := tka(output.ExitOK, "", "offboard", "newco", "--reason", "they move", "--confirm", "OFFBOARD newco", "-o", "name"); out != "newco\n" || len(stored) != 0 {
		t.Errorf("%q, %v", out, stored)
	}
	tka(output.ExitFailed, "There is no such organisation", "rotate", "newco", "--reason", "x")

	var offered bytes.Buffer
	cli.Program{Args: []string{"tka", "__complete", "fleet", "request", "x", "--isolation", ""}, In: strings.NewReader(""), Out: &offered, Err: new(bytes.Buffer), Getenv: func(string) string { return "" }, Now: time.Now}.Run(t.Context())
	if !strings.HasPrefix(offered.String(), "None\nNamespace\nNode\n") {
		t.Errorf("offered is %q", offered.String())
	}
}
