package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// A proxyDialer connects to access proxies and to the recorder: as the plane's node, or through the Tailscale of this machine.
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
	hc := d.client()
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

// client returns a client for the API of an access proxy or a recorder.
func (d *proxyDialer) client() *http.Client {
	tr := &http.Transport{DialContext: d.dial, TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10, MaxConnsPerHost: 8}
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("this server does not redirect") }}
}

// recorder returns the configured recorder, or nil. The plane and the recorder authenticate each other like the plane and a proxy.
func (d *proxyDialer) recorder(address string, log *slog.Logger) *plane.Recorder {
	u, err := url.Parse(address)
	if address == "" || err != nil { // Validate reports it
		return nil
	}
	c := httpapi.Client{HTTP: d.client(), Base: address, Open: openRefusal}
	state := &proxyState{log: log, name: u.Hostname()}
	return &plane.Recorder{Name: u.Hostname(),
		List: func(ctx context.Context, req recording.ListRequest) (recording.Page, error) {
			p, err := recording.ListRecordings.Call(ctx, c, req)
			state.report(err)
			return p, err
		},
		Open: func(ctx context.Context, req recording.GetRequest) (io.ReadCloser, error) {
			return c.Follow(ctx, recording.GetRecording.Pattern, req)
		}}
}

// openRefusal returns the refusal in a response of a recorder.
func openRefusal(status int, body []byte) ([]byte, *problem.Error, error) {
	if status == http.StatusOK {
		return body, nil, nil
	}
	refused := new(problem.Error)
	if _ = json.Unmarshal(body, refused); refused.Code == "" { // it is no JSON, or no problem
		return nil, nil, errors.New("no reason in the response: is it a recorder?")
	}
	return nil, refused, nil
}

// A proxyState logs when an access proxy or the recorder stops to answer, and when it answers again: pages ask every few seconds.
type proxyState struct {
	log  *slog.Logger
	name string
	down atomic.Bool
}

func (s *proxyState) report(err error) {
	switch was := s.down.Swap(err != nil); {
	case err != nil && !was:
		s.log.Warn("a source does not answer the plane", "server", s.name, "err", err)
	case err == nil && was:
		s.log.Info("a source answers the plane again", "server", s.name)
	}
}
