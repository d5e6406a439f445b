package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Times of draining.
const (
	pingPause   = time.Second
	pingTime    = 2 * time.Second
	settleTime  = 5 * time.Second // for other nodes' kube-proxy, which nobody can ask
	openPause   = 100 * time.Millisecond
	pingsAtOnce = 8
)

// Drain takes the relay out of use without losing a connection: it is not ready
// any more; what the tailnet reaches is withdrawn; it waits until no health
// endpoint leads to it, and a little for what it cannot see; then it takes no new
// connections, and waits for the open ones as long as the document says. It ends
// early with ctx. A second call waits for nothing but what is open.
func (r *Relay) Drain(ctx context.Context) error {
	began := r.Now()
	defer func() { r.Meter.Drained(r.Now().Sub(began)) }()
	first := r.stopping.CompareAndSwap(false, true)
	r.mu.Lock()
	c := r.wanted
	r.wakeLocked() // to withdraw what the tailnet reaches
	r.mu.Unlock()
	if c == nil {
		r.shut.Store(true)
		return nil
	}
	if first && len(c.Services)+len(c.Exposed) > 0 {
		if err := r.awaitUnused(ctx, c.Pings); err != nil {
			return err
		}
		if err := retry.Sleep(ctx, settleTime); err != nil {
			return context.Cause(ctx)
		}
	}
	r.shut.Store(true)
	r.Log.Info("no new connections are taken", "open", r.Open(), "wait", c.DrainTimeout)
	ctx, cancel := context.WithTimeout(ctx, c.DrainTimeout)
	defer cancel()
	for r.Open() > 0 {
		if err := retry.Sleep(ctx, openPause); err != nil {
			return errors.New("connections are still open")
		}
	}
	return nil
}

// awaitUnused pings the health endpoints until none is answered by this pod.
func (r *Relay) awaitUnused(ctx context.Context, pings int) error {
	var endpoints []*url.URL
	if routes := r.routes.Load(); routes != nil {
		for _, name := range sortedNames(*routes) {
			s := (*routes)[name].service.Load()
			if s == nil || s.Health == nil {
				continue
			}
			if u := s.Health; !slices.ContainsFunc(endpoints, func(o *url.URL) bool { return *o == *u }) {
				endpoints = append(endpoints, u)
			}
		}
	}
	for len(endpoints) > 0 && pings > 0 {
		var mu sync.Mutex
		var still []*url.URL
		var wg sync.WaitGroup
		slots := make(chan struct{}, pingsAtOnce)
		for _, u := range endpoints {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if r.answers(ctx, u, pings) {
					mu.Lock()
					defer mu.Unlock()
					still = append(still, u)
				}
			})
		}
		wg.Wait()
		endpoints = still
		if len(endpoints) > 0 {
			if err := retry.Sleep(ctx, pingPause); err != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// answers reports whether one of several pings came back to this pod. An endpoint
// that does not answer leads to nobody, so not to us.
func (r *Relay) answers(ctx context.Context, u *url.URL, pings int) bool {
	found := false
	for range pings {
		asking, cancel := context.WithTimeout(ctx, pingTime)
		by, err := r.Ping(asking, u)
		cancel()
		if err != nil {
			r.Log.Debug("a health endpoint did not answer", "endpoint", u.Redacted(), "err", err)
		}
		if slices.ContainsFunc(by, func(a netip.Addr) bool { return slices.Contains(r.PodIPs, a) }) {
			found = true // and yet all are sent: the others ask where they arrive
		}
		if ctx.Err() != nil {
			return true
		}
	}
	return found
}

func isClosed(err error) bool { return errors.Is(err, net.ErrClosed) }
