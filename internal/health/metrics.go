package health

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// Metrics are what a process counts. Every label's values are a closed set: the
// declared operations, the codes of refusals, the phases of a sign-in.
type Metrics struct {
	*prometheus.Registry

	requests   *prometheus.CounterVec   // listener, op, code
	seconds    *prometheus.HistogramVec // listener, op
	inFlight   *prometheus.GaugeVec     // listener
	refusals   *prometheus.CounterVec   // reason
	wait       prometheus.Histogram
	whois      prometheus.Histogram
	tokens     *prometheus.CounterVec // result
	ends       *prometheus.CounterVec // cause
	ready      prometheus.Histogram
	swept      prometheus.Counter
	merge      prometheus.Histogram // of gossip; registered with it
	operations []access.Verb
}

// unknown is the operation of requests that ask for none.
const unknown = "unknown"

// Buckets in seconds. Those of requests end where a long wait does.
var (
	requestBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	whoisBuckets   = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05, .25, 1, 2}
)

// NewMetrics returns the metrics of a process of that version. Operations are
// those that its doors declare; whatever else is asked for counts as "unknown".
func NewMetrics(version, commit string, operations ...access.Verb) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}
	}
	m := &Metrics{
		Registry:   newRegistry(version, commit),
		requests:   counter("tailplane_requests_total", "Requests, by operation and class of the answer's status.", "listener", "op", "code"),
		seconds:    prometheus.NewHistogramVec(histogram("tailplane_request_seconds", "Time to answer, without what the caller chose to wait.", requestBuckets), []string{"listener", "op"}),
		inFlight:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailplane_requests_in_flight", Help: "Requests being answered or waiting."}, []string{"listener"}),
		refusals:   counter("tailplane_refusals_total", "Requests that were not served, by the code that the caller was told.", "reason"),
		wait:       prometheus.NewHistogram(histogram("tailplane_kubeconfig_wait_seconds", "How long requests for a kubeconfig waited for their sign-in.", requestBuckets)),
		whois:      prometheus.NewHistogram(histogram("tailplane_whois_seconds", "Time to learn who is calling.", whoisBuckets)),
		tokens:     counter("tailplane_token_requests_total", "Tokens asked of the API server.", "result"),
		ends:       counter("tailplane_signin_ends_total", "Sign-ins that this process ended, or whose end it found, by cause.", "cause"),
		ready:      prometheus.NewHistogram(histogram("tailplane_signin_ready_seconds", "Time from a new sign-in to its being ready.", requestBuckets)),
		swept:      prometheus.NewCounter(prometheus.CounterOpts{Name: "tailplane_signin_sweep_deleted_total", Help: "ServiceAccounts and bindings that were removed because no sign-in accounts for them."}),
		merge:      prometheus.NewHistogram(histogram("tailplane_gossip_merge_seconds", "Time to take in one message of gossip.", mergeBuckets)),
		operations: operations,
	}
	m.MustRegister(m.requests, m.seconds, m.inFlight, m.refusals, m.wait, m.whois, m.tokens, m.ends, m.ready, m.swept)
	// A series that is there from the start can be alerted on from its first count.
	for _, c := range problem.Codes() {
		if c != problem.NotReady {
			m.refusals.WithLabelValues(string(c))
		}
	}
	for _, c := range signin.Causes() {
		m.ends.WithLabelValues(string(c))
	}
	for _, r := range tokenResults {
		m.tokens.WithLabelValues(r)
	}
	return m
}

// Door returns what door.Door.Measure wants, for the listener of that name.
func (m *Metrics) Door(listener string) func() func(door.Outcome) {
	inFlight := m.inFlight.WithLabelValues(listener)
	return func() func(door.Outcome) {
		inFlight.Inc()
		return func(o door.Outcome) {
			inFlight.Dec()
			op := unknown
			if slices.Contains(m.operations, o.Verb) {
				op = string(o.Verb)
			}
			m.requests.WithLabelValues(listener, op, class(o.Status)).Inc()
			m.seconds.WithLabelValues(listener, op).Observe((o.Took - o.Waited).Seconds())
			if o.Code != problem.NotReady && slices.Contains(problem.Codes(), o.Code) { // "not yet" refuses nothing
				m.refusals.WithLabelValues(string(o.Code)).Inc()
			}
			if o.Verb == access.SigninKubeconfig && o.Waited > 0 {
				m.wait.Observe(o.Waited.Seconds())
			}
		}
	}
}

