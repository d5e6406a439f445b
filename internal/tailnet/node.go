// Package tailnet implements a node of a tailnet: it joins, listens, and identifies callers. It
// enforces law 1. The identity of a caller is the WhoIs result for the connection, queried for
// every request. Headers, caches and context values never identify a caller.
//
// This is the only package that uses Tailscale's packages.
package tailnet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tailscale.com/client/local"
	"tailscale.com/client/tailscale/apitype"
	"tailscale.com/ipn"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// A Node makes this process a machine of a tailnet. Run joins the tailnet. The other methods are
// safe for concurrent use, before, during and after Run.
//
//	New --Run--> joining --Running--> up <--> down (key expired, removed, stopped)
//	                |                  |        |
//	                refused, timed out +--------+--ctx ends--> Run returns
type Node struct {
	cfg Config

	queryWhoIs  func(ctx context.Context, addr string, service tailcfg.ServiceName) (*apitype.WhoIsResponse, error)
	queryStatus func(ctx context.Context) (*ipnstate.Status, error) // with peers

	status  atomic.Pointer[Status]
	backend atomic.Pointer[backend] // nil until started
	peers   atomic.Pointer[peers]
	polled  atomic.Int64 // when the node was last seen in its map poll, Unix nanoseconds; 0: never
	hosts   serviceHost
	ran     atomic.Bool
	joined  chan struct{} // closed when the node is Running for the first time
	ended   chan struct{} // closed when Run returns; err is set before
	err     error

	changed broadcast.Change
}

// A backend is Tailscale's part of a node.
type backend struct {
	server *tsnet.Server
	client *local.Client
}

// New returns a node that Run can start, or an error with all invalid settings.
func New(cfg Config) (*Node, error) {
	cfg.Tags = slices.Clone(cfg.Tags)
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, joined: make(chan struct{}), ended: make(chan struct{})}
	n.status.Store(&Status{State: ipn.NoState.String()})
	n.queryWhoIs = func(ctx context.Context, addr string, service tailcfg.ServiceName) (*apitype.WhoIsResponse, error) {
		if service != "" {
			return n.backend.Load().client.WhoIsForService(ctx, addr, service)
		}
		return n.backend.Load().client.WhoIsProto(ctx, "tcp", addr)
	}
	n.queryStatus = func(ctx context.Context) (*ipnstate.Status, error) { return n.backend.Load().client.Status(ctx) }
	return n, nil
}

// Status returns the current status. It is as cheap as reading a pointer.
func (n *Node) Status() Status { return *n.status.Load() }

// Names returns the current names and addresses of the node in lower case: the full name without
// the trailing dot, the short name, the addresses. It returns none while the node is not Running.
// The caller must not modify the result.
func (n *Node) Names() []string { return n.status.Load().Names }

// Changed returns a channel that is closed at the next change of the policy, the peers or the node.
func (n *Node) Changed() <-chan struct{} { return n.changed.Next() }

func (n *Node) publish(s *Status) {
	n.status.Store(s)
	n.changed.Notify()
}

// Time limits of a node, in addition to Config.JoinTimeout.
const (
	closeTime  = 10 * time.Second // because Close of tsnet can hang
	statusTime = 10 * time.Second
	certTime   = 2 * time.Minute // the first certificate takes the certificate authority some seconds
	reachTime  = 5 * time.Second
)

// Run joins the tailnet, stays in it until ctx ends, and then leaves. If the node cannot join, the
// error says what to do. Causes are an unusable state directory, a refused auth key, and an
// unreachable control server. Without an auth key and without stored state, Run logs once where a
// person must sign the node in, and waits. If the node later loses its place (key expired,
// removed), Run continues and reports it in Status and the log, so that the node can come back.
//
// The listeners end with Run. Stop the servers before ctx ends. Run must be called at most once.
func (n *Node) Run(ctx context.Context) error {
	if !n.ran.CompareAndSwap(false, true) {
		return errors.New("tailnet: Run was called twice")
	}
	err := n.run(ctx)
	n.err = err
	close(n.ended)
	return err
}

