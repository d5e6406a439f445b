package requests

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// errNoChange says that a change is stored already.
var errNoChange = errors.New("no change")

// change reads a request, lets decide change its status, and writes it, again after each conflict.
func (s *Service) change(ctx context.Context, p access.Permit, verb access.Verb, name string, decide func(*Request, Verdict) error) (Request, Verdict, error) {
	if err := p.Require(verb, s.Now()); err != nil {
		return Request{}, Verdict{}, err
	}
	for range writeTries {
		r, err := s.get(ctx, p, name)
		if err != nil {
			return Request{}, Verdict{}, err
		}
		v, _ := s.judge(ctx, r)
		err = decide(&r, v)
		if errors.Is(err, errNoChange) {
			return r, v, nil
		}
		if err != nil {
			return Request{}, Verdict{}, err
		}
		stored, err := s.Store.Write(ctx, r)
		switch {
		case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
			continue
		case err != nil:
			return Request{}, Verdict{}, unavailable(err)
		}
		v, _ = s.judge(ctx, stored)
		return stored, v, nil
	}
	return Request{}, Verdict{}, conflict(s.RetryAfter)
}

func conflict(after time.Duration) error {
	return problem.New(problem.Conflict, "Others are changing this access request.", "Try again.").WithRetryAfter(after)
}

// seen refuses a decision about something else than what is stored.
func seen(r Request, digest string) error {
	if digest == r.Digest {
		return nil
	}
	return problem.New(problem.RequestChanged, fmt.Sprintf("The request %s is not what you saw.", r.Name), "Look at it again, then decide: tka requests")
}

func isOpen(v Verdict) bool { return v.State == Pending || v.State == Approved }

func (s *Service) approve(ctx context.Context, p access.Permit, req ApproveRequest) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.fresh(ctx); err != nil {
		return View{}, err
	}
	by := access.PersonOf(p.Caller())
	r, v, err := s.change(ctx, p, access.RequestApprove, req.ID, func(r *Request, v Verdict) error {
		if err := p.MayDecide(r.Requester.Person, r.Binds); err != nil {
			return err
		}
		if err := seen(*r, req.Seen); err != nil {
			return err
		}
		if !isOpen(v) {
			return over(*r, v)
		}
		if a := r.approvalOf(by); a != nil && a.Digest == r.Digest {
			return errNoChange
		}
		period := time.Duration(req.Period)
		if period != 0 && (period < p.MinPeriod() || period > r.Period) {
			return problem.New(problem.PeriodOutOfBounds, fmt.Sprintf("The period %v is not between %v and %v.", period, p.MinPeriod(), r.Period), "An approval can only shorten the period.")
		}
		if len(r.Approved) >= maxApprovers {
			return problem.New(problem.Conflict, fmt.Sprintf("The request already has %d approvals.", maxApprovers), "Nothing is left to do.")
		}
		now := s.Now().UTC().Truncate(time.Second)
		r.Approved = append(r.Approved[:len(r.Approved):len(r.Approved)], Approval{Person: by, Digest: r.Digest, At: now, Comment: string(req.Comment), Period: period})
		if r.UsableUntil.IsZero() && len(r.Approved) >= v.Needed {
			r.UsableUntil = now.Add(s.Limits.UseWithin)
		}
		return nil
	})
	if err != nil {
		return View{}, err
	}
	return s.view(p, r, v), nil
}

func (s *Service) deny(ctx context.Context, p access.Permit, req DenyRequest) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if req.Reason == "" {
		return View{}, problem.New(problem.ReasonRequired, "A denial needs a reason, so that the requester knows what to do.", "Give one: tka deny ID --reason \"why\"")
	}
	r, v, err := s.change(ctx, p, access.RequestDeny, req.ID, func(r *Request, v Verdict) error {
		if err := p.MayDecide(r.Requester.Person, r.Binds); err != nil {
			return err
		}
		if err := seen(*r, req.Seen); err != nil {
			return err
		}
		if !isOpen(v) {
			return over(*r, v)
		}
		r.Decision = &Decision{Denied, s.act(p, string(req.Reason))}
		return nil
	})
	if err != nil {
		return View{}, err
	}
	return s.view(p, r, v), nil
}

