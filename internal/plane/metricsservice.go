package plane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxConcurrentQueries is the maximum number of concurrent Prometheus queries per request.
const maxConcurrentQueries = 4

// maxMetricsAnswer is the maximum size of a response, in bytes.
const maxMetricsAnswer = 8 << 20

// PrometheusSource is the name of the Prometheus among the sources.
const PrometheusSource = "prometheus"

// MetricsService is the service for metrics.
type MetricsService struct {
	Plane *Service
	Query MetricsQuery // nil: no Prometheus

	cache ReadCache[[]QueryResult] // a key names the pools, so organisations never share a result about different pools
}

// WindowName selects a window: 1h, 6h, 24h or 7d.
type WindowName string

// MarshalText implements [encoding.TextMarshaler].
func (w WindowName) MarshalText() ([]byte, error) { return []byte(w), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (w *WindowName) UnmarshalText(b []byte) error {
	if !slices.ContainsFunc(metricsWindows, func(o metricsWindow) bool { return o.Name == string(b) }) {
		return fmt.Errorf("%.20q is not 1h, 6h, 24h or 7d", b)
	}
	*w = WindowName(b)
	return nil
}

func (w WindowName) window() metricsWindow {
	for _, o := range metricsWindows {
		if o.Name == string(w) {
			return o
		}
	}
	return metricsWindows[0]
}

// PoolMetricsRequest asks for metrics of an organisation's runners in a pool.
type PoolMetricsRequest struct {
	PoolRequest
	Window WindowName `json:"-" query:"window" doc:"time window: 1h, 6h, 24h or 7d (default 1h)"`
}

// NamedMetricsRequest is a [PoolMetricsRequest] that names a pool without its organisation.
type NamedMetricsRequest struct {
	PoolNameRequest
	Window WindowName `json:"-" query:"window" doc:"time window: 1h, 6h, 24h or 7d (default 1h)"`
}

// FleetMetricsRequest asks for metrics of all runners that the caller may see.
type FleetMetricsRequest struct {
	Window WindowName `json:"-" query:"window" doc:"time window: 1h, 6h, 24h or 7d (default 1h)"`
	RunnersRequest
}

// Metrics holds series over a window.
type Metrics struct {
	Of          string   `json:"of" doc:"the id of a pool, or the selection"`
	Window      string   `json:"window" enum:"1h,6h,24h,7d"`
	StepSeconds int      `json:"stepSeconds"`
	Series      []Series `json:"series" doc:"null: no Prometheus is set, or it does not respond"`
	Markers     []Marker `json:"markers" null:"never" doc:"events in this time"`
}

// Series is one series.
type Series struct {
	Name       string            `json:"name" enum:"running,waiting,idle,busy,max,completed,startup_p50,startup_p95,gitlab_running,gitlab_limit,gitlab_begun,gitlab_failed,gitlab_duration_p95"`
	Unit       string            `json:"unit" enum:"jobs,runners,1/s,s"`
	Labels     map[string]string `json:"labels" null:"never"`
	Timestamps []time.Time       `json:"timestamps" null:"never"`
	Values     []*float64        `json:"values" null:"never" doc:"null: no measurement"`
	Summary    Summary           `json:"summary"`
}

// Summary summarises a series. Values are null where nothing was measured.
type Summary struct {
	Last *float64 `json:"last"`
	Min  *float64 `json:"min"`
	Max  *float64 `json:"max"`
}

// Marker is an event in the window.
type Marker struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind" enum:"hold,change"`
	Text string    `json:"text"`
	Ref  string    `json:"ref"`
}

// getPoolMetrics returns the metrics of an organisation's runners in a pool.
func (d *MetricsService) getPoolMetrics(ctx context.Context, p access.Permit, req PoolMetricsRequest) (e Envelope[Metrics], err error) {
	o, l, err := getObject[Pool](d.Plane, KindPool, p, req.id(), "pool")
	if err != nil {
		return e, err
	}
	if p, err = p.In(o.OrgName); err != nil {
		return e, err
	}
	return d.metricsOf(ctx, p, o.ID, []Pool{o}, req.Window, l), nil
}

