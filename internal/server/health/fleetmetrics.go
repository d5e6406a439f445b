package health

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// FleetMetrics holds the metrics of the runner fleet. Label values are names of forges, organisations and pools, which are cluster objects. Data
// of jobs never becomes a label.
type FleetMetrics struct {
	*prometheus.Registry

	requests *prometheus.CounterVec // forge, org, code
	allocate prometheus.Histogram
}

// NewFleetMetrics returns the metrics of a fleet.
func NewFleetMetrics(version, commit string) *FleetMetrics {
	m := &FleetMetrics{
		Registry: newProcessRegistry(version, commit),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tailplane_fleet_forge_requests_total", Help: "Requests to forges, by response status; none: no response."}, []string{"forge", "org", "code"}),
		allocate: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tailplane_fleet_allocate_seconds", Help: "Time to allocate the budgets of all pools.", Buckets: hookBuckets, NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100}),
	}
	m.MustRegister(m.requests, m.allocate)
	return m
}

// ObserveRequest counts a request to a forge for an organisation. status is the HTTP status, or 0 if there was no response. The third argument is
// ignored.
func (m *FleetMetrics) ObserveRequest(forge, org, _ string, status int) {
	code := "none"
	if status != 0 {
		code = strconv.Itoa(status)
	}
	m.requests.WithLabelValues(forge, org, code).Inc()
}

// ObserveAllocation records how long the allocation of budgets took.
func (m *FleetMetrics) ObserveAllocation(took time.Duration) { m.allocate.Observe(took.Seconds()) }

// AddReadiness adds a gauge that shows whether l is ready.
func (m *FleetMetrics) AddReadiness(l *Listener) { m.MustRegister(readiness(l)) }

// FleetValue is one sample. Labels are in the order of the metric's labels.
type FleetValue struct {
	Labels []string
	Value  float64
}

// FleetValues holds the current values of the fleet.
type FleetValues struct {
	Runners      []FleetValue // forge, org, pool, state; an unknown state is missing
	EffectiveMax []FleetValue // forge, org, pool
	Drift        []FleetValue // forge, org, pool
	Failing      []FleetValue // forge, org, pool; 1 or 0
	Stranded     []FleetValue // forge, org, pool; only while no runner is allowed, and if known
	Rates        []FleetValue // forge, org
	Expiries     []FleetValue // forge, org; in seconds from now
	Holds        int
}

// AddValues adds gauges with the values from count, which runs at each scrape. There are no samples while count returns false.
func (m *FleetMetrics) AddValues(count func() (FleetValues, bool)) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m.MustRegister(fleetCollector{count,
		desc("tailplane_fleet_runners", "Runners of a pool for an organisation, by state: idle, busy, pending or failed.", "forge", "org", "pool", "state"),
		desc("tailplane_fleet_effective_max", "Maximum number of runners now: the allocation, or 0 under a hold.", "forge", "org", "pool"),
		desc("tailplane_fleet_drift_findings", "Drift findings of a pool for an organisation.", "forge", "org", "pool"),
		desc("tailplane_fleet_pool_failing", "1 if a pool of an organisation does not work: its enrollment has failed or is suspended, or a rule excludes it from the pool.", "forge", "org", "pool"),
		desc("tailplane_fleet_stranded_jobs", "Jobs that GitHub assigned to a pool of an organisation and that cannot start, because the pool may have no runner.", "forge", "org", "pool"),
		desc("tailplane_fleet_rate_limit_remaining", "Remaining requests to the forge until its rate limit resets.", "forge", "org"),
		desc("tailplane_fleet_credential_expiry_seconds", "Time until the credential of an organisation expires.", "forge", "org"),
		desc("tailplane_fleet_holds", "Active holds."),
	})
}

type fleetCollector struct {
	count                                                                  func() (FleetValues, bool)
	runners, effectiveMax, drift, failing, stranded, rates, expiries, hold *prometheus.Desc
}

func (f fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.runners, f.effectiveMax, f.drift, f.failing, f.stranded, f.rates, f.expiries, f.hold} {
		ch <- d
	}
}

func (f fleetCollector) Collect(ch chan<- prometheus.Metric) {
	now, known := f.count()
	if !known {
		return
	}
	for _, x := range []struct {
		desc   *prometheus.Desc
		values []FleetValue
	}{{f.runners, now.Runners}, {f.effectiveMax, now.EffectiveMax}, {f.drift, now.Drift}, {f.failing, now.Failing}, {f.stranded, now.Stranded}, {f.rates, now.Rates}, {f.expiries, now.Expiries}, {f.hold, []FleetValue{{Value: float64(now.Holds)}}}} {
		for _, v := range x.values {
			ch <- prometheus.MustNewConstMetric(x.desc, prometheus.GaugeValue, v.Value, v.Labels...)
		}
	}
}
