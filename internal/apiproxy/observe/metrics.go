package observe

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// Metrics count what happens. No label has a value that a stranger chooses:
// clusters and rules are those of the document, resources those of the clusters,
// and the rest are words of ours. It may be used by several goroutines.
type Metrics struct {
	*prometheus.Registry

	resources resources
	document  atomic.Pointer[document]

	requests    *prometheus.CounterVec   // cluster, verb, group, resource, subresource, code
	seconds     *prometheus.HistogramVec // cluster, verb
	inFlight    *prometheus.GaugeVec     // cluster
	streams     *prometheus.GaugeVec     // cluster, kind
	errors      *prometheus.CounterVec   // cluster, reason
	connections *prometheus.GaugeVec     // cluster, state
	connects    *prometheus.CounterVec   // cluster, result
	probes      *prometheus.HistogramVec // cluster
	routed      *prometheus.CounterVec   // rule, cluster
	placed      *prometheus.CounterVec   // rule, cluster
	events      *prometheus.CounterVec   // cluster
	expired     *prometheus.CounterVec   // cluster, reason
	membersDown *prometheus.GaugeVec     // cluster
	bookmarks   *prometheus.CounterVec   // reason
	lookups     *prometheus.CounterVec   // result
	conflicts   *prometheus.CounterVec   // result
	partials    *prometheus.CounterVec   // reason
	cache       *prometheus.CounterVec   // cache, result
	auth        *prometheus.CounterVec   // reason
	refused     *prometheus.CounterVec   // reason
	epoch       prometheus.Gauge
	reloadOK    prometheus.Gauge
	reloads     prometheus.Counter
}

// A document is what of the adapter's document labels are made of.
type document struct{ clusters, rules []string }

// Merged is the cluster of what several clusters answer together.
const Merged = "merged"

// Buckets in seconds.
var (
	requestBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	probeBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
)

// NewMetrics returns the metrics of a program of that version. Known says
// whether clusters have a resource; subresource is "" for the object itself.
func NewMetrics(version string, known func(group, resource, subresource string) bool) *Metrics {
	if known == nil {
		panic("observe: a required field is missing")
	}
	m := &Metrics{Registry: prometheus.NewRegistry(), resources: resources{known: known, seen: map[resource]bool{}}}
	m.document.Store(new(document))
	m.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.MustRegister(c)
		return c
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		m.MustRegister(g)
		return g
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
		m.MustRegister(h)
		return h
	}
	m.requests = counter("mca_requests_total", "Requests that were answered; streams count when they begin.", "cluster", "verb", "group", "resource", "subresource", "code")
	m.seconds = histogram("mca_request_duration_seconds", "Time to answer, without streams.", requestBuckets, "cluster", "verb")
	m.inFlight = gauge("mca_requests_in_flight", "Requests that are being answered, without streams.", "cluster")
	m.streams = gauge("mca_streams", "Streams that are open, by kind.", "cluster", "kind")
	m.errors = counter("mca_upstream_errors_total", "Questions to a cluster that it did not answer, or with 500 and above.", "cluster", "reason")
	m.connections = gauge("mca_upstream_connections", "Connections to a cluster that are open or being made.", "cluster", "state")
	m.connects = counter("mca_upstream_connects_total", "Connections to a cluster that came about or failed to.", "cluster", "result")
	m.probes = histogram("mca_cluster_probe_duration_seconds", "Time of one question for a cluster's health.", probeBuckets, "cluster")
	m.routed = counter("mca_routing_decisions_total", "Requests by the rule that decided and where it sent them; no rule is the home cluster.", "rule", "cluster")
	m.placed = counter("mca_placements_total", "New objects by the rule and the cluster that they were given.", "rule", "cluster")
	m.events = counter("mca_watch_events_total", "Events that merged watches took from a cluster.", "cluster")
	m.expired = counter("mca_watch_expired_total", "Merged watches that ended with 410, by the cluster that caused it.", "cluster", "reason")
	m.membersDown = gauge("mca_watch_members_down", "Merged watches that go on without a cluster.", "cluster")
	m.bookmarks = counter("mca_bookmarks_total", "Bookmarks of ours that merged watches sent.", "reason")
	m.lookups = counter("mca_owner_lookups_total", "Objects whose cluster was looked for, by how it was found.", "result")
	m.conflicts = counter("mca_conflicts_total", "Objects that several clusters have, by what was done about it.", "result")
	m.partials = counter("mca_partial_answers_total", "Merged answers that did without a cluster, as a rule allows.", "reason")
	m.cache = counter("mca_cache_requests_total", "Questions that a cache could answer.", "cache", "result")
	m.auth = counter("mca_local_auth_failures_total", "Requests without the token of this pod.", "reason")
	m.refused = counter("mca_refused_total", "Requests that the adapter refused, by reason.", "reason")
	build := gauge("mca_build_info", "1; the label says what is running.", "version")
	m.epoch = gauge("mca_config_epoch", "The epoch of the document that is served.").WithLabelValues()
	m.reloadOK = gauge("mca_config_last_reload_success", "1 if the document that was read last is served.").WithLabelValues()
	m.reloads = counter("mca_config_reloads_total", "Documents that were read, served or not.").WithLabelValues()
	build.WithLabelValues(version).Set(1)
	// A series that is there from the start can be alerted on from its first count.
	for _, r := range Refusals() {
		m.refused.WithLabelValues(string(r))
	}
	for _, f := range AuthFailures() {
		m.auth.WithLabelValues(string(f))
	}
	return m
}