// getFleetMetrics returns the combined metrics of all runners that the caller may see.
func (d *MetricsService) getFleetMetrics(ctx context.Context, p access.Permit, req FleetMetricsRequest) (Envelope[Metrics], error) {
	l := d.Plane.Store.List(KindPool)
	v := ViewerOf(p)
	var some []Pool
	for _, o := range visibleTo[Pool](p, l) {
		if v.In(o.OrgName, access.MetricsRead) && req.matches(o.OrgName, o.Forge) {
			some = append(some, o)
		}
	}
	of := strings.Trim(string(req.Forge)+"/"+string(req.Org), "/")
	return d.metricsOf(ctx, p, cmp.Or(of, "all"), some, req.Window, l), nil
}

// metricsOf queries the Prometheus about pools.
func (d *MetricsService) metricsOf(ctx context.Context, p access.Permit, of string, pools []Pool, name WindowName, l Listing) Envelope[Metrics] {
	w := name.window()
	g := NewMetricsGrid(w, d.Plane.Now())
	m := Metrics{Of: of, Window: w.Name, StepSeconds: int(w.Step / time.Second), Markers: d.markers(p, pools, g.From)}
	series, err := d.series(ctx, pools, seriesQueries(pools, w), g)
	source := Source{Name: PrometheusSource, Status: StatusOK, ObservedAt: d.Plane.Now().UTC(), Since: d.Plane.Now().UTC()}
	if err == nil {
		m.Series = series
	} else {
		source.Status, source.ObservedAt, source.Message = StatusDown, time.Time{}, "There are no metrics: "+err.Error()+"."
	}
	return newEnvelope(d.Plane, "Metrics", m, l.Revision, append(slices.Clone(l.Sources), source))
}

var errNoPrometheus = errors.New("no Prometheus is set; set plane.prometheus.url")

