package exposure

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// UpstreamUse is the verb of an upstream that is open to every identified person. No role includes it, and it permits only that upstream.
const UpstreamUse access.Verb = "upstream.use"

// adminPatterns returns the patterns of paths that change Prometheus or stop it. They may lie below the upstream's own path.
func adminPatterns() (patterns []string) {
	for _, below := range []string{"", "/{a}", "/{a}/{b}"} {
		for _, p := range []string{"/-/reload", "/-/quit", "/api/v1/admin", "/api/v1/admin/{rest...}"} {
			patterns = append(patterns, below+p)
		}
	}
	return patterns
}

// Routes returns the routes of the upstream's server: every path, with the verb that it needs. It panics if Check would return an error.
func (u Upstream) Routes() []httpapi.Route {
	p := newProxy(u)
	if u.Access == AccessIdentified {
		return []httpapi.Route{u.route("/{path...}", UpstreamUse, p)}
	}
	routes := []httpapi.Route{u.route("/{path...}", access.ObserveRead, p)}
	for _, pattern := range adminPatterns() {
		routes = append(routes, u.route(pattern, access.ObserveAdmin, p))
	}
	return routes
}

func (u Upstream) route(pattern string, v access.Verb, p *proxy) httpapi.Route {
	op := httpapi.Op[struct{}, struct{}]{Pattern: pattern, Verb: v, Doc: "Use " + u.Name + ".", Page: true}
	return op.ServeHandler(func(w http.ResponseWriter, r *http.Request, permit access.Permit) { p.serve(w, r, permit, v) })
}

// Decide returns the Decide function of the upstream's server. plane is that of the operator plane. It admits only people, whatever a grant
// says about tags, because the exposed pages are for people.
func (u Upstream) Decide(plane func(access.Caller, access.Verb, time.Time) (access.Permit, error)) func(access.Caller, access.Verb, time.Time) (access.Permit, error) {
	return func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
		if err := access.Admit(c); err != nil {
			return access.Permit{}, err
		}
		if c.Tagged() {
			return access.Permit{}, problem.New(problem.TaggedNode, fmt.Sprintf("%s is a tagged node, which belongs to no person.", c.Device.Name),
				"Use a device that belongs to a person.")
		}
		if u.Access == AccessObserve {
			return plane(c, v, now)
		}
		switch {
		case v != UpstreamUse:
			return access.Permit{}, problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("no access rule covers the verb %q", v))
		case c.Shared:
			return access.Permit{}, problem.New(problem.ForeignNode, fmt.Sprintf("%s is shared in from another tailnet.", c.Device.Name),
				"Use a device of this tailnet.")
		}
		// The empty permit permits nothing: the upstream itself decides.
		return access.Permit{}, nil
	}
}

// grafanaRole returns the Grafana role for the permit's roles. Only a role for all organisations counts, as for observe.read.
func grafanaRole(p access.Permit) string {
	best := ""
	for _, d := range p.PlaneRoles() { // the widest first
		switch everywhere := slices.Contains(d.Orgs, access.AllOrgs); {
		case d.Name == access.PlatformAdmin:
			return "Admin"
		case !everywhere:
		case d.Name == access.OrgAdmin, d.Name == access.Operator:
			return "Editor"
		case d.Name == access.Viewer:
			best = "Viewer"
		}
	}
	return best
}
