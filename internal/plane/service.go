package plane

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// Service is the service behind the plane's API. All fields are required except where noted.
type Service struct {
	Store *Store
	Now   func() time.Time
	// Version and Commit identify the running program.
	Version, Commit string
	// Ready reports whether the process is ready.
	Ready func() bool
	// RevokeSignin ends the sign-in that the permit is for. A dry run sends a dry-run request to the API server and changes nothing.
	RevokeSignin func(ctx context.Context, p access.Permit, namespace, name, reason string, dryRun bool) (Revocation, error)
	// AuditEntries calls yield for each entry of the audit log, newest first, until yield returns false. It counts damaged lines. See Record.
	AuditEntries func(ctx context.Context, yield func(AuditEntry) bool) (damaged int, err error)

	// RecentAudit holds the latest audit entries, for streams that follow the audit log.
	RecentAudit *audit.Recent
	// AccessProxies, optional, returns the access proxies whose open streams the plane shows.
	AccessProxies func() []AccessProxy
	// Recorder, optional, is the recorder whose recordings the plane shows.
	Recorder *Recorder
	// Exposures returns the services that the settings expose on the tailnet, with their addresses if they have any. The source of each
	// service reports its health.
	Exposures func() []Exposure
	// Capability and Tags, both optional, are the capability whose rules the plane reads and the tags of its node, for CheckPolicy. Without
	// tags every destination counts.
	Capability string
	Tags       []string

	replays replayCache
	streams streamCounter
}

// listRoute returns the route that serves the paged list of a kind.
func listRoute[T Object](d *Service, op httpapi.Op[ListRequest, Envelope[[]T]], of table[T]) httpapi.Route {
	return handle(d, op, func(_ context.Context, p access.Permit, req ListRequest) (Envelope[[]T], error) {
		return listPage(d, of, p, req, "", nil)
	})
}

// listPage returns one page of the objects of a kind that the caller may see and that choose admits. A nil choose admits all. only describes
// the choice in words; a cursor is valid only for the same choice.
func listPage[T Object](d *Service, of table[T], p access.Permit, req ListRequest, only string, choose func(T) bool) (Envelope[[]T], error) {
	known := d.Store.List(of.Kind)
	var none []T
	visible := visibleTo[T](p, known)
	if choose != nil {
		visible = slices.DeleteFunc(visible, func(o T) bool { return !choose(o) })
	}
	objects, page, err := of.page(visible, only, req)
	if err != nil {
		return Envelope[[]T]{}, err
	}
	if !known.Known { // no source has reported its list, so an empty list would be wrong
		return newEnvelope(d, of.Name, none, known.Revision, known.Sources), nil
	}
	e := newEnvelope(d, of.Name, objects, known.Revision, known.Sources)
	e.Meta.Page = &page
	return e, nil
}

// getObject returns the object of a kind with the given key, as the caller sees it. It returns NotFound for an object that the caller may not
// see. noun names the object in that error.
func getObject[T Object](d *Service, k Kind, p access.Permit, key, noun string) (T, Listing, error) {
	var none T
	known := d.Store.List(k)
	v := ViewerOf(p)
	o, found := d.Store.Get(k, key)
	switch {
	case found && v.sees(k, o):
		return v.view(o).(T), known, nil
	case !known.Known: // the object may exist
		return none, known, problem.New(problem.Unavailable, "The list is not known yet.", "Try again in a moment. If it fails again, check the plane's sources.").WithRetryAfter(time.Second)
	}
	return none, known, problem.New(problem.NotFound, "There is no such "+noun+", or you may not see it.", "List the ones that you may see.")
}

// handler serves the requests of one operation.
type handler[Req, Resp any] func(context.Context, access.Permit, Req) (Resp, error)

// getter returns the handler of an operation for one object of a kind. noun names the object in errors.
func getter[Req any, T Object](d *Service, of table[T], noun string, key func(Req) string) handler[Req, Envelope[T]] {
	return func(_ context.Context, p access.Permit, req Req) (Envelope[T], error) {
		o, l, err := getObject[T](d, of.Kind, p, key(req), noun)
		return newEnvelope(d, strings.TrimSuffix(of.Name, "List"), o, l.Revision, l.Sources), err
	}
}

// handle returns the route that serves op with fn. It calls fn only with a permit for this operation, whatever route or tool the request
// came by (PL-08).
func handle[Req, Resp any](d *Service, op httpapi.Op[Req, Resp], fn handler[Req, Resp]) httpapi.Route {
	return op.Serve(func(ctx context.Context, p access.Permit, req Req) (resp Resp, err error) {
		if err := p.Require(op.Verb, d.Now()); err != nil {
			return resp, err
		}
		return fn(ctx, p, req)
	})
}

