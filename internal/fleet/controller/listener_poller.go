package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tailplane/tailplane/internal/fleet"
)

const (
	listenerQueryInterval = 15 * time.Second // minimum interval between two queries, which run on demand
	readingValidFor       = 2 * time.Minute  // reconciles are up to a minute apart
	readingRetention      = 10 * time.Minute // after the last demand

	listenerWorkers  = 8
	maxQueuedQueries = 1024 // queue length; if it is full, the next reconcile queries again
	listenerTimeout  = 3 * time.Second
	maxMetricsBody   = 1 << 20
)

// A listenerPoller queries listeners in the background, so that reconciles do not wait. Create it with
// [newListenerPoller].
type listenerPoller struct {
	now     func() time.Time
	changed func(set fleet.Key)
	client  *http.Client
	queries chan listenerQuery
	tick    time.Duration

	mu       sync.Mutex
	readings map[fleet.Key]*listenerReading
	pruned   time.Time
}

// A listenerQuery is the address of a set's listener.
type listenerQuery struct {
	set  fleet.Key
	at   netip.AddrPort
	path string
}

// listenerReading is the last answer of a listener.
type listenerReading struct {
	listenerQuery
	requestedAt, queriedAt, answeredAt time.Time
	again                              bool // a reconcile wanted the number before a query was due
	assigned                           *int // nil: no answer
}

// newListenerPoller returns a poller. changed is called with each set whose known number changed; it must not
// block.
func newListenerPoller(now func() time.Time, changed func(set fleet.Key)) *listenerPoller {
	return &listenerPoller{
		now:      now,
		changed:  changed,
		readings: map[fleet.Key]*listenerReading{},
		queries:  make(chan listenerQuery, maxQueuedQueries),
		tick:     time.Second,
		client: &http.Client{Timeout: listenerTimeout,
			// The server is a pod, which is not trusted: follow no redirects, and limit the size of the
			// response.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport: &http.Transport{
				DisableKeepAlives:      true,
				DisableCompression:     true,
				MaxResponseHeaderBytes: 16 << 10,
				TLSHandshakeTimeout:    listenerTimeout,
			}},
	}
}

// run queries listeners until ctx ends.
func (a *listenerPoller) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for range listenerWorkers {
		wg.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case q := <-a.queries:
					n, err := a.query(ctx, q)
					if ctx.Err() == nil {
						a.record(q, n, err)
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
			a.enqueueDue()
		}
	}
}

// enqueueDue queues the listeners that were wanted before a query was due.
func (a *listenerPoller) enqueueDue() {
	now := a.now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.readings {
		if k.again && now.Sub(k.queriedAt) >= listenerQueryInterval {
			a.enqueue(k, now)
		}
	}
}

// enqueue queues a query. If the queue is full, the query runs later.
func (a *listenerPoller) enqueue(k *listenerReading, now time.Time) {
	select {
	case a.queries <- k.listenerQuery:
		k.queriedAt, k.again = now, false
	default:
		k.again = true
	}
}

// assigned returns the number of jobs that GitHub assigned to a set, including running ones, as its
// listener recently reported it; nil if it is not known. It queues a new query if one is due. at is
// the listener's own address, path its metrics path.
func (a *listenerPoller) assigned(set fleet.Key, at netip.AddrPort, path string) *int {
	if !at.IsValid() {
		return nil
	}
	now, q := a.now(), listenerQuery{set, at, path}
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.readings[set]
	if k == nil || k.listenerQuery != q { // a new listener does not continue the old one's numbers
		k = &listenerReading{listenerQuery: q}
		a.readings[set] = k
	}
	k.requestedAt = now
	if k.again = now.Sub(k.queriedAt) < listenerQueryInterval; !k.again {
		a.enqueue(k, now)
	}
	if k.assigned == nil || now.Sub(k.answeredAt) > readingValidFor {
		return nil
	}
	return new(*k.assigned)
}

// record stores the answer of a listener.
func (a *listenerPoller) record(q listenerQuery, n int, err error) {
	now := a.now()
	a.mu.Lock()
	k := a.readings[q.set]
	if k == nil || k.listenerQuery != q {
		a.mu.Unlock()
		return
	}
	old := k.assigned
	k.assigned, k.answeredAt = nil, now
	if err == nil {
		k.assigned = &n
	}
	changed := (old == nil) != (k.assigned == nil) || old != nil && *old != n
	if now.Sub(a.pruned) > readingRetention {
		a.pruned = now
		maps.DeleteFunc(a.readings, func(_ fleet.Key, k *listenerReading) bool { return now.Sub(k.requestedAt) > readingRetention })
	}
	a.mu.Unlock()
	if changed {
		a.changed(q.set)
	}
}

// query queries one listener.
func (a *listenerPoller) query(ctx context.Context, q listenerQuery) (int, error) {
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
	body, err := io.ReadAll(io.LimitReader(res.Body, maxMetricsBody+1))
	if err != nil {
		return 0, err
	}
	if len(body) > maxMetricsBody {
		return 0, errors.New("the listener's metrics are too long")
	}
	return parseAssignedJobs(body)
}

// assignedJobsMetric is ARC's metric for the number of jobs that GitHub assigned to a scale set.
const assignedJobsMetric = "gha_assigned_jobs"

// maxAssignedJobs is more than any scale set can have.
const maxAssignedJobs = 1 << 20

// parseAssignedJobs parses the number of jobs that GitHub assigned to a scale set from its listener's metrics,
// in Prometheus' text format. A listener belongs to one set, so parseAssignedJobs
// refuses metrics of several sets.
func parseAssignedJobs(text []byte) (int, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, fmt.Errorf("parse the listener's metrics: %w", err)
	}
	of := all[assignedJobsMetric].GetMetric()
	if len(of) == 0 {
		return 0, errors.New("the listener's metrics have no number of assigned jobs")
	}
	if len(of) > 1 {
		return 0, errors.New("the listener's metrics have the assigned jobs of several scale sets")
	}
	v := of[0].GetUntyped().GetValue()
	if g := of[0].GetGauge(); g != nil {
		v = g.GetValue()
	}
	if math.IsNaN(v) || v < 0 || v > maxAssignedJobs || v != math.Trunc(v) || of[0].GetGauge() == nil && of[0].GetUntyped() == nil {
		return 0, errors.New("the listener's number of assigned jobs is not valid")
	}
	return int(v), nil
}
