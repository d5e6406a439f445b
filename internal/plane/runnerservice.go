package plane

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// RunnerService is the service for single runners. All fields are required except where noted.
type RunnerService struct {
	Plane *Service
	// ReadEvents returns the recent events of a namespace. The events may be some seconds old, and they are not limited to those of the caller.
	ReadEvents func(ctx context.Context, namespace string) ([]Event, error)
	// OpenLog opens the log of a runner of the permit's organisation. The stream ends with ctx. It is optional; nil means that no logs are
	// shown.
	OpenLog func(ctx context.Context, p access.Permit, o LogOptions) (io.ReadCloser, error)
}

// RunnerListRequest asks for one page of a pool's runners of an organisation.
type RunnerListRequest struct {
	ListRequest
	PoolRequest
}

// RunnerRequest names a runner.
type RunnerRequest struct {
	Namespace string `json:"-" path:"namespace"`
	Name      string `json:"-" path:"name"`
}

// getPool returns a pool of an organisation as the caller sees it.
func (d *RunnerService) getPool(p access.Permit, req PoolRequest) (Pool, Listing, error) {
	return getObject[Pool](d.Plane, KindPool, p, poolID(req), "pool")
}

func poolID(req PoolRequest) string { return req.Forge + "/" + req.Org + "/" + req.Pool }

// listRunners returns one page of a pool's runners.
func (d *RunnerService) listRunners(_ context.Context, p access.Permit, req RunnerListRequest) (Envelope[[]Runner], error) {
	return d.page(p, req, "", func(Runner) bool { return true })
}

// listJobs returns one page of the runners that have a job, running or finished.
func (d *RunnerService) listJobs(_ context.Context, p access.Permit, req RunnerListRequest) (Envelope[[]Runner], error) {
	return d.page(p, req, " jobs", func(o Runner) bool { return o.Job != nil })
}

func (d *RunnerService) page(p access.Permit, req RunnerListRequest, only string, admits func(Runner) bool) (e Envelope[[]Runner], err error) {
	if _, _, err := d.getPool(p, req.PoolRequest); err != nil {
		return e, err
	}
	of := poolID(req.PoolRequest)
	return listPage(d.Plane, runners(), p, req.ListRequest, of+only, func(o Runner) bool { return o.Pool == of && admits(o) })
}

// listPods returns one page of all runners, of every pool.
func (d *RunnerService) listPods(_ context.Context, p access.Permit, req FleetListRequest) (Envelope[[]Runner], error) {
	return listPage(d.Plane, runners(), p, req.ListRequest, string(req.Org)+"/"+string(req.Forge), func(o Runner) bool {
		forge, _, _ := strings.Cut(o.Pool, "/")
		return (req.Org == "" || string(req.Org) == o.OrgName) && (req.Forge == "" || string(req.Forge) == forge)
	})
}

func (d *RunnerService) getRunner(_ context.Context, p access.Permit, req RunnerRequest) (Envelope[Runner], error) {
	o, l, err := d.findRunner(p, req)
	return newEnvelope(d.Plane, "Runner", o, l.Revision, l.Sources), err
}

func (d *RunnerService) findRunner(p access.Permit, req RunnerRequest) (Runner, Listing, error) {
	return getObject[Runner](d.Plane, KindRunner, p, req.Namespace+"/"+req.Name, "runner")
}

// Config holds the effective settings of a pool of an organisation.
type Config struct {
	ID       string    `json:"id" doc:"pool id: forge/org/pool"`
	Settings []Setting `json:"settings" doc:"null: the pool's settings are not known"`
}

func (d *RunnerService) getConfig(_ context.Context, p access.Permit, req PoolRequest) (Envelope[Config], error) {
	o, l, err := d.getPool(p, req)
	return newEnvelope(d.Plane, "PoolConfig", Config{o.ID, o.Settings}, l.Revision, l.Sources), err
}

// ConfigNameRequest names a pool without its organisation.
type ConfigNameRequest struct {
	Name Text `json:"-" query:"name" doc:"name of a pool, or its id: forge/org/pool"`
}

func (d *RunnerService) getNamedConfig(ctx context.Context, p access.Permit, req ConfigNameRequest) (e Envelope[Config], err error) {
	if req.Name == "" {
		return e, invalidField("name", "The request must name a pool.", "List the pools that you may see.")
	}
	of, err := resolvePool(d.Plane, p, string(req.Name))
	if err != nil {
		return e, err
	}
	return d.getConfig(ctx, p, of)
}

// Diagnosis lists the problems of a pool's runners.
type Diagnosis struct {
	ID       string    `json:"id" doc:"pool id: forge/org/pool"`
	State    string    `json:"state" doc:"state of the pool"`
	Findings []Finding `json:"findings" doc:"the problems, the worst first; empty: no problem was found"`
}

// getDiagnosis examines all known facts of a pool. Unknown facts are findings too, and do not stop the diagnosis.
func (d *RunnerService) getDiagnosis(ctx context.Context, p access.Permit, req PoolRequest) (e Envelope[Diagnosis], err error) {
	o, l, err := d.getPool(p, req)
	if err != nil {
		return e, err
	}
	f := diagnosisInput{Pool: o}
	known := d.Plane.Store.List(KindRunner)
	for _, r := range visibleTo[Runner](p, known) {
		if r.Pool == o.ID {
			f.Runners = append(f.Runners, r)
		}
	}
	f.RunnersKnown = known.Known
	if org, _, err := getObject[Enrollment](d.Plane, KindEnrollment, p, o.OrgName, "organisation"); err == nil {
		f.Enrollment = &org
	}
	if forge, _, err := getObject[Forge](d.Plane, KindForge, p, o.Forge, "forge"); err == nil {
		f.Forge = &forge
	}
	sources := append(slices.Clone(l.Sources), known.Sources...)
	var source Source
	f.Events, source = d.poolEvents(ctx, o)
	f.Sources = uniqueSources(append(sources, source))
	return newEnvelope(d.Plane, "PoolDiagnosis", Diagnosis{o.ID, o.State, diagnose(f)}, l.Revision, f.Sources), nil
}

// uniqueSources returns the sources without duplicates, in order.
func uniqueSources(all []Source) (out []Source) {
	for _, s := range all {
		if !slices.ContainsFunc(out, func(o Source) bool { return o.Name == s.Name }) {
			out = append(out, s)
		}
	}
	return out
}

// now returns the current time in UTC.
func (d *RunnerService) now() time.Time { return d.Plane.Now().UTC() }