// class is "2xx" for 204, and "other" for what is no status.
func class(status int) string {
	if status < 100 || status > 599 {
		return "other"
	}
	return strconv.Itoa(status/100) + "xx"
}

// Audit counts what became of the entries of the record, at each scrape.
func (m *Metrics) Audit(stats func() audit.Stats) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.MustRegister(record{stats,
		desc("tailplane_audit_entries_total", "Entries that the audit record took, by the result that they report.", "result"),
		desc("tailplane_audit_dropped_total", "Entries that are lost to the audit record."),
		desc("tailplane_audit_up", "1 while entries reach the audit record."),
	})
}

type record struct {
	stats                func() audit.Stats
	entries, dropped, up *prometheus.Desc
}

func (r record) Describe(ch chan<- *prometheus.Desc) {
	ch <- r.entries
	ch <- r.dropped
	ch <- r.up
}
func (r record) Collect(ch chan<- prometheus.Metric) {
	s := r.stats()
	for _, result := range []audit.Result{audit.Done, audit.NotYet, audit.Refused, audit.Failed} {
		ch <- prometheus.MustNewConstMetric(r.entries, prometheus.CounterValue, float64(s.Entries[result]), string(result))
	}
	ch <- prometheus.MustNewConstMetric(r.dropped, prometheus.CounterValue, float64(s.Dropped))
	up := 0.0
	if s.Up {
		up = 1
	}
	ch <- prometheus.MustNewConstMetric(r.up, prometheus.GaugeValue, up)
}

// Identified counts one question to the tailnet.
func (m *Metrics) Identified(took time.Duration) { m.whois.Observe(took.Seconds()) }

// Results of a token request.
const (
	tokenMade    = "made"
	tokenRefused = "gone" // the ServiceAccount is not the one that was meant, any more
	tokenFailed  = "failed"
)

var tokenResults = []string{tokenMade, tokenRefused, tokenFailed}

// Readied counts a new sign-in that became ready after that time.
func (m *Metrics) Readied(took time.Duration) { m.ready.Observe(took.Seconds()) }

// Swept counts what was removed because no sign-in accounts for it.
func (m *Metrics) Swept() { m.swept.Inc() }

// Ended counts a sign-in that this process ended, or whose end it found.
func (m *Metrics) Ended(c signin.Cause) {
	if slices.Contains(signin.Causes(), c) {
		m.ends.WithLabelValues(string(c)).Inc()
	}
}

// Gauge shows what value says at each scrape; nothing when it says false.
func (m *Metrics) Gauge(name, help string, value func() (float64, bool)) {
	m.MustRegister(gauge{prometheus.NewDesc(name, help, nil, nil), value})
}

type gauge struct {
	desc  *prometheus.Desc
	value func() (float64, bool)
}

func (g gauge) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }
func (g gauge) Collect(ch chan<- prometheus.Metric) {
	if v, ok := g.value(); ok {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, v)
	}
}

// Readiness shows whether l is ready, at each scrape.
func (m *Metrics) Readiness(l *Listener) { m.MustRegister(readiness(l)) }

func readiness(l *Listener) prometheus.Collector {
	return gauge{prometheus.NewDesc("tailplane_ready", "1 while every check of /readyz passes.", nil, nil), func() (float64, bool) {
		if l.Ready(context.Background()) {
			return 1, true
		}
		return 0, true
	}}
}

// Signins counts what all returns by phase, at each scrape; nothing while it
// returns false.
func (m *Metrics) Signins(all func() ([]signin.Signin, bool)) {
	m.MustRegister(signins{prometheus.NewDesc("tailplane_signins", "Sign-ins in the cluster, by phase.", []string{"phase"}, nil), all})
}

type signins struct {
	desc *prometheus.Desc
	all  func() ([]signin.Signin, bool)
}

var phases = []signin.Phase{signin.PhasePending, signin.PhaseReady, signin.PhaseRefused, signin.PhaseEnding, signin.PhaseExpired}

func (c signins) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }
func (c signins) Collect(ch chan<- prometheus.Metric) {
	all, ok := c.all()
	if !ok {
		return
	}
	count := map[signin.Phase]int{}
	for _, s := range all {
		switch {
		case s.Deleting:
			count[signin.PhaseEnding]++
		case slices.Contains(phases, s.Phase):
			count[s.Phase]++
		default: // nobody has looked at it
			count[signin.PhasePending]++
		}
	}
	for _, p := range phases {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count[p]), string(p))
	}
}
