// Package catalog shows which kinds of objects several clusters have as if one
// cluster had them: discovery in both of its forms, and OpenAPI in both of its
// versions. It keeps law 7: a cluster that is down keeps what it was last known
// to have, marked as stale, and is never left out in silence.
//
//	home's documents
//	 + each group-version that a rule sends to a member   (in home's order, then the members')
//	     + of a group-version that both have, what home lacks
package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

// A Source is a cluster whose kinds are shown.
type Source struct {
	Name string
	// Shows says whether rules send anything of a group-version to this cluster,
	// with version "" of any version of the group; nil is everything, as at home.
	Shows func(group, version string) bool
	// Fetch asks the cluster for a document. It does not follow redirects, and
	// the answer's body is as long as the cluster makes it, up to MaxDocument.
	Fetch func(ctx context.Context, path string, header http.Header) (*http.Response, error)
}

// shows is Shows with its default.
func (s *Source) shows(group, version string) bool { return s.Shows == nil || s.Shows(group, version) }

// MaxDocument bounds one document of one cluster, in bytes. The largest that
// Kubernetes serves, /openapi/v2, has 4 MB; each custom resource adds to it.
const MaxDocument = 64 << 20

// fetchTime bounds how long a document of one cluster is waited for. What is
// known of a cluster that is slower counts as stale.
const fetchTime = 10 * time.Second

// A Catalog shows the kinds of its sources, of which the first is home. All
// fields are required, but for Asked.
type Catalog struct {
	Sources []Source
	// Failed is told when what a cluster has could not be asked for.
	Failed func(cluster string, err error)
	// Asked, optional, is told that a cluster said whether what is known of its
	// kinds, or of its OpenAPI, has changed.
	Asked func(openAPI, changed bool)

	once   sync.Once
	shelfs []shelf // of the source of the same index
}

// A shelf is what one cluster was last known to have.
type shelf struct {
	mu      sync.Mutex
	core    page  // /api
	named   page  // /apis
	openAPI index // /openapi/v3; no paths: not known
}

// A page is a discovery document of a cluster, read.
type page struct {
	etag   string
	groups []group
	known  bool // it was read once
	stale  bool // but could not be asked for the last time
}

func (c *Catalog) prepare() {
	c.once.Do(func() {
		if len(c.Sources) == 0 || c.Failed == nil {
			panic("catalog: a required field is missing")
		}
		c.shelfs = make([]shelf, len(c.Sources))
	})
}

func (c *Catalog) asked(openAPI, changed bool) {
	if c.Asked != nil {
		c.Asked(openAPI, changed)
	}
}

// Unknown are the clusters of which nothing is known yet, so that their kinds
// are missing from what is shown.
type Unknown []string

// warn says so in the answer.
func (u Unknown) warn(w http.ResponseWriter) {
	for _, name := range u {
		w.Header().Add("Warning", fmt.Sprintf(`299 mca "the kinds of cluster %s cannot be asked for and are missing here"`, name))
	}
}

// groups asks all clusters at once for what they have, and returns the union.
// Its error is that home is not known at all.
func (c *Catalog) groups(ctx context.Context, core bool) ([]group, Unknown, error) {
	c.prepare()
	pages := make([]page, len(c.Sources))
	errs := make([]error, len(c.Sources))
	var wg sync.WaitGroup
	for i := range c.Sources {
		wg.Go(func() { pages[i], errs[i] = c.look(ctx, i, core) })
	}
	wg.Wait()
	if !pages[0].known {
		return nil, nil, fmt.Errorf("the kinds of cluster %s are not known: %w", c.Sources[0].Name, errs[0])
	}
	var unknown Unknown
	u := union{}
	for i, p := range pages {
		if !p.known {
			unknown = append(unknown, c.Sources[i].Name)
		}
		for _, g := range p.groups {
			u.add(g, p.stale, c.Sources[i].shows)
		}
	}
	return u.groups, unknown, nil
}

