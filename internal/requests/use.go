package requests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// Use signs the requester in with the request. The period begins with it. A repeated call answers with the same sign-in
// and changes nothing; after its end the request is over. No refusal uses the request up.
func (s *Service) Use(ctx context.Context, c access.Caller, name string) (signin.Signin, error) {
	p, err := access.Decide(c, access.RequestUse, s.Policy, s.Now())
	if err != nil {
		return signin.Signin{}, err
	}
	for range writeTries {
		used, again, err := s.use(ctx, p, name)
		if !again {
			return used, err
		}
	}
	return signin.Signin{}, conflict(s.RetryAfter)
}

// use tries once to use a request. again is true if another writer was faster.
func (s *Service) use(ctx context.Context, p access.Permit, name string) (used signin.Signin, again bool, err error) {
	r, err := s.get(ctx, p, name)
	switch {
	case err != nil:
		return used, false, err
	case !r.isOf(p.Caller()):
		return used, false, problem.New(problem.Forbidden, "Only the requester uses a request.", "Ask for yourself: tka request")
	case r.Requester.Device != p.Caller().Device.ID:
		return used, false, problem.New(problem.NotApproved, fmt.Sprintf("The request %s belongs to the device %s.", r.Name, r.Requester.DeviceName), "Use it there, or ask from this device.")
	case r.ClusterID != s.ClusterID:
		return used, false, notFound()
	case r.Use != nil:
		used, err = s.rejoin(ctx, r)
		return used, false, err
	}
	v, terms, err := s.mayUse(ctx, p, r)
	if err != nil {
		return used, false, err
	}
	want := s.signinOf(r, v.Period)
	want.Record = access.MergeRecord(r.Record, terms.Record) // a rule may require more than when the person asked
	return s.begin(ctx, r, want)
}

