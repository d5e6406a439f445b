// Package relay forwards connections between a cluster and one tailnet. A relay is one pod of a
// proxy group. The package follows law 7: it dials only addresses in its current netmap, keeps the
// last good configuration when a new one is invalid, and reports a mapping only when it is bound.
//
// The caller provides listeners and dialers as functions, so the package does not depend on
// Tailscale or Kubernetes.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// A Relay is one pod of a group. All fields are required unless documented otherwise.
//
//	cluster --ListenPod--> Relay --DialTailnet--> tailnet      (egress)
//	tailnet --ListenTailnet--> Relay --DialCluster--> cluster  (ingress)
type Relay struct {
	PodIPs []netip.Addr // addresses for connections from the cluster; the pod's primary address is first

	ListenPod       func(ctx context.Context, at netip.AddrPort) (net.Listener, error)
	ListenPodPacket func(ctx context.Context, at netip.AddrPort) (net.PacketConn, error)
	// DialTailnet connects only through the tailnet. network is "tcp" or "udp".
	DialTailnet func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	Netmap      func() (*Netmap, error) // returns the current netmap
	// Lookup queries the tailnet's resolver for names of services.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)

	// ListenTailnet listens on the relay's node, or as a host of the service vip (svc:name). The
	// remote address of a connection is the address of the tailnet peer.
	ListenTailnet       func(ctx context.Context, vip string, port uint16) (net.Listener, error)
	ListenTailnetPacket func(ctx context.Context, port uint16) (net.PacketConn, error)
	DialCluster         func(ctx context.Context, network, address string) (net.Conn, error)

	// ReadCertificate and WriteCertificate access the Secret of a name. The certificate and the
	// key are PEM; both are empty if there is none.
	ReadCertificate  func(ctx context.Context, name string) (chain, key []byte, err error)
	WriteCertificate func(ctx context.Context, name string, chain, key []byte) error
	// IssueCertificate requests a certificate for a name of the tailnet. Nil means that another
	// relay of the group does this. See [ErrNotYet].
	IssueCertificate func(ctx context.Context, name string) (chain, key []byte, err error)

	// Ping sends a request to a health endpoint over a new connection. It returns the pod
	// addresses in the answer.
	Ping func(ctx context.Context, endpoint *url.URL) ([]netip.Addr, error)

	Meter Meter
	Log   *slog.Logger
	Now   func() time.Time

	mu      sync.Mutex
	desired *config.Config // nil until Configure is called
	wake    signal
	changed broadcast.Change

	status   atomic.Pointer[config.Status]
	routes   atomic.Pointer[map[string]*route] // applied services, by name
	stopping atomic.Bool                       // draining: no longer ready
	shut     atomic.Bool                       // accepts no new connections
	open     atomic.Int64                      // number of open connections
	flows    atomic.Int64                      // number of UDP flows
	limits   atomic.Pointer[config.Limits]
	buffers  bufferPool
	certs    certificates
}

// A Meter records metrics. Label values are the constants below.
type Meter interface {
	Connection(direction, protocol, result string)
	Open(change int)
	Bytes(direction string, n int64) // direction is Out or In
	Dialed(took time.Duration)
	Drained(took time.Duration)
}

// Label values of a Meter.
const (
	Egress  = "egress"
	Ingress = "ingress"

	ResultOK        = "ok"
	ResultForbidden = "forbidden" // the target is not in this tailnet
	ResultNotFound  = "not_found" // no node or service has this name now
	ResultFailed    = "failed"    // the target does not answer
	ResultLimit     = "limit"

	Out = "out" // from the cluster into the tailnet
	In  = "in"
)

// Timing of connections.
const (
	dialTime  = 10 * time.Second
	retryTime = 5 * time.Second // between tries to bind ports that could not be bound
)

// Configure sets the configuration that Run applies.
func (r *Relay) Configure(c config.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.desired = &c
	r.wake.send()
}

// Wake makes Run apply the configuration again, for example after the node joined its tailnet.
func (r *Relay) Wake() { r.wake.send() }

