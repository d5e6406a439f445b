package apiproxy

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the adapter's Prometheus metrics. No label takes a value that a client can choose freely.
// Clusters and rules come from the configuration, resources from the clusters, and all other values from
// closed sets. It is safe for concurrent use.
type Metrics struct {
	*prometheus.Registry

	resources resourceSet
	known     atomic.Pointer[knownLabels]

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

// knownLabels is the part of the configuration that labels use.
type knownLabels struct{ clusters, rules []string }

// MergedLabel is the cluster label of responses that merge several clusters.
const MergedLabel = "merged"

// Histogram buckets in seconds.
var (
	requestBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	probeBuckets   = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
)

// NewMetrics returns the metrics of a program with that version. known reports whether clusters have a
// resource; an empty subresource is the object itself.
func NewMetrics(version string, known func(group, resource, subresource string) bool) *Metrics {
	if known == nil {
		panic("apiproxy: a required field is missing")
	}
	m := &Metrics{Registry: prometheus.NewRegistry(), resources: resourceSet{known: known, seen: map[resourceLabels]bool{}}}
	m.known.Store(new(knownLabels))
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
	m.requests = counter(
		"mca_requests_total",
		"Answered requests; a stream counts when it begins.",
		"cluster",
		"verb",
		"group",
		"resource",
		"subresource",
		"code",
	)
	m.seconds = histogram("mca_request_duration_seconds", "Time to answer a request, without streams.", requestBuckets, "cluster", "verb")
	m.inFlight = gauge("mca_requests_in_flight", "Requests in progress, without streams.", "cluster")
	m.streams = gauge("mca_streams", "Open streams, by kind.", "cluster", "kind")
	m.errors = counter(
		"mca_upstream_errors_total",
		"Requests to a cluster without an answer, or with a status of 500 and above.",
		"cluster",
		"reason",
	)
	m.connections = gauge("mca_upstream_connections", "Connections to a cluster that are open or in setup.", "cluster", "state")
	m.connects = counter("mca_upstream_connects_total", "Connection attempts to a cluster, by result.", "cluster", "result")
	m.probes = histogram("mca_cluster_probe_duration_seconds", "Duration of one health probe of a cluster.", probeBuckets, "cluster")
	m.routed = counter(
		"mca_routing_decisions_total",
		"Requests by the rule that matched and by the cluster; without a rule, it is the home cluster.",
		"rule",
		"cluster",
	)
	m.placed = counter("mca_placements_total", "New objects by the rule and the selected cluster.", "rule", "cluster")
	m.events = counter("mca_watch_events_total", "Events that merged watches received from a cluster.", "cluster")
	m.expired = counter(
		"mca_watch_expired_total",
		"Merged watches that ended with 410, by the cluster that caused the end.",
		"cluster",
		"reason",
	)
	m.membersDown = gauge("mca_watch_members_down", "Merged watches that continue without a cluster.", "cluster")
	m.bookmarks = counter("mca_bookmarks_total", "Bookmarks that merged watches created and sent.", "reason")
	m.lookups = counter("mca_owner_lookups_total", "Lookups of the cluster of an object, by result.", "result")
	m.conflicts = counter("mca_conflicts_total", "Objects that exist in several clusters, by resolution.", "result")
	m.partials = counter("mca_partial_answers_total", "Merged answers that skip a cluster, as a rule allows.", "reason")
	m.cache = counter("mca_cache_requests_total", "Lookups in a cache.", "cache", "result")
	m.auth = counter("mca_local_auth_failures_total", "Requests without the token of this pod.", "reason")
	m.refused = counter("mca_refused_total", "Requests that the adapter refused, by reason.", "reason")
	build := gauge("mca_build_info", "Always 1; the label is the running version.", "version")
	m.epoch = gauge("mca_config_epoch", "The epoch of the active configuration.").WithLabelValues()
	m.reloadOK = gauge("mca_config_last_reload_success", "1 if the configuration that was read last is active.").WithLabelValues()
	m.reloads = counter("mca_config_reloads_total", "Configurations that were read, whether they became active or not.").WithLabelValues()
	build.WithLabelValues(version).Set(1)
	// Series that exist from the start allow alerts on their first increment.
	for _, r := range RefusalReasons() {
		m.refused.WithLabelValues(string(r))
	}
	for _, f := range AuthFailureReasons() {
		m.auth.WithLabelValues(string(f))
	}
	return m
}

// SetConfig records the configuration that serves: its epoch and the names of its clusters and rules. The
// caller must call it at the start and after each change. It deletes the series of removed names.
func (m *Metrics) SetConfig(epoch int64, clusters, rules []string) {
	m.epoch.Set(float64(epoch))
	m.reloadOK.Set(1)
	was := m.known.Swap(&knownLabels{slices.Clone(clusters), slices.Clone(rules)})
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
		for _, f := range CallFailures() {
			m.errors.WithLabelValues(c, string(f))
		}
	}
}

// ConfigReloaded counts a reload of the configuration. err is the reason why the new one does not serve, or nil.
func (m *Metrics) ConfigReloaded(err error) {
	m.reloads.Inc()
	m.reloadOK.Set(boolValue(err == nil))
}

// LocalAuthFailed counts a request without a valid local token.
func (m *Metrics) LocalAuthFailed(reason AuthFailureReason) {
	m.auth.WithLabelValues(label(reason, AuthFailureReasons())).Inc()
}

