package tailpolicy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"
)

// Node is a node as the rules see it. The ends of a policy test are Nodes too.
type Node struct {
	Login    string // empty for a tagged node
	Tags     []string
	Addrs    []netip.Prefix
	Foreign  bool                                 // from another tailnet, visible because a machine was shared with it
	Services map[tailcfg.ServiceName][]netip.Addr // services that it hosts; used only for a destination
}

// covers reports whether the selector matches the node. A tagged node has no user, so logins, groups and members
// never match it.
func (p *Policy) covers(sel selector, s Node) bool {
	switch sel.kind {
	case anyone:
		return true
	case person:
		return s.Login != "" && s.Login == sel.name
	case group:
		return s.Login != "" && slices.Contains(p.groups[sel.name], s.Login)
	case member:
		return s.Login != "" && !s.Foreign
	case shared:
		return s.Foreign
	case tag:
		return slices.Contains(s.Tags, sel.name)
	case tagged:
		return len(s.Tags) > 0
	case address:
		return slices.ContainsFunc(s.Addrs, func(a netip.Prefix) bool { return sel.prefix.Overlaps(a) })
	}
	return false
}

func (p *Policy) coversAny(sels []selector, s Node) bool {
	return slices.ContainsFunc(sels, func(sel selector) bool { return p.covers(sel, s) })
}

// reached returns the addresses of t that the selectors name as destinations. A selector reaches a service's
// addresses by the service name, by address or by "*", but not by the name of its host.
func (p *Policy) reached(sels []selector, t Node) []netip.Prefix {
	var out []netip.Prefix
	add := func(a netip.Prefix) {
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	for _, sel := range sels {
		if sel.kind != address && p.covers(sel, t) {
			for _, a := range t.Addrs {
				add(a)
			}
		}
		if sel.kind == address {
			for _, a := range t.Addrs {
				if sel.prefix.Overlaps(a) {
					add(a)
				}
			}
		}
		for _, svc := range slices.Sorted(maps.Keys(t.Services)) {
			for _, vip := range t.Services[svc] {
				if sel.kind == anyone || sel.kind == service && sel.name == string(svc) || sel.kind == address && sel.prefix.Contains(vip) {
					add(netip.PrefixFrom(vip, vip.BitLen()))
				}
			}
		}
	}
	return out
}

// Filter returns the packet filter, including capability grants, that the destination t enforces. sources must
// contain all nodes of the tailnet.
func (p *Policy) Filter(t Node, sources []Node) []tailcfg.FilterRule {
	rules := []tailcfg.FilterRule{}
	for _, g := range p.grants {
		if dsts := p.reached(g.dst, t); len(dsts) > 0 {
			rules = append(rules, g.rules(p.sourceIPs(g.src, sources), dsts)...)
		}
		if g.self && t.Login != "" && !t.Foreign {
			own := slices.DeleteFunc(slices.Clone(sources), func(s Node) bool { return s.Login != t.Login || s.Foreign })
			rules = append(rules, g.rules(p.sourceIPs(g.src, own), t.Addrs)...)
		}
	}
	return rules
}

func (p *Policy) sourceIPs(sels []selector, sources []Node) []string {
	var out []string
	for _, s := range sources {
		if p.coversAny(sels, s) {
			for _, a := range s.Addrs {
				out = append(out, a.Addr().String())
			}
		}
	}
	// A source can be an address outside the tailnet, which belongs to no node.
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

// Attrs returns the node attributes that the policy gives.
func (p *Policy) Attrs(s Node) tailcfg.NodeCapMap {
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

// owns reports whether a person (or, if login is empty, one of the tags) may assign the tag to a node.
func (p *Policy) owns(name, login string, tags []string) bool {
	return p.coversAny(p.tagOwners[name], Node{Login: login, Tags: tags})
}

// MayTag reports whether the holder of tags, such as an OAuth client, may assign a tag to a node. The tag must be
// declared, and must be one of own or owned by one of them.
func (p *Policy) MayTag(own []string, tag string) bool {
	_, declared := p.tagOwners[tag]
	return declared && (slices.Contains(own, tag) || p.owns(tag, "", own))
}

// TagsFor returns the sorted tags of a node that requests tags and registers with a key. login and own are the login
// and the tags of the key. An empty result makes it a node of the person. A key with tags and without login is an
// administrator's.
func (p *Policy) TagsFor(login string, own, asked []string) ([]string, error) {
	for _, t := range own {
		_, declared := p.tagOwners[t]
		if !declared || login != "" && !p.owns(t, login, nil) {
			return nil, fmt.Errorf("requested tags [%s] are invalid or not permitted", t)
		}
	}
	if len(own) == 0 && len(asked) == 0 && login == "" {
		return nil, errors.New("the key has neither a person nor tags")
	}
	tags, as := slices.Clone(own), login
	if len(own) > 0 {
		as = "" // a tagged key acts as its tags
	}
	for _, t := range asked {
		if slices.Contains(tags, t) {
			continue
		}
		if !p.owns(t, as, own) {
			return nil, fmt.Errorf("requested tags [%s] are invalid or not permitted", t)
		}
		tags = append(tags, t)
	}
	slices.Sort(tags)
	return slices.Compact(tags), nil
}

// Logins returns every login that the policy names.
func (p *Policy) Logins() []string {
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
