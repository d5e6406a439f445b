package tailpolicy

import (
	"fmt"
	"net/netip"
)

// tests runs the policy's tests section. It evaluates only the rules and not the current nodes: an address stands for
// itself, regardless of its node.
func (c *compiler) tests(raw *rawPolicy) error {
	for i, t := range raw.Tests {
		at := fmt.Sprintf("/tests/%d", i)
		from, err := c.selectors(at+"/src", []string{t.Src}, asTestSource)
		if err != nil {
			return c.fail(at+"/src", "%q cannot be the source of a test", t.Src)
		}
		if len(t.Accept) == 0 && len(t.Deny) == 0 {
			return c.fail(at, "a test needs accept or deny")
		}
		protos := []int{6, 17} // TCP or UDP
		if t.Proto != "" {
			if protos, _, err = parseProto(t.Proto); err != nil {
				return c.fail(at+"/proto", "%v", err)
			}
		}
		sources := c.imagine(from[0])
		if len(sources) == 0 {
			return c.fail(at+"/src", "%q is empty: there is no person for the test", t.Src)
		}
		for j, d := range t.Accept {
			if err := c.expect(fmt.Sprintf("%s/accept/%d", at, j), t.Src, sources, d, protos, true); err != nil {
				return err
			}
		}
		for j, d := range t.Deny {
			if err := c.expect(fmt.Sprintf("%s/deny/%d", at, j), t.Src, sources, d, protos, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// expect checks that every source can (or cannot) reach every port of the destination.
func (c *compiler) expect(at, src string, sources []Node, dst string, protos []int, want bool) error {
	host, ranges, err := splitPorts(dst)
	if err != nil {
		return c.fail(at, "%v", err)
	}
	sels, err := c.selectors(at, []string{host}, asTestDestination)
	if err != nil {
		return c.fail(at, "%q cannot be the destination of a test", host)
	}
	targets := c.imagine(sels[0])
	if len(targets) == 0 {
		return c.fail(at, "%q is empty: there is no person for the test", host)
	}
	for _, r := range ranges {
		if r.First != r.Last {
			return c.fail(at, "a test must have single ports")
		}
		for _, s := range sources {
			for _, t := range targets {
				if got := c.p.allows(s, t, sels[0], protos, r.First); got != want {
					said := "the policy does not allow it"
					if got {
						said = "the policy allows it"
					}
					err := c.fail(at, "test failed: %s to %s:%d: %s", src, host, r.First, said)
					err.Test = true
					return err
				}
			}
		}
	}
	return nil
}

// imagine returns the nodes that a test's selector stands for.
func (c *compiler) imagine(sel selector) []Node {
	switch sel.kind {
	case person:
		return []Node{{Login: sel.name}}
	case group:
		var out []Node
		for _, l := range c.p.groups[sel.name] {
			out = append(out, Node{Login: l})
		}
		return out
	case tag:
		return []Node{{Tags: []string{sel.name}}}
	case address:
		return []Node{{Addrs: []netip.Prefix{sel.prefix}}}
	case service:
		return []Node{{}}
	}
	return nil
}

// allows reports whether a rule lets s reach the port of t by one of the protocols.
func (p *Policy) allows(s, t Node, name selector, protos []int, port uint16) bool {
	for _, g := range p.grants {
		if !p.coversAny(g.src, s) {
			continue
		}
		hit := g.self && s.Login != "" && s.Login == t.Login
		for _, d := range g.dst {
			// A whole range is reached only by a rule that covers all of it.
			within := d.kind == address && name.kind == address && d.prefix.Bits() <= name.prefix.Bits() && d.prefix.Overlaps(name.prefix)
			hit = hit || d.kind != address && p.covers(d, t) || within || d.kind == service && d == name
		}
		if !hit {
			continue
		}
		for _, ip := range g.ip {
			if ip.has(protos, port) {
				return true
			}
		}
	}
	return false
}
