package fanout

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/catalog"
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/roster"
)

// view is a configuration and the caches that depend on it.
type view struct {
	*roster.Roster
	owners *apiproxy.Owners
	uids   *apiproxy.Owners // by cluster, UID and name: whether that cluster has the object
	kinds  *catalog.Catalog // nil: there is only one cluster, which serves its own discovery
	past   *roster.Past
	ended  chan struct{} // closed when another view replaces this one
	// missing lists the spread resources that members lack; nil: no survey yet.
	missing atomic.Pointer[[]string]
}

// Take installs a new configuration before it serves. past has the earlier configurations whose resource
// versions clients may still hold. The caches of owners start empty, because the rules may have changed.
// Merged watches end cleanly, and clients resume at their last position.
func (s *Server) Take(r *roster.Roster, past *roster.Past) {
	v := &view{Roster: r, owners: apiproxy.NewOwners(), uids: apiproxy.NewOwners(), past: past, ended: make(chan struct{})}
	doc := r.Document()
	if len(doc.Clusters) > 1 {
		v.kinds = &catalog.Catalog{Failed: func(cluster string, err error) {
			s.Log.Warn("the kinds of a cluster cannot be asked for; those that are known are shown", "cluster", cluster, "err", err)
		}, Asked: func(openAPI, changed bool) {
			of := observe.CacheDiscovery
			if openAPI {
				of = observe.CacheOpenAPI
			}
			s.Metrics.CacheAsked(of, !changed)
		}}
		home := slices.IndexFunc(doc.Clusters, func(c document.Cluster) bool { return c.Name == doc.Home })
		v.source(doc.Clusters[home].Name, nil)
		for i, c := range doc.Clusters {
			if i != home {
				v.source(c.Name, func(group, _ string) bool { return sends(doc, c.Name, group) })
			}
		}
	}
	if old := s.view.Swap(v); old != nil {
		close(old.ended)
	}
}

// sends reports whether a rule sends a resource of the group to a cluster.
func sends(doc *document.Document, cluster, group string) bool {
	return slices.ContainsFunc(doc.Rules, func(r document.Rule) bool {
		to := r.Target.Cluster == cluster || r.Target.Spread != nil && slices.Contains(r.Target.Spread.Members, cluster)
		return to && (r.Match.APIGroups == nil || slices.Contains(r.Match.APIGroups, group))
	})
}

// names returns the names of all clusters.
func (v *view) names() (names []string) {
	for _, c := range v.Document().Clusters {
		names = append(names, c.Name)
	}
	return names
}

func (v *view) source(name string, shows func(group, version string) bool) {
	c := v.Cluster(name)
	v.kinds.Sources = append(v.kinds.Sources, catalog.Source{Name: name, Shows: shows,
		Fetch: func(ctx context.Context, path string, header http.Header) (*http.Response, error) {
			return c.Get(ctx, path, header)
		}})
}

// Owner returns the cluster that is known to have an object, or "".
func (s *Server) Owner(k apiproxy.Key) string {
	v := s.view.Load()
	if v == nil {
		return ""
	}
	cluster, _ := v.owners.Find(k, s.Now())
	return cluster
}

// Known returns the number of objects with a cached entry.
func (s *Server) Known() int {
	if v := s.view.Load(); v != nil {
		return v.owners.Len()
	}
	return 0
}

// Scope returns the scope of a resource as far as discovery knows it.
func (s *Server) Scope(group, resource string) document.Scope {
	v := s.view.Load()
	if v == nil || v.kinds == nil {
		return document.Unknown
	}
	switch scope := v.kinds.Scope(group, resource); {
	case !scope.Known:
		return document.Unknown
	case scope.Namespaced:
		return document.Namespaced
	}
	return document.ClusterWide
}