// series runs all queries, at most maxConcurrentQueries at a time. If one fails, all fail: a missing series would look as if nothing had been measured.
func (d *MetricsService) series(ctx context.Context, pools []Pool, all []seriesQuery, g MetricsGrid) ([]Series, error) {
	if d.Query == nil {
		return nil, errNoPrometheus
	}
	about := poolsKey(pools)
	answers, errs := make([][]QueryResult, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	turn := make(chan struct{}, maxConcurrentQueries)
	for i, q := range all {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			answers[i], errs[i] = d.cache.Do(ctx, about+fmt.Sprint(g.From.Unix(), " ", g.N, " ", g.Step, " ")+q.Expr, d.Plane.Now(), g.ends(),
				func(ctx context.Context) ([]QueryResult, error) { return d.Query(ctx, q.Expr, g) })
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("query Prometheus for %s: %w", all[i].Name, err)
		}
	}
	out, times := []Series{}, g.times()
	for i, q := range all {
		if len(answers[i]) == 0 && q.By == "" { // nothing was measured; show an empty series
			answers[i] = []QueryResult{{nil, make([]*float64, g.N)}}
		}
		for _, f := range answers[i] {
			s := Series{Name: q.Name, Unit: q.Unit, Labels: map[string]string{}, Timestamps: times, Values: f.Values, Summary: summarize(f.Values)}
			if q.By != "" {
				s.Labels[q.By] = f.Labels[q.By]
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// poolsKey identifies a set of pools, in one line.
func poolsKey(pools []Pool) string {
	var ids []string
	for _, o := range pools {
		ids = append(ids, o.ID)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ") + "\n"
}

func summarize(values []*float64) (s Summary) {
	for _, v := range values {
		if v == nil {
			continue
		}
		if s.Min == nil || *v < *s.Min {
			s.Min = v
		}
		if s.Max == nil || *v > *s.Max {
			s.Max = v
		}
	}
	if len(values) > 0 {
		s.Last = values[len(values)-1]
	}
	return s
}

// markers returns the holds that were set on some of the pools since then, if still known. It also returns the changes of the pools or
// their organisations since then. The time of a change is when the cluster had it, or, before that, when it was merged.
func (d *MetricsService) markers(p access.Permit, pools []Pool, since time.Time) []Marker {
	out := []Marker{}
	for _, h := range visibleTo[Hold](p, d.Plane.Store.List(KindHold)) {
		if h.Created.Before(since) || !slices.ContainsFunc(pools, h.Scope.covers) {
			continue
		}
		out = append(out, Marker{h.Created, "hold", fmt.Sprintf("%s by %s: %s", h.Mode, h.RequestedBy, h.Reason), h.Name})
	}
	for _, c := range visibleTo[Change](p, d.Plane.Store.List(KindChange)) {
		at, word := c.AppliedAt, "Applied"
		if at == nil {
			at, word = c.MergedAt, "Merged"
		}
		if at == nil || at.Before(since) || !slices.ContainsFunc(pools, func(o Pool) bool { return concerns(c, o) }) {
			continue
		}
		out = append(out, Marker{*at, "change", fmt.Sprintf("%s: %s by %s", word, c.Title, c.Proposer), c.ID})
	}
	slices.SortFunc(out, func(a, b Marker) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Ref, b.Ref)) })
	return out
}

// concerns reports whether a change is about a pool or its organisation.
func concerns(c Change, o Pool) bool {
	return c.Kind == "RunnerPool" && c.Name == o.Name || c.Kind == "RunnerEnrollment" && c.Name == o.OrgName
}

// The operations. The server, the client, the reference and the MCP tools are all derived from them.
var (
	GetMetrics = httpapi.Op[PoolMetricsRequest, Envelope[Metrics]]{Pattern: "GET " + Base + "/pools/{forge}/{org}/{pool}/metrics", Verb: access.MetricsRead, MaxResponse: maxMetricsAnswer,
		Doc: "Show metrics over time for the runners of one organisation in one pool.", Example: PoolMetricsRequest{PoolRequest{Forge: "github", Org: "acme", Pool: "gh-nix"}, "6h"}, Responses: []Envelope[Metrics]{exampleMetrics}, Refusals: searchRefusals}
	GetNamedMetrics = httpapi.Op[NamedMetricsRequest, Envelope[Metrics]]{Pattern: "GET /api/metrics/{name}", Verb: access.MetricsRead, MaxResponse: maxMetricsAnswer, Example: NamedMetricsRequest{PoolNameRequest{"gh-nix"}, "6h"},
		Doc: "Show metrics over time for the runners of one organisation in one pool, by a name that is unique among the pools that the caller may see.", Responses: GetMetrics.Responses, Refusals: slices.Concat(searchRefusals, []problem.Code{problem.Conflict})}
	GetFleetMetrics = httpapi.Op[FleetMetricsRequest, Envelope[Metrics]]{Pattern: "GET /api/metrics", Verb: access.MetricsRead, MaxResponse: maxMetricsAnswer,
		Doc: "Show metrics over time for all runners that the caller may see, as sums.", Example: FleetMetricsRequest{Window: "24h"}, Responses: []Envelope[Metrics]{exampleMetrics}, Refusals: listRefusals}
)

var exampleMetrics = newExample("Metrics", Metrics{Of: "github/acme/gh-nix", Window: "6h", StepSeconds: 120, Markers: []Marker{{exampleTime, "hold", "Pause by alice@example.com: node upgrade", "node-upgrade"}},
	Series: []Series{{"running", "jobs", map[string]string{}, []time.Time{exampleTime.Add(-2 * time.Minute), exampleTime}, []*float64{nil, new(3.0)}, Summary{new(3.0), new(3.0), new(3.0)}}}})

// Routes returns the routes of the API, served by d.
func (d *MetricsService) Routes() []httpapi.Route {
	return []httpapi.Route{handle(d.Plane, GetMetrics, d.getPoolMetrics), handle(d.Plane, GetFleetMetrics, d.getFleetMetrics),
		handle(d.Plane, GetNamedMetrics, byName(d.Plane, d.getPoolMetrics, func(of PoolRequest, req NamedMetricsRequest) PoolMetricsRequest {
			return PoolMetricsRequest{of, req.Window}
		}))}
}
