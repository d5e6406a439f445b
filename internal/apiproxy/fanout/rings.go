package fanout

import "github.com/tailplane/tailplane/internal/apiproxy/merge/position"

// maxRings bounds for how many collections it is remembered where clients stood,
// those of open watches apart. One has 48 KiB when it is full, with four slots.
const maxRings = 32

// rings are the memories of collections, by what tells them apart.
type rings map[string]*ring

type ring struct {
	position.Ring
	users int
	used  uint64 // when it was last let go, as a count
}

// ring returns the memory of a collection; release lets it go.
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

// forgetRing drops the one that nobody has used for the longest time, when there
// are too many. Who comes back to it reads its list once more.
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
