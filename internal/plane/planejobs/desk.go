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

// Desk is the service for single runners. All fields are required except where noted.
type Desk struct {
	Plane *plane.Desk
	// Events returns the recent events of a namespace. The events may be some seconds old, and they are not limited to those of the caller.
	Events func(ctx context.Context, namespace string) ([]Event, error)
	// Log opens the log of a runner of the permit's organisation. The stream ends with ctx. It is optional; nil means that no logs are
	// shown.
	Log func(ctx context.Context, p access.Permit, o Opening) (io.ReadCloser, error)
}

// ListRequest asks for one page of a pool's runners of an organisation.
type ListRequest struct {
	plane.ListRequest
	planefleet.PoolRequest
}

// RunnerRequest names a runner.
type RunnerRequest struct {
	Namespace string `json:"-" path:"namespace"`
	Name      string `json:"-" path:"name"`
}

// pool returns a pool of an organisation as the caller sees it.
func (d *Desk) pool(p access.Permit, req planefleet.PoolRequest) (planefleet.Pool, plane.Listing, error) {
	return plane.One[planefleet.Pool](d.Plane, plane.KindPool, p, id(req), "pool")
}

func id(req planefleet.PoolRequest) string { return req.Forge + "/" + req.Org + "/" + req.Pool }

// list returns one page of a pool's runners.
func (d *Desk) list(_ context.Context, p access.Permit, req ListRequest) (plane.Envelope[[]Runner], error) {
	return d.page(p, req, "", func(Runner) bool { return true })
}

// jobs returns one page of the runners that have a job, running or finished.
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

// all returns one page of all runners, of every pool.
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

// Config holds the effective settings of a pool of an organisation.
type Config struct {
	ID       string               `json:"id" doc:"of the pool: forge/org/pool"`
	Settings []planefleet.Setting `json:"settings" doc:"null: it is not known what the pool says"`
}

func (d *Desk) config(_ context.Context, p access.Permit, req planefleet.PoolRequest) (plane.Envelope[Config], error) {
	o, l, err := d.pool(p, req)
	return plane.Answer(d.Plane, "PoolConfig", Config{o.ID, o.Settings}, l.Revision, l.Sources), err
}

// NameRequest names a pool without its organisation.
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

// Diagnosis lists the problems of a pool's runners.
type Diagnosis struct {
	ID       string    `json:"id" doc:"of the pool: forge/org/pool"`
	State    string    `json:"state" doc:"of the pool"`
	Findings []Finding `json:"findings" doc:"the worst first; empty: nothing speaks against its working"`
}

// diagnosis examines all known facts of a pool. Unknown facts are findings too, and do not stop the diagnosis.
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

// unique returns the sources without duplicates, in order.
func unique(all []plane.Source) (out []plane.Source) {
	for _, s := range all {
		if !slices.ContainsFunc(out, func(o plane.Source) bool { return o.Name == s.Name }) {
			out = append(out, s)
		}
	}
	return out
}

// now returns the current time in UTC.
func (d *Desk) now() time.Time { return d.Plane.Now().UTC() }