// withPath returns op under another path that the existing dashboard and its tools use, such as "/api/gitops/drift".
func withPath[Req, Resp any](op httpapi.Op[Req, Resp], path string) httpapi.Op[Req, Resp] {
	method, _, _ := strings.Cut(op.Pattern, " ")
	op.Pattern = method + " " + path
	return op
}

// Empty is a request without parameters.
type Empty struct{}

// Me describes a caller as the plane sees it.
type Me struct {
	Login       string                   `json:"login" doc:"empty for a tagged node"`
	DisplayName string                   `json:"displayName"`
	Node        string                   `json:"node"`
	Tags        []string                 `json:"tags" null:"never"`
	Tailnet     string                   `json:"tailnet"`
	Via         access.Via               `json:"via" enum:"tailnet,serve,proxy,oidc,dev"`
	Roles       []Role                   `json:"roles" null:"never"`
	Verbs       map[string][]access.Verb `json:"verbs" null:"never" doc:"permitted verbs, by organisation; *: all organisations; own: the caller's own objects"`
	Warnings    []string                 `json:"warnings" null:"never" doc:"rules of the policy that match but give no permission"`
}

// Role is a role of the caller, and the reason for it.
type Role struct {
	Role   string   `json:"role" enum:"viewer,operator,org-admin,platform-admin"`
	Orgs   []string `json:"orgs" null:"never"`
	Source string   `json:"source" doc:"grant, owner of ORG, member of ORG, settings"`
}

func (d *Service) getMe(_ context.Context, p access.Permit, _ Empty) (Envelope[Me], error) {
	c := p.Caller()
	me := Me{Login: string(c.Login), DisplayName: c.DisplayName, Node: c.Device.Name, Tags: []string{}, Tailnet: c.Tailnet, Via: c.Via,
		Roles: []Role{}, Verbs: p.Verbs(), Warnings: append([]string{}, p.Faults()...)}
	for _, t := range c.Tags {
		me.Tags = append(me.Tags, string(t))
	}
	for _, role := range p.PlaneRoles() {
		me.Roles = append(me.Roles, Role{string(role.Name), append([]string{}, role.Orgs...), role.Source})
	}
	return newEnvelope(d, "Me", me, d.Store.Revision(), nil), nil
}

func (d *Service) listSources(context.Context, access.Permit, Empty) (Envelope[[]Source], error) {
	all := d.Store.Sources()
	return newEnvelope(d, "SourceList", all, d.Store.Revision(), all), nil
}

// Health is the health of the process.
type Health struct {
	Version string   `json:"version"`
	Commit  string   `json:"commit"`
	Ready   bool     `json:"ready"`
	Sources []Source `json:"sources" null:"never"`
}

func (d *Service) getHealth(context.Context, access.Permit, Empty) (Envelope[Health], error) {
	all := d.Store.Sources()
	return newEnvelope(d, "Health", Health{d.Version, d.Commit, d.Ready(), all}, d.Store.Revision(), all), nil
}

// Exposure is a service of the cluster that the plane exposes on the tailnet.
type Exposure struct {
	Name    string       `json:"name" doc:"name in the settings"`
	Address *string      `json:"address" doc:"address with the name that the tailnet assigned; null: none now"`
	Access  string       `json:"access" enum:"observe.read,identified" doc:"who may use it: observe.read: callers that may read everything; identified: every person of the tailnet (the service checks further rights itself)"`
	Source  string       `json:"source" doc:"its entry in the list of sources"`
	State   SourceStatus `json:"state" enum:"ok,degraded,down"`
	Problem string       `json:"problem" doc:"a sentence; empty: nothing is wrong"`
}

// listExposures lists the exposed services with the health that their sources report.
func (d *Service) listExposures(context.Context, access.Permit, Empty) (Envelope[[]Exposure], error) {
	stands := map[string]Source{}
	for _, s := range d.Store.Sources() {
		stands[s.Name] = s
	}
	all, of := []Exposure{}, []Source{}
	for _, e := range d.Exposures() {
		s, found := stands[e.Source]
		if !found {
			s = Source{Name: e.Source, Status: StatusDown, Since: d.Now().UTC(), Message: "There is no report about it yet."}
		}
		if e.State, e.Problem = s.Status, s.Message; s.Status == StatusDown {
			e.Address = nil
		}
		all, of = append(all, e), append(of, s)
	}
	return newEnvelope(d, "ExposureList", all, d.Store.Revision(), of), nil
}