func (s *Service) act(p access.Permit, reason string) Act {
	return Act{By: access.PersonOf(p.Caller()), At: s.Now().UTC().Truncate(time.Second), Reason: reason}
}

func (s *Service) cancel(ctx context.Context, p access.Permit, req EndRequest) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, v, err := s.change(ctx, p, access.RequestCancel, req.ID, func(r *Request, v Verdict) error {
		switch {
		case !r.isOf(p.Caller()):
			return problem.New(problem.Forbidden, "Only the requester cancels a request.", "Deny it: tka deny "+r.Name)
		case v.State == Cancelled:
			return errNoChange
		case !isOpen(v):
			return over(*r, v)
		}
		r.Decision = &Decision{Cancelled, s.act(p, string(req.Reason))}
		return nil
	})
	if err != nil {
		return View{}, err
	}
	return s.view(p, r, v), nil
}

// revoke ends the access of a used request. It writes first and deletes then, so that the operator ends what this server
// cannot delete.
func (s *Service) revoke(ctx context.Context, p access.Permit, req EndRequest) (View, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, v, err := s.change(ctx, p, access.RequestRevoke, req.ID, func(r *Request, v Verdict) error {
		if !r.isOf(p.Caller()) {
			if err := p.MayDecide(r.Requester.Person, r.Binds); err != nil && problem.CodeOf(err) != problem.SelfApproval {
				return err
			}
		}
		if v.State == Over { // by the cache, which may not have the sign-in yet, or while its bindings still exist
			switch lives, err := s.lives(ctx, *r.Use); {
			case err != nil:
				return err
			case lives:
				v.State = Used
			}
		}
		switch v.State {
		case Revoked:
			return errNoChange
		case Used:
			r.Revoked = new(s.act(p, string(req.Reason)))
			return nil
		case Pending, Approved:
			return problem.New(problem.RequestOver, fmt.Sprintf("The request %s is not used, so there is nothing to revoke.", r.Name),
				"End it: tka request cancel "+r.Name+", or tka deny "+r.Name)
		}
		return over(*r, v)
	})
	if err != nil {
		return View{}, err
	}
	gone, err := s.endUse(ctx, *r.Use)
	if err != nil {
		return View{}, err
	}
	view := s.view(p, r, v)
	view.Ending = !gone
	view.retryAfter = s.RetryAfter
	return view, nil
}

// lives reports whether the sign-in of a use exists, by the API server.
func (s *Service) lives(ctx context.Context, use Use) (bool, error) {
	switch stored, err := s.Signins.Get(ctx, use.Signin); {
	case err == nil:
		return stored.UID == use.SigninUID && s.Now().Before(use.At.Add(use.Period)), nil
	case errors.Is(err, signin.ErrNotFound):
		return false, nil
	default:
		return false, unavailable(err)
	}
}

// endUse deletes the sign-in of a use, and reports whether it is gone.
func (s *Service) endUse(ctx context.Context, use Use) (gone bool, err error) {
	isGone := func(now signin.Signin, there bool) bool { return !there || now.UID != use.SigninUID }
	stored, err := s.Signins.Get(ctx, use.Signin)
	switch {
	case errors.Is(err, signin.ErrNotFound), err == nil && stored.UID != use.SigninUID:
		return true, nil
	case err == nil && !stored.Deleting:
		err = s.Signins.Delete(ctx, stored)
	}
	if err != nil && !errors.Is(err, signin.ErrNotFound) {
		return false, nil // the operator deletes it, because the request says that it is revoked
	}
	wait, cancel := context.WithTimeout(ctx, goneWait)
	defer cancel()
	return s.Signins.Await(wait, use.Signin, isGone) == nil, nil
}
