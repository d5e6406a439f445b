package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/tailplane/tailplane/testkit/gossiptest"
)

// network carries packets and streams between members of memberlist, with the faults of a scenario. A packet is lost
// or delayed like a message of the simulator. A stream is TCP: lost data is sent again after the times of RFC 6298,
// so it is late and never lost. The simulator is harder for Tailplane, whose messages are TCP too: there a lost
// message ends the exchange.
type network struct {
	scenario gossiptest.Scenario

	mu       sync.Mutex
	rng      *rand.Rand
	at       map[string]*port
	bytes    uint64 // sent, without headers
	messages uint64 // packets, and one for each used direction of a stream
}

func newNetwork(s gossiptest.Scenario) *network {
	return &network{scenario: s, rng: rand.New(rand.NewPCG(s.Seed, 2)), at: map[string]*port{}}
}

// sent returns the totals of all members so far.
func (n *network) sent() (bytes, messages uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bytes, n.messages
}

func (n *network) count(bytes, messages int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bytes, n.messages = n.bytes+uint64(bytes), n.messages+uint64(messages)
}

// way returns a random delay, and whether the message is lost.
func (n *network) way() (d time.Duration, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d = gossiptest.MinDelay + time.Duration(n.rng.Int64N(int64(gossiptest.MaxDelay-gossiptest.MinDelay)))
	if j := n.scenario.Jitter; j > 0 {
		d += time.Duration(n.rng.Int64N(int64(j)))
	}
	return d, n.rng.Float64() < n.scenario.Loss
}

// Times after which TCP sends lost data again: a first packet, and data.
const (
	again1    = time.Second
	againData = 200 * time.Millisecond
	patience  = 30 * time.Second // then TCP gives up the connection
)

// reliable returns the delay of data that is sent until it arrives. It returns false if TCP gives up.
func (n *network) reliable(again time.Duration) (sum time.Duration, ok bool) {
	for ; sum < patience; again *= 2 {
		d, lost := n.way()
		if !lost {
			return sum + d, true
		}
		sum += again
	}
	return 0, false
}

// port is the [memberlist.Transport] of one member on the network.
type port struct {
	net     *network
	addr    netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func (n *network) listen(addr netip.AddrPort) *port {
	p := &port{net: n, addr: addr, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), done: make(chan struct{})}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[addr.String()] = p
	return p
}

func (n *network) find(addr string) *port {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.at[addr]
}

func (p *port) closed() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *port) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return p.addr.Addr().AsSlice(), int(p.addr.Port()), nil
}

func (p *port) PacketCh() <-chan *memberlist.Packet { return p.packets }

func (p *port) StreamCh() <-chan net.Conn { return p.streams }

func (p *port) Shutdown() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *port) WriteTo(b []byte, addr string) (time.Time, error) {
	to, now := p.net.find(addr), time.Now()
	p.net.count(len(b), 1)
	d, lost := p.net.way()
	if to == nil || lost {
		return now, nil
	}
	b = append([]byte(nil), b...)
	time.AfterFunc(d, func() {
		select {
		case to.packets <- &memberlist.Packet{Buf: b, From: net.UDPAddrFromAddrPort(p.addr), Timestamp: time.Now()}:
		case <-to.done:
		}
	})
	return now, nil
}

func (p *port) DialTimeout(addr string, limit time.Duration) (net.Conn, error) {
	to := p.net.find(addr)
	there, ok1 := p.net.reliable(again1)
	back, ok2 := p.net.reliable(again1)
	if to == nil || to.closed() || !ok1 || !ok2 || there+back > limit {
		time.Sleep(limit) // a dead member does not even reject the connection
		return nil, errors.New("dial: timed out")
	}
	time.Sleep(there + back)
	near, nearEnd := net.Pipe()
	farEnd, far := net.Pipe()
	go p.net.stream(nearEnd, farEnd)
	go p.net.stream(farEnd, nearEnd)
	select {
	case to.streams <- far:
		return near, nil
	case <-to.done:
		near.Close()
		far.Close()
		return nil, errors.New("dial: timed out")
	}
}

// stream carries one direction, in order, until either end is closed.
func (n *network) stream(from, to net.Conn) {
	type piece struct {
		b  []byte
		at time.Time
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer to.Close()
		for p := range pieces {
			time.Sleep(time.Until(p.at))
			if _, err := to.Write(p.b); err != nil {
				from.Close()
				for range pieces { // the reader ends soon
				}
				return
			}
		}
	}()
	defer close(pieces)
	b := make([]byte, 64<<10)
	var last time.Time
	for first := true; ; first = false {
		k, err := from.Read(b)
		if k > 0 {
			n.count(k, 0)
			if first {
				n.count(0, 1)
			}
			d, ok := n.reliable(againData)
			if !ok {
				from.Close()
				to.Close()
				return
			}
			if at := time.Now().Add(d); at.After(last) {
				last = at
			}
			pieces <- piece{append([]byte(nil), b[:k]...), last}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				to.Close()
			}
			return
		}
	}
}
