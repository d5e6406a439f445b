package door

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// sums is what was refused of operations of servers among themselves, which ask
// many times a second: one of them that is wrong must not fill the record. Of a
// caller, an operation and a code so many refusals a minute have an entry each,
// and the rest one together.
type sums struct {
	mu sync.Mutex
	of map[sumKey]*refusals
}

type sumKey struct {
	node string
	verb access.Verb
	code problem.Code
}

type refusals struct {
	began time.Time
	told  int
	more  int
	last  audit.Entry // of more
}

const (
	sumTime  = time.Minute
	sumAfter = 10   // entries
	maxSums  = 4096 // callers are nodes of the tailnet, so there are not so many; all beyond are one
)

// own reports whether e gets an entry of its own.
func (s *sums) own(e audit.Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sumKey{e.Actor.NodeID, e.Verb, e.Code}
	if _, ok := s.of[k]; !ok && len(s.of) >= maxSums {
		k.node, e.Actor = "", audit.Actor{}
	}
	r := s.of[k]
	if r == nil {
		r = &refusals{began: e.Time}
		s.of[k] = r
	}
	if r.told < sumAfter {
		r.told++
		return true
	}
	r.more++
	r.last = e
	return false
}

// due takes out the sums whose time is over at now; with all, every one.
func (s *sums) due(now time.Time, all bool) (entries []audit.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.of {
		if !all && now.Sub(r.began) < sumTime {
			continue
		}
		delete(s.of, k)
		if r.more > 0 {
			e := r.last
			args := maps.Clone(e.Args)
			if args == nil {
				args = map[string]string{}
			}
			args["count"] = strconv.Itoa(r.more)
			e.Args, e.Reason = args, "so many refusals like this one, together"
			entries = append(entries, e)
		}
	}
	return entries
}