// mayUse returns the verdict about a request that may be used now and what the requester's rules say now, or why it may
// not be used.
func (s *Service) mayUse(ctx context.Context, p access.Permit, r Request) (Verdict, access.Ask, error) {
	terms, covered, err := p.TermsNow(r.Binds)
	switch {
	case err != nil:
		return Verdict{}, terms, err
	case !covered:
		return Verdict{}, terms, problem.New(problem.GrantRemoved, fmt.Sprintf("No rule lets %s ask for %s any more.", r.Requester.Login, r.Binds), "Ask an administrator of the tailnet.")
	}
	if least := p.MinPeriod(); terms.Period < least {
		return Verdict{}, terms, problem.New(problem.PeriodOutOfBounds,
			fmt.Sprintf("Your rule now gives %v for %s, but this server's shortest period is %v.", terms.Period, r.Binds, least),
			"Ask an administrator of the tailnet to correct the rule.")
	}
	if err := s.fresh(ctx); err != nil {
		return Verdict{}, terms, err
	}
	if err := s.check(ctx, s.signinOf(r, r.Period)); err != nil {
		return Verdict{}, terms, err
	}
	if s.Operator != nil {
		if err := s.Operator(ctx); err != nil {
			return Verdict{}, terms, err
		}
	}
	facts, err := s.facts(ctx, r)
	facts[0].RuleNow = terms.Approvals
	v := Judge(r, facts[0], s.Now())
	switch {
	case v.State == Approved:
		v.Period = min(v.Period, terms.Period)
		return v, terms, nil
	case v.State != Pending:
		return v, terms, over(r, v)
	case err != nil:
		return v, terms, problem.New(problem.IdentityUnavailable, "The approvers of the request cannot be looked up in the tailnet now.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(err)
	}
	return v, terms, notApproved(r, v)
}

// notApproved names what is missing. It never says who could approve.
func notApproved(r Request, v Verdict) error {
	message := fmt.Sprintf("The request %s has %d of %s.", r.Name, v.Counted, problem.Plural(v.Needed, "approval"))
	unknown := false
	for _, void := range v.Void {
		message += fmt.Sprintf(" That of %s does not count: %s", void.Login, strings.TrimSuffix(void.Why, ".")+".")
		unknown = unknown || void.Unknown
	}
	e := problem.New(problem.NotApproved, message, "See what it waits for: tka requests")
	if unknown {
		e = e.WithRetryAfter(5 * time.Second)
	}
	return e
}

// signinOf returns the sign-in that uses r.
func (s *Service) signinOf(r Request, period time.Duration) signin.Signin {
	q := r.Requester
	owner := signin.Owner{Login: q.Login, UserID: q.UserID, DisplayName: q.DisplayName, DeviceID: q.Device, DeviceName: q.DeviceName, Tailnet: q.Tailnet, Session: signin.Session(r.Name)}
	return signin.Signin{Name: owner.Name(), Owner: owner, Binds: r.Binds, Rule: r.Rule, Record: r.Record, Period: period, Why: r.Reason,
		ByRequest: signin.RequestRef{Name: r.Name, UID: r.UID, Digest: r.Digest}}
}

// begin creates the sign-in and then writes that it is the use of r. Until then the operator binds nothing.
func (s *Service) begin(ctx context.Context, r Request, want signin.Signin) (used signin.Signin, again bool, err error) {
	want.AskedAt = s.Now()
	used, err = s.Signins.Create(ctx, want)
	if errors.Is(err, signin.ErrExists) {
		if used, err = s.Signins.Get(ctx, want.Name); errors.Is(err, signin.ErrNotFound) {
			return used, true, nil
		}
		if err == nil && (used.ByRequest != want.ByRequest || used.Deleting || s.Now().Sub(used.Created) > raceWindow) {
			return used, false, problem.New(problem.Ending, "A sign-in of an earlier attempt is still ending.", "Try again in a moment.").WithRetryAfter(s.RetryAfter)
		}
	}
	if err != nil {
		return used, false, unavailable(err)
	}
	if skew := used.Created.Sub(s.Now()); skew.Abs() > maxSkew {
		_ = s.Signins.Delete(ctx, used) // if it fails, the operator deletes it after a minute
		return used, false, problem.New(problem.ClockSkew, fmt.Sprintf("The clocks of this server and of the API server differ by %v.", skew.Abs().Round(time.Second)), "Tell an administrator of the server.").
			WithRetryAfter(time.Minute)
	}
	r.Use = &Use{At: used.Created, Signin: used.Name, SigninUID: used.UID, Device: used.Owner.DeviceID, Period: min(want.Period, used.Period)}
	stored, err := s.Store.Write(ctx, r)
	switch {
	case err == nil && stored.Use != nil:
		return used, false, nil
	case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
		return used, true, s.withdraw(ctx, r, used)
	}
	return used, false, unavailable(err) // the write may have happened; a retry finds out
}

// withdraw deletes a sign-in whose request somebody has changed meanwhile, unless the sign-in is its use or can become it.
func (s *Service) withdraw(ctx context.Context, r Request, made signin.Signin) error {
	now, err := s.Store.Get(ctx, r.Name)
	isOver := err == nil && (now.Decision != nil || now.Revoked != nil || now.Use != nil && now.Use.SigninUID != made.UID)
	if isOver || errors.Is(err, ErrNotFound) {
		_ = s.Signins.Delete(ctx, made) // if it fails, the operator deletes it
	}
	return nil
}

// rejoin answers a repeated use with the sign-in, while it lives.
func (s *Service) rejoin(ctx context.Context, r Request) (signin.Signin, error) {
	stored, err := s.Signins.Get(ctx, r.Use.Signin)
	if err != nil && !errors.Is(err, signin.ErrNotFound) {
		return signin.Signin{}, unavailable(err)
	}
	f := Facts{Limits: s.Policy.Requests, SigninGone: err != nil || stored.UID != r.Use.SigninUID || stored.Deleting || stored.State(s.Now()) == signin.Ended, SigninPeriod: stored.Period}
	if v := Judge(r, f, s.Now()); v.State != Used {
		return signin.Signin{}, over(r, v)
	}
	return stored, nil
}
