package signin

import (
	"context"
	"errors"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
)

func (d *Service) read(ctx context.Context, p access.Permit, req ReadRequest) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.SigninRead, d.Now()); err != nil {
		return Status{}, err
	}
	p, err := d.withToken(ctx, p, req.Token)
	if err != nil {
		return Status{}, err
	}
	s, err := d.readOwn(ctx, p, req.Session)
	if err != nil {
		return Status{}, err
	}
	switch s.State(d.Now()) {
	case Ended, Ending:
		return Status{}, notSignedIn(s)
	case Refused:
		return Status{}, cannotProvision(s)
	}
	return d.status(s), nil
}

// awaitReady delays a request until the sign-in of a session leaves the state Pending or the wait ends.
func (d *Service) awaitReady(ctx context.Context, p access.Permit, token RequestToken, session Session, limitOfRequest httpapi.Duration) error {
	wait := min(time.Duration(limitOfRequest), d.MaxWait)
	if wait == 0 || p.OwnerOnly() != nil {
		return nil // nothing to wait for
	}
	p, err := d.withToken(ctx, p, token.Token)
	if err != nil {
		return err
	}
	name := ownerOf(p, session).Name()
	limit, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if _, known := d.Store.GetCached(name); !known {
		if _, err := d.Store.Get(limit, name); errors.Is(err, ErrNotFound) {
			return nil // nothing to wait for; kubeconfig returns the error
		}
	}
	seen := false // the watch may lag behind the login, so absence counts only after the sign-in was seen
	err = d.Store.Await(limit, name, func(s Signin, there bool) bool {
		if !there {
			return seen
		}
		seen = true
		return s.State(d.Now()) != Pending
	})
	if err != nil && (ctx.Err() != nil || limit.Err() == nil) {
		return unavailable(err)
	}
	return nil
}
