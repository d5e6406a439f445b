package plane

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
)

// Desk is the service behind the plane's API. All fields are required except where noted.
type Desk struct {
	Board *Board
	Now   func() time.Time
	// Version and Commit identify the running program.
	Version, Commit string
	// Ready reports whether the process is ready.
	Ready func() bool
	// Revoke ends the sign-in that the permit is for. A dry run sends a dry-run request to the API server and changes nothing.
	Revoke func(ctx context.Context, p access.Permit, namespace, name, reason string, dryRun bool) (Revocation, error)
	// Entries calls yield for each entry of the audit log, newest first, until yield returns false. It counts damaged lines. See Record.
	Entries func(ctx context.Context, yield func(Recorded) bool) (damaged int, err error)

	// Trail holds the latest audit entries, for streams that follow the audit log.
	Trail *audit.Trail
	// Exposed returns the services that the settings expose on the tailnet, with their addresses if they have any. The source of each
	// service reports its health.
	Exposed func() []Exposure

	replays replays
	streams streams
}

// Pages returns the route that serves the paged list of a kind.
func Pages[T Object](d *Desk, op door.Op[ListRequest, Envelope[[]T]], of Table[T]) door.Route {
	return Behind(d, op, func(_ context.Context, p access.Permit, req ListRequest) (Envelope[[]T], error) {
		return PageOf(d, of, p, req, "", nil)
	})
}

// PageOf returns one page of the objects of a kind that the caller may see and that choose admits. A nil choose admits all. only describes
// the choice in words; a cursor is valid only for the same choice.
func PageOf[T Object](d *Desk, of Table[T], p access.Permit, req ListRequest, only string, choose func(T) bool) (Envelope[[]T], error) {
	known := d.Board.List(of.Kind)
	var none []T
	visible := Seen[T](p, known)
	if choose != nil {
		visible = slices.DeleteFunc(visible, func(o T) bool { return !choose(o) })
	}
	objects, page, err := of.page(visible, only, req)
	if err != nil {
		return Envelope[[]T]{}, err
	}
	if !known.Known { // no source has reported its list, so an empty list would be wrong
		return Answer(d, of.Name, none, known.Revision, known.Sources), nil
	}
	e := Answer(d, of.Name, objects, known.Revision, known.Sources)
	e.Meta.Page = &page
	return e, nil
}

// One returns the object of a kind with the given key, as the caller sees it. It returns NotFound for an object that the caller may not
// see. noun names the object in that error.
func One[T Object](d *Desk, k Kind, p access.Permit, key, noun string) (T, Listing, error) {
	var none T
	known := d.Board.List(k)
	v := ViewerOf(p)
	o, there := d.Board.Get(k, key)
	switch {
	case there && v.sees(k, o):
		return v.show(o).(T), known, nil
	case !known.Known: // the object may exist
		return none, known, problem.New(problem.Unavailable, "It is not known yet which there are.", "Try again in a moment; the sources of the plane say what is wrong.").After(time.Second)
	}
	return none, known, problem.New(problem.NotFound, "There is no such "+noun+", or you may not see it.", "List those that you may see.")
}

// Behind returns the route that serves op with fn. It calls fn only with a permit for this operation, whatever route or tool the request
// came by (PL-08).
func Behind[Req, Resp any](d *Desk, op door.Op[Req, Resp], fn func(context.Context, access.Permit, Req) (Resp, error)) door.Route {
	return op.Serve(func(ctx context.Context, p access.Permit, req Req) (resp Resp, err error) {
		if err := p.Require(op.Verb, d.Now()); err != nil {
			return resp, err
		}
		return fn(ctx, p, req)
	})
}

// Also returns op under another path that the existing dashboard and its tools use, such as "/api/gitops/drift".
func Also[Req, Resp any](op door.Op[Req, Resp], path string) door.Op[Req, Resp] {
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
	Tags        []string                 `json:"tags"`
	Tailnet     string                   `json:"tailnet"`
	Via         access.Via               `json:"via" enum:"tailnet,serve,proxy,oidc,dev"`
	Roles       []Role                   `json:"roles"`
	Verbs       map[string][]access.Verb `json:"verbs" doc:"what may be done, by organisation; * everywhere, own to what is one's own"`
	Warnings    []string                 `json:"warnings" doc:"rules of the policy that match and give nothing"`
}

// Role is a role of the caller, and the reason for it.
type Role struct {
	Role   string   `json:"role" enum:"viewer,operator,org-admin,platform-admin"`
	Orgs   []string `json:"orgs"`
	Source string   `json:"source" doc:"grant, owner of ORG, member of ORG, settings"`
}

func (d *Desk) me(_ context.Context, p access.Permit, _ Empty) (Envelope[Me], error) {
	c := p.Caller()
	me := Me{Login: string(c.Login), DisplayName: c.DisplayName, Node: c.Device.Name, Tags: []string{}, Tailnet: c.Tailnet, Via: c.Via,
		Roles: []Role{}, Verbs: p.Verbs(), Warnings: append([]string{}, p.Faults()...)}
	for _, t := range c.Tags {
		me.Tags = append(me.Tags, string(t))
	}
	for _, duty := range p.Duties() {
		me.Roles = append(me.Roles, Role{string(duty.Name), append([]string{}, duty.Orgs...), duty.Source})
	}
	return Answer(d, "Me", me, d.Board.Revision(), nil), nil
}

func (d *Desk) sources(context.Context, access.Permit, Empty) (Envelope[[]Source], error) {
	all := d.Board.Sources()
	return Answer(d, "SourceList", all, d.Board.Revision(), all), nil
}

// Health is the health of the process.
type Health struct {
	Version string   `json:"version"`
	Commit  string   `json:"commit"`
	Ready   bool     `json:"ready"`
	Sources []Source `json:"sources"`
}

func (d *Desk) health(context.Context, access.Permit, Empty) (Envelope[Health], error) {
	all := d.Board.Sources()
	return Answer(d, "Health", Health{d.Version, d.Commit, d.Ready(), all}, d.Board.Revision(), all), nil
}
