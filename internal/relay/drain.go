package relay

import (
	"context"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Timing of a drain.
const (
	pingPause       = time.Second
	pingTime        = 2 * time.Second
	settleTime      = 5 * time.Second // for the kube-proxy of other nodes, which the relay cannot query
	openPause       = 100 * time.Millisecond
	concurrentPings = 8
)

// Drain takes the relay out of service without dropping connections. It does the following in
// order:
//
//   - It makes the relay not ready and closes the tailnet listeners.
//   - It waits until no health endpoint leads to this pod, and then a fixed time for what it
//     cannot observe.
//   - It stops accepting connections and waits for the open ones, at most for the configured drain
//     timeout.
//
// It returns early when ctx ends. A second call waits only for the open connections.
func (r *Relay) Drain(ctx context.Context) error {
	began := r.Now()
	defer func() { r.Meter.Drained(r.Now().Sub(began)) }()
	first := r.stopping.CompareAndSwap(false, true)
	r.mu.Lock()
	c := r.desired
	r.mu.Unlock()
	r.wake.send() // close the tailnet listeners
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
	r.Log.Info("refusing new connections", "open", r.Open(), "wait", c.DrainTimeout)
	ctx, cancel := context.WithTimeout(ctx, c.DrainTimeout)
	defer cancel()
	for r.Open() > 0 {
		if err := retry.Sleep(ctx, openPause); err != nil {
			return errors.New("some connections are still open")
		}
	}
	return nil
}

// awaitUnused pings the health endpoints until this pod answers none of them.
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
		slots := make(chan struct{}, concurrentPings)
		for _, u := range endpoints {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if r.pingsSelf(ctx, u, pings) {
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

// pingsSelf reports whether this pod answered at least one of several pings. An endpoint that does
// not answer leads to no pod.
func (r *Relay) pingsSelf(ctx context.Context, u *url.URL, pings int) bool {
	found := false
	for range pings {
		limited, cancel := context.WithTimeout(ctx, pingTime)
		by, err := r.Ping(limited, u)
		cancel()
		if err != nil {
			r.Log.Debug("a health endpoint did not answer", "endpoint", u.Redacted(), "err", err)
		}
		if slices.ContainsFunc(by, func(a netip.Addr) bool { return slices.Contains(r.PodIPs, a) }) {
			found = true // continue with the remaining pings, because others may count them
		}
		if ctx.Err() != nil {
			return true
		}
	}
	return found
}
