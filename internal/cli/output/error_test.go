package output_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/problem"
)

// SGN-18: the exit code for each refusal of a server. This test fails for a new code until a developer assigns it an exit code.
func TestProblemExitCode(t *testing.T) {
	want := map[int][]problem.Code{
		output.ExitFailed: {problem.BadRequest, problem.NotFound, problem.MethodNotAllowed, problem.TooLarge, problem.MediaType, problem.AuditUnavailable, problem.Internal},
		output.ExitRefused: {problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.NodeExpired, problem.IdentityAmbiguous, problem.SubnetRouter, problem.ForeignNode, problem.TaggedNode,
			problem.NoCapability, problem.BadCapability, problem.AmbiguousRole, problem.RoleNotGranted, problem.RoleNotAllowed, problem.RoleNeedsNamespaces, problem.PeriodOutOfBounds, problem.ReasonRequired, problem.TokenRequired, problem.TokenRefused,
			problem.NotAMember, problem.NotAProxy, problem.NotSignedIn, problem.GrantRemoved, problem.ProxyOnly, problem.CannotProvision, problem.TooManySignins,
			problem.NotEnabled, problem.ApprovalRequired, problem.NotApproved, problem.RequestOver, problem.RequestChanged, problem.TooManyRequests,
			problem.InvalidToken, problem.IdentityMismatch, problem.NotAuthorized, problem.Forbidden, problem.Validation, problem.Held, problem.Confirmation, problem.SelfApproval},
		output.ExitNotReady:    {problem.RateLimited, problem.NotReady, problem.Ending, problem.Conflict, problem.OperatorUnavailable},
		output.ExitUnreachable: {problem.IdentityUnavailable, problem.Unavailable, problem.ClockSkew},
	}
	seen := map[problem.Code]bool{}
	for code, all := range want {
		for _, c := range all {
			seen[c] = true
			if got := output.ProblemExitCode(c); got != code {
				t.Errorf("%s exits with %d, want %d", c, got, code)
			}
		}
	}
	for _, c := range problem.Codes() {
		if !seen[c] {
			t.Errorf("%s has no row here; it exits with %d", c, output.ProblemExitCode(c))
		}
	}
}

func TestExitCode(t *testing.T) {
	refused := output.FromProblem(problem.New(problem.NoCapability, "No.", "Ask."))
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("x"), 1}, {output.UsageErrorf("x"), 2}, {refused, 3}, {fmt.Errorf("login: %w", refused), 3}, {output.SilentExit(7), 7}, {output.SilentExit(0), 0},
	} {
		if got := output.ExitCode(tt.err); got != tt.want {
			t.Errorf("%v exits with %d, want %d", tt.err, got, tt.want)
		}
	}
	switch _, ok := errors.AsType[*problem.Error](refused); {
	case !ok:
		t.Errorf("ok is false; refused = %+v", refused)
	case refused.Message != "No.":
		t.Errorf("refused.Message = %q, want %q", refused.Message, "No.")
	case len(refused.Advice) != 1:
		t.Errorf("len(refused.Advice) = %v, want 1", len(refused.Advice))
	}
}

// A server cannot fill the screen with advice.
func TestAdviceIsBounded(t *testing.T) {
	p := problem.New(problem.AmbiguousRole, "Which?")
	for range 100 {
		p.Advice = append(p.Advice, "line")
		p.Choices = append(p.Choices, problem.Choice{Role: "$(x)", Period: "1h"})
	}
	f := output.FromProblem(p)
	if len(f.Advice) != output.MaxAdvice || f.Advice[0] != "tka login --role '$(x)'   (in the whole cluster, 1h)" {
		t.Errorf("%d lines, the first %q", len(f.Advice), f.Advice[0])
	}
}
