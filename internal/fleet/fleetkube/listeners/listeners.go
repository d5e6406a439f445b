// Package listeners reads from ARC's listeners how many jobs GitHub assigned to them: GitHub
// reports that number to no other program. It implements law 7: a number that is not recent is not
// known.
package listeners

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/fleet"
)

const (
	askEvery    = 15 * time.Second // minimum interval between two queries, which run on demand
	believedFor = 2 * time.Minute  // reconciles are up to a minute apart
	forgetAfter = 10 * time.Minute // after the last demand

	atOnce    = 8
	waitsMost = 1024 // queue length; if it is full, the next reconcile queries again
	answerIn  = 3 * time.Second
	bodyMost  = 1 << 20
)

// An Asker queries listeners in the background, so that reconciles do not wait. Create it with
// [New].
type Asker struct {
	now     func() time.Time
	changed func(set fleet.Key)
	client  *http.Client
	ask     chan question
	tick    time.Duration

	mu     sync.Mutex
	of     map[fleet.Key]*known
	pruned time.Time
}

// A question is the address of a set's listener.
type question struct {
	set  fleet.Key
	at   netip.AddrPort
	path string
}

// known is the last answer of a listener.
type known struct {
	question
	wanted, asked, said time.Time
	again               bool // a reconcile wanted the number before a query was due
	assigned            *int // nil: no answer
}

// New returns an Asker. changed is called with each set whose known number changed; it must not
// block.
func New(now func() time.Time, changed func(set fleet.Key)) *Asker {
	return &Asker{now: now, changed: changed, of: map[fleet.Key]*known{}, ask: make(chan question, waitsMost), tick: time.Second, client: &http.Client{Timeout: answerIn,
		// The server is a pod, which is not trusted: follow no redirects, and limit the size of the
		// response.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10, TLSHandshakeTimeout: answerIn}}}
}

// Run queries listeners until ctx ends.
func (a *Asker) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case q := <-a.ask:
					n, err := a.read(ctx, q)
					if ctx.Err() == nil {
						a.heard(q, n, err)
					}
				}
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return nil
		case <-time.After(a.tick):
			a.due()
		}
	}
}

// due queues the listeners that were wanted before a query was due.
func (a *Asker) due() {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.of {
		if k.again && now.Sub(k.asked) >= askEvery {
			a.put(k, now)
		}
	}
}

// put queues a query. If the queue is full, the query runs later.
func (a *Asker) put(k *known, now time.Time) {
	select {
	case a.ask <- k.question:
		k.asked, k.again = now, false
	default:
		k.again = true
	}
}

// Assigned returns the number of jobs that GitHub assigned to a set, including running ones, as its
// listener recently reported it; nil if it is not known. It queues a new query if one is due. at is
// the listener's own address, path its metrics path.
func (a *Asker) Assigned(set fleet.Key, at netip.AddrPort, path string) *int {
	if !at.IsValid() {
		return nil
	}
	now, q := a.now(), question{set, at, path}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.of[set]
	if k == nil || k.question != q { // a new listener does not continue the old one's numbers
		k = &known{question: q}
		a.of[set] = k
	}
	k.wanted = now
	if k.again = now.Sub(k.asked) < askEvery; !k.again {
		a.put(k, now)
	}
	if k.assigned == nil || now.Sub(k.said) > believedFor {
		return nil
	}
	return new(*k.assigned)
}

// heard stores the answer of a listener.
func (a *Asker) heard(q question, n int, err error) {
	now := a.now()
	a.mu.Lock()
	k := a.of[q.set]
	if k == nil || k.question != q {
		a.mu.Unlock()
		return
	}
	was := k.assigned
	k.assigned, k.said = nil, now
	if err == nil {
		k.assigned = &n
	}
	changed := (was == nil) != (k.assigned == nil) || was != nil && *was != n
	if now.Sub(a.pruned) > forgetAfter {
		a.pruned = now
		for set, k := range a.of {
			if now.Sub(k.wanted) > forgetAfter {
				delete(a.of, set)
			}
		}
	}
	a.mu.Unlock()
	if changed {
		a.changed(q.set)
	}
}

// read queries one listener.
func (a *Asker) read(ctx context.Context, q question) (int, error) {
	u := url.URL{Scheme: "http", Host: q.at.String(), Path: q.path}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, err
	}
	res, err := a.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the listener of %s answers with status %d", q.set.Name, res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, bodyMost+1))
	if err != nil {
		return 0, err
	}
	if len(body) > bodyMost {
		return 0, errors.New("the listener says too much")
	}
	return Read(body)
}
