// Package listeners asks ARC's listeners how many jobs GitHub gave them: GitHub tells it
// nobody else. It keeps law 7: what a listener did not say lately is not known.
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
	askEvery    = 15 * time.Second // at most, and when somebody wants to know
	believedFor = 2 * time.Minute  // looks are up to a minute apart
	forgetAfter = 10 * time.Minute // that nobody wanted to know

	atOnce    = 8
	waitsMost = 1024 // questions that wait; a further one is asked at the next look
	answerIn  = 3 * time.Second
	bodyMost  = 1 << 20
)

// An Asker asks listeners beside the looks, which do not wait for it. Make it with [New].
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

// A question is where the listener of a set is to be asked.
type question struct {
	set  fleet.Key
	at   netip.AddrPort
	path string
}

// known is what a listener said last.
type known struct {
	question
	wanted, asked, said time.Time
	again               bool // somebody wanted to know before it was due
	assigned            *int // nil: it did not say
}

// New makes an asker. Changed hears of each set of which something else is known than
// before; it must not block.
func New(now func() time.Time, changed func(set fleet.Key)) *Asker {
	return &Asker{now: now, changed: changed, of: map[fleet.Key]*known{}, ask: make(chan question, waitsMost), tick: time.Second, client: &http.Client{Timeout: answerIn,
		// Who answers is a pod: it sends us nowhere else, and nothing larger than was asked for.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10, TLSHandshakeTimeout: answerIn}}}
}

// Run asks until ctx ends.
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

// due has those asked that somebody wanted to hear of before it was due.
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

// put has a listener asked; where too many wait it is asked later.
func (a *Asker) put(k *known, now time.Time) {
	select {
	case a.ask <- k.question:
		k.asked, k.again = now, false
	default:
		k.again = true
	}
}

// Assigned is how many jobs GitHub gave a set, those that run with them, by what its
// listener said lately; nil: it did not. It has the listener asked again if that is due.
// At is the listener's own address, and path where it serves its metrics.
func (a *Asker) Assigned(set fleet.Key, at netip.AddrPort, path string) *int {
	if !at.IsValid() {
		return nil
	}
	now, q := a.now(), question{set, at, path}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.of[set]
	if k == nil || k.question != q { // another listener has been told nothing of the one before
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

// heard notes what a listener said.
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

// read asks one listener.
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
