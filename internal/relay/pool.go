package relay

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// failureRestTime is how long a target is avoided after a failed connection. failureMemory is how long a
// service is not ready because of failures. It is long enough for a health check to notice. It
// must end, because a service without connections cannot show a success.
const (
	failureRestTime = 5 * time.Second
	failureMemory   = 15 * time.Second
)

// A pool distributes the connections of one service over its targets.
type pool struct {
	mu    sync.Mutex
	state map[netip.Addr]*load
}

type load struct {
	open   int
	failed time.Time // time of the last try if it failed, otherwise zero
}

func (p *pool) at(a netip.Addr) *load {
	l := p.state[a]
	if l == nil {
		l = new(load)
		if p.state == nil {
			p.state = map[netip.Addr]*load{}
		}
		p.state[a] = l
	}
	return l
}

func (p *pool) open(a netip.Addr) int {
	if l := p.state[a]; l != nil {
		return l.open
	}
	return 0
}

// acquire chooses an address and counts a connection to it. addrs must not be empty. It picks two
// random addresses without a recent failure and returns the one with fewer connections.
func (p *pool) acquire(addrs []netip.Addr, now time.Time) netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	fit := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if l := p.state[a]; l == nil || l.failed.IsZero() || now.Sub(l.failed) >= failureRestTime {
			fit = append(fit, a)
		}
	}
	if len(fit) == 0 {
		fit = addrs
	}
	i := rand.IntN(len(fit))
	chosen := fit[i]
	if len(fit) > 1 {
		j := rand.IntN(len(fit) - 1) // index of another address
		if j >= i {
			j++
		}
		if other := fit[j]; p.open(other) < p.open(chosen) {
			chosen = other
		}
	}
	p.at(chosen).open++
	return chosen
}

// report records whether a connection to an address returned by acquire succeeded.
func (p *pool) report(a netip.Addr, reached bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.at(a)
	l.failed = time.Time{}
	if !reached {
		l.failed = now
	}
}

// release ends a connection that acquire counted. It removes addresses without connections and failures
// from memory.
func (p *pool) release(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.at(a); l.open > 1 || !l.failed.IsZero() {
		l.open--
	} else {
		delete(p.state, a)
	}
}

// failing reports whether the last try of every address failed within failureMemory.
func (p *pool) failing(addrs []netip.Addr, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if l := p.state[a]; l == nil || l.failed.IsZero() || now.Sub(l.failed) >= failureMemory {
			return false
		}
	}
	return len(addrs) > 0
}
