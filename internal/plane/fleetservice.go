package plane

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// FleetService is the service for runners. All fields are required.
type FleetService struct {
	Plane *Service
	// CreateHold makes a hold in the name of the permit's caller. If the name exists, it returns that hold unchanged and created is false.
	CreateHold func(ctx context.Context, p access.Permit, d HoldDraft, dryRun bool) (h Hold, created bool, err error)
	// LiftHold deletes exactly this hold.
	LiftHold func(ctx context.Context, p access.Permit, h Hold, dryRun bool) error
	// RescheduleHold changes the expiry of exactly this hold, if it has not changed since h was read. A nil end removes the expiry.
	RescheduleHold func(ctx context.Context, p access.Permit, h Hold, end *time.Time, dryRun bool) (Hold, error)

	// IgnoreDrift stores until when a drift is ignored, by whom and why. A zero Until ends it. A dry run stores nothing and reports whether the
	// write would succeed.
	IgnoreDrift func(ctx context.Context, p access.Permit, o Drift, i DriftIgnore, dryRun bool) error
	// RefreshDrift triggers a new comparison at the sources that allow it. It returns for each source whether it was triggered.
	RefreshDrift func() []Look

	confirmations confirmations
}

// FleetListRequest asks for one page of a list.
type FleetListRequest struct {
	ListRequest
	RunnersRequest
}

// RunnersRequest selects entries by their organisation and forge.
type RunnersRequest struct {
	Org   Text `json:"-" query:"org" doc:"only entries of this organisation"`
	Forge Text `json:"-" query:"forge" doc:"only entries of this forge"`
}

// only describes the selection in words.
func (r RunnersRequest) only() string { return string(r.Org) + "/" + string(r.Forge) }

func (r RunnersRequest) matches(org, forge string) bool {
	return (r.Org == "" || string(r.Org) == org) && (r.Forge == "" || string(r.Forge) == forge)
}

// PoolRequest names the runners of an organisation in a pool.
type PoolRequest struct {
	Forge string `json:"-" path:"forge"`
	Org   string `json:"-" path:"org"`
	Pool  string `json:"-" path:"pool"`
}

// id returns the pool's id.
func (r PoolRequest) id() string { return r.Forge + "/" + r.Org + "/" + r.Pool }

// EnrollmentRequest names an organisation.
type EnrollmentRequest struct {
	Org string `json:"-" path:"org"`
}

// HoldRequest names a hold.
type HoldRequest struct {
	Name string `json:"-" path:"name"`
}

func (d *FleetService) listPools(_ context.Context, p access.Permit, req FleetListRequest) (Envelope[[]Pool], error) {
	return listPage(d.Plane, pools(), p, req.ListRequest, req.only(), func(o Pool) bool { return req.matches(o.OrgName, o.Forge) })
}

func (d *FleetService) listEnrollments(_ context.Context, p access.Permit, req FleetListRequest) (Envelope[[]Enrollment], error) {
	return listPage(d.Plane, enrollments(), p, req.ListRequest, req.only(), func(o Enrollment) bool { return req.matches(o.Name, o.Forge) })
}

func (d *FleetService) listDrift(_ context.Context, p access.Permit, req FleetListRequest) (Envelope[[]Drift], error) {
	return listPage(d.Plane, drifts(), p, req.ListRequest, req.only(), func(o Drift) bool { return req.matches(o.OrgName, o.Forge) })
}

// listHolds lists the holds. A filter by organisation or forge matches only holds whose scope names it.
func (d *FleetService) listHolds(_ context.Context, p access.Permit, req FleetListRequest) (Envelope[[]Hold], error) {
	return listPage(d.Plane, holds(), p, req.ListRequest, req.only(), func(o Hold) bool { return req.matches(o.Scope.Org, o.Scope.Forge) })
}

func (d *FleetService) getPool(ctx context.Context, p access.Permit, req PoolRequest) (Envelope[Pool], error) {
	return getter(d.Plane, pools(), "pool", PoolRequest.id)(ctx, p, req)
}

// Runners holds the runners, grouped by forge.
type Runners struct {
	Forges []ForgeRunners `json:"forges" doc:"null: the forges are not known"`
}

// ForgeRunners holds the runners for the jobs of one forge.
type ForgeRunners struct {
	Forge   string   `json:"forge"`
	Type    string   `json:"type" enum:"github,gitlab,unknown"`
	Source  string   `json:"source" enum:"ok,down,unknown" doc:"whether the forge responds"`
	Counts  Counts   `json:"counts" doc:"sums of all pools below; null if a part is not known"`
	Orgs    []string `json:"orgs"`
	Runners []Pool   `json:"runners"`
}

func (d *FleetService) listRunnersByForge(_ context.Context, p access.Permit, req RunnersRequest) (Envelope[Runners], error) {
	lists, revision := d.Plane.Store.ListAll(KindPool, KindForge)
	sources := uniqueSources(slices.Concat(lists[0].Sources, lists[1].Sources))
	slices.SortFunc(sources, func(a, b Source) int { return cmp.Compare(a.Name, b.Name) })
	if !lists[0].Known {
		return newEnvelope(d.Plane, "Runners", Runners{}, revision, sources), nil
	}
	groups := map[string]*ForgeRunners{}
	group := func(forge string) *ForgeRunners {
		if groups[forge] == nil {
			zero := Counts{new(0), new(0), new(0), new(0)}
			groups[forge] = &ForgeRunners{Forge: forge, Type: "unknown", Source: "unknown", Counts: zero, Orgs: []string{}, Runners: []Pool{}}
		}
		return groups[forge]
	}
	for _, f := range visibleTo[Forge](p, lists[1]) {
		if !req.matches(string(req.Org), f.Name) {
			continue
		}
		g := group(f.Name)
		g.Type, g.Source = f.Type, describe(f.Reachable, "ok", "down", "unknown")
	}
	for _, o := range visibleTo[Pool](p, lists[0]) {
		if !req.matches(o.OrgName, o.Forge) {
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
	return newEnvelope(d.Plane, "Runners", out, revision, sources), nil
}

// poolsIn returns the runners in the store that a scope covers, and false if the runners are not known.
func (d *FleetService) poolsIn(s Scope) (some []Pool, known bool) {
	l := d.Plane.Store.List(KindPool)
	for _, o := range l.Objects {
		if p, ok := o.(Pool); ok && s.covers(p) {
			some = append(some, p)
		}
	}
	return some, l.Known
}

// checkScope returns NotFound for a scope that names something unknown. If the lists themselves are not known it accepts the scope, because a
// pause must not fail for lack of data.
func (d *FleetService) checkScope(s Scope) error {
	if s.All {
		return nil
	}
	if some, known := d.poolsIn(s); len(some) > 0 || !known {
		return nil
	}
	mayExist := func(k Kind, key string) bool {
		_, found := d.Plane.Store.Get(k, key)
		return found || !d.Plane.Store.List(k).Known
	}
	if s.Forge != "" && mayExist(KindForge, s.Forge) || s.Org != "" && s.Pool == "" && mayExist(KindEnrollment, s.Org) {
		return nil
	}
	return problem.New(problem.NotFound, "There is no "+s.String()+", or you may not see it.", "List the runners that you may see.")
}
