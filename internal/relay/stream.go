package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// acceptPause is the wait before the next try after accept failed, for example because no file
// descriptors are left.
const acceptPause = 50 * time.Millisecond

// serve handles the connections of one listener until it is closed.
func (r *Relay) serve(ln net.Listener, s *socket) {
	for {
		c, err := ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || s.ctx.Err() != nil {
				return
			}
			if retry.Sleep(s.ctx, acceptPause) != nil {
				return
			}
			continue
		}
		if !r.admit(&r.open, r.limits.Load().Connections, s, config.TCP) {
			c.Close()
			continue
		}
		r.Meter.Open(1)
		s.done.Go(func() {
			defer r.Meter.Open(-1)
			defer r.open.Add(-1)
			defer c.Close()
			defer context.AfterFunc(s.ctx, func() { c.Close() })()
			if s.route.ingress {
				r.forwardIngress(c, s)
			} else {
				r.forwardEgress(c, s)
			}
		})
	}
}

// admit counts a connection or a flow, unless the relay is shut or the limit is reached. The caller
// must subtract it from count at its end.
func (r *Relay) admit(count *atomic.Int64, limit int, s *socket, protocol config.Protocol) bool {
	if r.shut.Load() {
		return false
	}
	if count.Add(1) <= int64(limit) {
		return true
	}
	count.Add(-1)
	r.Meter.Connection(s.direction(), string(protocol), ResultLimit)
	return false
}

func (s *socket) direction() string {
	if s.route.ingress {
		return Ingress
	}
	return Egress
}

// forwardEgress forwards a connection from the cluster to one of the route's targets.
func (r *Relay) forwardEgress(c net.Conn, s *socket) {
	ctx, cancel := context.WithTimeout(s.ctx, dialTime)
	defer cancel()
	far, addr, err := r.dial(ctx, s, config.TCP)
	r.Meter.Connection(Egress, string(config.TCP), result(err))
	if err != nil {
		r.logFailure(s, err)
		reset(c)
		return
	}
	defer s.route.pool.release(addr)
	out, in := r.splice(c, far, s)
	r.Meter.Bytes(Out, out)
	r.Meter.Bytes(In, in)
}

// forwardIngress forwards a connection from the tailnet to the route's backend.
func (r *Relay) forwardIngress(c net.Conn, s *socket) {
	ctx, cancel := context.WithTimeout(s.ctx, dialTime)
	defer cancel()
	if s.tls.name != "" { // first, so that a client without a TLS handshake reaches no backend
		plain, err := r.certs.terminate(ctx, c, s.tls)
		if err != nil {
			r.Meter.Connection(Ingress, string(config.TCP), result(err))
			r.logFailure(s, err)
			return
		}
		c = plain
	}
	began := r.Now()
	far, err := r.DialCluster(ctx, "tcp", s.backend)
	r.Meter.Dialed(r.Now().Sub(began))
	if err == nil && s.proxy {
		var from, to netip.AddrPort
		from, err = netip.ParseAddrPort(c.RemoteAddr().String())
		if err == nil {
			if to, err = netip.ParseAddrPort(c.LocalAddr().String()); err == nil {
				_, err = far.Write(proxyHeader(from, to))
			}
		}
		if err != nil {
			far.Close()
		}
	}
	r.Meter.Connection(Ingress, string(config.TCP), result(err))
	if err != nil {
		r.logFailure(s, err)
		reset(c)
		return
	}
	in, out := r.splice(c, far, s)
	r.Meter.Bytes(Out, out)
	r.Meter.Bytes(In, in)
}

// splice copies between both sides until they end or the route of the socket ends.
func (r *Relay) splice(c, far net.Conn, s *socket) (there, back int64) {
	defer context.AfterFunc(s.ctx, func() { far.Close() })()
	return r.buffers.splice(c, far)
}

// dial connects to one of the route's targets. If a target does not answer and time is left, it
// tries another one. The caller must release the returned address with pool.release.
func (r *Relay) dial(ctx context.Context, s *socket, protocol config.Protocol) (net.Conn, netip.Addr, error) {
	_, addrs, err := r.resolve(ctx, s.route)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	for left := min(len(addrs), 3); ; left-- {
		addr := s.route.pool.acquire(addrs, r.Now())
		c, err := r.dialOne(ctx, netip.AddrPortFrom(addr, s.port), protocol, left)
		s.route.pool.report(addr, err == nil, r.Now())
		if err == nil {
			return c, addr, nil
		}
		s.route.pool.release(addr)
		if left <= 1 || ctx.Err() != nil {
			return nil, netip.Addr{}, err
		}
	}
}

// dialOne dials an address if the current netmap contains it.
func (r *Relay) dialOne(ctx context.Context, to netip.AddrPort, protocol config.Protocol, tries int) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok { // each try gets an equal share of the remaining time
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(end)/time.Duration(tries))
		defer cancel()
	}
	nm, err := r.Netmap()
	if err != nil {
		return nil, err
	}
	if err := nm.check(to.Addr()); err != nil {
		return nil, err
	}
	began := r.Now()
	c, err := r.DialTailnet(ctx, string(protocol), to)
	r.Meter.Dialed(r.Now().Sub(began))
	return c, err
}

// result returns the metric label for the outcome of a connection.
func result(err error) string {
	switch {
	case err == nil:
		return ResultOK
	case errors.Is(err, errForbidden):
		return ResultForbidden
	case errors.Is(err, errNoTarget):
		return ResultNotFound
	}
	return ResultFailed
}

