package signin

import (
	"context"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// useRequest answers a login that uses an access request.
func (d *Service) useRequest(ctx context.Context, p access.Permit, req LoginRequest) (Accepted, error) {
	switch {
	case d.UseRequest == nil:
		return Accepted{}, problem.New(problem.NotEnabled, "Access requests are off on this server.", "Sign in without a request.")
	case req.Role != "" || req.Period != 0 || len(req.Namespaces) > 0 || req.Session != "" || req.Reason != "" || !req.Token.IsZero():
		return Accepted{}, problem.New(problem.BadRequest, "A login with a request takes everything else from the request.", "Send the request only.")
	}
	s, err := d.UseRequest(ctx, p.Caller(), req.Request)
	if err != nil {
		return Accepted{}, err
	}
	return Accepted{d.status(s)}, nil
}

// CheckUse returns why a login refuses a new sign-in that uses an access request, whatever the tailnet grants.
func (d *Service) CheckUse(ctx context.Context, want Signin) error {
	if err := d.requireClusterWide(ctx, want.Binds, true); err != nil {
		return err
	}
	return d.limitSessions(want.Owner)
}

// isForRequest reports whether the session is that of an access request.
func (s Session) isForRequest() bool { return strings.HasPrefix(string(s), reservedSessions) }

// coverage returns how long the caller's rules give what s has, and whether they do: those for access requests for a
// sign-in that uses one, and the standing ones for any other. An error means that these rules cannot be judged now, which
// is no evidence.
func (s Signin) coverage(p access.Permit) (period time.Duration, record []string, covered bool, err error) {
	if s.ByRequest.Name != "" {
		terms, ok, err := p.TermsNow(s.Binds)
		return terms.Period, terms.Record, ok, err
	}
	if standing := p.Standing(); problem.CodeOf(standing) == problem.BadCapability {
		return 0, nil, false, standing
	}
	period, covered = p.Covering(s.Binds, s.token())
	return period, p.RecordFor(s.Binds, s.token()), covered, nil
}
