package signin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Cause is the reason why a sign-in ended. The set is closed, because it is a metric label.
type Cause string

// The causes.
const (
	CauseLogout   Cause = "logout"
	CauseExpired  Cause = "expired"
	CauseGrant    Cause = "grant" // the tailnet no longer supports the sign-in: its device, key or grant is gone
	CauseReplaced Cause = "replaced"
	CauseIdle     Cause = "idle"  // it began on first use and was not used for its idle time
	CauseAdmin    Cause = "admin" // a user of the cluster deleted it
	CauseRefused  Cause = "refused"
)

// Causes returns all causes.
func Causes() []Cause {
	return []Cause{CauseLogout, CauseExpired, CauseGrant, CauseReplaced, CauseIdle, CauseAdmin, CauseRefused}
}

// A DeviceState is the state of a sign-in's device in the tailnet at one moment.
type DeviceState struct {
	Caller access.Caller // the caller that the device would be identified as now; zero if Missing
	// Missing means that the tailnet answered and has no such device. MissingFor is the time since
	// this was first seen.
	Missing    bool
	MissingFor time.Duration
}

// A CheckResult is the result of a check of a sign-in. The zero Finding leaves the sign-in unchanged.
type CheckResult struct {
	End    bool
	Cause  Cause         // of the end; "": CauseGrant
	Reason string        // a sentence for the audit log
	Period time.Duration // a shorter period for the sign-in; 0: no change
	Record []string      // more streams to record, together with those of the sign-in; nil: no change
}

// Recheck reports whether the tailnet still supports a sign-in. Its device must be in the tailnet,
// belong to its owner, have a key that is not expired, and be granted the role. Only positive
// evidence ends a sign-in. A device must have been missing for confirm, an offline device is not
// missing, and a rule with a typing error revokes nothing.
func Recheck(s Signin, seen DeviceState, policy access.Policy, confirm time.Duration, now time.Time) CheckResult {
	end := func(format string, args ...any) CheckResult {
		return CheckResult{End: true, Reason: fmt.Sprintf(format, args...)}
	}
	switch s.State(now) {
	case Ended, Ending:
		return CheckResult{}
	}
	if seen.Missing {
		if seen.MissingFor < confirm {
			return CheckResult{}
		}
		return end("The device %s is no longer in the tailnet.", s.Owner.DeviceName)
	}
	if owner := seen.Caller.Identity(); owner != s.Owner.Login {
		return end("The device %s now belongs to %s.", s.Owner.DeviceName, owner)
	}
	verb := access.SigninKubeconfig
	if s.ByRequest.Name != "" {
		verb = access.RequestUse
	}
	p, err := access.Decide(seen.Caller, verb, policy, now)
	switch {
	case problem.CodeOf(err) == problem.NotEnabled:
		return end("Access requests are off on this server.")
	case problem.CodeOf(err) == problem.NodeExpired:
		return end("%s", problem.From(err).Message)
	case err != nil:
		return CheckResult{} // the identity or the grants cannot be determined now
	}
	period, record, covered, err := s.coverage(p)
	switch {
	case err != nil:
		return CheckResult{} // the rules cannot be judged now
	case !covered:
		return end("The role %q is no longer granted to %s.", s.Binds.Role(), s.Owner.Login)
	case period < policy.Min:
		return end("The role %q is granted for %v only, but this server's shortest period is %v.", s.Binds.Role(), period, policy.Min)
	}
	var out CheckResult
	if period < s.Period {
		out = CheckResult{Period: period, Reason: fmt.Sprintf("The role %q is now granted for %v.", s.Binds.Role(), period)}
	}
	if record = access.MergeRecord(s.Record, record); len(record) > len(s.Record) {
		out.Record, out.Reason = record, strings.TrimSpace(out.Reason+" "+mustRecord(s, record))
	}
	return out
}

func mustRecord(s Signin, record []string) string {
	return fmt.Sprintf("The rule for the role %q now requires that %s is recorded.", s.Binds.Role(), strings.Join(record, ", "))
}

// endTokens ends a sign-in that may have been given a token before its streams had to be recorded: with the account go its tokens, which
// reach the API server past the recording. A sign-in that has a record never got one.
func (f CheckResult) endTokens(s Signin, tokens bool) CheckResult {
	if tokens && len(f.Record) > 0 && len(s.Record) == 0 {
		return CheckResult{End: true, Reason: mustRecord(s, f.Record) + " The sign-in may have been given a token, with which kubectl goes past the recording."}
	}
	return f
}

// A Guard checks the live sign-ins at intervals and after each change of the tailnet. It ends or
// shortens those that the tailnet no longer supports. All fields are required.
type Guard struct {
	Store interface {
		// All returns every sign-in from a cache, or false until the cache is filled.
		All() ([]Signin, bool)
		Extend(context.Context, Signin) (Signin, error)
		Delete(context.Context, Signin) error
	}
	// Devices returns the callers for the given stable device IDs, as if each called now. Devices
	// that the tailnet does not have are missing in the result. An error means that nothing is
	// known about any of them.
	Devices func(ctx context.Context, ids ...string) (map[string]access.Caller, error)
	// Changed returns a channel that is closed at the next change of the tailnet.
	Changed func() <-chan struct{}
	// Tailnet returns the name of this server's tailnet, or "" while it is unknown. The guard skips
	// sign-ins through other tailnets; their servers check them.
	Tailnet func() string

	Policy   access.Policy
	Tokens   bool // the server gives out tokens
	Interval time.Duration
	// Report is called after a sign-in was ended or shortened.
	Report func(Signin, CheckResult)
	Log    *slog.Logger
	Now    func() time.Time
}

