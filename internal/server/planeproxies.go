package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/gossip"
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

// knownProxies are the access proxies that the plane asks: those of its own cluster, which the access server publishes, and those of the
// settings.
type knownProxies struct {
	dialer     *proxyDialer
	configured []string // URLs
	log        *slog.Logger

	mu    sync.Mutex
	found []gossip.Proxy
	all   atomic.Pointer[[]plane.AccessProxy]
}

// list returns the access proxies.
func (k *knownProxies) list() []plane.AccessProxy { return *k.all.Load() }

// find sets the access proxies of the plane's own cluster.
func (k *knownProxies) find(found []gossip.Proxy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all.Load() != nil && slices.EqualFunc(found, k.found, func(a, b gossip.Proxy) bool { return a.URL == b.URL && bytes.Equal(a.CAData, b.CAData) }) {
		return
	}
	k.found = slices.Clone(found)
	var all []plane.AccessProxy
	named := map[string]bool{}
	add := func(p gossip.Proxy) {
		u, err := url.Parse(p.URL)
		if err != nil || u.Scheme != "https" || named[u.Hostname()] { // Validate reports those of the settings
			return
		}
		named[u.Hostname()] = true
		all = append(all, k.dialer.accessProxy(u, p.CAData, k.log))
	}
	for _, p := range found { // first, because they name the authority
		add(p)
	}
	for _, base := range k.configured {
		add(gossip.Proxy{URL: base})
	}
	k.all.Store(&all)
}

// accessProxy returns the access proxy at a URL. The proxy authenticates the plane's node by its connection. The plane authenticates the
// proxy by its certificate, which the authorities in ca have issued, or without any a public one.
func (d *proxyDialer) accessProxy(u *url.URL, ca []byte, log *slog.Logger) plane.AccessProxy {
	c, state := httpapi.Client{HTTP: d.client(ca), Base: strings.TrimSuffix(u.String(), "/")}, &proxyState{log: log, name: u.Hostname()}
	return plane.AccessProxy{Name: u.Hostname(),
		List: func(ctx context.Context, req connections.ListRequest) (connections.List, error) {
			l, err := connections.ListStreams.Call(ctx, c, req)
			state.report(err)
			return l, err
		},
		Cut: func(ctx context.Context, req connections.CutRequest) (connections.Cut, error) {
			return connections.CutStream.Call(ctx, c, req)
		}}
}

// client returns a client for the API of an access proxy or a recorder, whose certificate the authorities in ca have issued, or without
// any a public one.
func (d *proxyDialer) client(ca []byte) *http.Client {
	tr := &http.Transport{
		DialContext:            d.dial,
		TLSHandshakeTimeout:    5 * time.Second,
		IdleConnTimeout:        time.Minute,
		MaxResponseHeaderBytes: 64 << 10,
		MaxConnsPerHost:        8,
	}
	if len(ca) > 0 {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca) // without a certificate in it, no server is trusted
		tr.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("this server does not redirect") }}
}

// recorder returns the configured recorder, or nil. The plane and the recorder authenticate each other like the plane and a proxy.
func (d *proxyDialer) recorder(address string, log *slog.Logger) *plane.Recorder {
	u, err := url.Parse(address)
	if address == "" || err != nil { // Validate reports it
		return nil
	}
	c := httpapi.Client{HTTP: d.client(nil), Base: address, Open: openRefusal}
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
