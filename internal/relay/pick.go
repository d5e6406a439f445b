package relay

import (
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"
)

// restTime is how long a target is spared after it could not be reached.
// doubtTime is how long a service is not ready because of it: long enough for a
// health check to see it, and not for ever, because who gets no connections can
// show no success.
const (
	restTime  = 5 * time.Second
	doubtTime = 15 * time.Second
)

// A pool shares connections of one service out among its targets.
type pool struct {
	mu    sync.Mutex
	state map[netip.Addr]*load
}

type load struct {
	open   int
	failed time.Time // the last try; zero when it was reached
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

// take chooses one of addrs, which are not none, and counts a connection to it:
// of two random ones that do not rest, that with fewer.
func (p *pool) take(addrs []netip.Addr, now time.Time) netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	fit := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if l := p.state[a]; l == nil || l.failed.IsZero() || now.Sub(l.failed) >= restTime {
			fit = append(fit, a)
		}
	}
	if len(fit) == 0 {
		fit = addrs
	}
	i := rand.IntN(len(fit))
	chosen := fit[i]
	if len(fit) > 1 {
		j := rand.IntN(len(fit) - 1) // of the others
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

// tried says whether a target that was taken could be reached.
func (p *pool) tried(a netip.Addr, reached bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.at(a)
	l.failed = time.Time{}
	if !reached {
		l.failed = now
	}
}

// leave ends a connection that take has counted. Targets that are not in use and
// not remembered for a failure are forgotten.
func (p *pool) leave(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.at(a); l.open > 1 || !l.failed.IsZero() {
		l.open--
	} else {
		delete(p.state, a)
	}
}

// failing reports whether the last tries of all of addrs failed, not long ago.
func (p *pool) failing(addrs []netip.Addr, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range addrs {
		if l := p.state[a]; l == nil || l.failed.IsZero() || now.Sub(l.failed) >= doubtTime {
			return false
		}
	}
	return len(addrs) > 0
}
