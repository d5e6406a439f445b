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

// A view is a roster and what is known by it.
type view struct {
	*roster.Roster
	owners *apiproxy.Owners
	uids   *apiproxy.Owners // by a cluster, a UID and a name: whether that cluster has it
	kinds  *catalog.Catalog // nil: there is one cluster, which shows its own
	past   *roster.Past
	ended  chan struct{} // closed when another one serves
	// missing is what members of a spread do not have; nil: they were not asked yet.
	missing atomic.Pointer[[]string]
}

// Take is what a new roster is given to, before it serves, with those that the
// pod's clients may hold positions of. Who has what is learned anew, as the rules
// may be others; merged watches end in good order, and clients come back with
// where they stood.
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

// sends says whether a rule sends anything of a group to a cluster.
func sends(doc *document.Document, cluster, group string) bool {
	return slices.ContainsFunc(doc.Rules, func(r document.Rule) bool {
		to := r.Target.Cluster == cluster || r.Target.Spread != nil && slices.Contains(r.Target.Spread.Members, cluster)
		return to && (r.Match.APIGroups == nil || slices.Contains(r.Match.APIGroups, group))
	})
}

// names are the names of all clusters.
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

// Owner returns the cluster that is known to have an object; "" if none is.
func (s *Server) Owner(k apiproxy.Key) string {
	v := s.view.Load()
	if v == nil {
		return ""
	}
	cluster, _ := v.owners.Find(k, s.Now())
	return cluster
}

// Known is how many objects are known by their cluster.
func (s *Server) Known() int {
	if v := s.view.Load(); v != nil {
		return v.owners.Len()
	}
	return 0
}

// Scope says whether the objects of a resource are in namespaces, as far as
// discovery has told.
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
