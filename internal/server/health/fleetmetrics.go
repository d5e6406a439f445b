package health

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/fleet/controller"
)

// FleetMetrics holds the metrics of the runner fleet. Label values are names of forges, organisations and pools, which are cluster objects. Data
// of jobs never becomes a label.
type FleetMetrics struct {
	registry
	requests *prometheus.CounterVec // forge, org, code
	allocate prometheus.Observer
}

// NewFleetMetrics returns the metrics of a fleet.
func NewFleetMetrics(version, commit string) *FleetMetrics {
	r := newProcessRegistry(version, commit)
	return &FleetMetrics{
		registry: r,
		requests: r.counter("tailplane_fleet_forge_requests_total", "Requests to forges, by response status; none: no response.", "forge", "org", "code"),
		allocate: r.histogram("tailplane_fleet_allocate_seconds", "Time to allocate the budgets of all pools.", hookBuckets).WithLabelValues(),
	}
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

// AddValues adds gauges with the values from count, which runs at each scrape. There are no samples while count returns false, and none of
// unknown values.
func (m *FleetMetrics) AddValues(count func() (controller.Metrics, bool), clock func() time.Time) {
	org := []string{"forge", "org"}
	pool := []string{"forge", "org", "pool"}
	m.collect(func(emit emitter) {
		now, known := count()
		if !known {
			return
		}
		for _, w := range now.Workloads {
			labels := []string{w.Forge, w.Org, w.Pool}
			for state, n := range map[string]*int{"idle": w.Idle, "busy": w.Busy, "pending": w.Pending, "failed": w.Failed} {
				if n != nil {
					emit("tailplane_fleet_runners", float64(*n), w.Forge, w.Org, w.Pool, state)
				}
			}
			emit("tailplane_fleet_effective_max", float64(w.EffectiveMax), labels...)
			emit("tailplane_fleet_pool_failing", number(w.Failing), labels...)
			if w.Stranded != nil {
				emit("tailplane_fleet_stranded_jobs", float64(*w.Stranded), labels...)
			}
			emit("tailplane_fleet_drift_findings", float64(w.Drift), labels...)
		}
		for _, r := range now.Rates {
			emit("tailplane_fleet_rate_limit_remaining", float64(r.Remaining), r.Forge, r.Org)
		}
		for _, e := range now.Expiries {
			emit("tailplane_fleet_credential_expiry_seconds", e.At.Sub(clock()).Seconds(), e.Forge, e.Org)
		}
		emit("tailplane_fleet_holds", float64(now.Holds))
	},
		metric{"tailplane_fleet_runners", "Runners of a pool for an organisation, by state: idle, busy, pending or failed.", append(pool, "state")},
		metric{"tailplane_fleet_effective_max", "Maximum number of runners now: the allocation, or 0 under a hold.", pool},
		metric{"tailplane_fleet_drift_findings", "Drift findings of a pool for an organisation.", pool},
		metric{"tailplane_fleet_pool_failing", "1 if a pool of an organisation does not work: its enrollment has failed or is suspended, or a rule excludes it from the pool.", pool},
		metric{"tailplane_fleet_stranded_jobs", "Jobs that GitHub assigned to a pool of an organisation and that cannot start, because the pool may have no runner.", pool},
		metric{"tailplane_fleet_rate_limit_remaining", "Remaining requests to the forge until its rate limit resets.", org},
		metric{"tailplane_fleet_credential_expiry_seconds", "Time until the credential of an organisation expires.", org},
		metric{"tailplane_fleet_holds", "Active holds.", nil},
	)
}
