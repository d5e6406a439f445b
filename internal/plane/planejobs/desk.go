package planejobs

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
)

// A Desk answers what callers ask about single runners. All fields but those marked are
// required.
type Desk struct {
	Plane *plane.Desk
	// Events are what happened in a namespace lately, or, "", to what has none. They are
	// not the caller's only, and may be some seconds old.
	Events func(ctx context.Context, namespace string) ([]Event, error)
	// Log, optional, opens the log of a runner of the permit's organisation, until ctx
	// ends; nil: none is shown.
	Log func(ctx context.Context, p access.Permit, o Opening) (io.ReadCloser, error)
}

// A ListRequest asks for one page of what a pool of an organisation has.
type ListRequest struct {
	plane.ListRequest
	planefleet.PoolRequest
}

// A RunnerRequest names a runner.
type RunnerRequest struct {
	Namespace string `json:"-" path:"namespace"`
	Name      string `json:"-" path:"name"`
}

// pool are the runners of an organisation in a pool, as the caller sees them.
func (d *Desk) pool(p access.Permit, req planefleet.PoolRequest) (planefleet.Pool, plane.Listing, error) {
	return plane.One[planefleet.Pool](d.Plane, plane.KindPool, p, id(req), "pool")
}

func id(req planefleet.PoolRequest) string { return req.Forge + "/" + req.Org + "/" + req.Pool }

// list is one page of a pool's runners.
func (d *Desk) list(_ context.Context, p access.Permit, req ListRequest) (plane.Envelope[[]Runner], error) {
	return d.page(p, req, "", func(Runner) bool { return true })
}

// jobs is one page of those that run a job, or ran one and are still there.
func (d *Desk) jobs(_ context.Context, p access.Permit, req ListRequest) (plane.Envelope[[]Runner], error) {
	return d.page(p, req, " jobs", func(o Runner) bool { return o.Job != nil })
}

func (d *Desk) page(p access.Permit, req ListRequest, only string, admits func(Runner) bool) (e plane.Envelope[[]Runner], err error) {
	if _, _, err := d.pool(p, req.PoolRequest); err != nil {
		return e, err
	}
	of := id(req.PoolRequest)
	return plane.PageOf(d.Plane, runners(), p, req.ListRequest, of+only, func(o Runner) bool { return o.Pool == of && admits(o) })
}

// all is one page of all runners, whichever pool they are in.
func (d *Desk) all(_ context.Context, p access.Permit, req planefleet.ListRequest) (plane.Envelope[[]Runner], error) {
	return plane.PageOf(d.Plane, runners(), p, req.ListRequest, string(req.Org)+"/"+string(req.Forge), func(o Runner) bool {
		forge, _, _ := strings.Cut(o.Pool, "/")
		return (req.Org == "" || string(req.Org) == o.OrgName) && (req.Forge == "" || string(req.Forge) == forge)
	})
}

func (d *Desk) runner(_ context.Context, p access.Permit, req RunnerRequest) (plane.Envelope[Runner], error) {
	o, l, err := d.one(p, req)
	return plane.Answer(d.Plane, "Runner", o, l.Revision, l.Sources), err
}

func (d *Desk) one(p access.Permit, req RunnerRequest) (Runner, plane.Listing, error) {
	return plane.One[Runner](d.Plane, plane.KindRunner, p, req.Namespace+"/"+req.Name, "runner")
}

// A Config is how a pool of an organisation is set up.
type Config struct {
	ID       string               `json:"id" doc:"of the pool: forge/org/pool"`
	Settings []planefleet.Setting `json:"settings" doc:"null: it is not known what the pool says"`
}

func (d *Desk) config(_ context.Context, p access.Permit, req planefleet.PoolRequest) (plane.Envelope[Config], error) {
	o, l, err := d.pool(p, req)
	return plane.Answer(d.Plane, "PoolConfig", Config{o.ID, o.Settings}, l.Revision, l.Sources), err
}

// A NameRequest names a pool without saying whose.
type NameRequest struct {
	Name plane.Text `json:"-" query:"name" doc:"of a pool, or its id: forge/org/pool"`
}

func (d *Desk) configNamed(ctx context.Context, p access.Permit, req NameRequest) (e plane.Envelope[Config], err error) {
	if req.Name == "" {
		return e, plane.Invalid("name", "Say which pool.", "List those that you may see.")
	}
	of, err := planefleet.Named(d.Plane, p, string(req.Name))
	if err != nil {
		return e, err
	}
	return d.config(ctx, p, of)
}

// A Diagnosis is what keeps a pool's runners from working.
type Diagnosis struct {
	ID       string    `json:"id" doc:"of the pool: forge/org/pool"`
	State    string    `json:"state" doc:"of the pool"`
	Findings []Finding `json:"findings" doc:"the worst first; empty: nothing speaks against its working"`
}

// diagnosis looks at all that is known of a pool. What is not known is a finding, and
// no reason to say nothing.
func (d *Desk) diagnosis(ctx context.Context, p access.Permit, req planefleet.PoolRequest) (e plane.Envelope[Diagnosis], err error) {
	o, l, err := d.pool(p, req)
	if err != nil {
		return e, err
	}
	f := Facts{Pool: o}
	known := d.Plane.Board.List(plane.KindRunner)
	for _, r := range plane.Seen[Runner](p, known) {
		if r.Pool == o.ID {
			f.Runners = append(f.Runners, r)
		}
	}
	f.RunnersKnown = known.Known
	if org, _, err := plane.One[planefleet.Enrollment](d.Plane, plane.KindEnrollment, p, o.OrgName, "organisation"); err == nil {
		f.Enrollment = &org
	}
	if forge, _, err := plane.One[planefleet.Forge](d.Plane, plane.KindForge, p, o.Forge, "forge"); err == nil {
		f.Forge = &forge
	}
	sources := append(slices.Clone(l.Sources), known.Sources...)
	var source plane.Source
	f.Events, source = d.happened(ctx, o)
	f.Sources = unique(append(sources, source))
	return plane.Answer(d.Plane, "PoolDiagnosis", Diagnosis{o.ID, o.State, Diagnose(f)}, l.Revision, f.Sources), nil
}

// unique are sources without repetition, in order.
func unique(all []plane.Source) (out []plane.Source) {
	for _, s := range all {
		if !slices.ContainsFunc(out, func(o plane.Source) bool { return o.Name == s.Name }) {
			out = append(out, s)
		}
	}
	return out
}

// now is the time, as answers have it.
func (d *Desk) now() time.Time { return d.Plane.Now().UTC() }
