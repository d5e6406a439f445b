package httpapi

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// refusalAggregator aggregates refusals of operations between servers. Servers send many requests per second,
// and a faulty one must not fill the audit log. For each caller, operation and code, the first
// refusals per minute get separate entries. The rest share one entry.
type refusalAggregator struct {
	mu     sync.Mutex
	counts map[refusalKey]*refusalCount
}

type refusalKey struct {
	node string
	verb access.Verb
	code problem.Code
}

type refusalCount struct {
	began    time.Time
	recorded int
	more     int
	last     audit.Entry // the most recent refusal that more counts
}

const (
	aggregationInterval = time.Minute
	maxSeparateEntries  = 10   // separate entries
	maxRefusalKeys      = 4096 // callers are tailnet nodes, so more keys are not expected; all further ones share one key
)

// recordsSeparately reports whether e gets a separate audit entry.
func (s *refusalAggregator) recordsSeparately(e audit.Entry) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := refusalKey{e.Actor.NodeID, e.Verb, e.Code}
	if _, ok := s.counts[k]; !ok && len(s.counts) >= maxRefusalKeys {
		k.node, e.Actor = "", audit.Actor{}
	}
	r := s.counts[k]
	if r == nil {
		r = &refusalCount{began: e.Time}
		s.counts[k] = r
	}
	if r.recorded < maxSeparateEntries {
		r.recorded++
		return true
	}
	r.more++
	r.last = e
	return false
}

// flush removes and returns the aggregated entries whose interval is over at now, or all of them.
func (s *refusalAggregator) flush(now time.Time, all bool) (entries []audit.Entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, r := range s.counts {
		if !all && now.Sub(r.began) < aggregationInterval {
			continue
		}
		delete(s.counts, k)
		if r.more > 0 {
			e := r.last
			e.Args, e.Reason = withArg(e.Args, "count", strconv.Itoa(r.more)), "count of further refusals like this one"
			entries = append(entries, e)
		}
	}
	return entries
}

// withArg returns a copy of args with one more argument.
func withArg(args map[string]string, name, value string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, args)
	all[name] = value
	return all
}
