package xds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/envoyproxy/gateway/proto/extension"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/tailplane/tailplane/internal/gateway"
)

// clusters are the clusters that the routes of one answer can use.
type clusters struct {
	existing map[string]bool               // names of the clusters in the request
	added    map[string]*clusterv3.Cluster // added clusters, by name
	of       map[string]gateway.Name       // the Gateway of each added cluster; Gateways may be merged
	invalid  map[string]bool
	snapshot *gateway.Snapshot
}

func newClusters(n *gateway.Snapshot, existing []*clusterv3.Cluster) *clusters {
	c := &clusters{
		snapshot: n,
		existing: map[string]bool{},
		added:    map[string]*clusterv3.Cluster{},
		of:       map[string]gateway.Name{},
		invalid:  map[string]bool{},
	}
	for _, t := range existing {
		c.existing[t.GetName()] = true
	}
	return c
}

// usable reports whether a route of the Gateway can use the cluster. The Gateway must have the
// cluster, the cluster must be valid, and no other cluster may have its name.
func (c *clusters) usable(g *gateway.Gateway, name string) bool {
	if c.existing[name] || c.invalid[name] {
		return false
	}
	if _, added := c.added[name]; added {
		if c.of[name] == g.Name {
			return true
		}
		// Two merged Gateways have a cluster with this name. They can share it if both clusters
		// are equal.
		cluster, ok := g.Cluster(name)
		other, _ := c.snapshot.Gateways[c.of[name]].Cluster(name)
		return ok && sameCluster(cluster, other)
	}
	desired, ok := g.Cluster(name)
	if !ok {
		return false
	}
	added, err := renderCluster(desired)
	if err != nil {
		c.invalid[name] = true
		return false
	}
	c.added[name], c.of[name] = added, g.Name
	return true
}

func sameCluster(a, b gateway.Cluster) bool {
	x, errX := renderCluster(a)
	y, errY := renderCluster(b)
	return errX == nil && errY == nil && proto.Equal(x, y)
}

// A translation renders the answer to one Translation call.
type translation struct {
	snapshot *gateway.Snapshot
	in       *extension.PostTranslateModifyResponse // never modified
	limit    int                                    // maximum size of the answer in bytes

	clusters  *clusters
	ambiguous map[gateway.Name][]string // domains
	routes    map[gateway.Name]int
}

// render returns the request's resources in their order, with Tailplane's resources added.
func (t *translation) render(ctx context.Context) (*extension.PostTranslateModifyResponse, error) {
	t.clusters = newClusters(t.snapshot, t.in.Clusters)
	t.ambiguous, t.routes = map[gateway.Name][]string{}, map[gateway.Name]int{}
	changed := false
	configs := slices.Clone(t.in.Routes)
	named := map[string]bool{}
	for i, rc := range configs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if now := t.renderRoutes(rc, named); now != rc {
			configs[i], changed = now, true
		}
	}
	if !changed && len(named) == 0 {
		return t.in, nil
	}
	out := &extension.PostTranslateModifyResponse{
		Clusters:  slices.Clone(t.in.Clusters),
		Secrets:   t.in.Secrets,
		Listeners: t.in.Listeners,
		Routes:    configs,
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if c := t.clusters.added[name]; c != nil {
			out.Clusters = append(out.Clusters, c)
		}
	}
	return out, t.validate(out)
}

// renderRoutes renders the virtual hosts of a route configuration. It adds the clusters of Tailplane
// that its routes use to named.
func (t *translation) renderRoutes(rc *routev3.RouteConfiguration, named map[string]bool) *routev3.RouteConfiguration {
	hosts := slices.Clone(rc.GetVirtualHosts())
	changed := false
	for i, vh := range hosts {
		name, section, ok := gatewayOf(vh)
		g := t.snapshot.Gateways[name]
		if !ok || g == nil {
			continue
		}
		h := renderHost(vh, g, section, func(c string) bool { return t.clusters.usable(g, c) })
		h = t.withoutMissingClusters(h, g)
		if h.changed {
			hosts[i], changed = h.VirtualHost, true
		}
		if h.ambiguous {
			t.ambiguous[name] = append(t.ambiguous[name], vh.GetDomains()...)
		}
		for _, r := range h.Routes {
			if isOwnRoute(r) {
				t.routes[name]++
			}
			for _, c := range destinations(r) {
				if t.clusters.usable(g, c) {
					named[c] = true
				}
			}
		}
	}
	if !changed {
		return rc
	}
	out := shallowCopy(rc)
	out.VirtualHosts = hosts
	return out
}

