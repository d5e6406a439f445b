package health

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Metrics holds the metrics of a process. The values of every label are a closed set: declared operations, problem codes, or phases of a
// sign-in.
type Metrics struct {
	registry

	requests   *prometheus.CounterVec   // listener, op, code
	seconds    *prometheus.HistogramVec // listener, op
	inFlight   *prometheus.GaugeVec     // listener
	refusals   *prometheus.CounterVec   // reason
	wait       prometheus.Observer
	whois      prometheus.Observer
	tokens     *prometheus.CounterVec // result
	ends       *prometheus.CounterVec // cause
	ready      prometheus.Observer
	starts     *prometheus.CounterVec // role, privileged
	swept      prometheus.Counter
	roles      []access.Role       // values of the label role, besides otherRole
	merge      prometheus.Observer // of gossip; set by AddGossip
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
	r := newRegistry(version, commit)
	m := &Metrics{
		registry:   r,
		requests:   r.counter("tailplane_requests_total", "Requests, by operation and class of the response status.", "listener", "op", "code"),
		seconds:    r.histogram("tailplane_request_seconds", "Time to answer, without the wait that the caller requested.", requestBuckets, "listener", "op"),
		inFlight:   r.gauge("tailplane_requests_in_flight", "Requests being answered or waiting.", "listener"),
		refusals:   r.counter("tailplane_refusals_total", "Refused requests, by the code in the response.", "reason"),
		wait:       r.histogram("tailplane_kubeconfig_wait_seconds", "How long requests for a kubeconfig waited for their sign-in.", requestBuckets).WithLabelValues(),
		whois:      r.histogram("tailplane_whois_seconds", "Time to identify the caller.", whoisBuckets).WithLabelValues(),
		tokens:     r.counter("tailplane_token_requests_total", "Tokens requested from the API server.", "result"),
		ends:       r.counter("tailplane_signin_ends_total", "Sign-ins that this process ended or found ended, by cause.", "cause"),
		ready:      r.histogram("tailplane_signin_ready_seconds", "Time until a new sign-in is ready.", requestBuckets).WithLabelValues(),
		starts:     r.counter("tailplane_signin_starts_total", "New sign-ins that became ready, once for each role.", "role", "privileged"),
		swept:      r.counter("tailplane_signin_sweep_deleted_total", "ServiceAccounts and bindings that were deleted because they belonged to no sign-in.").WithLabelValues(),
		operations: operations,
	}
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

// AddAudit adds the metrics of the audit log. stats and rolledBack, the number of lines that the log once had and lacks, run at each scrape.
func (m *Metrics) AddAudit(stats func() audit.Stats, rolledBack func() int) {
	m.collect(func(emit emitter) {
		s := stats()
		for _, result := range []audit.Result{audit.Done, audit.NotYet, audit.Refused, audit.Failed} {
			emit("tailplane_audit_entries_total", float64(s.Entries[result]), string(result))
		}
		emit("tailplane_audit_dropped_total", float64(s.Dropped))
		emit("tailplane_audit_up", number(s.Up))
		emit("tailplane_audit_rolled_back", number(rolledBack() > 0))
	},
		metric{"tailplane_audit_entries_total", "Entries that the audit log accepted, by the result that they report.", []string{"result"}},
		metric{"tailplane_audit_dropped_total", "Lost audit entries.", nil},
		metric{"tailplane_audit_up", "1 while entries reach the audit log.", nil},
		metric{"tailplane_audit_rolled_back", "1 if the audit log lacks a line that it once had: an older copy of the file was put in its place.", nil},
	)
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

// otherRole is the label of roles that the settings do not list.
const otherRole = "other"

// SetRoles sets the roles that the settings list, which are the values of the label role. Call it before any other method.
func (m *Metrics) SetRoles(roles []access.Role) {
	m.roles = slices.Clone(roles)
	for _, r := range slices.Concat(m.roles, []access.Role{otherRole}) {
		for _, privileged := range []bool{false, true} {
			m.starts.WithLabelValues(string(r), strconv.FormatBool(privileged))
		}
	}
}

// roleLabel returns the value of the label role. A person may choose a role's name, so only listed names are values.
func (m *Metrics) roleLabel(r access.Role) string {
	if slices.Contains(m.roles, r) {
		return string(r)
	}
	return otherRole
}

// ObserveReady records the time until a new sign-in became ready.
func (m *Metrics) ObserveReady(took time.Duration) { m.ready.Observe(took.Seconds()) }

// CountStarted counts a role of a new sign-in. privileged: the role reaches every ServiceAccount, because it is bound in the whole cluster.
func (m *Metrics) CountStarted(role access.Role, privileged bool) {
	m.starts.WithLabelValues(m.roleLabel(role), strconv.FormatBool(privileged)).Inc()
}

// CountSwept counts an object that was deleted because no sign-in owns it.
func (m *Metrics) CountSwept() { m.swept.Inc() }

// CountEnded counts a sign-in that this process ended, or whose end it found.
func (m *Metrics) CountEnded(c signin.Cause) {
	if slices.Contains(signin.Causes(), c) {
		m.ends.WithLabelValues(string(c)).Inc()
	}
}

// AddNode adds the metrics of a node. status runs at each scrape.
func (m *Metrics) AddNode(status func() tailnet.Status) {
	m.gaugeFunc("tailplane_tailnet_up", "1 while the node is in its tailnet.", func() (float64, bool) { return number(status().Running()), true })
	m.gaugeFunc("tailplane_node_key_expiry_seconds", "Time until a person must sign the node in again; absent if the key does not expire.", func() (float64, bool) {
		at := status().KeyExpiry
		return time.Until(at).Seconds(), !at.IsZero()
	})
}

// AddSignins adds the number of sign-ins by phase, and of ready ones by role. all runs at each scrape. There are no samples while it returns false.
func (m *Metrics) AddSignins(all func() ([]signin.Signin, bool)) {
	m.collect(func(emit emitter) {
		all, ok := all()
		if !ok {
			return
		}
		count, byRole, frozen := map[signin.Phase]int{}, map[string]int{}, 0
		for _, s := range all {
			if !s.Deleting && s.Phase == signin.PhaseReady && s.Reason != signin.ReasonProvisioned {
				frozen++
			}
			if !s.Deleting && s.Phase == signin.PhaseReady {
				for _, b := range s.Bound {
					byRole[m.roleLabel(b.Role)]++
				}
			}
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
			emit("tailplane_signins", float64(count[p]), string(p))
		}
		for _, r := range slices.Concat(m.roles, []access.Role{otherRole}) {
			emit("tailplane_signins_by_role", float64(byRole[string(r)]), string(r))
		}
		emit("tailplane_signins_frozen", float64(frozen))
	}, metric{"tailplane_signins", "Sign-ins in the cluster, by phase.", []string{"phase"}},
		metric{"tailplane_signins_by_role", "Ready sign-ins in the cluster, by role. One with several roles counts once for each.", []string{"role"}},
		metric{"tailplane_signins_frozen", "Live sign-ins that nothing extends, because their role may no longer be bound in the whole cluster, or needs an access request.", nil})
}

var phases = []signin.Phase{signin.PhasePending, signin.PhaseReady, signin.PhaseRefused, signin.PhaseEnding, signin.PhaseExpired}

// CountingStore returns a store that counts the token requests of s.
func (m *Metrics) CountingStore(s signin.Store) signin.Store { return countingStore{s, m} }

type countingStore struct {
	signin.Store
	m *Metrics
}

func (c countingStore) IssueToken(ctx context.Context, s signin.Signin, life time.Duration) (secret.Text, time.Time, error) {
	token, expires, err := c.Store.IssueToken(ctx, s, life)
	result := tokenMade
	switch {
	case errors.Is(err, signin.ErrConflict), errors.Is(err, signin.ErrNotFound):
		result = tokenRefused
	case err != nil:
		result = tokenFailed
	}
	c.m.tokens.WithLabelValues(result).Inc()
	return token, expires, err
}
