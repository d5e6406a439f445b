package planefleet

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// Desk is the service for runners. All fields are required.
type Desk struct {
	Plane *plane.Desk
	// Create makes a hold in the name of the permit's caller. If the name exists, it returns that hold unchanged and created is false.
	Create func(ctx context.Context, p access.Permit, d Draft, dryRun bool) (h Hold, created bool, err error)
	// Lift deletes exactly this hold.
	Lift func(ctx context.Context, p access.Permit, h Hold, dryRun bool) error
	// Reschedule changes the expiry of exactly this hold, if it has not changed since h was read. A nil end removes the expiry.
	Reschedule func(ctx context.Context, p access.Permit, h Hold, end *time.Time, dryRun bool) (Hold, error)

	// Ignore stores until when a drift is ignored, by whom and why. A zero Until ends it. A dry run stores nothing and reports whether the
	// write would succeed.
	Ignore func(ctx context.Context, p access.Permit, o Drift, i Ignored, dryRun bool) error
	// LookAgain triggers a new comparison at the sources that allow it. It returns for each source whether it was triggered.
	LookAgain func() []Look

	confirmations confirmations
}

// ListRequest asks for one page of a list.
type ListRequest struct {
	plane.ListRequest
	Org   plane.Text `json:"-" query:"org" doc:"only of this organisation"`
	Forge plane.Text `json:"-" query:"forge" doc:"only of this forge"`
}

// only describes the selection in words.
func (r ListRequest) only() string { return string(r.Org) + "/" + string(r.Forge) }

func (r ListRequest) has(org, forge string) bool {
	return (r.Org == "" || string(r.Org) == org) && (r.Forge == "" || string(r.Forge) == forge)
}

// PoolRequest names the runners of an organisation in a pool.
type PoolRequest struct {
	Forge string `json:"-" path:"forge"`
	Org   string `json:"-" path:"org"`
	Pool  string `json:"-" path:"pool"`
}

// EnrollmentRequest names an organisation.
type EnrollmentRequest struct {
	Org string `json:"-" path:"org"`
}

// HoldRequest names a hold.
type HoldRequest struct {
	Name string `json:"-" path:"name"`
}

func (d *Desk) pools(_ context.Context, p access.Permit, req ListRequest) (plane.Envelope[[]Pool], error) {
	return plane.PageOf(d.Plane, pools(), p, req.ListRequest, req.only(), func(o Pool) bool { return req.has(o.OrgName, o.Forge) })
}

func (d *Desk) enrollments(_ context.Context, p access.Permit, req ListRequest) (plane.Envelope[[]Enrollment], error) {
	return plane.PageOf(d.Plane, enrollments(), p, req.ListRequest, req.only(), func(o Enrollment) bool { return req.has(o.Name, o.Forge) })
}

func (d *Desk) drifts(_ context.Context, p access.Permit, req ListRequest) (plane.Envelope[[]Drift], error) {
	return plane.PageOf(d.Plane, drifts(), p, req.ListRequest, req.only(), func(o Drift) bool { return req.has(o.OrgName, o.Forge) })
}

// holds lists the holds. A filter by organisation or forge matches only holds whose scope names it.
func (d *Desk) holds(_ context.Context, p access.Permit, req ListRequest) (plane.Envelope[[]Hold], error) {
	return plane.PageOf(d.Plane, holds(), p, req.ListRequest, req.only(), func(o Hold) bool { return req.has(o.Scope.Org, o.Scope.Forge) })
}

func (d *Desk) pool(_ context.Context, p access.Permit, req PoolRequest) (plane.Envelope[Pool], error) {
	o, l, err := plane.One[Pool](d.Plane, plane.KindPool, p, req.Forge+"/"+req.Org+"/"+req.Pool, "pool")
	return plane.Answer(d.Plane, "Pool", o, l.Revision, l.Sources), err
}

func (d *Desk) enrollment(_ context.Context, p access.Permit, req EnrollmentRequest) (plane.Envelope[Enrollment], error) {
	o, l, err := plane.One[Enrollment](d.Plane, plane.KindEnrollment, p, req.Org, "organisation")
	return plane.Answer(d.Plane, "Enrollment", o, l.Revision, l.Sources), err
}

func (d *Desk) hold(_ context.Context, p access.Permit, req HoldRequest) (plane.Envelope[Hold], error) {
	o, l, err := plane.One[Hold](d.Plane, plane.KindHold, p, req.Name, "hold")
	return plane.Answer(d.Plane, "Hold", o, l.Revision, l.Sources), err
}

