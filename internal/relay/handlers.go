package relay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"
)

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
		"GET /healthz":                              handle(func(*http.Request) error { return alive() }),
		"GET /readyz/{service}":                     handle(func(q *http.Request) error { return r.ServiceReady(q.Context(), q.PathValue("service")) }),
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
	res, err := (&http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
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
