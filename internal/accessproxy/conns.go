package accessproxy

import (
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// conns are the open connections of clients, apart from upgraded ones, which are streams.
type conns struct {
	mu  sync.Mutex
	all map[net.Conn]*openConn
}

// An openConn is one connection of a client.
type openConn struct {
	conn     net.Conn
	identity *connection
	request  *http.Request // of this connection, without anything from the client: to identify the client again
	idle     bool          // it carries no request
	closing  bool          // its node is absent from the tailnet
}

func (s *conns) add(c net.Conn, identity *connection, request *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[net.Conn]*openConn{}
	}
	s.all[c] = &openConn{conn: c, identity: identity, request: request, idle: true}
}

// onStateChange is the hook of net/http.
func (s *conns) onStateChange(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.all[c]
	switch {
	case one == nil:
	case state == http.StateClosed || state == http.StateHijacked:
		delete(s.all, c)
	default:
		one.idle = state != http.StateActive
	}
}

// list returns the open connections.
func (s *conns) list() []*openConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.all))
}

// idle returns the connections without a request, with the identity that the tailnet gave them last.
func (s *conns) idle() (all []*connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for one := range maps.Values(s.all) {
		if one.idle {
			all = append(all, one.identity)
		}
	}
	return all
}

// closeAbsent closes a connection whose node is absent from the tailnet: at once if it is idle, and otherwise after
// boundaryWait, in which its streams end with a reason.
func (s *conns) closeAbsent(c *openConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case c.closing:
	case c.idle:
		c.closing = true
		c.conn.Close()
	default:
		c.closing = true
		time.AfterFunc(boundaryWait, func() { c.conn.Close() })
	}
}
