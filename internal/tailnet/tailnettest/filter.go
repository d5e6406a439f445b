package tailnettest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"
)

// subject is one end of a rule: a node, or one imagined by the tests section.
type subject struct {
	login   string // empty for a tagged node
	tags    []string
	addrs   []netip.Prefix
	foreign bool // of another tailnet, seen here because a machine was shared with it
}

// target is a subject as a destination, with the services that it answers for.
type target struct {
	subject
	services map[tailcfg.ServiceName][]netip.Addr
}

// covers reports whether the selector names the subject. A tagged node has no
// person: what is said of logins, groups and members never means it.
func (p *policy) covers(sel selector, s subject) bool {
	switch sel.kind {
	case anyone:
		return true
	case person:
		return s.login != "" && s.login == sel.name
	case group:
		return s.login != "" && slices.Contains(p.groups[sel.name], s.login)
	case member:
		return s.login != "" && !s.foreign
	case shared:
		return s.foreign
	case tag:
		return slices.Contains(s.tags, sel.name)
	case tagged:
		return len(s.tags) > 0
	case address:
		return slices.ContainsFunc(s.addrs, func(a netip.Prefix) bool { return sel.prefix.Overlaps(a) })
	}
	return false
}

func (p *policy) coversAny(sels []selector, s subject) bool {
	return slices.ContainsFunc(sels, func(sel selector) bool { return p.covers(sel, s) })
}

// reached returns the addresses of t that the selectors name as destinations.
// A service's addresses are reached by its own name, by address or by "*", not by
// naming the host that happens to answer for it.
func (p *policy) reached(sels []selector, t target) []netip.Prefix {
	var out []netip.Prefix
	add := func(a netip.Prefix) {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for _, sel := range sels {
		if sel.kind != address && p.covers(sel, t.subject) {
			for _, a := range t.addrs {
				add(a)
			}
		}
		if sel.kind == address {
			for _, a := range t.addrs {
				if sel.prefix.Overlaps(a) {
					add(a)
				}
			}
		}
		for _, svc := range slices.Sorted(maps.Keys(t.services)) {
			for _, vip := range t.services[svc] {
				if sel.kind == anyone || sel.kind == service && sel.name == string(svc) || sel.kind == address && sel.prefix.Contains(vip) {
					add(netip.PrefixFrom(vip, vip.BitLen()))
				}
			}
		}
	}
	return out
}

// filterFor makes the packet filter, capability grants included, that a destination enforces.
func (p *policy) filterFor(t target, sources []subject) []tailcfg.FilterRule {
	rules := []tailcfg.FilterRule{}
	for _, g := range p.grants {
		if dsts := p.reached(g.dst, t); len(dsts) > 0 {
			rules = append(rules, g.rules(p.sourceIPs(g.src, sources), dsts)...)
		}
		if g.self && t.login != "" && !t.foreign {
			own := slices.DeleteFunc(slices.Clone(sources), func(s subject) bool { return s.login != t.login || s.foreign })
			rules = append(rules, g.rules(p.sourceIPs(g.src, own), t.addrs)...)
		}
	}
	return rules
}

func (p *policy) sourceIPs(sels []selector, sources []subject) []string {
	var out []string
	for _, s := range sources {
		if p.coversAny(sels, s) {
			out = append(out, addrStrings(s.addrs)...)
		}
	}
	// An address outside the tailnet can be a source without being a node's.
	for _, sel := range sels {
		if sel.kind == address && !sel.prefix.Overlaps(tsaddr.CGNATRange()) && !sel.prefix.Overlaps(tsaddr.TailscaleULARange()) {
			out = append(out, sel.prefix.String())
		}
	}
	return out
}

func (g *grant) rules(srcs []string, dsts []netip.Prefix) []tailcfg.FilterRule {
	if len(srcs) == 0 {
		return nil
	}
	var out []tailcfg.FilterRule
	for _, ip := range g.ip {
		r := tailcfg.FilterRule{SrcIPs: srcs, IPProto: ip.protos}
		for _, d := range dsts {
			for _, pr := range ip.ranges {
				r.DstPorts = append(r.DstPorts, tailcfg.NetPortRange{IP: d.String(), Ports: pr})
			}
		}
		out = append(out, r)
	}
	if len(g.app) > 0 { // gives no network access
		out = append(out, tailcfg.FilterRule{SrcIPs: srcs, CapGrant: []tailcfg.CapGrant{{Dsts: dsts, CapMap: g.app}}})
	}
	return out
}

// attrsFor returns the node attributes that the policy gives.
func (p *policy) attrsFor(s subject) tailcfg.NodeCapMap {
	out := tailcfg.NodeCapMap{}
	for _, a := range p.attrs {
		if p.coversAny(a.target, s) {
			for name, values := range a.attrs {
				out[name] = slices.Concat(out[name], values)
			}
		}
	}
	return out
}

// owns reports whether a person (or, if login is empty, one of the tags) may give a node the tag.
func (p *policy) owns(name, login string, tags []string) bool {
	return p.coversAny(p.tagOwners[name], subject{login: login, tags: tags})
}

// tagsFor returns the tags of a node that registers with the key and asks for
// tags; none makes it the person's.
func (p *policy) tagsFor(k AuthKey, asked []string) ([]string, error) {
	for _, t := range k.Tags {
		_, declared := p.tagOwners[t]
		if !declared || k.Login != "" && !p.owns(t, k.Login, nil) {
			return nil, fmt.Errorf("requested tags [%s] are invalid or not permitted", t)
		}
	}
	tags := slices.Clone(k.Tags)
	for _, t := range asked {
		if slices.Contains(tags, t) {
			continue
		}
		login := k.Login
		if len(k.Tags) > 0 {
			login = "" // a tagged key acts as its tags
		}
		if !p.owns(t, login, k.Tags) {
			return nil, fmt.Errorf("requested tags [%s] are invalid or not permitted", t)
		}
		tags = append(tags, t)
	}
	if len(tags) == 0 && k.Login == "" {
		return nil, fmt.Errorf("the key names neither a person nor tags")
	}
	slices.Sort(tags)
	return slices.Compact(tags), nil
}

// logins returns every login that the policy names.
func (p *policy) logins() []string {
	seen := map[string]bool{}
	note := func(sels []selector) {
		for _, s := range sels {
			if s.kind == person {
				seen[s.name] = true
			}
		}
	}
	for _, logins := range p.groups {
		for _, l := range logins {
			seen[l] = true
		}
	}
	for _, g := range p.grants {
		note(g.src)
		note(g.dst)
	}
	for _, owners := range p.tagOwners {
		note(owners)
	}
	return slices.Sorted(maps.Keys(seen))
}
