// Package relay carries bytes between a cluster and one tailnet: a pod of a
// proxy group. It keeps law 7: it dials only what its own netmap holds at that
// moment, keeps the last good document when a new one cannot be read, and says
// that a mapping is there only when it is bound.
//
// Sockets and dialers come in as funcs, so nothing here knows Tailscale or
// Kubernetes.
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

	"github.com/tailplane/tailplane/internal/relay/document"
	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// A Relay is one pod of a group. All fields are required, if nothing else is said.
//
//	cluster --ListenPod--> Relay --DialTailnet--> tailnet      (egress)
//	tailnet --ListenTailnet--> Relay --DialCluster--> cluster  (ingress)
type Relay struct {
	PodIPs []netip.Addr // where the cluster reaches the relay; the first is the pod's own

	ListenPod       func(ctx context.Context, at netip.AddrPort) (net.Listener, error)
	ListenPodPacket func(ctx context.Context, at netip.AddrPort) (net.PacketConn, error)
	// DialTailnet connects through the tailnet and nothing else; network is "tcp" or "udp".
	DialTailnet func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error)
	Netmap      func() (*Netmap, error) // of now
	// Lookup asks the tailnet's own resolver, for names of services.
	Lookup func(ctx context.Context, name string) ([]netip.Addr, error)

	// ListenTailnet listens on the relay's node, or as a host of the service vip
	// (svc:name). The address of a connection's other end is the caller's own.
	ListenTailnet       func(ctx context.Context, vip string, port uint16) (net.Listener, error)
	ListenTailnetPacket func(ctx context.Context, port uint16) (net.PacketConn, error)
	DialCluster         func(ctx context.Context, network, address string) (net.Conn, error)

	// A certificate and its key, in PEM, lie in the Secret of their name; none is empty.
	ReadCertificate  func(ctx context.Context, name string) (chain, key []byte, err error)
	WriteCertificate func(ctx context.Context, name string, chain, key []byte) error
	// IssueCertificate has one issued for a name of the tailnet; nil: another relay of
	// the group does. See [ErrNotYet].
	IssueCertificate func(ctx context.Context, name string) (chain, key []byte, err error)

	// Ping asks a health endpoint over a new connection and returns the pod
	// addresses that the answer names.
	Ping func(ctx context.Context, endpoint *url.URL) ([]netip.Addr, error)

	Meter Meter
	Log   *slog.Logger
	Now   func() time.Time

	mu      sync.Mutex
	wanted  *document.Config // nil until configured
	poke    chan struct{}
	changed broadcast.Change

	status   atomic.Pointer[document.Status]
	routes   atomic.Pointer[map[string]*route] // applied services, by name
	stopping atomic.Bool                       // draining: not ready any more
	shut     atomic.Bool                       // no new connections
	open     atomic.Int64                      // connections
	flows    atomic.Int64                      // of UDP
	limits   atomic.Pointer[document.Limits]
	buffers  large
	certs    certificates
}

// A Meter counts. The words of its labels are those of the constants here.
type Meter interface {
	Connection(direction, protocol, result string)
	Open(change int)
	Bytes(direction string, n int64) // direction: into the tailnet or out of it
	Dialed(took time.Duration)
	Drained(took time.Duration)
}

// Words of a Meter.
const (
	Egress  = "egress"
	Ingress = "ingress"

	ResultOK        = "ok"
	ResultForbidden = "forbidden" // the target is not of this tailnet
	ResultNotFound  = "not_found" // nobody is called so now
	ResultFailed    = "failed"    // it does not answer
	ResultLimit     = "limit"

	Out = "out" // of the cluster, into the tailnet
	In  = "in"
)

// Times of a connection's life.
const (
	dialTime  = 10 * time.Second
	retryTime = 5 * time.Second // between tries to bind what could not be bound
)

// Configure hands the relay a document that was read; Run applies it.
func (r *Relay) Configure(c document.Config) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted = &c
	r.wakeLocked()
}

// Wake makes Run look again: the node has come into its tailnet.
func (r *Relay) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wakeLocked()
}

// wakeLocked makes Run look.
func (r *Relay) wakeLocked() {
	select {
	case r.pokedLocked() <- struct{}{}:
	default:
	}
}

func (r *Relay) pokedLocked() chan struct{} {
	if r.poke == nil {
		r.poke = make(chan struct{}, 1)
	}
	return r.poke
}

// Changed returns a channel that is closed when Status is another one.
func (r *Relay) Changed() <-chan struct{} { return r.changed.Next() }

// Status is what is bound now. ok is false until a document was applied.
func (r *Relay) Status() (s document.Status, ok bool) {
	if p := r.status.Load(); p != nil {
		return *p, true
	}
	return document.Status{}, false
}

// Run applies documents until ctx ends, and then ends every connection.
func (r *Relay) Run(ctx context.Context) error {
	r.mu.Lock()
	poke := r.pokedLocked()
	r.mu.Unlock()
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
		case <-poke:
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
		c := r.wanted
		r.mu.Unlock()
		if c != nil {
			r.publish(a.apply(ctx, *c))
		}
	}
}

func (r *Relay) publish(s document.Status) {
	if was := r.status.Load(); was != nil && was.Equal(s) {
		return
	}
	r.status.Store(&s)
	r.changed.Notify()
}

// A route is one service of either direction for as long as it is on the
// document. Its connections end with it; a change of its targets leaves them.
type route struct {
	name    string
	ingress bool
	service atomic.Pointer[document.Service] // egress
	exposed atomic.Pointer[document.Exposed] // ingress
	pool    pool
	bound   atomic.Bool // all of its ports
}

// Ready says why the relay should not get new connections now.
func (r *Relay) Ready() error {
	if r.stopping.Load() {
		return errors.New("it is draining")
	}
	s := r.status.Load()
	if s == nil {
		return errors.New("no document was applied yet")
	}
	for _, rt := range *r.routes.Load() {
		if !rt.bound.Load() {
			return fmt.Errorf("%s: not all of its ports are bound: %s", rt.name, s.Refused[rt.name])
		}
	}
	return nil
}

// ServiceReady says why one service should not get new connections through this
// relay: it is not bound, no target is online, or all were out of reach of late.
func (r *Relay) ServiceReady(ctx context.Context, name string) error {
	if r.stopping.Load() {
		return errors.New("it is draining")
	}
	routes := r.routes.Load()
	if routes == nil {
		return errors.New("no document was applied yet")
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
	nm, err := r.Netmap()
	if err != nil {
		return err
	}
	addrs, err := r.find(ctx, nm, rt)
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

// Open returns how many connections are open.
func (r *Relay) Open() int { return int(r.open.Load()) }

// find returns the addresses of a route's targets; it fails if there is none.
func (r *Relay) find(ctx context.Context, nm *Netmap, rt *route) ([]netip.Addr, error) {
	var all []netip.Addr
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
		return nil, errors.Join(errs...)
	}
	return all, nil
}

// sortedNames are the names of a map, for logs and tests that do not flicker.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