func (n *Node) run(ctx context.Context) (err error) {
	release, err := claimState(n.cfg.StateDir)
	if err != nil {
		return err
	}
	defer release()

	var wg sync.WaitGroup
	defer wg.Wait()
	joining, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	limit := time.AfterFunc(n.cfg.JoinTimeout, func() { giveUp(errNotJoined) })
	defer limit.Stop()

	wg.Go(func() { // warn early, because the limit may be long
		ctx, cancel := context.WithTimeout(joining, reachTime)
		defer cancel()
		if err := n.waitControl(ctx); err != nil && joining.Err() == nil {
			n.cfg.Log.Warn("the control server cannot be reached yet", "controlURL", n.cfg.ControlURL, "err", err, "giveUpAfter", n.cfg.JoinTimeout)
		}
	})

	b, err := n.start(joining)
	if err != nil {
		return n.explain(ctx, joining, err)
	}
	defer func() {
		n.publish(&Status{State: ipn.Stopped.String()})
		err = errors.Join(err, b.close())
	}()
	n.backend.Store(b)
	return n.explain(ctx, joining, n.watch(joining, b, limit))
}

var errNotJoined = errors.New("the node has not joined in time")

// explain converts the end of a wait to a message with advice.
func (n *Node) explain(ctx, joining context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return nil // stopped by the caller
	case !errors.Is(context.Cause(joining), errNotJoined):
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	if err := n.waitControl(ctx); err != nil {
		return fmt.Errorf("the node did not join its tailnet in %v, because the control server %s cannot be reached: check tailnet.controlURL and the outbound network of this machine: %w", n.cfg.JoinTimeout, n.cfg.ControlURL, err)
	}
	return fmt.Errorf("the node did not join its tailnet in %v, although the control server %s answers; it is %s: %s", n.cfg.JoinTimeout, n.cfg.ControlURL, n.Status().State, strings.Join(n.Status().Health, "; "))
}

// waitControl requests the control server's key, as the node does first.
func (n *Node) waitControl(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/key?v=%d", n.cfg.ControlURL, tailcfg.CurrentCapabilityVersion), nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment} // the same proxy settings as the node
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %q: is it a control server?", res.Status)
	}
	return nil
}

