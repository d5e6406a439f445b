package planefleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// seed is the path prefix that the existing dashboard and its tools use for the runners of one pool. They name the pool by its id, or by a
// name that is unique among the pools that the caller may see.
const seed = "/api/runners"

// The operations under that prefix. They do the same as the operations with the similar names.
var (
	GetNamed = door.Op[NameRequest, plane.Envelope[Pool]]{Pattern: "GET " + seed + "/{name}", Verb: access.FleetRead, Example: NameRequest{"gh-nix"},
		Doc: "Show the runners of one organisation in one pool, by a name that no other pool has that the caller may see.", Answers: GetPool.Answers, Refusals: slices.Concat(plane.Finding, []problem.Code{problem.Conflict})}
	PauseNamed = door.Op[PauseNameRequest, plane.Envelope[Created]]{Pattern: "POST " + seed + "/{name}/pause", Verb: access.HoldsCreate, Example: PauseNameRequest{Name: "gh-nix", Reason: "a flaky image"},
		Doc: "Pause the runners of one organisation in one pool, by a name that no other pool has that the caller may see.", Answers: PausePool.Answers, Refusals: PausePool.Refusals}
	ResumeNamed = door.Op[ResumeNameRequest, plane.Envelope[Lifted]]{Pattern: "POST " + seed + "/{name}/resume", Verb: access.HoldsLift, Example: ResumeNameRequest{Name: "gh-nix", Reason: "the image is mended"},
		Doc: "Lift what holds the runners of exactly one organisation in one pool, by a name that no other pool has that the caller may see.", Answers: ResumePool.Answers, Refusals: ResumePool.Refusals}
	getByID    = plane.Also(GetPool, seed+"/{forge}/{org}/{pool}")
	pauseByID  = plane.Also(PausePool, seed+"/{forge}/{org}/{pool}/pause")
	resumeByID = plane.Also(ResumePool, seed+"/{forge}/{org}/{pool}/resume")
	scalers    = plane.Also(ListPools, "/api/k8s/hpa")
	drift      = plane.Also(ListDrift, "/api/gitops/drift")
)

// named returns the routes of these operations, served by d.
func (d *Desk) named() []door.Route {
	return []door.Route{
		plane.Behind(d.Plane, GetNamed, d.poolNamed), plane.Behind(d.Plane, PauseNamed, d.pauseNamed), plane.Behind(d.Plane, ResumeNamed, d.resumeNamed),
		plane.Behind(d.Plane, getByID, d.pool), plane.Behind(d.Plane, pauseByID, d.pause), plane.Behind(d.Plane, resumeByID, d.resume),
		plane.Behind(d.Plane, scalers, d.pools), plane.Behind(d.Plane, drift, d.drifts),
	}
}

// NameRequest names a pool without its organisation.
type NameRequest struct {
	Name string `json:"-" path:"name"`
}

// PauseNameRequest is a [PauseRequest] that names a pool without its organisation.
type PauseNameRequest struct {
	Name      string               `json:"-" path:"name"`
	Reason    plane.Reason         `json:"reason" doc:"why, 1 to 500 characters"`
	ExpiresIn door.Duration        `json:"expiresIn,omitzero" doc:"when it ends by itself, 1m to 2160h; without it, it does not"`
	Drain     bool                 `json:"drain,omitempty" doc:"when the last job has ended, what ran it goes"`
	DryRun    plane.Flag           `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
	Key       plane.IdempotencyKey `json:"-" header:"Idempotency-Key" doc:"as of a hold"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r PauseNameRequest) AuditArgs() map[string]string {
	args := PauseRequest{Reason: r.Reason, ExpiresIn: r.ExpiresIn, Drain: r.Drain, DryRun: r.DryRun}.AuditArgs()
	args["scope"] = "pool " + r.Name
	return args
}

// ResumeNameRequest is a [ResumeRequest] that names a pool without its organisation.
type ResumeNameRequest struct {
	Name   string       `json:"-" path:"name"`
	Reason plane.Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun plane.Flag   `json:"-" query:"dryRun" doc:"ask whether it would be done, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r ResumeNameRequest) AuditArgs() map[string]string {
	args := ResumeRequest{Reason: r.Reason, DryRun: r.DryRun}.AuditArgs()
	args["scope"] = "pool " + r.Name
	return args
}

// Named finds a pool by its id, or by a name that is unique among the pools that the caller may see.
func Named(d *plane.Desk, p access.Permit, name string) (PoolRequest, error) {
	l := d.Board.List(plane.KindPool)
	var found []PoolRequest
	var ids []string
	for _, o := range plane.Seen[Pool](p, l) {
		if o.Name == name || o.ID == name {
			found, ids = append(found, PoolRequest{o.Forge, o.OrgName, o.Name}), append(ids, o.ID)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0: // the error also says whether the pools are unknown
		_, _, err := plane.One[Pool](d, plane.KindPool, p, name, "pool")
		return PoolRequest{}, err
	}
	more := ""
	if n := len(ids) - maxNamed; n > 0 {
		ids, more = ids[:maxNamed], fmt.Sprintf(", and %d more", n)
	}
	return PoolRequest{}, problem.New(problem.Conflict, fmt.Sprintf("%s have this name.", problem.Plural(len(found), "pool")), "Ask for one by its id: "+strings.Join(ids, ", ")+more+".")
}

// maxNamed is the maximum number of pools that the error for an ambiguous name lists.
const maxNamed = 20

func (d *Desk) poolNamed(ctx context.Context, p access.Permit, req NameRequest) (e plane.Envelope[Pool], err error) {
	of, err := Named(d.Plane, p, req.Name)
	if err != nil {
		return e, err
	}
	return d.pool(ctx, p, of)
}

func (d *Desk) pauseNamed(ctx context.Context, p access.Permit, req PauseNameRequest) (e plane.Envelope[Created], err error) {
	of, err := Named(d.Plane, p, req.Name)
	if err != nil {
		return e, err
	}
	return d.pause(ctx, p, PauseRequest{of.Forge, of.Org, of.Pool, req.Reason, req.ExpiresIn, req.Drain, req.DryRun, req.Key})
}

func (d *Desk) resumeNamed(ctx context.Context, p access.Permit, req ResumeNameRequest) (e plane.Envelope[Lifted], err error) {
	of, err := Named(d.Plane, p, req.Name)
	if err != nil {
		return e, err
	}
	return d.resume(ctx, p, ResumeRequest{of.Forge, of.Org, of.Pool, req.Reason, req.DryRun})
}