// Refused counts a request that the adapter refused.
func (m *Metrics) Refused(reason RefusalReason) {
	m.refused.WithLabelValues(label(reason, RefusalReasons())).Inc()
}

// UpstreamFailed counts a failed request to a cluster. The calls of a [RequestTelemetry] are counted automatically.
func (m *Metrics) UpstreamFailed(cluster string, reason CallFailure) {
	m.errors.WithLabelValues(m.cluster(cluster), label(reason, CallFailures())).Inc()
}

// Connecting counts a connection from the start of dialling. The caller must call connected with the result,
// and closed when the connection is closed.
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

// Probed records the duration of a health probe.
func (m *Metrics) Probed(cluster string, took time.Duration) {
	m.probes.WithLabelValues(m.cluster(cluster)).Observe(took.Seconds())
}

// Placed counts a new object.
func (m *Metrics) Placed(rule, cluster string) {
	m.placed.WithLabelValues(m.rule(rule), m.cluster(cluster)).Inc()
}

// WatchEvents counts events that merged watches received from a cluster.
func (m *Metrics) WatchEvents(cluster string, n int) {
	m.events.WithLabelValues(m.cluster(cluster)).Add(float64(n))
}

// WatchExpired counts a merged watch that ended with 410.
func (m *Metrics) WatchExpired(cluster string, reason WatchExpiry) {
	m.expired.WithLabelValues(m.cluster(cluster), label(reason, WatchExpiries())).Inc()
}

// MemberDown counts a merged watch that continues without a cluster. The caller must call back when the
// cluster is available again.
func (m *Metrics) MemberDown(cluster string) (back func()) {
	g := m.membersDown.WithLabelValues(m.cluster(cluster))
	g.Inc()
	return sync.OnceFunc(g.Dec)
}

// BookmarkSent counts a bookmark that the adapter created.
func (m *Metrics) BookmarkSent(reason BookmarkReason) {
	m.bookmarks.WithLabelValues(label(reason, BookmarkReasons())).Inc()
}

// OwnerLookup counts a lookup of an object's cluster.
func (m *Metrics) OwnerLookup(found LookupResult) {
	m.lookups.WithLabelValues(label(found, LookupResults())).Inc()
}

// ConflictResolved counts an object that several clusters have.
func (m *Metrics) ConflictResolved(done ConflictResult) {
	m.conflicts.WithLabelValues(label(done, ConflictResults())).Inc()
}

// PartialResponse counts a merged response that leaves out a cluster.
func (m *Metrics) PartialResponse(how PartialReason) {
	m.partials.WithLabelValues(label(how, PartialReasons())).Inc()
}

// CacheLookup counts a cache lookup.
func (m *Metrics) CacheLookup(c CacheName, hit bool) {
	result := "miss"
	if hit {
		result = "hit"
	}
	m.cache.WithLabelValues(label(c, CacheNames()), result).Inc()
}

// countResponse counts a response.
func (m *Metrics) countResponse(cluster string, req *Request, code int) {
	verb, res := "", resourceLabels{}
	if req != nil {
		verb = verbLabel(req)
		if !req.NonResource {
			res = m.resources.labels(req)
		}
	}
	m.requests.WithLabelValues(cluster, verb, res.group, res.name, res.sub, codeLabel(code)).Inc()
}

// cluster returns the label value of a cluster; "" means none.
func (m *Metrics) cluster(name string) string {
	if name == "" || name == MergedLabel || slices.Contains(m.known.Load().clusters, name) {
		return name
	}
	return otherLabel
}

func (m *Metrics) rule(name string) string {
	if name == "" || slices.Contains(m.known.Load().rules, name) {
		return name
	}
	return otherLabel
}

var knownVerbs = []string{
	"get",
	"list",
	"watch",
	"create",
	"update",
	"patch",
	"delete",
	"deletecollection",
	"head",
	"post",
	"put",
	"options",
}

func verbLabel(req *Request) string { return label(req.Verb, knownVerbs) }

// StatusClientClosedRequest is the code of a request whose client disconnected before the response.
const StatusClientClosedRequest = 499

func codeLabel(code int) string {
	if code == StatusClientClosedRequest || http.StatusText(code) != "" {
		return strconv.Itoa(code)
	}
	return otherLabel
}

// maxResources limits the number of resources in labels. Clusters have far fewer built-in ones, but a client
// that may create CustomResourceDefinitions may create many.
const maxResources = 1000

// resourceSet are the resources that may occur in labels.
type resourceSet struct {
	known func(group, resource, subresource string) bool
	mu    sync.RWMutex
	seen  map[resourceLabels]bool
}

type resourceLabels struct{ group, name, sub string }

// labels returns the labels of a request for a resource.
func (r *resourceSet) labels(req *Request) resourceLabels {
	res := resourceLabels{req.Group, req.Resource, req.Subresource}
	r.mu.RLock()
	seen, full := r.seen[res], len(r.seen) >= maxResources
	r.mu.RUnlock()
	switch {
	case seen:
		return res
	case full || !r.known(res.group, res.name, res.sub):
		return resourceLabels{otherLabel, otherLabel, subresourceLabel(res.sub)}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.seen) >= maxResources {
		return resourceLabels{otherLabel, otherLabel, subresourceLabel(res.sub)}
	}
	r.seen[res] = true
	return res
}

// subresourceLabel keeps the distinction between no subresource and some subresource for unknown resources.
func subresourceLabel(sub string) string {
	if sub == "" {
		return ""
	}
	return otherLabel
}
