package multicluster

import (
	"slices"
	"sync/atomic"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// routerState is a configuration and the caches that depend on it.
type routerState struct {
	*RuntimeConfig
	owners    *OwnerCache
	uids      *OwnerCache      // by cluster, UID and name: whether that cluster has the object
	discovery *mergedDiscovery // nil: there is only one cluster, which serves its own discovery
	history   *ConfigHistory
	replaced  chan struct{} // closed when another view replaces this one
	// missing lists the spread resources that members lack; it is empty before the first survey.
	missing atomic.Pointer[[]string]
}

// SetConfig installs a new configuration before it serves. past has the earlier configurations whose resource
// versions clients may still hold. The caches of owners start empty, because the rules may have changed.
// Merged watches end cleanly, and clients resume at their last position.
func (s *Router) SetConfig(r *RuntimeConfig, history *ConfigHistory) {
	v := &routerState{RuntimeConfig: r, owners: NewOwnerCache(), uids: NewOwnerCache(), history: history, replaced: make(chan struct{})}
	v.missing.Store(new([]string))
	doc := r.Config()
	if len(doc.Clusters) > 1 {
		v.discovery = &mergedDiscovery{OnError: func(cluster string, err error) {
			s.Log.Warn("the discovery of a cluster failed; only the known kinds are shown", "cluster", cluster, "err", err)
		},
			OnFetch: func(openAPI, changed bool) {
				of := apiproxy.CacheDiscovery
				if openAPI {
					of = apiproxy.CacheOpenAPI
				}
				s.Metrics.CacheLookup(of, !changed)
			}}
		for _, c := range doc.Clusters {
			source, at := &discoverySource{Name: c.Name, Fetch: v.Upstream(c.Name).Get}, 0 // home is the first source
			if c.Name != doc.Home {
				source.Shows = func(group, _ string) bool { return routesGroup(doc, c.Name, group) }
				at = len(v.discovery.Sources)
			}
			v.discovery.Sources = slices.Insert(v.discovery.Sources, at, source)
		}
	}
	if old := s.state.Swap(v); old != nil {
		close(old.replaced)
	}
}

// routesGroup reports whether a rule sends a resource of the group to a cluster.
func routesGroup(doc *config.Config, cluster, group string) bool {
	return slices.ContainsFunc(doc.Rules, func(r config.Rule) bool {
		return slices.Contains(targetClusters(&r.Target), cluster) &&
			(r.Match.APIGroups == nil || slices.Contains(r.Match.APIGroups, group))
	})
}

// clusterNames returns the names of all clusters.
func (v *routerState) clusterNames() (names []string) {
	for _, c := range v.Config().Clusters {
		names = append(names, c.Name)
	}
	return names
}

// Owner returns the cluster that is known to have an object, or "".
func (s *Router) Owner(k ObjectKey) string {
	v := s.state.Load()
	if v == nil {
		return ""
	}
	cluster, _ := v.owners.Get(k, s.Now())
	return cluster
}

// KnownOwners returns the number of objects with a cached entry.
func (s *Router) KnownOwners() int {
	if v := s.state.Load(); v != nil {
		return v.owners.Len()
	}
	return 0
}

// Scope returns the scope of a resource as far as discovery knows it.
func (s *Router) Scope(group, resource string) config.Scope {
	v := s.state.Load()
	if v == nil || v.discovery == nil {
		return config.ScopeUnknown
	}
	switch scope := v.discovery.Scope(group, resource); {
	case !scope.Known:
		return config.ScopeUnknown
	case scope.Namespaced:
		return config.ScopeNamespaced
	}
	return config.ScopeCluster
}
