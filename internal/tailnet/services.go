package tailnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"tailscale.com/ipn"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/tailcfg"
)

// serviceHost manages the services that a node hosts. The node answers for a service's addresses after
// an administrator or a policy rule has approved it.
//
// Tailscale's ListenService forwards connections through a TCP port of the machine. The caller's
// address is then lost, or passed in a header that other local programs could forge. Here, a
// service port is announced without a handler, so the node receives the connection itself, with
// both addresses.
type serviceHost struct {
	change sync.Mutex // serialises changes of the announcements

	mu        sync.Mutex
	vips      map[netip.Addr]tailcfg.ServiceName // addresses that this node may answer for
	listeners map[servicePort]*serviceListener
}

type servicePort struct {
	name tailcfg.ServiceName
	port uint16
}

// setMappings stores the addresses of the services that this node is approved for.
func (h *serviceHost) setMappings(raw *ipnstate.Status) {
	if raw.Self == nil {
		return
	}
	vips := map[netip.Addr]tailcfg.ServiceName{}
	mappings, err := tailcfg.UnmarshalNodeCapJSON[tailcfg.ServiceIPMappings](raw.Self.CapMap, tailcfg.NodeAttrServiceHost)
	if err == nil {
		for _, m := range mappings {
			for name, addrs := range m {
				for _, a := range addrs {
					vips[a] = name
				}
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vips = vips
}

// handle returns a handler for a connection to a service address. Tailscale calls it for ports
// without another listener.
func (h *serviceHost) handle(from, to netip.AddrPort) (func(net.Conn), bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	name, is := h.vips[to.Addr()]
	if !is {
		return nil, false
	}
	ln := h.listeners[servicePort{name, to.Port()}]
	if ln == nil {
		return nil, false
	}
	return func(c net.Conn) {
		ln.take(serviceConn{c, name, net.TCPAddrFromAddrPort(from), net.TCPAddrFromAddrPort(to)})
	}, true
}

// ListenService listens on a port of a service (svc:name) as one of its hosts. The node must be
// tagged, with Relay or Services in its Config. The first listener of a service announces the node as a host, and closing the last one
// withdraws it. RemoteAddr of a connection is the caller's address.
func (n *Node) ListenService(ctx context.Context, service string, port uint16) (net.Listener, error) {
	name := tailcfg.ServiceName(service)
	if err := name.Validate(); err != nil || port == 0 {
		return nil, fmt.Errorf("%.70q port %d is not a port of a service: %w", service, port, err)
	}
	b, err := n.wait(ctx)
	if err != nil {
		return nil, err
	}
	ln := &serviceListener{node: n, backend: b, at: servicePort{name, port}, conns: make(chan net.Conn), closed: make(chan struct{})}
	h := &n.hosts
	h.change.Lock()
	defer h.change.Unlock()
	h.mu.Lock()
	if h.listeners[ln.at] != nil {
		h.mu.Unlock()
		return nil, fmt.Errorf("port %d of %s already has a listener", port, service)
	}
	if h.listeners == nil {
		h.listeners = map[servicePort]*serviceListener{}
	}
	h.listeners[ln.at] = ln
	h.mu.Unlock()
	if err := n.announce(ctx, b, false); err != nil {
		h.mu.Lock()
		delete(h.listeners, ln.at)
		h.mu.Unlock()
		return nil, fmt.Errorf("announce port %d of %s: %w", port, service, err)
	}
	return ln, nil
}

// announce publishes the current set of listeners. A service is withdrawn before its ports close,
// and its ports are open before it is advertised. The caller must hold change.
func (n *Node) announce(ctx context.Context, b *backend, going bool) error {
	h := &n.hosts
	config := new(ipn.ServeConfig)
	names := []string{}
	h.mu.Lock()
	for at := range h.listeners {
		if config.Services == nil {
			config.Services = map[tailcfg.ServiceName]*ipn.ServiceConfig{}
		}
		if config.Services[at.name] == nil {
			config.Services[at.name] = &ipn.ServiceConfig{TCP: map[uint16]*ipn.TCPPortHandler{}}
			names = append(names, at.name.String())
		}
		// Without a handler, the connection reaches handle.
		config.Services[at.name].TCP[at.port] = new(ipn.TCPPortHandler)
	}
	h.mu.Unlock()
	slices.Sort(names)
	advertise := func() error {
		_, err := b.client.EditPrefs(ctx, &ipn.MaskedPrefs{AdvertiseServicesSet: true, Prefs: ipn.Prefs{AdvertiseServices: names}})
		return err
	}
	serve := func() error { return b.client.SetServeConfig(ctx, config) }
	if going {
		return errors.Join(advertise(), serve())
	}
	return errors.Join(serve(), advertise())
}

// A serviceListener listens on one port of a service.
type serviceListener struct {
	node    *Node
	backend *backend
	at      servicePort
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
	err     error
}

func (l *serviceListener) take(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		c.Close()
	}
}

// Accept implements [net.Listener].
func (l *serviceListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
	case <-l.node.ended:
	}
	return nil, net.ErrClosed
}

// Addr implements [net.Listener].
func (l *serviceListener) Addr() net.Addr { return serviceAddr(l.at) }

// Close withdraws the port. Accepted connections stay open.
func (l *serviceListener) Close() error {
	l.once.Do(func() {
		h := &l.node.hosts
		h.change.Lock()
		defer h.change.Unlock()
		h.mu.Lock()
		delete(h.listeners, l.at)
		h.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), statusTime)
		defer cancel()
		select {
		case <-l.node.ended:
		default:
			l.err = l.node.announce(ctx, l.backend, true)
		}
		close(l.closed)
	})
	return l.err
}

type serviceAddr servicePort

// Network implements [net.Addr].
func (a serviceAddr) Network() string { return "tcp" }

// String implements [net.Addr].
func (a serviceAddr) String() string { return fmt.Sprintf("%s:%d", a.name, a.port) }

// A serviceConn is a connection whose addresses are known from the first packet. Tailscale's
// connections know them only after the handshake.
type serviceConn struct {
	net.Conn
	service  tailcfg.ServiceName
	from, to net.Addr
}

// RemoteAddr returns the caller's address.
func (c serviceConn) RemoteAddr() net.Addr { return c.from }

// LocalAddr returns the service's address.
func (c serviceConn) LocalAddr() net.Addr { return c.to }

// CloseWrite closes the write side of the connection.
func (c serviceConn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.ErrUnsupported
}
