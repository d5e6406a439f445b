package tailpolicy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tailscale.com/tailcfg"
)

func (c *compiler) groups(raw *rawPolicy) error {
	for name, logins := range raw.Groups {
		at := "/groups/" + pointer(name)
		if !groupName.MatchString(name) {
			return c.fail(at, "%q is not the name of a group such as group:dev", name)
		}
		logins = slices.Clone(logins)
		for i, l := range logins {
			if !c.p.isLogin(l) {
				return c.fail(fmt.Sprintf("%s/%d", at, i), "%q is not a login: a group has logins only", l)
			}
			logins[i] = strings.TrimSuffix(l, "@")
		}
		c.p.groups[name] = logins
	}
	return nil
}

func (c *compiler) hosts(raw *rawPolicy) error {
	for name, addr := range raw.Hosts {
		at := "/hosts/" + pointer(name)
		p, ok := parsePrefix(addr)
		switch {
		case !hostName.MatchString(name) || isAddress(name):
			return c.fail(at, "%q is not the name of a host", name)
		case !ok:
			return c.fail(at, "%q is neither an address nor a CIDR", addr)
		}
		c.p.hosts[name] = p
	}
	return nil
}

func (c *compiler) tagOwners(raw *rawPolicy) error {
	for name := range raw.TagOwners { // owners can be tags, so collect all tags first
		if !tagName.MatchString(name) {
			return c.fail("/tagOwners/"+pointer(name), "%q is not the name of a tag such as tag:ci", name)
		}
		c.p.tagOwners[name] = nil
	}
	for name, owners := range raw.TagOwners {
		sels, err := c.selectors("/tagOwners/"+pointer(name), owners, asOwner)
		if err != nil {
			return err
		}
		c.p.tagOwners[name] = sels
	}
	return nil
}

func (c *compiler) grants(raw *rawPolicy) error {
	for i, g := range raw.Grants {
		at := fmt.Sprintf("/grants/%d", i)
		out, err := c.ends(at, g.Src, g.Dst)
		if err != nil {
			return err
		}
		if len(g.IP) == 0 && len(g.App) == 0 {
			return c.fail(at, "a grant needs ip or app")
		}
		for j, s := range g.IP {
			p, err := parseIP(s)
			if err != nil {
				return c.fail(fmt.Sprintf("%s/ip/%d", at, j), "%v", err)
			}
			out.ip = append(out.ip, p)
		}
		if out.app, err = capValues[tailcfg.PeerCapability](c, at+"/app", g.App); err != nil {
			return err
		}
		c.p.grants = append(c.p.grants, out)
	}
	return nil
}

// ends checks the source and the destination of a rule.
func (c *compiler) ends(at string, src, dst []string) (g grant, err error) {
	if len(src) == 0 || len(dst) == 0 {
		return g, c.fail(at, "a rule needs src and dst")
	}
	if g.src, err = c.selectors(at+"/src", src, asSource); err != nil {
		return g, err
	}
	if g.dst, err = c.selectors(at+"/dst", dst, asDestination); err != nil {
		return g, err
	}
	n := len(g.dst)
	g.dst = slices.DeleteFunc(g.dst, func(s selector) bool { return s.kind == self })
	g.self = len(g.dst) < n
	for i, s := range g.src {
		if g.self && s.kind != person && s.kind != group && s.kind != member {
			return g, c.fail(fmt.Sprintf("%s/src/%d", at, i),
				"with autogroup:self as destination the sources can be logins, groups and autogroup:member only, not %q", src[i])
		}
	}
	return g, nil
}

// capValues checks the names of capabilities, and converts their values.
func capValues[K ~string](c *compiler, at string, app map[string][]json.RawMessage) (map[K][]tailcfg.RawMessage, error) {
	var out map[K][]tailcfg.RawMessage
	for name, values := range app {
		if !capName.MatchString(name) {
			return nil, c.fail(at+"/"+pointer(name), "%q is not the name of a capability such as example.com/cap/name", name)
		}
		if out == nil {
			out = map[K][]tailcfg.RawMessage{}
		}
		out[K(name)] = []tailcfg.RawMessage{}
		for _, v := range values {
			out[K(name)] = append(out[K(name)], tailcfg.RawMessage(v))
		}
	}
	return out, nil
}

// acls compiles the acls section, the older form of grants with ip. There, each destination includes its ports.
func (c *compiler) acls(raw *rawPolicy) error {
	for i, a := range raw.ACLs {
		at := fmt.Sprintf("/acls/%d", i)
		if a.Action != "accept" {
			return c.fail(at, "action %q: only accept is supported", a.Action)
		}
		protos, portless, err := parseProto(a.Proto)
		if err != nil {
			return c.fail(at+"/proto", "%v", err)
		}
		for j, d := range a.Dst {
			at := fmt.Sprintf("%s/dst/%d", at, j)
			host, ranges, err := splitPorts(d)
			if err != nil {
				return c.fail(at, "%v", err)
			}
			if portless && !slices.Equal(ranges, []tailcfg.PortRange{tailcfg.PortRangeAny}) {
				return c.fail(at, "protocol %s has no ports", a.Proto)
			}
			g, err := c.ends(fmt.Sprintf("/acls/%d", i), a.Src, []string{host})
			if err != nil {
				return err
			}
			g.ip = []ports{{protos, ranges}}
			c.p.grants = append(c.p.grants, g)
		}
		if len(a.Dst) == 0 {
			return c.fail(at, "a rule needs src and dst")
		}
	}
	return nil
}

func (c *compiler) nodeAttrs(raw *rawPolicy) error {
	for i, a := range raw.NodeAttrs {
		at := fmt.Sprintf("/nodeAttrs/%d", i)
		target, err := c.selectors(at+"/target", a.Target, asTarget)
		if err != nil {
			return err
		}
		if len(target) == 0 || len(a.Attr) == 0 && len(a.App) == 0 {
			return c.fail(at, "a node attribute needs target and attr or app")
		}
		attrs, err := capValues[tailcfg.NodeCapability](c, at+"/app", a.App)
		if err != nil {
			return err
		}
		if attrs == nil {
			attrs = tailcfg.NodeCapMap{}
		}
		for j, x := range a.Attr {
			if x == "" || strings.ContainsAny(x, " \t\n") {
				return c.fail(fmt.Sprintf("%s/attr/%d", at, j), "%q is not an attribute", x)
			}
			attrs[tailcfg.NodeCapability(x)] = nil
		}
		c.p.attrs = append(c.p.attrs, attrRule{target, attrs})
	}
	return nil
}
