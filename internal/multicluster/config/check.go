package config

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// check validates the rules that concern the whole configuration.
func (p *parser) check(root *yaml.Node) {
	d := p.config
	names, slots, secrets, servers, uids := map[string]bool{}, map[int]string{}, map[string]string{}, map[string]string{}, map[string]string{}
	inCluster := ""
	for i, c := range d.Clusters {
		at := p.at[elementKey{"clusters", i, ""}]
		if c.Name != "" && names[c.Name] {
			p.fail(at, "the cluster %s occurs twice", c.Name)
		}
		names[c.Name] = true
		if other, used := slots[c.Slot]; used && c.Slot >= 0 {
			p.fail(at, "the clusters %s and %s have the same slot %d", other, c.Name, c.Slot)
		}
		slots[c.Slot] = c.Name
		if other, used := secrets[c.Secret]; used && c.Secret != "" {
			p.fail(at, "the clusters %s and %s have the same Secret, so they are the same cluster", other, c.Name)
		}
		secrets[c.Secret] = c.Name
		if other, used := uids[c.UID]; used && c.UID != "" {
			p.fail(at, "the clusters %s and %s have the same uid, so they are the same cluster", other, c.Name)
		}
		uids[c.UID] = c.Name
		for _, s := range c.Servers {
			if other, used := servers[s]; used && other != c.Name {
				p.fail(
					p.at[elementKey{"servers", i, s}],
					"the clusters %s and %s have the same server, so they are the same cluster",
					other,
					c.Name,
				)
			}
			servers[s] = c.Name
		}
		if c.InCluster {
			if inCluster != "" {
				p.fail(at, "the clusters %s and %s are both inCluster, so they are the same cluster", inCluster, c.Name)
			}
			inCluster = c.Name
		}
	}
	if len(d.Clusters) > 1 && d.Epoch == 0 {
		p.fail(root, "the configuration has no epoch, which is required for two or more clusters; start with 1")
	}
	if p.home != nil && !names[d.Home] {
		p.fail(p.home, "home is %.60q, which is not one of the clusters", d.Home)
	}
	if d.Tracing.Ratio > 0 && d.Tracing.Endpoint == "" {
		p.fail(root, "tracing has a ratio but no endpoint")
	}
	rules := map[string]int{}
	for i := range d.Rules {
		r := &d.Rules[i]
		if first, used := rules[r.Name]; used && r.Name != "" {
			p.fail(p.at[elementKey{"rules", i, ""}], "the rule %s occurs twice, first in line %d", r.Name, d.Rules[first].Line)
		} else {
			rules[r.Name] = i
		}
		p.checkTarget(i, r, names)
	}
	p.checkShadowed()
}

func (p *parser) checkTarget(i int, r *Rule, clusters map[string]bool) {
	at := p.at[elementKey{"rules", i, "target"}]
	if at == nil {
		return // the missing target is already reported
	}
	if c := r.Target.Cluster; c != "" && !clusters[c] {
		p.fail(at, "the target %.60q is not one of the clusters", c)
	}
	if r.Match.Verbs != nil && r.Target.Deny == "" && !r.AllowVerbSplit {
		p.fail(
			p.at[elementKey{"rules", i, "verbs"}],
			"the rule sends some verbs of an object to another cluster: a client would not find what it wrote. Remove verbs, or set allowVerbSplit: true",
		)
	}
	if r.Target.OwnerReferences == HideOwners && len(clusters) < 2 {
		p.fail(at, "ownerReferences: shelter has no effect with one cluster, which has all owners")
	}
	s := r.Target.Spread
	if s == nil {
		return
	}
	where := func(field string) *yaml.Node {
		if n := p.at[elementKey{"spread", i, field}]; n != nil {
			return n
		}
		return at
	}
	if len(s.Members) < 2 {
		p.fail(where("members"), "a spread needs at least two members")
	}
	for _, m := range s.Members {
		if !clusters[m] {
			p.fail(where("members"), "the member %.60q is not one of the clusters", m)
		}
	}
	if r.Match.Resources == nil {
		p.fail(at, "a spread must list its resources by name")
	}
	for _, res := range r.Match.Resources {
		if res.Subresource != "" {
			p.fail(p.at[elementKey{"rules", i, "resources"}], "%s cannot be spread: a subresource is in the cluster of its object", res)
		}
	}
	if r.Match.Names != nil {
		p.fail(p.at[elementKey{"rules", i, "names"}], "a spread cannot select names, because a list has no name")
	}
	for _, place := range s.Place {
		if !slices.Contains(s.Members, place.Cluster) {
			p.fail(p.at[elementKey{"place", i, place.Cluster}], "place has the cluster %.60q, which is not a member", place.Cluster)
		}
	}
	sum := 0
	for name, w := range s.Weights {
		if !slices.Contains(s.Members, name) {
			p.fail(where("weights"), "weights has the cluster %.60q, which is not a member", name)
		}
		sum += w
	}
	switch {
	case s.Weights != nil && s.Strategy != StrategyHash && s.Strategy != StrategyWeighted:
		p.fail(where("weights"), "weights have no effect with strategy %s", s.Strategy)
	case s.Weights != nil && sum == 0:
		p.fail(where("weights"), "no member has a weight")
	case s.Create == "spill" && s.Strategy != StrategyHash && s.Strategy != StrategyWeighted:
		p.fail(where("onUnavailable"), "onUnavailable.create: spill requires strategy hash or weighted")
	}
}

