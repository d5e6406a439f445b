package relay

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/util/retry"
)

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
