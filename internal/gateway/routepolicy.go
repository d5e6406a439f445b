package gateway

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// A routeKey identifies a route.
type routeKey struct {
	kind string
	name Name
}

// processPolicies processes every TailscaleRoutePolicy, oldest first. If two policies claim the same
// rule or listener, the older policy gets it and the newer policy is refused as a whole.
func (b *builder) processPolicies() {
	routes := make(map[routeKey]RouteObject, len(b.routes))
	for _, r := range b.routes {
		routes[routeKey{r.Kind, r.Name}] = r
	}
	for _, p := range slices.SortedFunc(slices.Values(b.o.Policies), func(x, y *gatewayv1alpha1.TailscaleRoutePolicy) int { return older(x, y) }) {
		if !p.DeletionTimestamp.IsZero() {
			continue
		}
		var report PolicyReport
		target := Name{p.Namespace, p.Spec.TargetRef.Name}
		if p.Spec.TargetRef.Kind == gatewayv1alpha1.KindGateway {
			report = b.processAccessPolicy(p, target)
		} else if route, ok := routes[routeKey{p.Spec.TargetRef.Kind, target}]; ok {
			report = b.processRoutePolicy(p, route)
		} else {
			report = refusedPolicy(gatewayv1alpha1.ReasonTargetNotFound, "there is no such route in this namespace")
		}
		b.result.Policies[nameOf(p)] = report
	}
}

func refusedPolicy(reason, message string) PolicyReport {
	v := conditions.False(reason, message)
	return PolicyReport{Accepted: v, ResolvedRefs: conditions.True(gatewayv1alpha1.ReasonResolved, ""), Programmed: v}
}

// processRoutePolicy processes a policy whose target is a route.
func (b *builder) processRoutePolicy(p *gatewayv1alpha1.TailscaleRoutePolicy, route RouteObject) PolicyReport {
	var keys []RuleKey
	for i, rule := range route.Rules {
		if s := p.Spec.TargetRef.SectionName; s == "" || s == rule.Name {
			keys = append(keys, RuleKey{route.Kind, route.Name, i})
		}
	}
	if len(keys) == 0 {
		return refusedPolicy(gatewayv1alpha1.ReasonTargetNotFound, "the route has no such rule")
	}
	for _, k := range keys {
		if other, taken := b.claimedRules[k]; taken {
			return refusedPolicy(gatewayv1alpha1.ReasonConflicted, "an older policy already has a rule of the route: "+other.Name)
		}
	}
	for _, k := range keys {
		b.claimedRules[k] = nameOf(p)
	}
	report := PolicyReport{
		Accepted:     conditions.True(gatewayv1alpha1.ReasonAccepted, ""),
		ResolvedRefs: conditions.True(gatewayv1alpha1.ReasonResolved, ""),
		Programmed:   conditions.True(gatewayv1alpha1.ReasonProgrammed, ""),
	}
	if ref := p.Spec.TailnetRef; ref != nil {
		if _, ok := b.tailnetFor(ref.Name, p.Namespace); !ok {
			report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonTailnetNotPermitted, notPermitted)
		}
	}
	states := make([]gatewayv1alpha1.RuleState, len(p.Spec.RouteRules))
	gateways := parents(route)
	if len(gateways) == 0 {
		report.Programmed = conditions.False(gatewayv1alpha1.ReasonNoVirtualHost, "no Gateway has accepted the route")
	}
	defaults := 0
	for _, g := range gateways {
		if _, managed := b.gatewayObjects[g]; managed && report.ResolvedRefs.IsTrue() {
			defaults += b.applyRules(p, route, keys, b.gatewayState(g), states)
		}
	}
	for i, s := range states {
		s = cmp.Or(s, gatewayv1alpha1.RuleNotResolved)
		report.Rules = append(report.Rules, gatewayv1alpha1.RuleStatus{Index: int32(i), State: s})
		if s == gatewayv1alpha1.RuleNotResolved && report.ResolvedRefs.IsTrue() {
			report.ResolvedRefs = conditions.False(
				gatewayv1alpha1.ReasonTargetNotFound,
				"a service of a rule is unknown, may not be used here or has no port on its relays yet",
			)
		}
	}
	if p.Spec.TailscaleTarget != nil && p.Spec.DefaultBackend != gatewayv1alpha1.DefaultBackendRoute && defaults == 0 &&
		report.ResolvedRefs.IsTrue() {
		report.ResolvedRefs = conditions.False(
			gatewayv1alpha1.ReasonTargetNotFound,
			"no service selected by tailscaleTarget is ready; the route keeps its own backends",
		)
	}
	return report
}