// logFailure logs why a connection was not forwarded. A forbidden target is a warning; other errors
// are logged at debug level.
func (r *Relay) logFailure(s *socket, err error) {
	if errors.Is(err, errForbidden) {
		r.Log.Warn("refusing a target", "service", s.route.name, "err", err)
		return
	}
	r.Log.Debug("a connection failed", "service", s.route.name, "err", err)
}

// reset closes c with a TCP reset, so that the peer sees an error and not an empty answer.
func reset(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // if this fails, the connection still closes, with a FIN
	}
	c.Close()
}

// signature is the start of a PROXY header of version 2.
const signature = "\r\n\r\n\x00\r\nQUIT\n"

// proxyHeader returns a PROXY protocol header of version 2 for a TCP connection. If the address
// families differ, both addresses are written as IPv6.
func proxyHeader(from, to netip.AddrPort) []byte {
	h := append([]byte(signature), 0x21) // version 2, command PROXY
	src, dst := from.Addr().Unmap(), to.Addr().Unmap()
	var addrs []byte
	if src.Is4() && dst.Is4() {
		h = append(h, 0x11) // TCP over IPv4
		a, b := src.As4(), dst.As4()
		addrs = append(append(addrs, a[:]...), b[:]...)
	} else {
		h = append(h, 0x21)
		a, b := src.As16(), dst.As16()
		addrs = append(append(addrs, a[:]...), b[:]...)
	}
	addrs = binary.BigEndian.AppendUint16(addrs, from.Port())
	addrs = binary.BigEndian.AppendUint16(addrs, to.Port())
	return append(binary.BigEndian.AppendUint16(h, uint16(len(addrs))), addrs...)
}

// Limits of UDP. A flow is the packets from one address to one port.
const (
	flowIdle    = time.Minute
	flowQueue   = 32       // packets that wait while the target is dialed
	packetBytes = 16 << 10 // larger packets are dropped, never truncated
)

// A flow forwards packets between one address and a target.
type flow struct {
	from  netip.AddrPort
	queue chan []byte
	used  atomic.Int64 // Unix nanoseconds of the last packet in either direction
}

// servePackets handles the flows of one socket until it is closed.
func (r *Relay) servePackets(pc net.PacketConn, s *socket) {
	var mu sync.Mutex
	flows := map[netip.AddrPort]*flow{}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(s.ctx)
	defer wg.Wait()
	defer cancel()
	buf := make([]byte, packetBytes)
	for {
		n, addr, err := pc.ReadFrom(buf)
		if err != nil {
			if s.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			if retry.Sleep(ctx, acceptPause) != nil {
				return
			}
			continue
		}
		from, err := netip.ParseAddrPort(addr.String())
		if err != nil || n == len(buf) {
			continue
		}
		mu.Lock()
		f := flows[from]
		mu.Unlock()
		if f == nil {
			if !r.admit(&r.flows, r.limits.Load().Flows, s, config.UDP) {
				continue
			}
			f = &flow{from: from, queue: make(chan []byte, flowQueue)}
			f.used.Store(r.Now().UnixNano())
			mu.Lock()
			flows[from] = f
			mu.Unlock()
			wg.Go(func() {
				defer r.flows.Add(-1)
				r.forwardFlow(ctx, pc, addr, f, s)
				mu.Lock()
				delete(flows, from)
				mu.Unlock()
			})
		}
		select {
		case f.queue <- append([]byte(nil), buf[:n]...):
		default: // drop the packet, as a full socket would
		}
	}
}

// forwardFlow forwards one flow until it is idle for flowIdle.
func (r *Relay) forwardFlow(ctx context.Context, pc net.PacketConn, back net.Addr, f *flow, s *socket) {
	far, done, err := r.dialFlow(ctx, s)
	r.Meter.Connection(s.direction(), string(config.UDP), result(err))
	if err != nil {
		r.logFailure(s, err)
		return
	}
	defer done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer far.Close()
	there, here := Out, In
	if s.route.ingress {
		there, here = In, Out
	}
	wg.Go(func() {
		defer cancel()
		buf := make([]byte, packetBytes)
		for {
			n, err := far.Read(buf)
			if err != nil {
				return // closed below, or the target port is unreachable
			}
			if n == len(buf) {
				continue
			}
			f.used.Store(r.Now().UnixNano())
			if _, err := pc.WriteTo(buf[:n], back); err != nil {
				return
			}
			r.Meter.Bytes(here, int64(n))
		}
	})
	tick := time.NewTicker(flowIdle / 4)
	defer tick.Stop()
	for {
		select {
		case b := <-f.queue:
			f.used.Store(r.Now().UnixNano())
			if _, err := far.Write(b); err != nil {
				return
			}
			r.Meter.Bytes(there, int64(len(b)))
		case <-tick.C:
			if r.Now().Sub(time.Unix(0, f.used.Load())) >= flowIdle {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// dialFlow connects to the other end of the flow. The caller must call done at the end.
func (r *Relay) dialFlow(ctx context.Context, s *socket) (c net.Conn, done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if s.route.ingress {
		c, err = r.DialCluster(ctx, "udp", s.backend)
		return c, func() {}, err
	}
	c, addr, err := r.dial(ctx, s, config.UDP)
	return c, func() { s.route.pool.release(addr) }, err
}
