package health

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// Metrics holds the metrics of a process. The values of every label are a closed set: declared operations, problem codes, or phases of a
// sign-in.
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
	merge      prometheus.Histogram // of gossip; registered by Gossip
	operations []access.Verb
}

// unknown is the operation label of requests for no declared operation.
const unknown = "unknown"

// Buckets in seconds. requestBuckets end where a long poll ends.
var (
	requestBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	whoisBuckets   = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .05, .25, 1, 2}
)

// NewMetrics returns the metrics of a process. operations are those that its servers declare; other requests count as "unknown".
func NewMetrics(version, commit string, operations ...access.Verb) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}
	}
	m := &Metrics{
		Registry:   newRegistry(version, commit),
		requests:   counter("tailplane_requests_total", "Requests, by operation and class of the response status.", "listener", "op", "code"),
		seconds:    prometheus.NewHistogramVec(histogram("tailplane_request_seconds", "Time to answer, without the wait that the caller requested.", requestBuckets), []string{"listener", "op"}),
		inFlight:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailplane_requests_in_flight", Help: "Requests being answered or waiting."}, []string{"listener"}),
		refusals:   counter("tailplane_refusals_total", "Refused requests, by the code in the response.", "reason"),
		wait:       prometheus.NewHistogram(histogram("tailplane_kubeconfig_wait_seconds", "How long requests for a kubeconfig waited for their sign-in.", requestBuckets)),
		whois:      prometheus.NewHistogram(histogram("tailplane_whois_seconds", "Time to identify the caller.", whoisBuckets)),
		tokens:     counter("tailplane_token_requests_total", "Tokens requested from the API server.", "result"),
		ends:       counter("tailplane_signin_ends_total", "Sign-ins that this process ended or found ended, by cause.", "cause"),
		ready:      prometheus.NewHistogram(histogram("tailplane_signin_ready_seconds", "Time until a new sign-in is ready.", requestBuckets)),
		swept:      prometheus.NewCounter(prometheus.CounterOpts{Name: "tailplane_signin_sweep_deleted_total", Help: "ServiceAccounts and bindings that were deleted because they belonged to no sign-in."}),
		merge:      prometheus.NewHistogram(histogram("tailplane_gossip_merge_seconds", "Time to merge one gossip message.", mergeBuckets)),
		operations: operations,
	}
	m.MustRegister(m.requests, m.seconds, m.inFlight, m.refusals, m.wait, m.whois, m.tokens, m.ends, m.ready, m.swept)
	// Create the series at the start, so that alerts see their first increment.
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

// MeasureServer returns the Measure function of a httpapi.Server, for the listener with that name.
func (m *Metrics) MeasureServer(listener string) func() func(httpapi.Outcome) {
	inFlight := m.inFlight.WithLabelValues(listener)
	return func() func(httpapi.Outcome) {
		inFlight.Inc()
		return func(o httpapi.Outcome) {
			inFlight.Dec()
			op := unknown
			if slices.Contains(m.operations, o.Verb) {
				op = string(o.Verb)
			}
			m.requests.WithLabelValues(listener, op, statusClass(o.Status)).Inc()
			m.seconds.WithLabelValues(listener, op).Observe((o.Took - o.Waited).Seconds())
			if o.Code != problem.NotReady && slices.Contains(problem.Codes(), o.Code) { // "not ready" is not a refusal
				m.refusals.WithLabelValues(string(o.Code)).Inc()
			}
			if o.Verb == access.SigninKubeconfig && o.Waited > 0 {
				m.wait.Observe(o.Waited.Seconds())
			}
		}
	}
}

// statusClass returns "2xx" for 204, and "other" for a number that is not an HTTP status.
func statusClass(status int) string {
	if status < 100 || status > 599 {
		return "other"
	}
	return strconv.Itoa(status/100) + "xx"
}

// AddAudit adds the metrics of the audit log. stats runs at each scrape.
func (m *Metrics) AddAudit(stats func() audit.Stats) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.MustRegister(auditCollector{stats,
		desc("tailplane_audit_entries_total", "Entries that the audit log accepted, by the result that they report.", "result"),
		desc("tailplane_audit_dropped_total", "Lost audit entries."),
		desc("tailplane_audit_up", "1 while entries reach the audit log."),
	})
}

type auditCollector struct {
	stats                func() audit.Stats
	entries, dropped, up *prometheus.Desc
}

func (r auditCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- r.entries
	ch <- r.dropped
	ch <- r.up
}
func (r auditCollector) Collect(ch chan<- prometheus.Metric) {
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

// ObserveWhoIs records the time of one identity query to the tailnet.
func (m *Metrics) ObserveWhoIs(took time.Duration) { m.whois.Observe(took.Seconds()) }

// The results of a token request.
const (
	tokenMade    = "made"
	tokenRefused = "gone" // the ServiceAccount was deleted or replaced
	tokenFailed  = "failed"
)

var tokenResults = []string{tokenMade, tokenRefused, tokenFailed}

// ObserveReady records the time until a new sign-in became ready.
func (m *Metrics) ObserveReady(took time.Duration) { m.ready.Observe(took.Seconds()) }

// CountSwept counts an object that was deleted because no sign-in owns it.
func (m *Metrics) CountSwept() { m.swept.Inc() }

// CountEnded counts a sign-in that this process ended, or whose end it found.
func (m *Metrics) CountEnded(c signin.Cause) {
	if slices.Contains(signin.Causes(), c) {
		m.ends.WithLabelValues(string(c)).Inc()
	}
}

// AddGauge adds a gauge with the value from value, which runs at each scrape. There is no sample if it returns false.
func (m *Metrics) AddGauge(name, help string, value func() (float64, bool)) {
	m.MustRegister(gaugeCollector{prometheus.NewDesc(name, help, nil, nil), value})
}

type gaugeCollector struct {
	desc  *prometheus.Desc
	value func() (float64, bool)
}

func (g gaugeCollector) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }
func (g gaugeCollector) Collect(ch chan<- prometheus.Metric) {
	if v, ok := g.value(); ok {
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, v)
	}
}

// AddReadiness adds a gauge that shows whether l is ready.
func (m *Metrics) AddReadiness(l *Listener) { m.MustRegister(readiness(l)) }

func readiness(l *Listener) prometheus.Collector {
	return gaugeCollector{prometheus.NewDesc("tailplane_ready", "1 while every check of /readyz passes.", nil, nil), func() (float64, bool) {
		if l.Ready(context.Background()) {
			return 1, true
		}
		return 0, true
	}}
}

// AddSignins adds the number of sign-ins by phase. all runs at each scrape. There are no samples while it returns false.
func (m *Metrics) AddSignins(all func() ([]signin.Signin, bool)) {
	m.MustRegister(signinCollector{prometheus.NewDesc("tailplane_signins", "Sign-ins in the cluster, by phase.", []string{"phase"}, nil), all})
}

type signinCollector struct {
	desc *prometheus.Desc
	all  func() ([]signin.Signin, bool)
}

var phases = []signin.Phase{signin.PhasePending, signin.PhaseReady, signin.PhaseRefused, signin.PhaseEnding, signin.PhaseExpired}

func (c signinCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }
func (c signinCollector) Collect(ch chan<- prometheus.Metric) {
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
		default: // not reconciled yet
			count[signin.PhasePending]++
		}
	}
	for _, p := range phases {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(count[p]), string(p))
	}
}
