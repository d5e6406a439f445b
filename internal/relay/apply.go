package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tailplane/tailplane/internal/relay/config"
)

// applied holds the active routes and their sockets. Only the goroutine of Run uses it.
type applied struct {
	r          *Relay
	routes     map[string]*route
	sockets    map[socketKey]*socket
	closed     []*socket // closed listeners whose connections may continue
	incomplete bool      // some port could not be bound
	reported   map[string]string
}

// A socketKey identifies a port that the relay listens on. An ingress port belongs to the relay's
// node or to one tailnet service.
type socketKey struct {
	ingress  bool
	vip      string
	at       netip.AddrPort // egress: pod address and port; ingress: port only
	protocol config.Protocol
}

// A socket is a listener whose connections use a route.
type socket struct {
	io.Closer
	route   *route
	port    uint16 // of the target
	backend string // address of the backend
	proxy   bool   // send a PROXY header to the backend
	tls     tlsPort

	ctx     context.Context // of its connections
	end     context.CancelFunc
	done    sync.WaitGroup // the listener and its connections
	retired atomic.Bool    // closed, and no connection is left
}

// apply opens the sockets that c requires and returns the resulting status. It closes old sockets
// before it opens new ones, because a port may move from one service to another. It does not touch
// routes that are unchanged.
func (a *applied) apply(ctx context.Context, c config.Config) config.Status {
	r := a.r
	r.limits.Store(&c.Limits)
	st := config.Status{
		Services: map[string]config.ServiceStatus{},
		Exposed:  map[string]config.ExposedStatus{},
		Refused:  map[string]string{},
	}
	for _, ip := range r.PodIPs {
		if ip.Is4() {
			st.PodIPv4 = ip.String()
		} else {
			st.PodIPv6 = ip.String()
		}
	}
	maps.Copy(st.Refused, c.Refused)
	desired, keep := map[string]*route{}, map[socketKey]bool{}
	at := func(name string, ingress bool) *route {
		rt := a.routes[name]
		if rt == nil || rt.ingress != ingress {
			rt = &route{name: name, ingress: ingress}
		}
		desired[name] = rt
		return rt
	}
	for _, s := range c.Services {
		rt := at(s.Name, false)
		rt.service.Store(&s)
		for _, p := range s.Ports {
			for _, ip := range r.PodIPs {
				a.retain(keep, socketKey{at: netip.AddrPortFrom(ip, p.Match), protocol: p.Protocol}, &socket{route: rt, port: p.Target})
			}
		}
	}
	names := map[string]bool{}
	for _, e := range c.Exposed {
		rt := at(e.Name, true)
		rt.exposed.Store(&e)
		if e.Terminates() {
			names[e.Domain] = names[e.Domain] || e.Issue
		}
		for _, p := range e.Ports {
			if e.Ready { // without a ready backend, an open port would hide the failure
				a.retain(keep, ingressKey(e, p), ingressSocket(rt, e, p))
			}
		}
	}
	r.certs.setNames(names)
	// Close old sockets first, because a port may move from one service to another.
	for _, name := range sortedNames(a.routes) {
		if desired[name] != a.routes[name] {
			a.closeRoute(a.routes[name])
		}
	}
	for k := range a.sockets {
		if !keep[k] {
			a.retire(k)
		}
	}
	a.routes, a.incomplete = desired, false
	for _, name := range sortedNames(desired) {
		if rt := desired[name]; rt.ingress {
			a.bindIngress(ctx, rt, &st)
		} else {
			a.bindEgress(ctx, rt, &st)
		}
	}
	r.routes.Store(&desired)
	a.logRefused(st.Refused)
	return st
}

func ingressKey(e config.ExposedService, p config.IngressPort) socketKey {
	return socketKey{ingress: true, vip: e.VIP, at: netip.AddrPortFrom(netip.Addr{}, p.Port), protocol: p.Protocol}
}

// ingressSocket creates the socket that forwards a tailnet port to the backend.
func ingressSocket(rt *route, e config.ExposedService, p config.IngressPort) *socket {
	s := &socket{route: rt, backend: p.Backend, proxy: e.ProxyProtocol}
	if p.Terminate {
		s.tls = tlsPort{e.Domain, p.H2}
	}
	return s
}

// retain marks an open socket as kept if it has the wanted destination.
func (a *applied) retain(keep map[socketKey]bool, k socketKey, want *socket) {
	if s := a.sockets[k]; s != nil && s.route == want.route && s.port == want.port && s.backend == want.backend && s.proxy == want.proxy &&
		s.tls == want.tls {
		keep[k] = true
	}
}

