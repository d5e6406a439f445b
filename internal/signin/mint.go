package signin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// Errors of TokenRules and of a Store that applies them.
var (
	// ErrMismatch means that the stored sign-in does not fit what the access server wrote. Another
	// account than the operator's may have written its status.
	ErrMismatch = errors.New("the stored sign-in does not match what was requested")
	// ErrPolicyMissing means that an admission policy on which tokens rely is not in force.
	ErrPolicyMissing = errors.New("an admission policy for sign-ins is not in force")
)

// MinTokenLife is the minimum lifetime of a token that the API server accepts.
const MinTokenLife = 10 * time.Minute

// TokenRules are the limits of the tokens of sign-ins. The process that requests a token applies
// them, because the writer of a status is not trusted (law 5).
type TokenRules struct {
	Max       time.Duration // maximum period, and maximum lifetime of a token
	MaxLife   time.Duration // maximum lifetime of a sign-in since its creation; 0: no limit
	Audiences []string      // audiences of the tokens; empty: those of the API server

	// RequireAdmissionPolicy refuses tokens while the admission policies for sign-ins and for tokens
	// are not in force.
	RequireAdmissionPolicy bool
}

// Verify checks that the account is the one that the operator created for s, and returns how long a
// token of it may live from now. account is nil if it does not exist. Errors: ErrConflict if the
// account is no longer the one in the status, and ErrMismatch.
//
// The end of the token follows from the stored times that only the access server writes. The status
// can only shorten it.
func (r TokenRules) Verify(s Signin, account *Account, now time.Time) (time.Duration, error) {
	mismatch := func(format string, args ...any) (time.Duration, error) {
		return 0, fmt.Errorf("%w: "+format, append([]any{ErrMismatch}, args...)...)
	}
	end := s.End(r.MaxLife)
	switch {
	case s.checkSession() != nil || s.Owner.Name() != s.Name:
		return mismatch("the name %s is not the name of its user, device and session", s.Name)
	case s.ServiceAccount != s.Name:
		return mismatch("the status names the ServiceAccount %s, not %s", s.ServiceAccount, s.Name)
	case len(s.Bound) == 0 || !isPartOf(s.Bound.Role(), s.Binds.Role()):
		return mismatch("the status names the role %q, not %q", s.Bound.Role(), s.Binds.Role())
	case !s.boundWhereRequested():
		return mismatch("the status names %q, not %q", s.Bound, s.Binds)
	case s.Period > r.Max:
		return mismatch("the period of %v is longer than %v", s.Period, r.Max)
	case s.AskedAt.Sub(now) > maxClockSkew:
		return mismatch("the time of the request is more than %v in the future", maxClockSkew)
	case s.ValidUntil.After(end):
		return mismatch("the status names the end %s, which is after %s", s.ValidUntil.UTC().Format(time.RFC3339), end.UTC().Format(time.RFC3339))
	case account == nil || account.Deleting || account.UID != s.ServiceAccountUID:
		return 0, fmt.Errorf("the ServiceAccount was deleted or recreated: %w", ErrConflict)
	case account.Signin != s.UID:
		return mismatch("the labels of the ServiceAccount name the sign-in %q, not %q", account.Signin, s.UID)
	case account.Owner != "" && account.Owner != s.UID:
		return mismatch("the ServiceAccount belongs to %q, not to the sign-in %q", account.Owner, s.UID)
	}
	return min(s.ValidUntil.Sub(now), r.Max), nil
}

// isPartOf reports whether all roles of part are among the roles of whole.
func isPartOf(part, whole access.Role) bool {
	all := strings.Split(string(whole), ",")
	return !slices.ContainsFunc(strings.Split(string(part), ","), func(role string) bool { return !slices.Contains(all, role) })
}

// boundWhereRequested reports whether the status names only requested namespaces for each role. It
// names the whole cluster exactly for the roles that were requested there. What a selector selects is
// known to the operator only.
func (s Signin) boundWhereRequested() bool {
	return !slices.ContainsFunc(s.Bound, func(bound access.Bind) bool {
		i := slices.IndexFunc(s.Binds, func(b access.Bind) bool { return b.Role == bound.Role })
		if i < 0 || s.Binds[i].IsClusterWide() != bound.IsClusterWide() {
			return true
		}
		return len(s.Binds[i].Namespaces) > 0 && slices.ContainsFunc(bound.Namespaces, func(ns string) bool { return !slices.Contains(s.Binds[i].Namespaces, ns) })
	})
}

// End returns when the sign-in expires. It depends on stored times only, so retries and restarts do
// not move it. It is truncated to whole seconds, the precision of a stored time. maxLife 0 means no
// limit. A sign-in that uses an access request begins at its creation, and nothing extends it.
func (s Signin) End(maxLife time.Duration) time.Time {
	end := s.AskedAt.Add(s.Period)
	if s.ByRequest.Name != "" {
		end = s.Created.Add(s.Period)
	}
	if maxLife > 0 {
		if last := s.Created.Add(maxLife); last.Before(end) {
			end = last
		}
	}
	return end.Truncate(time.Second)
}

// noToken refuses a token for a sign-in that the server cannot trust now. The cause goes to the server log.
func noToken(err error) error {
	if errors.Is(err, ErrPolicyMissing) {
		return problem.New(problem.CannotProvision, fmt.Sprintf("The cluster cannot provide this sign-in: %s: an admission policy that protects sign-ins is not in force.", ReasonAdmissionPolicyMissing),
			"Ask an administrator of the cluster to install the admission policies of Tailplane again.").WithCause(err)
	}
	return problem.New(problem.CannotProvision, "The cluster cannot provide this sign-in: another client changed it.",
		"Tell an administrator of the cluster. To sign in again: tka logout, then tka login").WithCause(err)
}