// RunnersRequest asks for runners by forge. All fields are optional.
type RunnersRequest struct {
	Org   plane.Text `json:"-" query:"org" doc:"only of this organisation"`
	Forge plane.Text `json:"-" query:"forge" doc:"only of this forge"`
}

// Runners holds the runners, grouped by forge.
type Runners struct {
	Forges []ForgeRunners `json:"forges" doc:"null: it is not known which there are"`
}

// ForgeRunners holds the runners for the jobs of one forge.
type ForgeRunners struct {
	Forge   string   `json:"forge"`
	Type    string   `json:"type" enum:"github,gitlab,unknown"`
	Source  string   `json:"source" enum:"ok,down,unknown" doc:"whether the forge answers"`
	Counts  Counts   `json:"counts" doc:"of all below; null where one of them is not known"`
	Orgs    []string `json:"orgs"`
	Runners []Pool   `json:"runners"`
}

func (d *Desk) runners(_ context.Context, p access.Permit, req RunnersRequest) (plane.Envelope[Runners], error) {
	lists, revision := d.Plane.Board.Lists(plane.KindPool, plane.KindForge)
	var sources []plane.Source
	for _, l := range lists {
		for _, s := range l.Sources {
			if !slices.ContainsFunc(sources, func(o plane.Source) bool { return o.Name == s.Name }) {
				sources = append(sources, s)
			}
		}
	}
	slices.SortFunc(sources, func(a, b plane.Source) int { return cmp.Compare(a.Name, b.Name) })
	if !lists[0].Known {
		return plane.Answer(d.Plane, "Runners", Runners{}, revision, sources), nil
	}
	groups := map[string]*ForgeRunners{}
	group := func(forge string) *ForgeRunners {
		if groups[forge] == nil {
			zero := Counts{new(0), new(0), new(0), new(0)}
			groups[forge] = &ForgeRunners{Forge: forge, Type: "unknown", Source: "unknown", Counts: zero, Orgs: []string{}, Runners: []Pool{}}
		}
		return groups[forge]
	}
	chosen := ListRequest{Org: req.Org, Forge: req.Forge}
	for _, f := range plane.Seen[Forge](p, lists[1]) {
		if !chosen.has(string(req.Org), f.Name) {
			continue
		}
		g := group(f.Name)
		g.Type = f.Type
		switch {
		case f.Reachable == nil:
		case *f.Reachable:
			g.Source = "ok"
		default:
			g.Source = "down"
		}
	}
	for _, o := range plane.Seen[Pool](p, lists[0]) {
		if !chosen.has(o.OrgName, o.Forge) {
			continue
		}
		g := group(o.Forge)
		g.Counts, g.Runners = g.Counts.add(o.Counts), append(g.Runners, o)
		if !slices.Contains(g.Orgs, o.OrgName) {
			g.Orgs = append(g.Orgs, o.OrgName)
		}
	}
	out := Runners{Forges: []ForgeRunners{}}
	for _, forge := range slices.Sorted(maps.Keys(groups)) {
		out.Forges = append(out.Forges, *groups[forge])
	}
	return plane.Answer(d.Plane, "Runners", out, revision, sources), nil
}

// matching returns the runners in the store that a scope covers, and false if the runners are not known.
func (d *Desk) matching(s Scope) (some []Pool, known bool) {
	l := d.Plane.Board.List(plane.KindPool)
	for _, o := range l.Objects {
		if p, ok := o.(Pool); ok && s.Holds(p) {
			some = append(some, p)
		}
	}
	return some, l.Known
}

// exists returns NotFound for a scope that names something unknown. If the lists themselves are not known it accepts the scope, because a
// pause must not fail for lack of data.
func (d *Desk) exists(s Scope) error {
	if s.All {
		return nil
	}
	if some, known := d.matching(s); len(some) > 0 || !known {
		return nil
	}
	if s.Forge != "" {
		if l := d.Plane.Board.List(plane.KindForge); !l.Known || slices.ContainsFunc(l.Objects, func(o plane.Object) bool { return o.Key() == s.Forge }) {
			return nil
		}
	}
	if s.Org != "" && s.Pool == "" {
		if l := d.Plane.Board.List(plane.KindEnrollment); !l.Known || slices.ContainsFunc(l.Objects, func(o plane.Object) bool { return o.Key() == s.Org }) {
			return nil
		}
	}
	return problem.New(problem.NotFound, "There is no "+s.String()+", or you may not see it.", "List the runners that you may see.")
}