// look asks one cluster, by the ETag of what is known. A failure leaves that, as stale.
func (c *Catalog) look(ctx context.Context, i int, core bool) (page, error) {
	s, sh := &c.Sources[i], &c.shelfs[i]
	path, p := "/apis", &sh.named
	if core {
		path, p = "/api", &sh.core
	}
	sh.mu.Lock()
	was := *p
	sh.mu.Unlock()
	header := http.Header{"Accept": {aggregatedV2 + ", application/json;q=0.1"}}
	if was.etag != "" {
		header["If-None-Match"] = []string{was.etag}
	}
	now, err := fetchGroups(ctx, s, path, header, was)
	if err != nil {
		if ctx.Err() == nil {
			c.Failed(s.Name, err)
		}
		now = was
		now.stale = true
	} else {
		c.asked(false, !was.known || was.etag == "" || now.etag != was.etag)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	*p = now
	return now, err
}

func fetchGroups(ctx context.Context, s *Source, path string, header http.Header, was page) (page, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTime)
	defer cancel()
	res, err := s.Fetch(ctx, path, header)
	if err != nil {
		return page{}, fmt.Errorf("discovery: %w", err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusNotModified && was.known:
		was.stale = false
		return was, nil
	case res.StatusCode != http.StatusOK:
		return page{}, fmt.Errorf("discovery: the cluster answered %d to GET %s", res.StatusCode, path)
	case !isAggregated(res.Header.Get("Content-Type")):
		return page{}, fmt.Errorf("discovery: the cluster does not serve the aggregated form of %s, which came with Kubernetes 1.26", path)
	}
	body, err := readAll(res.Body)
	if err != nil {
		return page{}, fmt.Errorf("discovery: %w", err)
	}
	var list groupList
	if err := json.Unmarshal(body, &list); err != nil {
		return page{}, fmt.Errorf("discovery: %s: %w", path, err)
	}
	return page{etag: res.Header.Get("ETag"), groups: list.Items, known: true}, nil
}

// Learn asks all clusters for what they have. Its error is that home is not known at all.
func (c *Catalog) Learn(ctx context.Context) error {
	if _, _, err := c.groups(ctx, true); err != nil {
		return err
	}
	_, _, err := c.groups(ctx, false)
	return err
}

// Ask asks one cluster for what it has in a group.
func (c *Catalog) Ask(ctx context.Context, cluster, groupName string) error {
	c.prepare()
	i := slices.IndexFunc(c.Sources, func(s Source) bool { return s.Name == cluster })
	if i < 0 {
		return fmt.Errorf("no cluster %s", cluster)
	}
	_, err := c.look(ctx, i, groupName == "")
	return err
}

// Has says whether a cluster has a resource of a group, with version "" in any
// version, as it said when it was asked last; known is false when it said nothing
// of that.
func (c *Catalog) Has(cluster, groupName, versionName, name string) (has, known bool) {
	c.prepare()
	i := slices.IndexFunc(c.Sources, func(s Source) bool { return s.Name == cluster })
	if i < 0 {
		return false, false
	}
	sh := &c.shelfs[i]
	sh.mu.Lock()
	p := sh.named
	if groupName == "" {
		p = sh.core
	}
	sh.mu.Unlock()
	known = p.known && !p.stale
	for _, g := range p.groups {
		for _, v := range g.Versions {
			if g.Metadata.Name != groupName || versionName != "" && v.Version != versionName {
				continue
			}
			if slices.ContainsFunc(v.Resources, func(r resource) bool { return r.Resource == name }) {
				return true, known
			}
			known = known && v.Freshness != stale // an API server behind it may have it
		}
	}
	return false, known
}

// A Scope says of a resource whether its objects are in namespaces.
type Scope struct{ Namespaced, Known bool }

// Scope looks a resource up in what was last known, without asking anybody; of a
// resource that several clusters have, the first of them tells.
func (c *Catalog) Scope(groupName, resource string) (scope Scope) {
	c.each(groupName, func(v *version) bool {
		for i := range v.Resources {
			if r := &v.Resources[i]; r.Resource == resource {
				scope = Scope{Namespaced: r.Scope == "Namespaced", Known: true}
			}
		}
		return !scope.Known
	})
	return scope
}

// Resource looks a kind up in what was last known, without asking anybody.
func (c *Catalog) Resource(groupName, versionName, kindName string) (resource string, namespaced, known bool) {
	c.each(groupName, func(v *version) bool {
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

// each calls f for each version of a group that a cluster has, until it returns false.
func (c *Catalog) each(groupName string, f func(*version) bool) {
	c.prepare()
	for i := range c.shelfs {
		sh := &c.shelfs[i]
		sh.mu.Lock()
		groups := sh.named.groups
		if groupName == "" {
			groups = sh.core.groups
		}
		sh.mu.Unlock()
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
