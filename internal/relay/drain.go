package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// Headers in which a health endpoint returns the addresses of its pod.
const (
	podIPv4 = "Pod-IPv4"
	podIPv6 = "Pod-IPv6"
)

// Handlers returns the HTTP handlers of a relay besides probes and metrics, by pattern. alive
// returns an error if the node has no address in the tailnet.
func (r *Relay) Handlers(alive func() error) map[string]http.Handler {
	handle := func(check func(*http.Request) error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			for _, a := range r.PodIPs {
				if a.Is4() {
					w.Header().Set(podIPv4, a.String())
				} else {
					w.Header().Set(podIPv6, a.String())
				}
			}
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			// A client that uses a Service must be able to reach another relay with its next
			// request.
			w.Header().Set("Connection", "close")
			if err := check(q); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprintln(w, err)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	drain := handle(func(q *http.Request) error { return r.Drain(q.Context()) })
	slow := http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		// No write deadline: the kubelet's grace period ends the request.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			http.Error(w, "no time to drain", http.StatusInternalServerError)
			return
		}
		drain.ServeHTTP(w, q)
	})
	return map[string]http.Handler{
		"GET /healthz": handle(func(*http.Request) error { return alive() }),
		"GET /readyz/{service}": handle(
			func(q *http.Request) error { return r.ServiceReady(q.Context(), q.PathValue("service")) },
		),
		"GET /pre-shutdown":                         slow,
		"GET /internal-egress-services-preshutdown": slow,
	}
}

// PingHTTP implements Relay.Ping. It sends a request to the endpoint over a new connection and
// does not follow redirects. Only the headers of the answer are used.
func PingHTTP(ctx context.Context, endpoint *url.URL) ([]netip.Addr, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint.String(), nil)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 8 << 10}
	defer t.CloseIdleConnections()
	res, err := (&http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(
		req,
	)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 512)
	return podAddrs(res.Header), nil
}

// podAddrs reads the pod addresses from the headers.
func podAddrs(h http.Header) (out []netip.Addr) {
	for _, name := range []string{podIPv4, podIPv6} {
		if a, err := netip.ParseAddr(h.Get(name)); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}
