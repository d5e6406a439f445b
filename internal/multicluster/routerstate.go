package multicluster

import (
	"context"
	"net/http"
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
	// missing lists the spread resources that members lack; nil: no survey yet.
	missing atomic.Pointer[[]string]
}

// SetConfig installs a new configuration before it serves. past has the earlier configurations whose resource
// versions clients may still hold. The caches of owners start empty, because the rules may have changed.
// Merged watches end cleanly, and clients resume at their last position.
func (s *Router) SetConfig(r *RuntimeConfig, history *ConfigHistory) {
	v := &routerState{RuntimeConfig: r, owners: NewOwnerCache(), uids: NewOwnerCache(), history: history, replaced: make(chan struct{})}
	doc := r.Config()
	if len(doc.Clusters) > 1 {
		v.discovery = &mergedDiscovery{OnError: func(cluster string, err error) {
			s.Log.Warn("the discovery of a cluster failed; only the known kinds are shown", "cluster", cluster, "err", err)
		}, OnFetch: func(openAPI, changed bool) {
			of := apiproxy.CacheDiscovery
			if openAPI {
				of = apiproxy.CacheOpenAPI
			}
			s.Metrics.CacheLookup(of, !changed)
		}}
		home := slices.IndexFunc(doc.Clusters, func(c config.Cluster) bool { return c.Name == doc.Home })
		v.addSource(doc.Clusters[home].Name, nil)
		for i, c := range doc.Clusters {
			if i != home {
				v.addSource(c.Name, func(group, _ string) bool { return routesGroup(doc, c.Name, group) })
			}
		}
	}
	if old := s.state.Swap(v); old != nil {
		close(old.replaced)
	}
}

// routesGroup reports whether a rule sends a resource of the group to a cluster.
func routesGroup(doc *config.Config, cluster, group string) bool {
	return slices.ContainsFunc(doc.Rules, func(r config.Rule) bool {
		to := r.Target.Cluster == cluster || r.Target.Spread != nil && slices.Contains(r.Target.Spread.Members, cluster)
		return to && (r.Match.APIGroups == nil || slices.Contains(r.Match.APIGroups, group))
	})
}

// clusterNames returns the names of all clusters.
func (v *routerState) clusterNames() (names []string) {
	for _, c := range v.Config().Clusters {
		names = append(names, c.Name)
	}
	return names
}

func (v *routerState) addSource(name string, shows func(group, version string) bool) {
	c := v.Upstream(name)
	v.discovery.Sources = append(v.discovery.Sources, discoverySource{Name: name, Shows: shows,
		Fetch: func(ctx context.Context, path string, header http.Header) (*http.Response, error) {
			return c.Get(ctx, path, header)
		}})
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