const (
	guardMinInterval = 500 * time.Millisecond // minimum pause between two checks, however often the tailnet changes
	guardRetryAfter  = 5 * time.Second        // pause after a failed query or action
)

// Run checks until ctx ends.
func (g *Guard) Run(ctx context.Context) error {
	missing := map[string]time.Time{} // time since which each device is missing
	blind := 0                        // consecutive failed checks
	for {
		changed := g.Changed() // taken before the check, so that no change is missed
		done, err := g.check(ctx, missing)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if blind > 1 {
				g.Log.Info("checking the grants of live sign-ins works again")
			}
			blind = 0
		default:
			if blind++; blind == 2 { // the first failure can be the start or a short outage
				g.Log.Warn("checking the grants of live sign-ins fails; no sign-in is ended until it works again", "err", err)
			}
		}
		next := g.Interval
		for _, since := range missing { // check again soon, to confirm that the device is missing
			next = min(next, max(since.Add(g.Interval).Sub(g.Now()), guardMinInterval))
		}
		if err != nil || !done {
			next = min(next, guardRetryAfter)
		}
		if retry.Sleep(ctx, guardMinInterval) != nil || retry.SleepOrWake(ctx, next-guardMinInterval, changed) != nil {
			return nil
		}
	}
}

// check checks the live sign-ins once. missing is kept between calls. done is false if an action
// failed.
func (g *Guard) check(ctx context.Context, missing map[string]time.Time) (done bool, err error) {
	all, ok := g.Store.All()
	if !ok {
		return false, errors.New("the sign-ins are not known yet")
	}
	tailnet, now := g.Tailnet(), g.Now()
	if tailnet == "" {
		return false, errors.New("the tailnet is not known yet")
	}
	var live []Signin
	devices := map[string]bool{}
	for _, s := range all {
		state := s.State(now)
		if s.Owner.Tailnet != tailnet || state == Ended || state == Ending {
			continue
		}
		live = append(live, s)
		devices[s.Owner.DeviceID] = true
	}
	maps.DeleteFunc(missing, func(id string, _ time.Time) bool { return !devices[id] })
	if len(devices) == 0 {
		return true, nil
	}
	found, err := g.find(ctx, live, devices)
	if err != nil {
		clear(missing) // a device that was missing may be back, so it must be seen missing twice again
		return false, err
	}
	now, done = g.Now(), true
	for _, s := range live {
		id := s.Owner.DeviceID
		c, there := found[id]
		seen := DeviceState{Caller: c, Missing: !there}
		if there {
			delete(missing, id)
		} else {
			if missing[id].IsZero() {
				missing[id] = now
			}
			seen.MissingFor = now.Sub(missing[id])
		}
		if err := g.apply(ctx, s, g.recheck(s, seen, now)); err != nil && ctx.Err() == nil {
			g.Log.Error("ending a sign-in without a grant failed; trying again", "signin", s.Name, "err", err)
			done = false
		}
	}
	return done, nil
}

// find returns the callers for the devices of the live sign-ins. It reads a device again before its sign-in can end,
// because the node reads a device and its grants one after the other: a device that leaves in between appears without grants.
func (g *Guard) find(ctx context.Context, live []Signin, devices map[string]bool) (map[string]access.Caller, error) {
	found, err := g.Devices(ctx, slices.Sorted(maps.Keys(devices))...)
	if err != nil {
		return nil, err
	}
	ending := map[string]bool{}
	for _, s := range live {
		c, there := found[s.Owner.DeviceID]
		if there && g.recheck(s, DeviceState{Caller: c}, g.Now()).End {
			ending[s.Owner.DeviceID] = true
		}
	}
	if len(ending) == 0 {
		return found, nil
	}
	again, err := g.Devices(ctx, slices.Sorted(maps.Keys(ending))...)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(found, func(id string, _ access.Caller) bool { return ending[id] })
	maps.Copy(found, again)
	return found, nil
}

func (g *Guard) recheck(s Signin, seen DeviceState, now time.Time) CheckResult {
	return Recheck(s, seen, g.Policy, g.Interval, now).endTokens(s, g.Tokens)
}

func (g *Guard) apply(ctx context.Context, s Signin, f CheckResult) (err error) {
	switch {
	case f.End:
		err = g.Store.Delete(ctx, s)
	case f.Period > 0, f.Record != nil:
		s.Period, s.Record = cmp.Or(f.Period, s.Period), access.MergeRecord(s.Record, f.Record)
		_, err = g.Store.Extend(ctx, s)
	default:
		return nil
	}
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrConflict) && !f.End:
		return nil // another writer ended or changed it; the next check handles it
	case err == nil:
		g.Report(s, f)
	}
	return err
}