// start starts the Tailscale backend. The backend may read its state from a Secret and exchange a
// client secret for an auth key, and has no time limit for that.
func (n *Node) start(ctx context.Context) (*backend, error) {
	debug := func(format string, args ...any) {
		if n.cfg.Log.Enabled(context.Background(), slog.LevelDebug) {
			n.cfg.Log.Debug(strings.TrimSpace(fmt.Sprintf(format, args...)), "from", "tailscale")
		}
	}
	srv := &tsnet.Server{
		Dir:           n.cfg.StateDir,
		Hostname:      n.cfg.Hostname,
		AdvertiseTags: n.cfg.Tags,
		ControlURL:    n.cfg.ControlURL,
		AuthKey:       n.cfg.AuthKey.Reveal(),
		UserLogf:      debug, // repeats the login URL every 5 s; watch logs it once
		Logf:          debug,
	}
	started := make(chan error, 1)
	go func() {
		if n.cfg.State != nil {
			srv.Store = stateStore{n.cfg.State}
		} else if n.cfg.StateSecret != "" {
			st, err := openSecret(n.cfg.StateSecret, debug)
			if err != nil {
				started <- err
				return
			}
			srv.Store = st
		}
		if err := srv.Start(); err != nil {
			started <- fmt.Errorf("the node cannot start from the state in %s: %w", n.cfg.StateDir, err)
			return
		}
		started <- nil
	}()
	select {
	case err := <-started:
		if err != nil {
			return nil, err
		}
	case <-ctx.Done():
		go func() { // Close must not run before Start returns
			if <-started == nil {
				srv.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
	client, err := srv.LocalClient()
	if err != nil {
		return nil, errors.Join(err, (&backend{server: srv}).close())
	}
	return &backend{srv, client}, nil
}

// close stops the backend, or returns an error if it does not stop in time.
func (b *backend) close() error {
	done := make(chan error, 1)
	go func() { done <- b.server.Close() }()
	select {
	case err := <-done:
		return err
	case <-time.After(closeTime):
		return fmt.Errorf("the tailnet node did not stop within %v", closeTime)
	}
}

// ErrRefused is in the error chain if the control server refused the node.
var ErrRefused = errors.New("refused the node")

// Listen waits until the node has joined, and listens on Config.Port. It uses the node's
// certificate if the tailnet has HTTPS, otherwise Config.Certificate, and without that no TLS if
// Config.InsecureHTTP is set. It returns an error when Run ends.
func (n *Node) Listen(ctx context.Context) (net.Listener, error) {
	b, err := n.wait(ctx)
	if err != nil {
		return nil, err
	}
	st, certificate := n.Status(), n.cfg.Certificate
	switch {
	case st.CertDomain == "" && certificate == nil && !n.cfg.InsecureHTTP:
		return nil, errors.New("the tailnet gives this node no certificate: enable HTTPS (and MagicDNS) in the tailnet's DNS settings, " +
			"or set tailnet.insecureHTTP: true to listen without TLS (WireGuard still encrypts)")
	case st.CertDomain != "": // the first certificate can take longer than a TLS handshake may
		asking, cancel := context.WithTimeout(ctx, certTime)
		defer cancel()
		if _, _, err := b.client.CertPair(asking, st.CertDomain); err != nil {
			return nil, fmt.Errorf("get the certificate for %s: %w", st.CertDomain, err)
		}
		certificate = b.client.GetCertificate
	}
	ln, err := b.listen(n.cfg.Port)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if certificate != nil {
		scheme = "https"
		conf := &tls.Config{GetCertificate: certificate, MinVersion: tls.VersionTLS12}
		if n.cfg.HTTP2 {
			conf.NextProtos = []string{"h2", "http/1.1"}
		}
		ln = tls.NewListener(ln, conf)
	}
	n.cfg.Log.Info("listening on the tailnet", "scheme", scheme, "port", n.cfg.Port, "names", st.Names)
	return ln, nil
}

// ErrNoName is in the error chain of IssueCertificate if the name belongs neither to this node nor
// to a service that it hosts.
var ErrNoName = errors.New("the tailnet gives this node no certificate for that name")

// IssueCertificate returns the PEM certificate chain and key for a name of the node. The first
// certificate takes the certificate authority some seconds. Later calls return the cached one until
// it must be renewed.
func (n *Node) IssueCertificate(ctx context.Context, name string) (chain, key []byte, err error) {
	b, err := n.wait(ctx)
	if err != nil {
		return nil, nil, err
	}
	names, err := b.client.CertDomains(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("names of certificates: %w", err)
	}
	if !slices.Contains(names, name) {
		return nil, nil, fmt.Errorf("%s: %w", name, ErrNoName)
	}
	return b.client.CertPair(ctx, name)
}

// ListenPlain listens on another port without TLS, for connections between servers. WireGuard
// encrypts, and Identify identifies the peer.
func (n *Node) ListenPlain(ctx context.Context, port uint16) (net.Listener, error) {
	b, err := n.wait(ctx)
	if err != nil {
		return nil, err
	}
	return b.listen(port)
}

func (b *backend) listen(port uint16) (net.Listener, error) {
	ln, err := b.server.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, fmt.Errorf("listen on port %d of the tailnet: %w", port, err)
	}
	return ln, nil
}

// wait waits until the node has joined.
func (n *Node) wait(ctx context.Context) (*backend, error) {
	select {
	case <-n.joined:
	case <-n.ended:
	case <-ctx.Done():
		return nil, fmt.Errorf("listen on the tailnet: %w", context.Cause(ctx))
	}
	select {
	case <-n.ended:
		if n.err != nil {
			return nil, n.err
		}
		return nil, errors.New("listen on the tailnet: the node has stopped")
	default:
	}
	if st := n.Status(); !st.Running() {
		return nil, fmt.Errorf("listen on the tailnet: the node is not connected, its state is %s", st.State)
	}
	return n.backend.Load(), nil
}
