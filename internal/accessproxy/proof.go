package accessproxy

import (
	"context"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// A watch proves nothing while it is silent: its connection may be dead, and a revoked sign-in would look alive. So the
// proxy compares its cache with a consistent list of the API server at each proofInterval.
const (
	proofInterval = 5 * time.Second
	proofLimit    = 4 * time.Second  // for one list
	maxProofAge   = 15 * time.Second // without a newer proof, no new request is sent
	maxStreamAge  = 60 * time.Second // without a newer proof, open streams are cut
)

// proof is when the API server last proved which sign-ins live.
type proof struct {
	mu   sync.Mutex
	at   time.Time // when the list of the last proof was requested; zero: there was none yet
	list LiveSignins
}

// check returns why no request may be sent, or nil.
func (f *proof) check(now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.at) <= maxProofAge {
		return nil
	}
	return problem.New(problem.Unavailable, "The proxy cannot read from the API server which sign-ins live, so it sends nothing.", "Try again in a moment.").
		WithRetryAfter(time.Second)
}

// isGone reports whether the last proof shows that a sign-in no longer exists, of which version is known.
func (f *proof) isGone(name, uid, version string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list.Version != "" && f.list.UIDs[name] != uid && !isLater(version, f.list.Version)
}

// isLater reports whether one resource version is later than another of the same kind of object. Kubernetes defines
// them as decimal numbers that grow (KEP-5504).
func isLater(a, b string) bool {
	return len(a) > len(b) || len(a) == len(b) && a > b
}

// loop returns the loop that renews the proof.
func (f *proof) loop(p *Proxy) func(context.Context) {
	return func(ctx context.Context) {
		tick := time.NewTicker(proofInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				f.renew(ctx, p)
			}
		}
	}
}

// renew compares the open streams and the cached sign-ins with a list from the API server.
func (f *proof) renew(ctx context.Context, p *Proxy) {
	asked := p.Now()
	listing, cancel := context.WithTimeout(ctx, proofLimit)
	live, err := p.Signins.Live(listing)
	cancel()
	if err != nil {
		f.mu.Lock()
		age := p.Now().Sub(f.at)
		f.mu.Unlock()
		if ctx.Err() == nil {
			p.Log.Warn("the sign-ins cannot be listed, so nothing proves that they live", "age", age.Round(time.Second), "err", err)
		}
		if age > maxStreamAge {
			p.streams.cutAll(cut{cutProof, "the API server no longer tells the proxy whether the sign-in lives"})
		}
		return
	}
	f.mu.Lock()
	f.at, f.list = asked, live
	f.mu.Unlock()
	for _, s := range p.streams.list() {
		if f.isGone(s.Signin, s.uid, s.version) {
			s.cut(cut{cutSignin, endOf(signin.Signin{}, false, p.Now())})
		}
	}
}
