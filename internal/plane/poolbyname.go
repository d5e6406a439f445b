package plane

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// legacyBase is the path prefix that the existing dashboard and its tools use for the runners of one pool. They name the pool by its id, or by a
// name that is unique among the pools that the caller may see.
const legacyBase = "/api/runners"

// The operations under that prefix. They do the same as the operations with the similar names.
var (
	GetNamedPool = httpapi.Op[PoolNameRequest, Envelope[Pool]]{Pattern: "GET " + legacyBase + "/{name}", Verb: access.FleetRead, Example: PoolNameRequest{"gh-nix"},
		Doc: "Show the runners of one organisation in one pool, by a name that is unique among the pools that the caller may see.", Responses: GetPool.Responses, Refusals: slices.Concat(getRefusals, []problem.Code{problem.Conflict})}
	PauseNamedPool = httpapi.Op[PauseNameRequest, Envelope[Created]]{Pattern: "POST " + legacyBase + "/{name}/pause", Verb: access.HoldsCreate, Example: PauseNameRequest{PoolNameRequest{"gh-nix"}, PauseOptions{Reason: "a flaky image"}},
		Doc: "Pause the runners of one organisation in one pool, by a name that is unique among the pools that the caller may see.", Responses: PausePool.Responses, Refusals: PausePool.Refusals}
	ResumeNamedPool = httpapi.Op[ResumeNameRequest, Envelope[Lifted]]{Pattern: "POST " + legacyBase + "/{name}/resume", Verb: access.HoldsLift, Example: ResumeNameRequest{PoolNameRequest: PoolNameRequest{"gh-nix"}, Reason: "the image is mended"},
		Doc: "Lift the holds of exactly one organisation in one pool, by a name that is unique among the pools that the caller may see.", Responses: ResumePool.Responses, Refusals: ResumePool.Refusals}
	legacyGetPool    = withPath(GetPool, legacyBase+"/{forge}/{org}/{pool}")
	legacyPausePool  = withPath(PausePool, legacyBase+"/{forge}/{org}/{pool}/pause")
	legacyResumePool = withPath(ResumePool, legacyBase+"/{forge}/{org}/{pool}/resume")
	legacyListPools  = withPath(ListPools, "/api/k8s/hpa")
	legacyListDrift  = withPath(ListDrift, "/api/gitops/drift")
)

// routesByName returns the routes of these operations, served by d.
func (d *FleetService) routesByName() []httpapi.Route {
	return []httpapi.Route{
		handle(d.Plane, GetNamedPool, byName(d.Plane, d.getPool, func(of PoolRequest, _ PoolNameRequest) PoolRequest { return of })),
		handle(d.Plane, PauseNamedPool, byName(d.Plane, d.pausePool, func(of PoolRequest, req PauseNameRequest) PauseRequest {
			return PauseRequest{of, req.PauseOptions}
		})),
		handle(d.Plane, ResumeNamedPool, byName(d.Plane, d.resumePool, func(of PoolRequest, req ResumeNameRequest) ResumeRequest {
			return ResumeRequest{of, req.Reason, req.DryRun}
		})),
		handle(d.Plane, legacyGetPool, d.getPool), handle(d.Plane, legacyPausePool, d.pausePool), handle(d.Plane, legacyResumePool, d.resumePool),
		handle(d.Plane, legacyListPools, d.listPools), handle(d.Plane, legacyListDrift, d.listDrift),
	}
}

// PoolNameRequest names a pool without its organisation.
type PoolNameRequest struct {
	Name string `json:"-" path:"name"`
}

func (r PoolNameRequest) poolName() string { return r.Name }

// poolNamer is a request that embeds a [PoolNameRequest].
type poolNamer interface{ poolName() string }

// byName returns the handler of an operation that names a pool without its organisation. It resolves the name, and calls do with the request
// that of returns.
func byName[Named poolNamer, Req, Resp any](d *Service, do handler[Req, Resp], of func(PoolRequest, Named) Req) handler[Named, Resp] {
	return func(ctx context.Context, p access.Permit, req Named) (resp Resp, err error) {
		pool, err := resolvePool(d, p, req.poolName())
		if err != nil {
			return resp, err
		}
		return do(ctx, p, of(pool, req))
	}
}

// PauseNameRequest is a [PauseRequest] that names a pool without its organisation.
type PauseNameRequest struct {
	PoolNameRequest
	PauseOptions
}

// AuditArgs returns the arguments of the request for the audit log.
func (r PauseNameRequest) AuditArgs() map[string]string {
	args := PauseRequest{PauseOptions: r.PauseOptions}.AuditArgs()
	args["scope"] = "pool " + r.Name
	return args
}

// ResumeNameRequest is a [ResumeRequest] that names a pool without its organisation.
type ResumeNameRequest struct {
	PoolNameRequest
	Reason Reason `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun Flag   `json:"-" query:"dryRun" doc:"check whether the request would succeed, and change nothing"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r ResumeNameRequest) AuditArgs() map[string]string {
	args := ResumeRequest{Reason: r.Reason, DryRun: r.DryRun}.AuditArgs()
	args["scope"] = "pool " + r.Name
	return args
}

// resolvePool finds a pool by its id, or by a name that is unique among the pools that the caller may see.
func resolvePool(d *Service, p access.Permit, name string) (PoolRequest, error) {
	l := d.Store.List(KindPool)
	var found []PoolRequest
	var ids []string
	for _, o := range visibleTo[Pool](p, l) {
		if o.Name == name || o.ID == name {
			found, ids = append(found, PoolRequest{o.Forge, o.OrgName, o.Name}), append(ids, o.ID)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0: // the error also says whether the pools are unknown
		_, _, err := getObject[Pool](d, KindPool, p, name, "pool")
		return PoolRequest{}, err
	}
	more := ""
	if n := len(ids) - maxNamedPools; n > 0 {
		ids, more = ids[:maxNamedPools], fmt.Sprintf(", and %d more", n)
	}
	return PoolRequest{}, problem.New(problem.Conflict, fmt.Sprintf("%s have this name.", problem.Plural(len(found), "pool")), "Name one by its id: "+strings.Join(ids, ", ")+more+".")
}

// maxNamedPools is the maximum number of pools that the error for an ambiguous name lists.
const maxNamedPools = 20
