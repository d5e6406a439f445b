package gatewayxds

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

// prefixes of the names of routes that we add.
const (
	servicePrefix = "tailscale-svc-"
	rulePrefix    = "tailscale-rule-"
	clusterPrefix = "tailscale-cluster-"
)

func ours(r *routev3.Route) bool {
	return strings.HasPrefix(r.GetName(), servicePrefix) || strings.HasPrefix(r.GetName(), rulePrefix)
}

// A host is a virtual host as it becomes, and what came up on the way.
type host struct {
	*routev3.VirtualHost
	changed   bool
	ambiguous bool // a route was not added, because nobody says which filters guard it
}

// renderHost adds to a virtual host what its Gateway wishes there. usable says which clusters can be sent to; what leads to
// another is left out, and what was added before stays as it is.
func renderHost(vh *routev3.VirtualHost, g *gateway.Gateway, section string, usable func(string) bool) host {
	there := map[string]bool{}
	for _, r := range vh.GetRoutes() {
		if ours(r) {
			there[r.GetName()] = true
		}
	}
	out := host{VirtualHost: vh}
	routes := make([]*routev3.Route, 0, len(vh.GetRoutes())+len(g.Routes))
	cuts := map[string]int{}
	for _, r := range vh.GetRoutes() {
		key, ok := ruleOf(r.GetName())
		if !ok {
			routes = append(routes, r)
			continue
		}
		rule, ok := g.Rule(key)
		if !ok {
			routes = append(routes, r)
			continue
		}
		now, more := renderRule(r, rule, cuts, there, usable)
		out.changed = out.changed || now != r || len(more) > 0
		routes = append(append(routes, more...), now)
	}
	filters, at := guards{routes: vh.GetRoutes(), known: map[gateway.Name]guard{}}, 0
	for _, service := range g.Routes { // longer prefixes first, so that places only go down
		if there[service.Name] || service.Section != "" && service.Section != section || !usable(service.Cluster) ||
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
		at = place(routes, at, service.Prefix)
		routes = slices.Insert(routes, at, r)
		out.changed = true
	}
	if out.changed {
		out.VirtualHost = shallow(vh)
		out.Routes = routes
	}
	return out
}

// renderRule returns a route as its rule wishes it, and the routes that are cut out of it and stand before it. cuts counts
// the routes that each path rule was cut from; there are the names of those that have been cut already.
func renderRule(r *routev3.Route, rule gateway.Rule, cuts map[string]int, there map[string]bool, usable func(string) bool) (*routev3.Route, []*routev3.Route) {
	rule = possible(rule, usable)
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
		case gateway.Covers:
			return now, more // what follows is never reached
		case gateway.Within:
			name := p.Name + "_" + strconv.Itoa(cuts[p.Name])
			cuts[p.Name]++
			if there[name] {
				continue
			}
			if c, err := cut(now, p, name, rule.Policies); err == nil {
				more = append(more, c)
			}
		}
	}
	return now, more
}

// possible puts a refusal in the place of what leads to no cluster: nobody else gets requests that were meant for it.
func possible(rule gateway.Rule, usable func(string) bool) gateway.Rule {
	turn := func(all []gateway.WeightedCluster) (kept []gateway.WeightedCluster, lost uint32) {
		for _, w := range all {
			if usable(w.Cluster) {
				kept = append(kept, w)
			} else {
				lost += w.Weight
			}
		}
		return kept, lost
	}
	var lost uint32
	rule.Mixed, lost = turn(rule.Mixed)
	rule.RefusedWeight += lost
	if rule.Default, lost = turn(rule.Default); lost > 0 {
		rule.Default = append(rule.Default, gateway.WeightedCluster{Cluster: refused, Weight: lost})
	}
	rule.Paths = slices.Clone(rule.Paths)
	for i, p := range rule.Paths {
		if !usable(p.Cluster) {
			rule.Paths[i].Cluster = refused
		}
	}
	return rule
}

// renderService makes the route of a service.
func renderService(s gateway.Route, filters map[string]*anypb.Any) *routev3.Route {
	a := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: s.Cluster},
		UpgradeConfigs:   []*routev3.RouteAction_UpgradeConfig{{UpgradeType: "websocket"}}, // as on Envoy Gateway's routes
	}
	retry(a)
	if s.Strip {
		// Not a prefix rewrite, which makes "//x" of "/svc/web//x" and of "/svc/web/x".
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

// place returns where a route for a prefix belongs: before the first, from a place on, that is for a shorter one. Exact paths
// and regular expressions stand before prefixes, as the Gateway API wishes and Envoy Gateway has it.
func place(routes []*routev3.Route, from int, prefix string) int {
	for i, r := range routes[from:] {
		if p := pathOf(r.GetMatch()); (p.Kind == gateway.PathPrefix || p.Kind == gateway.PathString) && len(p.Text) < len(prefix) {
			return from + i
		}
	}
	return len(routes)
}

// guards are the filters that routes of ours switch on in one virtual host. Most of Envoy Gateway's filters (JWT, OIDC,
// authorization and so on) do nothing until a route switches them on, so a route without them would be a way around a policy.
type guards struct {
	routes []*routev3.Route
	known  map[gateway.Name]guard // by the HTTPRoute that is named; the zero Name is where all routes agree
}

type guard struct {
	filters map[string]*anypb.Any
	ok      bool
}

// find returns the filters of the virtual host's routes if all agree, else those of the named HTTPRoute's.
func (g *guards) find(from gateway.Name) (map[string]*anypb.Any, bool) {
	for _, of := range []gateway.Name{{}, from} {
		found, known := g.known[of]
		if !known {
			found = g.agreed(of)
			g.known[of] = found
		}
		if found.ok {
			return found.filters, true
		}
	}
	return nil, false
}

// agreed returns the filters of all routes of an HTTPRoute, or of all, if they are the same.
func (g *guards) agreed(of gateway.Name) (found guard) {
	for _, r := range g.routes {
		if ours(r) {
			continue
		}
		if o, ok := originOf(r.GetMetadata()); of != (gateway.Name{}) && (!ok || o.kind != "HTTPRoute" || o.name != of) {
			continue
		}
		if !found.ok {
			found = guard{r.GetTypedPerFilterConfig(), true}
		} else if !maps.EqualFunc(found.filters, r.GetTypedPerFilterConfig(), func(a, b *anypb.Any) bool { return proto.Equal(a, b) }) {
			return guard{}
		}
	}
	return found
}

// shallow returns a message whose fields are those of m: setting one in it leaves m as it is.
func shallow[M proto.Message](m M) M {
	from := m.ProtoReflect()
	to := from.New()
	for fd, v := range from.Range {
		to.Set(fd, v)
	}
	to.SetUnknown(from.GetUnknown())
	return to.Interface().(M)
}
