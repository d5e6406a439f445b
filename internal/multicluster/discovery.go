package multicluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// discoverySource is a cluster whose API discovery is merged.
type discoverySource struct {
	Name string
	// Shows reports whether rules send requests for a group-version to this cluster. An empty version means
	// any version of the group. Nil means everything, as for home.
	Shows func(group, version string) bool
	// Fetch requests a document from the cluster. It does not follow redirects. The caller limits the size of
	// the body to maxDiscoveryDocument.
	Fetch func(ctx context.Context, path string, header http.Header) (*http.Response, error)

	// The last known discovery.
	mu      sync.Mutex
	core    discoveryPage // /api
	named   discoveryPage // /apis
	openAPI openAPIIndex  // /openapi/v3; without paths: unknown
}

// shows is Shows with its default.
func (s *discoverySource) shows(group, version string) bool {
	return s.Shows == nil || s.Shows(group, version)
}

// maxDiscoveryDocument is the largest document of one cluster in bytes. The largest one of Kubernetes, /openapi/v2,
// has 4 MB; each custom resource adds to it.
const maxDiscoveryDocument = 64 << 20

// discoveryTimeout is the timeout for a document of one cluster. The known data of a slower cluster counts as stale.
const discoveryTimeout = 10 * time.Second

// mergedDiscovery merges the API discovery of its sources: discovery in both of its forms, and OpenAPI in both of its
// versions. For a cluster that is down it serves the last known discovery, marked as stale. It never leaves out a
// cluster silently. The merge has three parts:
//
//	the documents of home
//	 + each group-version that a rule sends to a member (in the order of home, then of the members)
//	     + the resources that home lacks, of a group-version that both have
//
// The first source is home. All fields except OnFetch are
// required.
type mergedDiscovery struct {
	Sources []*discoverySource
	// OnError is called when a cluster's discovery could not be fetched.
	OnError func(cluster string, err error)
	// OnFetch is optional. It is called when a cluster reports whether its discovery, or its OpenAPI, has
	// changed.
	OnFetch func(openAPI, changed bool)
}

// discoveryPage is a parsed discovery document of a cluster.
type discoveryPage struct {
	etag   string
	groups []apiGroup
	known  bool  // it has been read at least once
	err    error // of the last fetch; not nil: groups are stale
}

// page returns the core page or the one of the named groups. The caller must hold s.mu.
func (s *discoverySource) page(core bool) *discoveryPage {
	if core {
		return &s.core
	}
	return &s.named
}

// read returns the page of the core group or of the named groups.
func (s *discoverySource) read(core bool) discoveryPage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.page(core)
}

// source returns the source of a cluster, or nil.
func (c *mergedDiscovery) source(cluster string) *discoverySource {
	for _, s := range c.Sources {
		if s.Name == cluster {
			return s
		}
	}
	return nil
}

func (c *mergedDiscovery) notifyFetch(openAPI, changed bool) {
	if c.OnFetch != nil {
		c.OnFetch(openAPI, changed)
	}
}

// unknownClusters lists the clusters without any known discovery. Their kinds are missing from the response.
type unknownClusters []string

// warn adds a Warning header for each of them.
func (u unknownClusters) warn(w http.ResponseWriter) {
	for _, name := range u {
		w.Header().Add("Warning", fmt.Sprintf(`299 mca "the discovery of cluster %s failed, so its kinds are missing here"`, name))
	}
}

// groups fetches the discovery of all clusters concurrently and returns the union. It returns an error only
// if home is unknown.
func (c *mergedDiscovery) groups(ctx context.Context, core bool) ([]apiGroup, unknownClusters, error) {
	pages := inParallel(c.Sources, func(s *discoverySource) discoveryPage { return c.fetch(ctx, s, core) })
	if !pages[0].known {
		return nil, nil, fmt.Errorf("the kinds of cluster %s are unknown: %w", c.Sources[0].Name, pages[0].err)
	}
	var unknown unknownClusters
	u := discoveryUnion{}
	for i, p := range pages {
		if !p.known {
			unknown = append(unknown, c.Sources[i].Name)
		}
		for _, g := range p.groups {
			u.add(g, p.err != nil, c.Sources[i].shows)
		}
	}
	return u.groups, unknown, nil
}

// fetch fetches the discovery of one cluster, conditional on the known ETag. After a failure the known
// discovery becomes stale.
func (c *mergedDiscovery) fetch(ctx context.Context, s *discoverySource, core bool) discoveryPage {
	path := "/apis"
	if core {
		path = "/api"
	}
	was := s.read(core)
	now, err := s.fetchGroups(ctx, path, was)
	if err != nil {
		if ctx.Err() == nil {
			c.OnError(s.Name, err)
		}
		now = was
	} else {
		c.notifyFetch(false, !was.known || was.etag == "" || now.etag != was.etag)
	}
	now.err = err
	s.mu.Lock()
	defer s.mu.Unlock()
	*s.page(core) = now
	return now
}

