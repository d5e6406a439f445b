package accessproxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// An AccessServer begins sign-ins on first use. The proxy writes none itself: it only names the device of a connection, and
// the access server decides for the device as its own tailnet node sees it.
type AccessServer interface {
	// BeginOnUse begins the default session of the device with a stable node ID, unless it lives already.
	BeginOnUse(ctx context.Context, device string) error
	// ReportUsage reports the sign-ins with onUse that were in use since the last report: at most signin.MaxUsageReport.
	ReportUsage(ctx context.Context, names []string) error
}

const (
	firstUseLimit    = 10 * time.Second // for the call and the provisioning
	firstUseRefusals = 10 * time.Second // how long a refusal counts: informers ask again for ever
	usageInterval    = time.Minute
)

// firstUses are the calls to the access server, one for each device.
type firstUses struct {
	mu   sync.Mutex
	all  map[string]*firstUse // by device
	used map[string]bool      // names of the sign-ins with onUse that had a request since the last report
}

// A firstUse is one call for all requests of a device that wait for it.
type firstUse struct {
	done  chan struct{}
	err   error     // set before done is closed
	ended time.Time // likewise
}

// beginOnUse begins the default session of the owner, and waits until the operator has provisioned it.
func (p *Proxy) beginOnUse(ctx context.Context, owner signin.Owner) error {
	f := &p.firstUses
	f.mu.Lock()
	if f.all == nil || len(f.all) >= maxLookups {
		f.all = map[string]*firstUse{} // the worst effect is one more call for each
	}
	call := f.all[owner.DeviceID]
	if call == nil || call.isOver(p.Now()) {
		call = &firstUse{done: make(chan struct{})}
		f.all[owner.DeviceID] = call
		go p.callOnUse(context.WithoutCancel(ctx), owner, call) // others wait for the same answer
	}
	f.mu.Unlock()
	select {
	case <-call.done:
		return call.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// isOver reports whether another call may begin.
func (c *firstUse) isOver(now time.Time) bool {
	select {
	case <-c.done:
		return c.err == nil || now.Sub(c.ended) >= firstUseRefusals
	default:
		return false
	}
}

func (p *Proxy) callOnUse(ctx context.Context, owner signin.Owner, call *firstUse) {
	ctx, cancel := context.WithTimeout(ctx, firstUseLimit)
	defer cancel()
	defer close(call.done)
	defer func() { call.ended = p.Now() }()
	if call.err = p.Access.BeginOnUse(ctx, owner.DeviceID); call.err == nil {
		call.err = p.Signins.Await(ctx, owner.Name(), func(s signin.Signin, ok bool) bool { return ok && !s.Deleting && s.State(p.Now()) != signin.Pending })
	}
	if _, refused := errors.AsType[*problem.Error](call.err); call.err != nil && (!refused || problem.From(call.err).RetryAfter > 0) {
		call.err = problem.New(problem.Unavailable, "The sign-in on first use is not ready yet.", "Try again.").WithCause(call.err)
	}
}

// isOver reports whether a sign-in that was found gives no access and will give none.
func (p *Proxy) isOver(s signin.Signin) bool {
	state := s.State(p.Now())
	return state == signin.Ended || state == signin.Ending || p.proof.isGone(s.Name, s.UID, s.Version)
}

// signinOnUse begins the caller's default session and returns it. known is false if no rule with onUse fits the caller.
func (x *exchange) signinOnUse(owner signin.Owner) (s signin.Signin, known bool, err error) {
	p := x.proxy
	switch err := p.beginOnUse(x.r.Context(), owner); {
	case problem.CodeOf(err) == problem.RoleNotGranted:
		return s, false, nil
	case err != nil:
		return s, false, err
	}
	s, err = p.Signins.Get(x.r.Context(), owner.Name())
	switch {
	case errors.Is(err, signin.ErrNotFound):
		return s, false, nil
	case err != nil:
		return s, false, problem.New(problem.Unavailable, "The proxy cannot read the sign-in from the API server.", "Try again in a moment.").WithCause(err)
	}
	return s, true, nil
}

// countUse records that a sign-in with onUse had a request.
func (f *firstUses) countUse(s signin.Signin) {
	if !s.OnUse {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.used == nil {
		f.used = map[string]bool{}
	}
	f.used[s.Name] = true
}

// reportUsage reports once a minute which sign-ins with onUse had a request or have an open stream. An empty report says
// that the proxy works.
func (p *Proxy) reportUsage(ctx context.Context) {
	tick := time.NewTicker(usageInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := p.sendUsage(ctx); err != nil && ctx.Err() == nil {
			p.Log.Warn("the access server did not receive the report of sign-ins in use; the next one has them too", "err", err)
		}
	}
}

func (p *Proxy) sendUsage(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, usageInterval/2)
	defer cancel()
	for _, s := range p.streams.list() {
		if now, ok := p.Signins.GetCached(s.Signin); ok {
			p.firstUses.countUse(now)
		}
	}
	f := &p.firstUses
	f.mu.Lock()
	names := slices.Sorted(maps.Keys(f.used))
	f.used = nil
	f.mu.Unlock()
	for first := true; first || len(names) > 0; first = false {
		n := min(len(names), signin.MaxUsageReport)
		if err := p.Access.ReportUsage(ctx, names[:n]); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.used == nil {
				f.used = map[string]bool{}
			}
			for _, name := range names {
				f.used[name] = true
			}
			return fmt.Errorf("report the sign-ins in use: %w", err)
		}
		names = names[n:]
	}
	return nil
}
