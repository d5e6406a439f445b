package xds

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tailplane/tailplane/internal/gateway"
)

// Name prefixes of the added routes.
const (
	servicePrefix = "tailscale-svc-"
	rulePrefix    = "tailscale-rule-"
)

func isOwnRoute(r *routev3.Route) bool {
	return strings.HasPrefix(r.GetName(), servicePrefix) || strings.HasPrefix(r.GetName(), rulePrefix)
}

// A renderedHost is a rendered virtual host.
type renderedHost struct {
	*routev3.VirtualHost
	changed   bool
	ambiguous bool // a route was not added because its filters are ambiguous
}

// renderHost adds the routes and rules of the Gateway to a virtual host. usable reports whether a
// cluster can be used; routes to other clusters are left out. Routes that an earlier call added
// stay unchanged.
func renderHost(vh *routev3.VirtualHost, g *gateway.Gateway, section string, usable func(string) bool) renderedHost {
	existing := map[string]bool{}
	for _, r := range vh.GetRoutes() {
		if isOwnRoute(r) {
			existing[r.GetName()] = true
		}
	}
	out := renderedHost{VirtualHost: vh}
	routes := make([]*routev3.Route, 0, len(vh.GetRoutes())+len(g.Routes))
	cuts := map[string]int{}
	for _, r := range vh.GetRoutes() {
		key, named := ruleOf(r.GetName())
		rule, ok := g.Rule(key)
		if !named || !ok {
			routes = append(routes, r)
			continue
		}
		now, more := renderRule(r, rule, cuts, existing, usable)
		out.changed = out.changed || now != r || len(more) > 0
		routes = append(append(routes, more...), now)
	}
	filters, at := routeFilters{routes: vh.GetRoutes(), known: map[gateway.Name]filterConfig{}}, 0
	for _, service := range g.Routes { // longer prefixes come first, so the insert position only moves down
		if existing[service.Name] || service.Section != "" && service.Section != section || !usable(service.Cluster) ||
			!slices.ContainsFunc(vh.GetDomains(), service.Covers) {
			continue
		}
		filters, ok := filters.find(service.InheritFrom)
		if !ok {
			out.ambiguous = true
			continue
		}
		r := renderService(service, filters)
		if r.ValidateAll() != nil {
			continue
		}
		at = insertIndex(routes, at, service.Prefix)
		routes = slices.Insert(routes, at, r)
		out.changed = true
	}
	if out.changed {
		out.VirtualHost = shallowCopy(vh)
		out.Routes = routes
	}
	return out
}

// renderRule returns the route with its rule applied, and the routes that are cut from it and
// belong before it. cuts counts the routes that were cut for each path rule. existing contains the
// names of routes that already exist.
func renderRule(
	r *routev3.Route,
	rule gateway.Rule,
	cuts map[string]int,
	existing map[string]bool,
	usable func(string) bool,
) (*routev3.Route, []*routev3.Route) {
	rule = usableRule(rule, usable)
	now := applyRule(r, rule)
	if now != r && (proto.Equal(now, r) || now.ValidateAll() != nil) {
		now = r
	}
	if !forwards(r) {
		return now, nil
	}
	var more []*routev3.Route
	path := pathOf(r.GetMatch())
	for _, p := range rule.Paths {
		switch p.Path.Relation(path) {
		case gateway.PathCovers:
			return now, more // routes for the following paths would never match
		case gateway.PathWithin:
			name := p.Name + "_" + strconv.Itoa(cuts[p.Name])
			cuts[p.Name]++
			if existing[name] {
				continue
			}
			if c, err := splitRoute(now, p, name, rule.Policies); err == nil {
				more = append(more, c)
			}
		}
	}
	return now, more
}