func (s *discoverySource) fetchGroups(ctx context.Context, path string, was discoveryPage) (discoveryPage, error) {
	res, body, err := s.get(ctx, path, aggregatedV2+", application/json;q=0.1", was.etag)
	switch {
	case err != nil:
		return discoveryPage{}, fmt.Errorf("discovery: %w", err)
	case res.StatusCode == http.StatusNotModified && was.known:
		return was, nil
	case res.StatusCode != http.StatusOK:
		return discoveryPage{}, fmt.Errorf("discovery: the cluster answered %d to GET %s", res.StatusCode, path)
	case !isAggregated(res.Header.Get("Content-Type")):
		return discoveryPage{}, fmt.Errorf(
			"discovery: the cluster does not serve the aggregated form of %s, which needs Kubernetes 1.26",
			path,
		)
	}
	var list apiGroupList
	if err := json.Unmarshal(body, &list); err != nil {
		return discoveryPage{}, fmt.Errorf("discovery: %s: %w", path, err)
	}
	return discoveryPage{etag: res.Header.Get("ETag"), groups: list.Items, known: true}, nil
}

// Refresh fetches the discovery of all clusters. It returns an error only if home is unknown.
func (c *mergedDiscovery) Refresh(ctx context.Context) error {
	if _, _, err := c.groups(ctx, true); err != nil {
		return err
	}
	_, _, err := c.groups(ctx, false)
	return err
}

// RefreshCluster fetches the discovery of one cluster for a group.
func (c *mergedDiscovery) RefreshCluster(ctx context.Context, cluster, groupName string) error {
	s := c.source(cluster)
	if s == nil {
		return fmt.Errorf("no cluster %s", cluster)
	}
	return c.fetch(ctx, s, groupName == "").err
}

// HasResource reports whether a cluster had a resource of a group at the last fetch. An empty version means any
// version. known is false if the cluster's answer is missing or stale.
func (c *mergedDiscovery) HasResource(cluster, groupName, versionName, name string) (has, known bool) {
	s := c.source(cluster)
	if s == nil {
		return false, false
	}
	p := s.read(groupName == "")
	known = p.known && p.err == nil
	for _, g := range p.groups {
		for _, v := range g.Versions {
			if g.Metadata.Name != groupName || versionName != "" && v.Version != versionName {
				continue
			}
			if slices.ContainsFunc(v.Resources, func(r apiResource) bool { return r.Resource == name }) {
				return true, known
			}
			known = known && v.Freshness != freshnessStale // an aggregated API server may have it
		}
	}
	return false, known
}

// discoveredScope is whether a resource is namespaced, and whether that is known.
type discoveredScope struct{ Namespaced, Known bool }

// Scope returns the last known scope of a resource without a request. If several clusters have the resource,
// the first of them decides.
func (c *mergedDiscovery) Scope(groupName, resource string) (scope discoveredScope) {
	c.eachVersion(groupName, func(v *apiGroupVersion) bool {
		for i := range v.Resources {
			if r := &v.Resources[i]; r.Resource == resource {
				scope = discoveredScope{Namespaced: r.Scope == "Namespaced", Known: true}
			}
		}
		return !scope.Known
	})
	return scope
}

// Resource returns the last known resource of a kind without a request.
func (c *mergedDiscovery) Resource(groupName, versionName, kindName string) (resource string, namespaced, known bool) {
	c.eachVersion(groupName, func(v *apiGroupVersion) bool {
		if v.Version != versionName {
			return true
		}
		for i := range v.Resources {
			if r := &v.Resources[i]; r.ResponseKind != nil && r.ResponseKind.Kind == kindName {
				resource, namespaced, known = r.Resource, r.Scope == "Namespaced", true
			}
		}
		return !known
	})
	return resource, namespaced, known
}

// eachVersion calls f for each version of a group in any cluster, until f returns false.
func (c *mergedDiscovery) eachVersion(groupName string, f func(*apiGroupVersion) bool) {
	for _, s := range c.Sources {
		groups := s.read(groupName == "").groups
		for j := range groups {
			if groups[j].Metadata.Name != groupName {
				continue
			}
			for k := range groups[j].Versions {
				if !f(&groups[j].Versions[k]) {
					return
				}
			}
		}
	}
}
