package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
)

// A proxyDialer connects to access proxies: as the plane's node, or through the Tailscale of this machine.
type proxyDialer struct {
	node atomic.Pointer[func(ctx context.Context, network, addr string) (net.Conn, error)]
	own  bool // the plane is a node of its own
}

func (d *proxyDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if dial := d.node.Load(); dial != nil {
		return (*dial)(ctx, network, addr)
	}
	if d.own { // never as another node
		return nil, errors.New("the plane's node is not on the tailnet")
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// accessProxies returns the configured access proxies. The proxy authenticates the plane's node by its connection, and the
// plane authenticates the proxy by its certificate.
func (d *proxyDialer) accessProxies(addresses []string, log *slog.Logger) (all []plane.AccessProxy) {
	tr := &http.Transport{DialContext: d.dial, TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10, MaxConnsPerHost: 8}
	hc := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("an access proxy does not redirect") }}
	for _, base := range addresses {
		c := httpapi.Client{HTTP: hc, Base: base}
		u, err := url.Parse(base)
		if err != nil { // Validate reports it
			continue
		}
		state := &proxyState{log: log, name: u.Hostname()}
		all = append(all, plane.AccessProxy{Name: u.Hostname(),
			List: func(ctx context.Context, req connections.ListRequest) (connections.List, error) {
				l, err := connections.ListStreams.Call(ctx, c, req)
				state.report(err)
				return l, err
			},
			Cut: func(ctx context.Context, req connections.CutRequest) (connections.Cut, error) {
				return connections.CutStream.Call(ctx, c, req)
			}})
	}
	return all
}

// A proxyState logs when an access proxy stops to answer, and when it answers again: pages ask every few seconds.
type proxyState struct {
	log  *slog.Logger
	name string
	down atomic.Bool
}

func (s *proxyState) report(err error) {
	switch was := s.down.Swap(err != nil); {
	case err != nil && !was:
		s.log.Warn("an access proxy does not answer the plane", "proxy", s.name, "err", err)
	case err == nil && was:
		s.log.Info("an access proxy answers the plane again", "proxy", s.name)
	}
}
