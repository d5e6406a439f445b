package gateway

import (
	"cmp"
	"slices"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

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
	if !b.granted(from, backend.Group, backend.Kind, backend.Name) {
		return Cluster{}, false
	}
	s := b.resolved[backend.Name]
	if s == nil {
		return Cluster{}, false
	}
	for _, p := range s.object.Spec.Ports {
		if p.Protocol != gatewayv1alpha1.UDP && uint16(p.Port) == backend.Port {
			return b.cluster(s, name, targetPort(p), p.AppProtocol)
		}
	}
	return Cluster{}, false
}
