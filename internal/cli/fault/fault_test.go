package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/problem"
)

// SGN-18: the exit code for each refusal of a server. This test fails for a new code until a developer assigns it an exit code.
func TestEveryRefusalHasItsCode(t *testing.T) {
	want := map[int][]problem.Code{
		fault.Failed: {problem.BadRequest, problem.NotFound, problem.MethodNotAllowed, problem.TooLarge, problem.MediaType, problem.AuditUnavailable, problem.Internal},
		fault.Refused: {problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.NodeExpired, problem.ForeignNode, problem.TaggedNode,
			problem.NoCapability, problem.BadCapability, problem.AmbiguousRole, problem.RoleNotGranted, problem.RoleNotAllowed, problem.PeriodOutOfBounds,
			problem.NotAMember, problem.NotSignedIn, problem.GrantRemoved, problem.CannotProvision, problem.TooManySignins,
			problem.InvalidToken, problem.IdentityMismatch, problem.NotAuthorized, problem.Forbidden, problem.Validation, problem.Held, problem.Confirmation, problem.SelfApproval},
		fault.NotReady:    {problem.RateLimited, problem.NotReady, problem.Ending, problem.Conflict},
		fault.Unreachable: {problem.IdentityUnavailable, problem.Unavailable},
	}
	seen := map[problem.Code]bool{}
	for code, all := range want {
		for _, c := range all {
			seen[c] = true
			if got := fault.CodeOfRefusal(c); got != code {
				t.Errorf("%s exits with %d, want %d", c, got, code)
			}
		}
	}
	for _, c := range problem.Codes() {
		if !seen[c] {
			t.Errorf("%s has no row here; it exits with %d", c, fault.CodeOfRefusal(c))
		}
	}
}

func TestCodeOf(t *testing.T) {
	refused := fault.Of(problem.New(problem.NoCapability, "No.", "Ask."))
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("x"), 1}, {fault.Usage("x"), 2}, {refused, 3}, {fmt.Errorf("login: %w", refused), 3}, {fault.Child(7), 7}, {fault.Child(0), 0},
	} {
		if got := fault.CodeOf(tt.err); got != tt.want {
			t.Errorf("%v exits with %d, want %d", tt.err, got, tt.want)
		}
	}
	if _, ok := errors.AsType[*problem.Error](refused); !ok || refused.Message != "No." || len(refused.Advice) != 1 {
		t.Errorf("%+v", refused)
	}
}

// A server cannot fill the screen with advice.
func TestAdviceIsBounded(t *testing.T) {
	p := problem.New(problem.AmbiguousRole, "Which?")
	for range 100 {
		p.Advice = append(p.Advice, "line")
		p.Choices = append(p.Choices, problem.Choice{Role: "$(x)", Period: "1h"})
	}
	f := fault.Of(p)
	if len(f.Advice) != fault.MaxAdvice || f.Advice[0] != "tka login --role '$(x)'   (in the whole cluster, 1h)" {
		t.Errorf("%d lines, the first %q", len(f.Advice), f.Advice[0])
	}
}
