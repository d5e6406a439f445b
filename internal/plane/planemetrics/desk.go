package planemetrics

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
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

// atOnce is the maximum number of concurrent Prometheus queries per request.
const atOnce = 4

// maxAnswer is the maximum size of a response, in bytes.
const maxAnswer = 8 << 20

// Source is the name of the Prometheus among the sources.
const Source = "prometheus"

// Desk is the service for metrics.
type Desk struct {
	Plane      *plane.Desk
	Prometheus Query // nil: no Prometheus

	shared shared
}

// WindowName selects a window: 1h, 6h, 24h or 7d.
type WindowName string

// MarshalText implements [encoding.TextMarshaler].
func (w WindowName) MarshalText() ([]byte, error) { return []byte(w), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (w *WindowName) UnmarshalText(b []byte) error {
	if !slices.ContainsFunc(windows, func(o Window) bool { return o.Name == string(b) }) {
		return fmt.Errorf("%.20q is not 1h, 6h, 24h or 7d", b)
	}
	*w = WindowName(b)
	return nil
}

func (w WindowName) window() Window {
	for _, o := range windows {
		if o.Name == string(w) {
			return o
		}
	}
	return windows[0]
}

// PoolRequest asks for metrics of an organisation's runners in a pool.
type PoolRequest struct {
	planefleet.PoolRequest
	Window WindowName `json:"-" query:"window" doc:"how far back: 1h, 6h, 24h or 7d; 1h without it"`
}

// NameRequest is a [PoolRequest] that names a pool without its organisation.
type NameRequest struct {
	Name   string     `json:"-" path:"name"`
	Window WindowName `json:"-" query:"window" doc:"how far back: 1h, 6h, 24h or 7d; 1h without it"`
}

// FleetRequest asks for metrics of all runners that the caller may see.
type FleetRequest struct {
	Window WindowName `json:"-" query:"window" doc:"how far back: 1h, 6h, 24h or 7d; 1h without it"`
	Org    plane.Text `json:"-" query:"org" doc:"only of this organisation"`
	Forge  plane.Text `json:"-" query:"forge" doc:"only of this forge"`
}

// Metrics holds series over a window.
type Metrics struct {
	Of          string   `json:"of" doc:"the id of a pool, or what was chosen"`
	Window      string   `json:"window" enum:"1h,6h,24h,7d"`
	StepSeconds int      `json:"stepSeconds"`
	Series      []Series `json:"series" doc:"null: there is no Prometheus, or it does not answer"`
	Markers     []Marker `json:"markers" doc:"what happened meanwhile"`
}

// Series is one series.
type Series struct {
	Name       string            `json:"name" enum:"running,waiting,idle,busy,max,completed,startup_p50,startup_p95,gitlab_running,gitlab_limit,gitlab_begun,gitlab_failed,gitlab_duration_p95"`
	Unit       string            `json:"unit" enum:"jobs,runners,1/s,s"`
	Labels     map[string]string `json:"labels"`
	Timestamps []time.Time       `json:"timestamps"`
	Values     []*float64        `json:"values" doc:"null where nothing was measured"`
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

// pool returns the metrics of an organisation's runners in a pool.
func (d *Desk) pool(ctx context.Context, p access.Permit, req PoolRequest) (e plane.Envelope[Metrics], err error) {
	o, l, err := plane.One[planefleet.Pool](d.Plane, plane.KindPool, p, req.Forge+"/"+req.Org+"/"+req.Pool, "pool")
	if err != nil {
		return e, err
	}
	if p, err = p.In(o.OrgName); err != nil {
		return e, err
	}
	return d.answer(ctx, p, o.ID, []planefleet.Pool{o}, req.Window, l), nil
}

func (d *Desk) named(ctx context.Context, p access.Permit, req NameRequest) (e plane.Envelope[Metrics], err error) {
	of, err := planefleet.Named(d.Plane, p, req.Name)
	if err != nil {
		return e, err
	}
	return d.pool(ctx, p, PoolRequest{of, req.Window})
}

// fleet returns the combined metrics of all runners that the caller may see.
func (d *Desk) fleet(ctx context.Context, p access.Permit, req FleetRequest) (plane.Envelope[Metrics], error) {
	l := d.Plane.Board.List(plane.KindPool)
	v := plane.ViewerOf(p)
	var some []planefleet.Pool
	for _, o := range plane.Seen[planefleet.Pool](p, l) {
		if v.In(o.OrgName, access.MetricsRead) && (req.Org == "" || string(req.Org) == o.OrgName) && (req.Forge == "" || string(req.Forge) == o.Forge) {
			some = append(some, o)
		}
	}
	of := strings.Trim(string(req.Forge)+"/"+string(req.Org), "/")
	return d.answer(ctx, p, cmp.Or(of, "all"), some, req.Window, l), nil
}

// answer queries the Prometheus about pools.
func (d *Desk) answer(ctx context.Context, p access.Permit, of string, pools []planefleet.Pool, name WindowName, l plane.Listing) plane.Envelope[Metrics] {
	w := name.window()
	g := NewGrid(w, d.Plane.Now())
	m := Metrics{Of: of, Window: w.Name, StepSeconds: int(w.Step / time.Second), Markers: d.markers(p, pools, g.From)}
	series, err := d.series(ctx, pools, questions(pools, w), g)
	source := plane.Source{Name: Source, Status: plane.OK, ObservedAt: d.Plane.Now().UTC(), Since: d.Plane.Now().UTC()}
	if err == nil {
		m.Series = series
	} else {
		source.Status, source.ObservedAt, source.Message = plane.Down, time.Time{}, "There are no numbers: "+err.Error()+"."
	}
	return plane.Answer(d.Plane, "Metrics", m, l.Revision, append(slices.Clone(l.Sources), source))
}

var errNone = errors.New("no Prometheus is set: see plane.prometheus.url")

// series runs all queries, at most atOnce at a time. If one fails, all fail: a missing series would look as if nothing had been measured.
func (d *Desk) series(ctx context.Context, pools []planefleet.Pool, all []Question, g Grid) ([]Series, error) {
	if d.Prometheus == nil {
		return nil, errNone
	}
	about := viewOf(pools)
	answers, errs := make([][]Found, len(all)), make([]error, len(all))
	var wg sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for i, q := range all {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			answers[i], errs[i] = d.shared.ask(ctx, about+fmt.Sprint(g.From.Unix(), " ", g.N, " ", g.Step, " ")+q.Expr, d.Plane.Now(), g.ends(),
				func(ctx context.Context) ([]Found, error) { return d.Prometheus(ctx, q.Expr, g) })
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("the Prometheus was asked for %s: %w", all[i].Name, err)
		}
	}
	out, times := []Series{}, g.times()
	for i, q := range all {
		if len(answers[i]) == 0 && q.By == "" { // nothing was measured; show an empty series
			answers[i] = []Found{{nil, make([]*float64, g.N)}}
		}
		for _, f := range answers[i] {
			s := Series{Name: q.Name, Unit: q.Unit, Labels: map[string]string{}, Timestamps: times, Values: f.Values, Summary: summary(f.Values)}
			if q.By != "" {
				s.Labels[q.By] = f.Labels[q.By]
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// viewOf identifies a set of pools, in one line.
func viewOf(pools []planefleet.Pool) string {
	var ids []string
	for _, o := range pools {
		ids = append(ids, o.ID)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ") + "\n"
}

func summary(values []*float64) (s Summary) {
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
func (d *Desk) markers(p access.Permit, pools []planefleet.Pool, since time.Time) []Marker {
	out := []Marker{}
	for _, h := range plane.Seen[planefleet.Hold](p, d.Plane.Board.List(plane.KindHold)) {
		if h.Created.Before(since) || !slices.ContainsFunc(pools, h.Scope.Holds) {
			continue
		}
		out = append(out, Marker{h.Created, "hold", fmt.Sprintf("%s by %s: %s", h.Mode, h.RequestedBy, h.Reason), h.Name})
	}
	for _, c := range plane.Seen[planechange.Change](p, d.Plane.Board.List(plane.KindChange)) {
		at, word := c.AppliedAt, "Applied"
		if at == nil {
			at, word = c.MergedAt, "Merged"
		}
		if at == nil || at.Before(since) || !slices.ContainsFunc(pools, func(o planefleet.Pool) bool { return concerns(c, o) }) {
			continue
		}
		out = append(out, Marker{*at, "change", fmt.Sprintf("%s: %s by %s", word, c.Title, c.Proposer), c.ID})
	}
	slices.SortFunc(out, func(a, b Marker) int { return cmp.Or(a.At.Compare(b.At), strings.Compare(a.Ref, b.Ref)) })
	return out
}

// concerns reports whether a change is about a pool or its organisation.
func concerns(c planechange.Change, o planefleet.Pool) bool {
	return c.Kind == "RunnerPool" && c.Name == o.Name || c.Kind == "RunnerEnrollment" && c.Name == o.OrgName
}

// The operations. The server, the client, the reference and the MCP tools are all derived from them.
var (
	GetMetrics = door.Op[PoolRequest, plane.Envelope[Metrics]]{Pattern: "GET " + plane.Base + "/pools/{forge}/{org}/{pool}/metrics", Verb: access.MetricsRead, MaxAnswer: maxAnswer,
		Doc: "Show numbers of the runners of one organisation in one pool over time.", Example: PoolRequest{planefleet.PoolRequest{Forge: "github", Org: "acme", Pool: "gh-nix"}, "6h"}, Answers: []plane.Envelope[Metrics]{example}, Refusals: plane.Seeking}
	GetNamed = door.Op[NameRequest, plane.Envelope[Metrics]]{Pattern: "GET /api/metrics/{name}", Verb: access.MetricsRead, MaxAnswer: maxAnswer, Example: NameRequest{"gh-nix", "6h"},
		Doc: "Show numbers of the runners of one organisation in one pool over time, by a name that no other pool has that the caller may see.", Answers: GetMetrics.Answers, Refusals: slices.Concat(plane.Seeking, []problem.Code{problem.Conflict})}
	GetFleet = door.Op[FleetRequest, plane.Envelope[Metrics]]{Pattern: "GET /api/metrics", Verb: access.MetricsRead, MaxAnswer: maxAnswer,
		Doc: "Show numbers of all runners that the caller may see, together, over time.", Example: FleetRequest{Window: "24h"}, Answers: []plane.Envelope[Metrics]{example}, Refusals: plane.Reading}
)

var example = plane.Example("Metrics", Metrics{Of: "github/acme/gh-nix", Window: "6h", StepSeconds: 120, Markers: []Marker{{plane.ExampleTime, "hold", "Pause by alice@example.com: node upgrade", "node-upgrade"}},
	Series: []Series{{"running", "jobs", map[string]string{}, []time.Time{plane.ExampleTime.Add(-2 * time.Minute), plane.ExampleTime}, []*float64{nil, new(3.0)}, Summary{new(3.0), new(3.0), new(3.0)}}}})

// Routes returns the routes of the API, served by d.
func (d *Desk) Routes() []door.Route {
	return []door.Route{plane.Behind(d.Plane, GetMetrics, d.pool), plane.Behind(d.Plane, GetFleet, d.fleet), plane.Behind(d.Plane, GetNamed, d.named)}
}

// Operations describes the API.
func Operations() []door.Declaration {
	var all []door.Declaration
	for _, rt := range (&Desk{Plane: new(plane.Desk)}).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}