// parents returns the Gateways that accepted a route, without duplicates, sorted.
func parents(route RouteObject) (names []Name) {
	for _, p := range route.Parents {
		names = append(names, p.Gateway)
	}
	slices.SortFunc(names, Name.Compare)
	return slices.Compact(names)
}

// applyRules writes the effect of a policy on one Gateway into the Gateway's rules and into states. It
// returns the number of clusters that the policy's target selects there.
func (b *builder) applyRules(
	p *gatewayv1alpha1.TailscaleRoutePolicy,
	route RouteObject,
	keys []RuleKey,
	r *gatewayState,
	states []gatewayv1alpha1.RuleState,
) int {
	scope := b.policyScope(p, r)
	var paths []PathRule
	for i, rule := range p.Spec.RouteRules {
		path, err := parsePath(rule.Match.Path)
		if err != nil {
			continue
		}
		c, ok := b.namedCluster(scope, rule.Backend)
		if !ok {
			continue
		}
		r.clusters[c.Name] = c
		paths = append(paths, PathRule{ruleRouteName(nameOf(p), i), path, c.Name})
		for _, k := range keys {
			states[i] = moreInformative(states[i], overlap(path, route.Rules[k.Index]))
		}
	}
	slices.SortStableFunc(paths, func(x, y PathRule) int { return x.Path.Compare(y.Path) })
	var byDefault []WeightedCluster
	if p.Spec.TailscaleTarget != nil && p.Spec.DefaultBackend != gatewayv1alpha1.DefaultBackendRoute {
		for _, c := range b.selectedClusters(scope, *p.Spec.TailscaleTarget) {
			r.clusters[c.Name] = c
			byDefault = append(byDefault, WeightedCluster{c.Name, 1})
		}
	}
	for _, k := range keys {
		object := route.Rules[k.Index]
		if object.Answered {
			continue
		}
		var pathRules []PathRule
		for _, path := range paths {
			if s := overlap(path.Path, object); s == gatewayv1alpha1.RuleActive {
				pathRules = append(pathRules, path)
			}
		}
		if len(pathRules) == 0 && len(byDefault) == 0 {
			continue
		}
		rule := r.rule(k)
		rule.Policies = append(rule.Policies, PolicyStamp{nameOf(p), p.Generation})
		rule.Paths, rule.Default = pathRules, byDefault
	}
	return len(byDefault)
}

func (r *gatewayState) rule(k RuleKey) *Rule {
	if r.rules[k] == nil {
		r.rules[k] = &Rule{Key: k}
	}
	return r.rules[k]
}

// overlap returns the state of a policy path for one rule of a route.
func overlap(path Path, rule RuleObject) gatewayv1alpha1.RuleState {
	if rule.Answered {
		return gatewayv1alpha1.RuleNoOverlap
	}
	matches := rule.Paths
	if len(matches) == 0 {
		matches = []Path{{Kind: PathPrefix}}
	}
	state := gatewayv1alpha1.RuleNoOverlap
	for _, m := range matches {
		switch path.Relation(m) {
		case PathCovers, PathWithin:
			state = moreInformative(state, gatewayv1alpha1.RuleActive)
		case PathUnsupported:
			state = moreInformative(state, gatewayv1alpha1.RuleUnsupportedMatch)
		}
	}
	return state
}

// moreInformative returns the more informative of two states of a rule with several matches.
func moreInformative(x, y gatewayv1alpha1.RuleState) gatewayv1alpha1.RuleState {
	rank := []gatewayv1alpha1.RuleState{
		"",
		gatewayv1alpha1.RuleNotResolved,
		gatewayv1alpha1.RuleNoOverlap,
		gatewayv1alpha1.RuleUnsupportedMatch,
		gatewayv1alpha1.RuleActive,
	}
	if slices.Index(rank, y) > slices.Index(rank, x) {
		return y
	}
	return x
}

// A scopeTailnet is one tailnet in which a policy resolves services.
type scopeTailnet struct {
	services map[string]*service // services in the policy's namespace, by label
	attached *attachedTailnet    // tailnet attached to the Gateway; nil if it is not attached
}

// policyScope returns the tailnets in which a policy resolves services, in order. It is the tailnet that
// the policy names, otherwise the tailnets of the Gateway. Tailnets that the policy's namespace
// may not use are skipped.
func (b *builder) policyScope(p *gatewayv1alpha1.TailscaleRoutePolicy, r *gatewayState) []scopeTailnet {
	var names []string
	if p.Spec.TailnetRef != nil {
		names = []string{p.Spec.TailnetRef.Name}
	} else {
		for _, a := range r.attached {
			names = append(names, a.tailnet)
		}
	}
	var places []scopeTailnet
	for _, name := range names {
		if _, ok := b.tailnetFor(name, p.Namespace); !ok {
			continue
		}
		at := scopeTailnet{services: b.byLabel(p.Namespace, name)}
		if i := slices.IndexFunc(r.attached, func(a attachedTailnet) bool { return a.tailnet == name }); i >= 0 {
			at.attached = &r.attached[i]
		}
		places = append(places, at)
	}
	return places
}

