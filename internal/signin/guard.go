package signin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Cause is why a sign-in ended. The set is closed: metrics count by it.
type Cause string

// The causes.
const (
	CauseLogout   Cause = "logout"
	CauseExpired  Cause = "expired"
	CauseGrant    Cause = "grant" // what it rests on in the tailnet is gone
	CauseReplaced Cause = "replaced"
	CauseAdmin    Cause = "admin" // somebody deleted it in the cluster
	CauseRefused  Cause = "refused"
)

// Causes returns every cause.
func Causes() []Cause {
	return []Cause{CauseLogout, CauseExpired, CauseGrant, CauseReplaced, CauseAdmin, CauseRefused}
}

// A Sighting is what the tailnet knows, at one moment, of the device that a
// sign-in belongs to.
type Sighting struct {
	Caller access.Caller // as it would be identified if it called now; zero when Missing
	// Missing means that the tailnet, which was asked and answered, has no such
	// device; MissingFor is how long that has been so.
	Missing    bool
	MissingFor time.Duration
}

// A Finding is what becomes of a sign-in whose authority was looked at. The
// zero Finding leaves it as it is.
type Finding struct {
	End    bool
	Reason string        // why, a sentence, for the record
	Period time.Duration // the shorter one that it has from now on; 0: its own
}

// Recheck says whether what a sign-in rests on still holds: its device is in the
// tailnet, is its owner's, has a key that has not expired, and is granted its
// role there. Only positive evidence ends anything: a device must have been
// missing for confirm, one that is merely offline is not missing, and a rule
// with a typing error withdraws nothing.
func Recheck(s Signin, seen Sighting, policy access.Policy, confirm time.Duration, now time.Time) Finding {
	end := func(format string, args ...any) Finding {
		return Finding{End: true, Reason: fmt.Sprintf(format, args...)}
	}
	switch s.State(now) {
	case Ended, Ending:
		return Finding{}
	}
	if seen.Missing {
		if seen.MissingFor < confirm {
			return Finding{}
		}
		return end("The device %s is not in the tailnet any more.", s.Owner.DeviceName)
	}
	if owner := seen.Caller.Identity(); owner != s.Owner.Login {
		return end("The device %s belongs to %s now.", s.Owner.DeviceName, owner)
	}
	p, err := access.Decide(seen.Caller, access.SigninKubeconfig, policy, now)
	switch {
	case problem.CodeOf(err) == problem.NodeExpired:
		return end("%s", problem.From(err).Message)
	case err != nil:
		return Finding{} // who the caller is, or what is granted, cannot be told just now
	}
	period, covered := p.Covering(s.Role, s.Namespaces)
	switch {
	case !covered:
		return end("The role %q is no longer granted to %s.", s.Role, s.Owner.Login)
	case period < policy.Min:
		return end("The role %q is granted for %v only, and this server's shortest period is %v.", s.Role, period, policy.Min)
	case period < s.Period:
		return Finding{Period: period, Reason: fmt.Sprintf("The role %q is granted for %v now.", s.Role, period)}
	}
	return Finding{}
}

// A Guard looks at what live sign-ins rest on, at intervals and at each change
// of the tailnet, and ends or shortens those that it holds no longer for. All
// fields are required.
type Guard struct {
	Store interface {
		// All returns every sign-in from a cache; false while that is not filled.
		All() ([]Signin, bool)
		Extend(context.Context, Signin) (Signin, error)
		Delete(context.Context, Signin) error
	}
	// Devices says who calls from each of the devices with these stable ids, if
	// it called now. Those that the tailnet does not have are missing from the
	// answer; an error means that nothing is known about any of them.
	Devices func(ctx context.Context, ids ...string) (map[string]access.Caller, error)
	// Changed returns a channel that is closed at the next change of the tailnet.
	Changed func() <-chan struct{}
	// Tailnet is the name of ours, "" while it is not known: sign-ins through
	// other tailnets are the business of other servers.
	Tailnet func() string

	Policy   access.Policy
	Interval time.Duration
	// Tell hears what was done to a sign-in, after it was done.
	Tell func(Signin, Finding)
	Log  *slog.Logger
	Now  func() time.Time
}

const (
	guardPause = 500 * time.Millisecond // the least time between two looks, however often the tailnet changes
	guardRetry = 5 * time.Second        // after something could not be asked or done
)

// Run looks until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	missing := map[string]time.Time{} // devices, and since when
	blind := 0                        // looks in a row that saw nothing
	for {
		changed := g.Changed() // before looking, so that no change is overlooked
		done, err := g.look(ctx, missing)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if blind > 1 {
				g.Log.Info("grants of live sign-ins are looked at again")
			}
			blind = 0
		default:
			if blind++; blind == 2 { // once is the start, or a moment
				g.Log.Warn("grants of live sign-ins cannot be looked at; nothing ends until they can", "err", err)
			}
		}
		next := g.Interval
		for _, since := range missing { // a second look, to be sure
			next = min(next, max(since.Add(g.Interval).Sub(g.Now()), guardPause))
		}
		if err != nil || !done {
			next = min(next, guardRetry)
		}
		if retry.Sleep(ctx, guardPause) != nil || retry.SleepOrWake(ctx, next-guardPause, changed) != nil {
			return nil
		}
	}
}

// look goes through the live sign-ins once. Missing is kept from look to look.
// Done is false when there was something to do that could not be done.
func (g *Guard) look(ctx context.Context, missing map[string]time.Time) (done bool, err error) {
	all, ok := g.Store.All()
	if !ok {
		return false, errors.New("the sign-ins are not known yet")
	}
	tailnet, now := g.Tailnet(), g.Now()
	if tailnet == "" {
		return false, errors.New("the tailnet is not known yet")
	}
	var live []Signin
	var ids []string
	wanted := map[string]bool{}
	for _, s := range all {
		state := s.State(now)
		if s.Owner.Tailnet != tailnet || state == Ended || state == Ending {
			continue
		}
		live = append(live, s)
		if id := s.Owner.DeviceID; !wanted[id] {
			wanted[id] = true
			ids = append(ids, id)
		}
	}
	for id := range missing {
		if !wanted[id] {
			delete(missing, id)
		}
	}
	if len(ids) == 0 {
		return true, nil
	}
	found, err := g.Devices(ctx, ids...)
	if err != nil {
		clear(missing) // who was missing before may be back: that must be seen twice again
		return false, err
	}
	now, done = g.Now(), true
	for _, s := range live {
		id := s.Owner.DeviceID
		c, there := found[id]
		seen := Sighting{Caller: c, Missing: !there}
		if there {
			delete(missing, id)
		} else {
			if missing[id].IsZero() {
				missing[id] = now
			}
			seen.MissingFor = now.Sub(missing[id])
		}
		if err := g.act(ctx, s, Recheck(s, seen, g.Policy, g.Interval, now)); err != nil && ctx.Err() == nil {
			g.Log.Error("a sign-in stays although its authority is gone; trying again", "signin", s.Name, "err", err)
			done = false
		}
	}
	return done, nil
}

func (g *Guard) act(ctx context.Context, s Signin, f Finding) (err error) {
	switch {
	case f.End:
		err = g.Store.Delete(ctx, s)
	case f.Period > 0:
		s.Period = f.Period
		_, err = g.Store.Extend(ctx, s)
	default:
		return nil
	}
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrConflict) && !f.End:
		return nil // somebody else was first, or changed it: the next look sees
	case err == nil:
		g.Tell(s, f)
	}
	return err
}