// checkShadowed refuses rules that can never match because an earlier rule covers them.
func (p *parser) checkShadowed() {
	for j := range p.config.Rules {
		for i := range p.config.Rules[:j] {
			if p.config.Rules[i].Match.covers(&p.config.Rules[j].Match) {
				p.fail(
					p.at[elementKey{"rules", j, ""}],
					"the rule %s never matches: the earlier rule %s in line %d matches all its requests",
					p.config.Rules[j].Name,
					p.config.Rules[i].Name,
					p.config.Rules[i].Line,
				)
				break
			}
		}
	}
}

// covers reports whether m matches everything that o matches.
func (m *Match) covers(o *Match) bool {
	if !allCovered(m.Namespaces, o.Namespaces) || !containsAll(m.APIGroups, o.APIGroups) || !containsAll(m.Verbs, o.Verbs) ||
		!allCovered(m.Names, o.Names) || !allCovered(m.UserAgents, o.UserAgents) {
		return false
	}
	if m.Resources == nil {
		// Without resources, m matches all namespaced resources. Only the clusters know the scope of the
		// resources of o, unless they are built in.
		return o.Resources == nil ||
			!slices.ContainsFunc(o.Resources, func(r Resource) bool { return !builtinNamespaced(o.APIGroups, r.Name) })
	}
	return o.Resources != nil && !slices.ContainsFunc(o.Resources, func(r Resource) bool {
		return !slices.Contains(m.Resources, r) && !slices.Contains(m.Resources, Resource{Name: r.Name})
	})
}

// builtinNamespaced reports whether the resource is a namespaced built-in resource in all of these groups.
func builtinNamespaced(groups []string, resource string) bool {
	return groups != nil && !slices.ContainsFunc(groups, func(g string) bool { return BuiltinScope(g, resource) != ScopeNamespaced })
}

func containsAll(all, some []string) bool {
	if all == nil {
		return true
	}
	return some != nil && !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// checkAdvice adds warnings about settings that are allowed but rarely intended.
func (p *parser) checkAdvice() {
	d := p.config
	if h := d.Cluster(d.Home); !h.InCluster {
		p.warn(h.Line, "home %s is not the cluster of this pod: requests that no rule matches, including leader election, go to it", d.Home)
	}
	used := map[string]bool{d.Home: true}
	events, leases := false, false
	for i := range d.Rules {
		r := &d.Rules[i]
		used[r.Target.Cluster] = true
		m := &r.Match
		core := m.APIGroups == nil || slices.Contains(m.APIGroups, "")
		named := func(resource string) bool { return slices.Contains(m.Resources, Resource{Name: resource}) }
		events = events || named("events")
		leases = leases ||
			m.Namespaces == nil && (named("leases") || m.Resources == nil && slices.Contains(m.APIGroups, "coordination.k8s.io"))
		if m.Verbs != nil && r.Target.Deny == "" {
			p.warn(r.Line, "the rule %s splits verbs: clients write to one cluster and read from another", r.Name)
		}
		if m.Names != nil && r.Target.Cluster != "" {
			p.warn(r.Line, "the rule %s selects objects by name, but lists of their namespace do not contain them", r.Name)
		}
		if m.Resources == nil && m.Namespaces != nil && m.APIGroups == nil && r.Target.Cluster != "" && r.Target.Cluster != d.Home &&
			!leases {
			p.warn(
				r.Line,
				"the rule %s also matches the leases of its namespaces: leader election moves to %s, unless an earlier rule keeps coordination.k8s.io at home",
				r.Name,
				r.Target.Cluster,
			)
		}
		s := r.Target.Spread
		if s == nil {
			continue
		}
		for _, m := range s.Members {
			used[m] = true
		}
		if core && named("pods") && !events {
			p.warn(
				r.Line,
				"the rule %s spreads pods, but neither it nor an earlier rule spreads events: the home cluster does not show the events of these pods",
				r.Name,
			)
		}
		if s.Create == "spill" {
			p.warn(
				r.Line,
				"the rule %s creates objects in other members while a member is down: that member may have an object with the same name",
				r.Name,
			)
		}
		if s.DeleteAllCollection {
			p.warn(
				r.Line,
				"the rule %s lets one request delete objects in all of these clusters: %s",
				r.Name,
				strings.Join(s.Members, ", "),
			)
		}
	}
	for _, c := range d.Clusters {
		if !used[c.Name] {
			p.warn(c.Line, "no rule uses the cluster %s", c.Name)
		}
	}
}