// byLabel returns the services of a namespace in a tailnet by label. If two services have the same
// label, the older one wins.
func (b *builder) byLabel(ns, tailnet string) map[string]*service {
	key := [2]string{ns, tailnet}
	labels, cached := b.servicesByLabel[key]
	if !cached {
		labels = make(map[string]*service, len(b.servicesByScope[key]))
		for _, s := range b.servicesByScope[key] {
			if s.label != "" && labels[s.label] == nil {
				labels[s.label] = s
			}
		}
		b.servicesByLabel[key] = labels
	}
	return labels
}

// namedCluster returns the cluster of the service and port that a policy rule names. It also requires the
// port from the group.
func (b *builder) namedCluster(scope []scopeTailnet, backend gatewayv1alpha1.RuleBackend) (Cluster, bool) {
	label, ok := ServiceLabel(backend.ServiceName)
	if !ok {
		return Cluster{}, false
	}
	port := uint16(backend.Port)
	for _, at := range scope {
		if at.attached != nil {
			if m, ok := at.attached.byLabel[label]; ok {
				b.requirePort(m.group, m.key("TCP", port))
				return b.memberCluster(*at.attached, m, port)
			}
		}
		if s := at.services[label]; s != nil {
			b.requirePort(s.group, s.key("TCP", port))
			return b.cluster(s, s.clusterName(port), port, s.appProtocol(port))
		}
	}
	return Cluster{}, false
}

// clusterName returns the cluster name for a port of a TailscaleService that is in no attached
// tailnet. port is the number in the tailnet.
func (s *service) clusterName(port uint16) string {
	if p, ok := s.tcpPort(port); ok {
		return backendClusterName(s.name, uint16(p.Port))
	}
	return policyClusterName(s.name, port)
}

