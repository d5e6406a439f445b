package signin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// FirstUseMarks is the record of the devices for which first use is off, until their next login. It exists because informers
// ask again for ever: without it, a logout or a revoke would be undone within seconds.
type FirstUseMarks interface {
	// IsOff reports whether first use is off for the sign-in of that name.
	IsOff(ctx context.Context, name string) (bool, error)
	// TurnOff records that first use is off for the sign-in of that name, on that device.
	TurnOff(ctx context.Context, name, device string) error
	// TurnOn removes what TurnOff recorded.
	TurnOn(ctx context.Context, name string) error
}

// maxEndDelay is how long before a deletion the access server may have said why it ends the sign-in, and clockSlack how
// much its clock may be ahead of the API server's.
const (
	maxEndDelay = 10 * time.Second
	clockSlack  = 2 * time.Second
)

// EndAskedFor returns the EndAsked of a sign-in that ends at now because of cause.
func EndAskedFor(cause Cause, now time.Time) string {
	return string(cause) + " " + now.UTC().Format(time.RFC3339)
}

// KeepsFirstUse reports whether the end of s leaves first use on: it was idle, or a login replaced it. A value that is
// unreadable or does not fit the time of the deletion counts as a revoke.
func (s Signin) KeepsFirstUse() bool {
	cause, text, _ := strings.Cut(s.EndAsked, " ")
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || Cause(cause) != CauseIdle && Cause(cause) != CauseReplaced {
		return false
	}
	delay := s.DeletedAt.Sub(at)
	return delay >= -clockSlack && delay <= maxEndDelay
}

// mayBeginOnUse reports whether sign-ins of the owner can begin on first use.
func (o Owner) mayBeginOnUse() bool { return o.Session == "" && o.Issuer == "" }

// turnOnFirstUse removes the mark of the owner after a login.
func (d *Service) turnOnFirstUse(ctx context.Context, o Owner) error {
	if d.FirstUseOff == nil || !o.mayBeginOnUse() {
		return nil
	}
	if err := d.FirstUseOff.TurnOn(ctx, o.Name()); err != nil {
		return unavailable(err)
	}
	return nil
}

// turnOffFirstUse writes the mark of the owner at a logout.
func (d *Service) turnOffFirstUse(ctx context.Context, o Owner) error {
	if d.FirstUseOff == nil || !o.mayBeginOnUse() {
		return nil
	}
	if err := d.FirstUseOff.TurnOff(ctx, o.Name(), o.DeviceID); err != nil {
		return unavailable(err)
	}
	return nil
}

// keepWithoutUse makes a sign-in that began on first use one that lasts without use, because its owner gets a token.
func (d *Service) keepWithoutUse(ctx context.Context, s Signin) error {
	if !s.OnUse {
		return nil
	}
	s.OnUse, s.Idle, s.UsedAt = false, 0, time.Time{}
	if _, err := d.Store.Extend(ctx, s); err != nil && !errors.Is(err, ErrNotFound) {
		return unavailable(err)
	}
	return nil
}

// A FirstUseRequest names the device that uses the access proxy.
type FirstUseRequest struct {
	Device string `json:"device" doc:"stable node ID; the access server looks it up in its own netmap"`
}

// AuditArgs returns the request's parameters for the audit log.
func (r FirstUseRequest) AuditArgs() map[string]string {
	return map[string]string{"device": r.Device[:min(len(r.Device), 64)]}
}

// A FirstUseResult is the sign-in that serves the device.
type FirstUseResult struct {
	Status
	device access.Caller // as the access server's own netmap has it; zero if unknown
}

// AuditActor returns the device, because the proxy only names it.
func (r FirstUseResult) AuditActor() (access.Caller, bool) {
	actor := r.device
	actor.Via = access.ViaProxy
	return actor, actor.Device.ID != ""
}

// maxDeviceID is the maximum length of a stable node ID in bytes.
const maxDeviceID = 64

// firstUse begins the default session of a device on its own grants. It changes no sign-in that exists.
func (d *Service) firstUse(ctx context.Context, p access.Permit, req FirstUseRequest) (out FirstUseResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.SigninFirstUse, d.Now()); err != nil {
		return out, err
	}
	if req.Device == "" || len(req.Device) > maxDeviceID || d.Devices == nil {
		return out, problem.New(problem.BadRequest, "The request names no device.", "Send the stable node ID of a device.")
	}
	if d.Admit != nil {
		if err := d.Admit(access.Caller{Device: access.Device{ID: req.Device}}); err != nil {
			return out, err
		}
	}
	found, err := d.Devices(ctx, req.Device)
	if err != nil {
		return out, err
	}
	device, ok := found[req.Device]
	if !ok {
		return out, problem.New(problem.NotSignedIn, "The tailnet of the access server has no such device.", "Run: tka login")
	}
	out.device = device
	if d.Admit != nil && device.Login != "" {
		if err := d.Admit(access.Caller{Login: device.Login}); err != nil {
			return out, err
		}
	}
	s, err := d.beginOnUse(ctx, p, device)
	if err != nil {
		return out, err
	}
	out.Status = d.status(s)
	return out, nil
}