// A signal wakes one goroutine. The zero signal is ready for use.
type signal struct {
	once sync.Once
	c    chan struct{}
}

// channel returns the channel that delivers the signal.
func (s *signal) channel() chan struct{} {
	s.once.Do(func() { s.c = make(chan struct{}, 1) })
	return s.c
}

func (s *signal) send() {
	select {
	case s.channel() <- struct{}{}:
	default:
	}
}

// Changed returns a channel that is closed when Status changes.
func (r *Relay) Changed() <-chan struct{} { return r.changed.Next() }

// Status returns what is bound now. ok is false until the first configuration was applied.
func (r *Relay) Status() (s config.Status, ok bool) {
	if p := r.status.Load(); p != nil {
		return *p, true
	}
	return config.Status{}, false
}

// Run applies configurations until ctx ends, and then closes every connection.
func (r *Relay) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	r.certs.r = r
	wg.Go(func() { r.certs.run(ctx) })
	a := &applied{r: r, routes: map[string]*route{}, sockets: map[socketKey]*socket{}}
	defer a.close()
	tick := time.NewTicker(retryTime)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake.channel():
		case <-tick.C:
			if !a.incomplete {
				continue
			}
		}
		if r.stopping.Load() {
			a.withdraw()
			continue
		}
		r.mu.Lock()
		c := r.desired
		r.mu.Unlock()
		if c != nil {
			r.publish(a.apply(ctx, *c))
		}
	}
}

func (r *Relay) publish(s config.Status) {
	if was := r.status.Load(); was != nil && was.Equal(s) {
		return
	}
	r.status.Store(&s)
	r.changed.Notify()
}

// A route is one egress or ingress service while it is in the configuration. Its connections end
// with it. A change of its targets does not affect them.
type route struct {
	name    string
	ingress bool
	service atomic.Pointer[config.Service]        // egress
	exposed atomic.Pointer[config.ExposedService] // ingress
	pool    pool
	bound   atomic.Bool // all of its ports are bound
}

// Ready returns an error with the reason if the relay should get no new connections now.
func (r *Relay) Ready() error {
	if r.stopping.Load() {
		return errors.New("it is draining")
	}
	s := r.status.Load()
	if s == nil {
		return errors.New("no configuration was applied yet")
	}
	for _, rt := range *r.routes.Load() {
		if !rt.bound.Load() {
			return fmt.Errorf("%s: not all of its ports are bound: %s", rt.name, s.Refused[rt.name])
		}
	}
	return nil
}

// ServiceReady returns an error if one service should get no new connections through this relay:
// it is not bound, no target is online, or no target answered recently.
func (r *Relay) ServiceReady(ctx context.Context, name string) error {
	if r.stopping.Load() {
		return errors.New("it is draining")
	}
	routes := r.routes.Load()
	if routes == nil {
		return errors.New("no configuration was applied yet")
	}
	rt := (*routes)[name]
	switch {
	case rt == nil:
		return errors.New("no such service")
	case !rt.bound.Load():
		return errors.New("not all of its ports are bound")
	case rt.ingress:
		return nil
	}
	nm, addrs, err := r.resolve(ctx, rt)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return nm.online[a] }) {
		return errors.New("no target is online")
	}
	if rt.pool.failing(addrs, r.Now()) {
		return errors.New("its targets do not answer")
	}
	return nil
}

// Open returns the number of open connections.
func (r *Relay) Open() int { return int(r.open.Load()) }

// resolve returns the current netmap and the addresses of a route's targets in it. It returns an
// error if there are none.
func (r *Relay) resolve(ctx context.Context, rt *route) (nm *Netmap, all []netip.Addr, err error) {
	if nm, err = r.Netmap(); err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, t := range rt.service.Load().Targets {
		addrs, err := nm.find(ctx, t, r.Lookup)
		if err != nil {
			errs = append(errs, err)
		}
		for _, a := range addrs {
			if !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	if len(all) == 0 {
		return nil, nil, errors.Join(errs...)
	}
	return nm, all, nil
}

// sortedNames returns the sorted keys of a map, for stable logs and tests.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
