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

// sums aggregates refusals of operations between servers. Servers send many requests per second,
// and a faulty one must not fill the audit log. For each caller, operation and code, the first
// refusals per minute get separate entries. The rest share one entry.
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
	last  audit.Entry // the most recent refusal that more counts
}

const (
	sumTime  = time.Minute
	sumAfter = 10   // separate entries
	maxSums  = 4096 // callers are tailnet nodes, so more keys are not expected; all further ones share one key
)

// own reports whether e gets a separate audit entry.
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

// due removes and returns the aggregated entries whose interval is over at now, or all of them.
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