// beginOnUse returns the live default session of a device, or creates it if a rule with onUse allows it.
func (d *Service) beginOnUse(ctx context.Context, proxy access.Permit, device access.Caller) (Signin, error) {
	p, err := proxy.FirstUse(device)
	if err != nil {
		return Signin{}, err
	}
	idle, _ := p.OnUse()
	if err := d.requireClusterWide(ctx, p.Binds(), false); err != nil {
		return Signin{}, err
	}
	owner := OwnerOf(device, "")
	if err := d.requireFirstUse(ctx, owner); err != nil {
		return Signin{}, err
	}
	want := Signin{Name: owner.Name(), Owner: owner, Binds: p.Binds(), Rule: p.Rule(), Record: p.Record(), Period: p.Period(), OnUse: true, Idle: idle, UsedAt: d.Now()}
	for range writeTries {
		have, err := d.Store.Get(ctx, want.Name)
		switch {
		case err == nil && !have.Deleting && have.State(d.Now()) != Ended:
			return have, nil // also a refused one: only a login replaces it
		case err != nil && !errors.Is(err, ErrNotFound):
			return Signin{}, unavailable(err)
		case err == nil && have.Deleting: // its end may turn first use off
			if _, err := d.awaitGone(ctx, have, replaceWait); err != nil {
				return Signin{}, err
			}
			if err := d.requireFirstUse(ctx, owner); err != nil {
				return Signin{}, err
			}
		}
		if s, err := d.write(ctx, want); !isRace(err) {
			return s, err
		}
	}
	return Signin{}, problem.New(problem.Conflict, "Another request of this device is changing the sign-in.", "Try again.").WithRetryAfter(d.RetryAfter)
}

// requireFirstUse refuses a device for which first use is off.
func (d *Service) requireFirstUse(ctx context.Context, o Owner) error {
	off := true // without a record, nothing would keep a logout
	if d.FirstUseOff != nil {
		var err error
		if off, err = d.FirstUseOff.IsOff(ctx, o.Name()); err != nil {
			return unavailable(err)
		}
	}
	if !off {
		return nil
	}
	return problem.New(problem.NotSignedIn, fmt.Sprintf("%s is not signed in to %s on %s: after a logout or a revoke, only a login begins a sign-in.", o.Login, d.Cluster.Name, o.DeviceName),
		"Run: tka login --cluster "+d.Cluster.Name)
}

// A UsageReport is the list of sign-ins with onUse that one access proxy has served in the last minute.
type UsageReport struct {
	Signins []string `json:"signins" null:"never" doc:"names of TkaSignin objects; at most 100"`
}

// MaxUsageReport is the maximum number of names in one report.
const MaxUsageReport = 100

// A UsageResult has no fields.
type UsageResult struct{}

// Reports of use must have arrived for usageProof, without a pause of usagePause, before a sign-in ends for want of use.
const (
	usageProof = 2 * time.Minute
	usagePause = 150 * time.Second
)

// usage is since when reports of use arrive.
type usage struct {
	mu          sync.Mutex
	since, last time.Time
}

// report records a report at now, and returns whether reports have arrived for long enough.
func (u *usage) report(now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Sub(u.last) > usagePause {
		u.since = now
	}
	u.last = now
	return now.Sub(u.since) >= usageProof
}

// reportUsage stores the use of sign-ins, and ends those that nobody has used for their idle time.
func (d *Service) reportUsage(ctx context.Context, p access.Permit, req UsageReport) (UsageResult, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := d.Now()
	if err := p.Require(access.SigninUsage, now); err != nil {
		return UsageResult{}, err
	}
	if len(req.Signins) > MaxUsageReport {
		return UsageResult{}, problem.New(problem.BadRequest, fmt.Sprintf("The report names %d sign-ins, more than %d.", len(req.Signins), MaxUsageReport), "Send several reports.")
	}
	for _, name := range req.Signins {
		s, ok := d.Store.GetCached(name)
		if !ok || !s.OnUse || s.Deleting || now.Sub(s.UsedAt) < s.Idle/10 {
			continue
		}
		s.UsedAt = now
		if _, err := d.Store.Extend(ctx, s); err != nil && !isRace(err) { // after a race, the next report writes
			return UsageResult{}, unavailable(err)
		}
	}
	if d.usage.report(now) {
		return UsageResult{}, d.endIdle(ctx, now)
	}
	return UsageResult{}, nil
}

// endIdle ends the sign-ins whose idle time is over. It reads each of them from the API server first: another access server
// may have stored a later use.
func (d *Service) endIdle(ctx context.Context, now time.Time) error {
	if d.All == nil {
		return nil
	}
	all, _ := d.All()
	for _, s := range all {
		if !s.isIdle(now) {
			continue
		}
		s, err := d.Store.Get(ctx, s.Name)
		if err == nil && s.isIdle(now) {
			s.EndAsked = EndAskedFor(CauseIdle, d.Now())
			if err = d.remove(ctx, s, CauseIdle); err == nil && d.Idled != nil {
				d.Idled(s)
			}
		}
		if err != nil && !isRace(err) {
			return unavailable(err)
		}
	}
	return nil
}

// isIdle reports whether s began on first use and was not used for its idle time.
func (s Signin) isIdle(now time.Time) bool {
	used := s.UsedAt
	if s.Created.After(used) {
		used = s.Created
	}
	return s.OnUse && !s.Deleting && s.State(now) != Ended && now.Sub(used) >= cmp.Or(s.Idle, access.DefaultIdle)
}