// retire closes a socket. Its connections may continue until its route ends.
func (a *applied) retire(k socketKey) {
	s := a.sockets[k]
	delete(a.sockets, k)
	s.Close()
	a.closed = append(slices.DeleteFunc(a.closed, func(s *socket) bool { return s.retired.Load() }), s)
	go func() {
		s.done.Wait()
		s.end()
		s.retired.Store(true)
	}()
}

// withdraw closes the tailnet listeners, so that the tailnet uses other relays.
func (a *applied) withdraw() {
	for k := range a.sockets {
		if k.ingress {
			a.retire(k)
		}
	}
}

// logRefused logs each refused service once per reason.
func (a *applied) logRefused(refused map[string]string) {
	for _, name := range sortedNames(refused) {
		if a.reported[name] != refused[name] {
			a.r.Log.Error("cannot serve a service", "service", name, "why", refused[name])
		}
	}
	a.reported = refused
}

// closeRoute closes the sockets of a route and ends its connections.
func (a *applied) closeRoute(rt *route) {
	for k, s := range a.sockets {
		if s.route == rt {
			a.retire(k)
		}
	}
	a.closed = slices.DeleteFunc(a.closed, func(s *socket) bool {
		if s.route != rt {
			return false
		}
		s.end()
		s.done.Wait()
		return true
	})
}

// close ends all routes.
func (a *applied) close() {
	for _, rt := range a.routes {
		a.closeRoute(rt)
	}
}

func (a *applied) bindEgress(ctx context.Context, rt *route, st *config.Status) {
	service := rt.service.Load()
	s := config.ServiceStatus{Ports: []config.Port{}, Targets: service.Targets, Target: service.Targets[0]}
	var errs []error
	for _, p := range service.Ports {
		bound := true
		for _, ip := range a.r.PodIPs {
			k := socketKey{at: netip.AddrPortFrom(ip, p.Match), protocol: p.Protocol}
			if err := a.bind(ctx, k, &socket{route: rt, port: p.Target}); err != nil {
				bound = false
				errs = append(errs, err)
			}
		}
		if bound {
			s.Ports = append(s.Ports, p)
		}
	}
	s.IPs = []netip.Addr{}
	if _, addrs, err := a.r.resolve(ctx, rt); err == nil { // a target that is absent now is not an error of the mapping
		s.IPs = addrs
	}
	st.Services[rt.name] = s
	a.setStatus(rt, errs, st)
}

func (a *applied) bindIngress(ctx context.Context, rt *route, st *config.Status) {
	e := *rt.exposed.Load()
	s := config.ExposedStatus{VIP: e.VIP, Ports: []config.IngressPort{}}
	var errs []error
	for _, p := range e.Ports {
		if !e.Ready {
			break
		}
		if err := a.bind(ctx, ingressKey(e, p), ingressSocket(rt, e, p)); err != nil {
			errs = append(errs, err)
			continue
		}
		s.Ports = append(s.Ports, p)
	}
	if e.Terminates() {
		if pair, reason := a.r.certs.get(e.Domain); pair == nil {
			s.Uncertified = reason
		}
	}
	st.Exposed[rt.name] = s
	a.setStatus(rt, errs, st)
}

func (a *applied) setStatus(rt *route, errs []error, st *config.Status) {
	rt.bound.Store(len(errs) == 0)
	if len(errs) > 0 {
		a.incomplete = true
		st.Refused[rt.name] = errors.Join(errs...).Error()
	}
}

// bind opens and serves a socket unless it is already open.
func (a *applied) bind(ctx context.Context, k socketKey, s *socket) error {
	if a.sockets[k] != nil {
		return nil
	}
	s.ctx, s.end = context.WithCancel(context.WithoutCancel(ctx)) // ends when the route is dropped, not with ctx
	var serve func()
	var err error
	if k.protocol == config.UDP {
		var pc net.PacketConn
		pc, err = a.listenPacket(ctx, k)
		s.Closer, serve = pc, func() { a.r.servePackets(pc, s) }
	} else {
		var ln net.Listener
		ln, err = a.listen(ctx, k)
		s.Closer, serve = ln, func() { a.r.serve(ln, s) }
	}
	if err != nil {
		s.end()
		return fmt.Errorf("%s port %d: %w", k.protocol, k.at.Port(), err)
	}
	s.done.Go(serve)
	a.sockets[k] = s
	return nil
}

func (a *applied) listen(ctx context.Context, k socketKey) (net.Listener, error) {
	if k.ingress {
		return a.r.ListenTailnet(ctx, k.vip, k.at.Port())
	}
	return a.r.ListenPod(ctx, k.at)
}

func (a *applied) listenPacket(ctx context.Context, k socketKey) (net.PacketConn, error) {
	if k.ingress {
		return a.r.ListenTailnetPacket(ctx, k.at.Port())
	}
	return a.r.ListenPodPacket(ctx, k.at)
}