// Serving says which document is served, at the start and after each that was
// read and is good: its epoch, and the names in it. Series of names that are in it
// no more end.
func (m *Metrics) Serving(epoch int64, clusters, rules []string) {
	m.epoch.Set(float64(epoch))
	m.reloadOK.Set(1)
	was := m.document.Swap(&document{slices.Clone(clusters), slices.Clone(rules)})
	gone := func(label string, was, is []string, from ...interface{ DeletePartialMatch(prometheus.Labels) int }) {
		for _, name := range was {
			if slices.Contains(is, name) {
				continue
			}
			for _, v := range from {
				v.DeletePartialMatch(prometheus.Labels{label: name})
			}
		}
	}
	gone("cluster", was.clusters, clusters, m.requests, m.seconds, m.inFlight, m.streams, m.errors, m.connections, m.connects, m.probes,
		m.routed, m.placed, m.events, m.expired, m.membersDown)
	gone("rule", was.rules, rules, m.routed, m.placed)
	for _, c := range clusters {
		m.inFlight.WithLabelValues(c)
		for _, f := range Failures() {
			m.errors.WithLabelValues(c, string(f))
		}
	}
}

// Reloaded counts a document that was read again; err is why it is not served.
func (m *Metrics) Reloaded(err error) {
	m.reloads.Inc()
	m.reloadOK.Set(truth(err == nil))
}

// LocalAuthFailed counts a request without the local token.
func (m *Metrics) LocalAuthFailed(why AuthFailure) {
	m.auth.WithLabelValues(word(why, AuthFailures())).Inc()
}

// Refused counts a request that the adapter refused.
func (m *Metrics) Refused(why Refusal) { m.refused.WithLabelValues(word(why, Refusals())).Inc() }

// UpstreamFailed counts a question that a cluster did not answer well. The calls
// of a [Visit] are counted already.
func (m *Metrics) UpstreamFailed(cluster string, why Failure) {
	m.errors.WithLabelValues(m.cluster(cluster), word(why, Failures())).Inc()
}

// Connecting counts a connection from when it is being made. Connected is called
// with what came of it, and what that returns when it is closed.
func (m *Metrics) Connecting(cluster string) (connected func(error) (closed func())) {
	cluster = m.cluster(cluster)
	connecting := m.connections.WithLabelValues(cluster, "connecting")
	connecting.Inc()
	return func(err error) func() {
		connecting.Dec()
		if err != nil {
			m.connects.WithLabelValues(cluster, "failed").Inc()
			return func() {}
		}
		m.connects.WithLabelValues(cluster, "ok").Inc()
		open := m.connections.WithLabelValues(cluster, "open")
		open.Inc()
		return sync.OnceFunc(open.Dec)
	}
}

// Probed counts how long a question for a cluster's health took.
func (m *Metrics) Probed(cluster string, took time.Duration) {
	m.probes.WithLabelValues(m.cluster(cluster)).Observe(took.Seconds())
}

