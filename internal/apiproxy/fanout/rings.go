package fanout

import "github.com/tailplane/tailplane/internal/apiproxy/merge/position"

// maxRings limits the number of rings without open watches. A full ring with four slots has 48 KiB.
const maxRings = 32

// rings maps keys of collections to their rings.
type rings map[string]*ring

type ring struct {
	position.Ring
	users int
	used  uint64 // the value of Server.released at its last release
}

// ring returns the ring of a collection. The caller must call release when it is done.
func (s *Server) ring(key string) (_ *position.Ring, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rings == nil {
		s.rings = rings{}
	}
	r := s.rings[key]
	if r == nil {
		r = &ring{}
		s.rings[key] = r
	}
	r.users++
	return &r.Ring, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.users--
		s.released++
		r.used = s.released
		s.forgetRing()
	}
}

// forgetRing drops the least recently used ring if there are too many. A client that returns to a dropped
// ring must list again.
func (s *Server) forgetRing() {
	oldest, idle := "", 0
	for key, r := range s.rings {
		if r.users > 0 {
			continue
		}
		idle++
		if oldest == "" || r.used < s.rings[oldest].used {
			oldest = key
		}
	}
	if idle > maxRings {
		delete(s.rings, oldest)
	}
}