// selectedClusters returns the clusters of the services that a policy's target selects, sorted by name.
func (b *builder) selectedClusters(scope []scopeTailnet, t gatewayv1alpha1.PolicyTarget) []Cluster {
	means := func(s *service) bool {
		return t.ServicePattern != "" && matchPattern(t.ServicePattern, "svc:"+s.label) ||
			slices.ContainsFunc(t.Tags, func(tag string) bool { return slices.Contains(s.tags, tag) })
	}
	found := map[string]Cluster{}
	for _, at := range scope {
		if at.attached != nil {
			for _, m := range at.attached.services {
				if !means(m.service) {
					continue
				}
				if port, _, ok := m.defaultPort(at.attached.requestedPort()); ok {
					if c, ok := b.memberCluster(*at.attached, m, port); ok {
						found[c.Name] = c
					}
				}
			}
		}
		for label, s := range at.services {
			if !means(s) || at.attached != nil && at.attached.byLabel[label].service != nil {
				continue // not selected, or the same service as above
			}
			if port, protocol, ok := s.defaultPort(80); ok {
				if c, ok := b.cluster(s, s.clusterName(port), port, protocol); ok {
					found[c.Name] = c
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(x, y Cluster) int { return strings.Compare(x.Name, y.Name) })
}

// A listenerAccess holds the access rules that a policy sets for one listener, or for all listeners that
// no policy names.
type listenerAccess struct {
	policy   Name
	restrict bool
	allow    []netip.Prefix
}

// processAccessPolicy processes a policy whose target is a Gateway or one of its listeners.
func (b *builder) processAccessPolicy(p *gatewayv1alpha1.TailscaleRoutePolicy, target Name) PolicyReport {
	object, ok := b.gatewayObjects[target]
	section := p.Spec.TargetRef.SectionName
	if !ok || section != "" && !object.hasListener(section) {
		return refusedPolicy(
			gatewayv1alpha1.ReasonTargetNotFound,
			"there is no such Gateway of Envoy Gateway, or listener, in this namespace",
		)
	}
	report := PolicyReport{
		Accepted:     conditions.True(gatewayv1alpha1.ReasonAccepted, ""),
		ResolvedRefs: conditions.True(gatewayv1alpha1.ReasonResolved, ""),
		Programmed:   conditions.True(gatewayv1alpha1.ReasonProgrammed, ""),
	}
	if p.Spec.Access == nil {
		return report // such a policy exists only to make Envoy Gateway translate again
	}
	r := b.gatewayState(target)
	if other, taken := r.access[section]; taken {
		return refusedPolicy(gatewayv1alpha1.ReasonConflicted, "an older policy already has the listener: "+other.policy.Name)
	}
	a := listenerAccess{policy: nameOf(p), restrict: p.Spec.Access.From == gatewayv1alpha1.AccessTailnet}
	if a.restrict && !object.Private {
		// Envoy trusts the PROXY header of every peer that can connect, so the listener must admit
		// no peer.
		report.Programmed = conditions.False(
			gatewayv1alpha1.ReasonServiceExposed,
			"clients other than relays could connect to this Gateway and forge addresses, so all connections are rejected: its Service must be ClusterIP and the chart's NetworkPolicy must be in place",
		)
	} else if a.restrict {
		a.allow = []netip.Prefix{tailnetIPv4, tailnetIPv6}
		if cidrs := p.Spec.Access.CIDRs; len(cidrs) > 0 {
			a.allow = nil
			for _, c := range cidrs {
				prefix, err := netip.ParsePrefix(c)
				if err != nil {
					a.allow = nil
					report.Programmed = conditions.False(gatewayv1alpha1.ReasonFailed, "an address range cannot be parsed, so all connections are rejected")
					break
				}
				a.allow = append(a.allow, prefix.Masked())
			}
			slices.SortFunc(a.allow, netip.Prefix.Compare)
			a.allow = slices.Compact(a.allow)
		}
	}
	r.access[section] = a
	return report
}

// listeners merges the rules of each listener. A listener that only an attachment names also gets
// the access rules for all listeners.
func (r *gatewayState) listeners() []Listener {
	sections := slices.AppendSeq(slices.Sorted(maps.Keys(r.access)), maps.Keys(r.proxyProtocol))
	slices.Sort(sections)
	var all []Listener
	for _, s := range slices.Compact(sections) {
		a, ok := r.access[s]
		if !ok {
			a = r.access[""]
		}
		all = append(
			all,
			Listener{
				Section:       s,
				Restrict:      a.restrict,
				Allow:         a.allow,
				ProxyProtocol: a.restrict || r.proxyProtocol[s] || r.proxyProtocol[""],
			},
		)
	}
	return all
}

// processBackends processes the route rules that name TailscaleServices as backends.
func (b *builder) processBackends() {
	for _, route := range b.routes {
		gateways := parents(route)
		for i, object := range route.Rules {
			if object.Answered || !slices.ContainsFunc(object.Backends, BackendObject.isTailscaleService) {
				continue
			}
			rule, clusters := b.resolveBackends(RuleKey{route.Kind, route.Name, i}, object)
			for _, g := range gateways {
				if _, managed := b.gatewayObjects[g]; !managed {
					continue
				}
				r := b.gatewayState(g)
				for _, c := range clusters {
					r.clusters[c.Name] = c
				}
				into := r.rule(rule.Key)
				into.Sole, into.Mixed, into.OwnWeight, into.RefusedWeight = rule.Sole, rule.Mixed, rule.OwnWeight, rule.RefusedWeight
			}
		}
	}
}

// resolveBackends computes the backends of one rule and the clusters that they need.
func (b *builder) resolveBackends(key RuleKey, object RuleObject) (rule Rule, clusters []Cluster) {
	rule.Key = key
	weights := map[string]uint32{}
	for _, backend := range object.Backends {
		if !backend.isTailscaleService() {
			rule.OwnWeight += backend.Weight
			continue
		}
		name := backendClusterName(backend.Name, backend.Port)
		if len(object.Backends) == 1 {
			name = key.ClusterName()
		}
		c, ok := b.resolveBackend(key, backend, name)
		switch {
		case !ok:
			rule.RefusedWeight += backend.Weight
		case backend.Weight == 0:
		case len(object.Backends) == 1:
			rule.Sole = &c
		default:
			if weights[name] == 0 {
				clusters = append(clusters, c)
			}
			weights[name] += backend.Weight
		}
	}
	for name, w := range weights {
		rule.Mixed = append(rule.Mixed, WeightedCluster{name, w})
	}
	slices.SortFunc(rule.Mixed, func(x, y WeightedCluster) int { return cmp.Compare(x.Cluster, y.Cluster) })
	return rule, clusters
}

// resolveBackend creates the cluster of one backend. ok is false if the rule may not use the backend, or
// if the service or its port does not exist.
func (b *builder) resolveBackend(key RuleKey, backend BackendObject, name string) (Cluster, bool) {
	from := GrantFrom{"gateway.networking.k8s.io", key.Kind, key.Route.Namespace}
	s := b.resolved[backend.Name]
	if s == nil || !b.granted(from, backend.Group, backend.Kind, backend.Name) {
		return Cluster{}, false
	}
	for _, p := range s.object.Spec.Ports {
		if p.Protocol != gatewayv1alpha1.UDP && uint16(p.Port) == backend.Port {
			return b.cluster(s, name, targetPort(p), p.AppProtocol)
		}
	}
	return Cluster{}, false
}