// Placed counts a new object.
func (m *Metrics) Placed(rule, cluster string) {
	m.placed.WithLabelValues(m.rule(rule), m.cluster(cluster)).Inc()
}

// WatchEvents counts events that merged watches took from a cluster.
func (m *Metrics) WatchEvents(cluster string, n int) {
	m.events.WithLabelValues(m.cluster(cluster)).Add(float64(n))
}

// WatchExpired counts a merged watch that ended with 410.
func (m *Metrics) WatchExpired(cluster string, why Expiry) {
	m.expired.WithLabelValues(m.cluster(cluster), word(why, Expiries())).Inc()
}

// MemberDown counts a merged watch that goes on without a cluster, until back.
func (m *Metrics) MemberDown(cluster string) (back func()) {
	g := m.membersDown.WithLabelValues(m.cluster(cluster))
	g.Inc()
	return sync.OnceFunc(g.Dec)
}

// BookmarkSent counts a bookmark of ours.
func (m *Metrics) BookmarkSent(why Bookmark) {
	m.bookmarks.WithLabelValues(word(why, Bookmarks())).Inc()
}

// OwnerSought counts an object whose cluster was looked for.
func (m *Metrics) OwnerSought(found Lookup) {
	m.lookups.WithLabelValues(word(found, Lookups())).Inc()
}

// ConflictFound counts an object that several clusters have.
func (m *Metrics) ConflictFound(done Conflict) {
	m.conflicts.WithLabelValues(word(done, Conflicts())).Inc()
}

// AnsweredInPart counts a merged answer that did without a cluster.
func (m *Metrics) AnsweredInPart(how Partial) {
	m.partials.WithLabelValues(word(how, Partials())).Inc()
}

// CacheAsked counts a question to a cache.
func (m *Metrics) CacheAsked(c Cache, hit bool) {
	result := "miss"
	if hit {
		result = "hit"
	}
	m.cache.WithLabelValues(word(c, Caches()), result).Inc()
}

// answered counts an answer.
func (m *Metrics) answered(cluster string, req *apiproxy.Request, code int) {
	verb, res := "", resource{}
	if req != nil {
		verb = verbOf(req)
		if !req.NonResource {
			res = m.resources.of(req)
		}
	}
	m.requests.WithLabelValues(cluster, verb, res.group, res.name, res.sub, codeOf(code)).Inc()
}

// cluster returns the name as a label's value; "" is none.
func (m *Metrics) cluster(name string) string {
	if name == "" || name == Merged || slices.Contains(m.document.Load().clusters, name) {
		return name
	}
	return other
}

func (m *Metrics) rule(name string) string {
	if name == "" || slices.Contains(m.document.Load().rules, name) {
		return name
	}
	return other
}

var verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "head", "post", "put", "options"}

func verbOf(req *apiproxy.Request) string { return word(req.Verb, verbs) }

// StatusGone is the code of a visit whose client left before it was answered.
const StatusGone = 499

func codeOf(code int) string {
	if code == StatusGone || http.StatusText(code) != "" {
		return strconv.Itoa(code)
	}
	return other
}

// maxResources bounds the resources that are told apart. A cluster's own are far
// fewer, but who may make CustomResourceDefinitions may make many.
const maxResources = 1000

// resources are those that labels name.
type resources struct {
	known func(group, resource, subresource string) bool
	mu    sync.RWMutex
	seen  map[resource]bool
}

type resource struct{ group, name, sub string }

// of returns the labels of a request for a resource.
func (r *resources) of(req *apiproxy.Request) resource {
	res := resource{req.Group, req.Resource, req.Subresource}
	r.mu.RLock()
	seen, full := r.seen[res], len(r.seen) >= maxResources
	r.mu.RUnlock()
	switch {
	case seen:
		return res
	case full || !r.known(res.group, res.name, res.sub):
		return resource{other, other, subresourceOr(res.sub)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) >= maxResources {
		return resource{other, other, subresourceOr(res.sub)}
	}
	r.seen[res] = true
	return res
}

// subresourceOr keeps "none" apart from "some" where the resource is not known.
func subresourceOr(sub string) string {
	if sub == "" {
		return ""
	}
	return other
}