// usableRule replaces clusters that are not usable by missingCluster. Requests for them must not go to
// another backend.
func usableRule(rule gateway.Rule, usable func(string) bool) gateway.Rule {
	split := func(all []gateway.WeightedCluster) (usableClusters []gateway.WeightedCluster, lost uint32) {
		for _, w := range all {
			if usable(w.Cluster) {
				usableClusters = append(usableClusters, w)
			} else {
				lost += w.Weight
			}
		}
		return usableClusters, lost
	}
	var lost uint32
	rule.Mixed, lost = split(rule.Mixed)
	rule.RefusedWeight += lost
	if rule.Default, lost = split(rule.Default); lost > 0 {
		rule.Default = append(rule.Default, gateway.WeightedCluster{Cluster: missingCluster, Weight: lost})
	}
	rule.Paths = slices.Clone(rule.Paths)
	for i, p := range rule.Paths {
		if !usable(p.Cluster) {
			rule.Paths[i].Cluster = missingCluster
		}
	}
	return rule
}

// renderService creates the route of a service.
func renderService(s gateway.Route, filters map[string]*anypb.Any) *routev3.Route {
	a := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: s.Cluster},
		UpgradeConfigs:   []*routev3.RouteAction_UpgradeConfig{{UpgradeType: "websocket"}}, // same as on Envoy Gateway's routes
	}
	addRetry(a)
	if s.Strip {
		// A prefix rewrite would produce "//x" from "/svc/web//x" and from "/svc/web/x".
		a.RegexRewrite = rewrite("^"+regexp.QuoteMeta(s.Prefix)+"/*", "/")
	}
	if s.HostRewrite != "" {
		a.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: s.HostRewrite}
	}
	return &routev3.Route{
		Name:                 s.Name,
		Match:                &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: s.Prefix}},
		Action:               &routev3.Route_Route{Route: a},
		TypedPerFilterConfig: filters,
	}
}

// insertIndex returns the insert position for a route with this prefix: before the first route from
// index from with a shorter prefix. Exact paths and regular expressions come before prefixes, as
// the Gateway API requires and as Envoy Gateway sorts them.
func insertIndex(routes []*routev3.Route, from int, prefix string) int {
	for i, r := range routes[from:] {
		if p := pathOf(r.GetMatch()); (p.Kind == gateway.PathPrefix || p.Kind == gateway.PathString) && len(p.Text) < len(prefix) {
			return from + i
		}
	}
	return len(routes)
}

// routeFilters are the per-route filter configurations of one virtual host. Most filters of Envoy
// Gateway, such as JWT, OIDC and authorization, are inactive until a route activates them. An
// added route without them would bypass a policy.
type routeFilters struct {
	routes []*routev3.Route
	known  map[gateway.Name]filterConfig // by the HTTPRoute in InheritFrom; the zero Name means all routes
}

type filterConfig struct {
	filters map[string]*anypb.Any
	ok      bool
}

// find returns the filter configuration of the virtual host's routes if all agree. Otherwise it
// returns the configuration of the HTTPRoute from.
func (g *routeFilters) find(from gateway.Name) (map[string]*anypb.Any, bool) {
	for _, of := range []gateway.Name{{}, from} {
		found, known := g.known[of]
		if !known {
			found = g.common(of)
			g.known[of] = found
		}
		if found.ok {
			return found.filters, true
		}
	}
	return nil, false
}

// common returns the filter configuration of the routes of an HTTPRoute, or of all routes, if they
// are equal.
func (g *routeFilters) common(of gateway.Name) (found filterConfig) {
	for _, r := range g.routes {
		if isOwnRoute(r) {
			continue
		}
		if o, ok := originOf(r.GetMetadata()); of != (gateway.Name{}) && (!ok || o.kind != "HTTPRoute" || o.name != of) {
			continue
		}
		if !found.ok {
			found = filterConfig{r.GetTypedPerFilterConfig(), true}
		} else if !maps.EqualFunc(found.filters, r.GetTypedPerFilterConfig(), func(a, b *anypb.Any) bool { return proto.Equal(a, b) }) {
			return filterConfig{}
		}
	}
	return found
}

// shallowCopy returns a shallow copy of m. Setting a field of the copy does not change m.
func shallowCopy[M proto.Message](m M) M {
	from := m.ProtoReflect()
	to := from.New()
	for fd, v := range from.Range {
		to.Set(fd, v)
	}
	to.SetUnknown(from.GetUnknown())
	return to.Interface().(M)
}