// withoutMissingClusters removes Tailplane's routes whose cluster does not exist. The hook for virtual hosts
// may have added them, because it does not see clusters or used an earlier snapshot.
func (t *translation) withoutMissingClusters(h renderedHost, g *gateway.Gateway) renderedHost {
	lost := func(r *routev3.Route) bool {
		return isOwnRoute(r) &&
			slices.ContainsFunc(destinations(r), func(c string) bool { return c != missingCluster && !t.clusters.usable(g, c) })
	}
	if !slices.ContainsFunc(h.Routes, lost) {
		return h
	}
	out := shallowCopy(h.VirtualHost)
	out.Routes = slices.DeleteFunc(slices.Clone(h.Routes), lost)
	return renderedHost{out, true, h.ambiguous}
}

// destinations returns the names of the clusters that a route forwards to.
func destinations(r *routev3.Route) (names []string) {
	if c := r.GetRoute().GetCluster(); c != "" {
		names = append(names, c)
	}
	for _, w := range r.GetRoute().GetWeightedClusters().GetClusters() {
		names = append(names, w.GetName())
	}
	return names
}

// validate validates the answer as a whole. Its parts were validated when they were created.
func (t *translation) validate(out *extension.PostTranslateModifyResponse) error {
	if len(out.Clusters) < len(t.in.Clusters) || len(out.Routes) != len(t.in.Routes) {
		return errors.New("unsound: clusters or routes are missing")
	}
	names := make(map[string]bool, len(out.Clusters))
	for i, c := range out.Clusters {
		if i >= len(t.in.Clusters) && names[c.GetName()] {
			return fmt.Errorf("unsound: duplicate cluster %s", c.GetName())
		}
		names[c.GetName()] = true
	}
	for i, rc := range out.Routes {
		if rc == t.in.Routes[i] {
			continue
		}
		domains := map[string]bool{}
		for _, vh := range rc.GetVirtualHosts() {
			for _, d := range vh.GetDomains() {
				if domains[d] {
					return fmt.Errorf("unsound: duplicate virtual host for %s", d)
				}
				domains[d] = true
			}
			for _, r := range vh.GetRoutes() {
				for _, c := range destinations(r) {
					if isOwnRoute(r) && c != missingCluster && !names[c] {
						return fmt.Errorf("unsound: route %s refers to the missing cluster %s", r.GetName(), c)
					}
				}
			}
		}
	}
	if size := proto.Size(out); size > t.limit && size > proto.Size(t.in) {
		return fmt.Errorf("unsound: %d bytes exceed the limit of %d", size, t.limit)
	}
	return nil
}

// reports returns one Report for each requested Gateway.
func (t *translation) reports(revisions map[gateway.Name]string) (all []gateway.TranslationReport) {
	for _, name := range slices.SortedFunc(maps.Keys(revisions), gateway.Name.Compare) {
		g := t.snapshot.Gateways[name]
		if g == nil {
			continue
		}
		r := gateway.TranslationReport{
			Gateway:   name,
			Requested: revisions[name],
			Rendered:  g.Revision,
			Received:  len(t.in.Routes),
			Routes:    t.routes[name],
			Ambiguous: slices.Compact(slices.Sorted(slices.Values(t.ambiguous[name]))),
		}
		for _, c := range g.Clusters {
			if t.clusters.existing[c.Name] {
				r.Conflicted = append(r.Conflicted, c.Name)
			}
		}
		all = append(all, r)
	}
	return all
}
