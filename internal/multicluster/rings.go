package multicluster

import "github.com/tailplane/tailplane/internal/multicluster/merge"

// maxRings limits the number of rings without open watches. A full ring with four slots has 48 KiB.
const maxRings = 32

// ringSet maps keys of collections to their rings.
type ringSet map[string]*sharedRing

type sharedRing struct {
	merge.Ring
	users int
	used  uint64 // the value of Router.released at its last release
}

// ringFor returns the ring of a collection. The caller must call release when it is done.
func (s *Router) ringFor(key string) (_ *merge.Ring, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rings == nil {
		s.rings = ringSet{}
	}
	r := s.rings[key]
	if r == nil {
		r = &sharedRing{}
		s.rings[key] = r
	}
	r.users++
	return &r.Ring, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.users--
		s.released++
		r.used = s.released
		s.evictRing()
	}
}

// evictRing drops the least recently used ring if there are too many. A client that returns to a dropped
// ring must list again.
func (s *Router) evictRing() {
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
