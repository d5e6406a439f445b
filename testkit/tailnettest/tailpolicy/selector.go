package tailpolicy

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"tailscale.com/tailcfg"
)

// selector is a checked name of nodes, used as src, dst, target or owner of a tag.
type selector struct {
	kind   selectorKind
	name   string       // login, group, tag or service
	prefix netip.Prefix // address
}

type selectorKind int

const (
	anyone   selectorKind = iota + 1 // *
	person                           // alice@example.com
	group                            // group:dev
	tag                              // tag:ci
	address                          // 100.64.0.7, 10.0.0.0/8, a name of hosts
	member                           // autogroup:member
	tagged                           // autogroup:tagged
	shared                           // autogroup:shared
	self                             // autogroup:self
	internet                         // autogroup:internet: no node here is an exit node, so it gives nothing
	service                          // svc:web
	admin                            // autogroup:admin and similar groups, as owners of tags; no login is in them
)

// place is the position of a selector. Each position allows only some selectors.
type place int

const (
	asSource place = iota
	asDestination
	asTarget
	asOwner
	asTestSource
	asTestDestination
)

var allowedAs = map[place][]selectorKind{
	asSource:          {anyone, person, group, tag, address, member, tagged, shared},
	asDestination:     {anyone, person, group, tag, address, member, tagged, self, internet, service},
	asTarget:          {anyone, person, group, tag, address, member, tagged},
	asOwner:           {person, group, tag, member, admin},
	asTestSource:      {person, group, tag, address},
	asTestDestination: {person, group, tag, address, service},
}

var (
	groupName = regexp.MustCompile(`^group:[A-Za-z0-9][A-Za-z0-9._-]*$`)
	tagName   = regexp.MustCompile(`^tag:[A-Za-z][A-Za-z0-9-]*$`)
	hostName  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)
	capName   = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+/[A-Za-z0-9._/-]+$`)
	loginName = regexp.MustCompile(`^[^\s@:*,/"]+(@[^\s@:*,/"]+)+$`)
)

// IsLogin reports whether s is a valid login name of a person.
func IsLogin(s string) bool { return len(s) <= 254 && loginName.MatchString(s) }

// isLogin reports whether s names a person in the file.
func (p *Policy) isLogin(s string) bool {
	name, short := strings.CutSuffix(s, "@")
	return IsLogin(s) || p.headscale && short && hostName.MatchString(name)
}

// selectors parses a list of names at a position.
func (c *compiler) selectors(at string, names []string, where place) ([]selector, error) {
	var out []selector
	for i, s := range names {
		at := fmt.Sprintf("%s/%d", at, i)
		sel, err := c.p.selector(s)
		if err != nil {
			return nil, c.fail(at, "%v", err)
		}
		if !slices.Contains(allowedAs[where], sel.kind) {
			return nil, c.fail(at, "%q is not allowed here", s)
		}
		out = append(out, sel)
	}
	return out, nil
}

// selector parses one name of nodes. Groups, tags and hosts must be declared.
func (p *Policy) selector(s string) (selector, error) {
	none := selector{}
	prefix, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "*":
		return selector{kind: anyone}, nil
	case prefix == "autogroup":
		kind, ok := map[string]selectorKind{
			"member": member, "tagged": tagged, "self": self, "internet": internet, "shared": shared,
			"admin": admin, "owner": admin, "network-admin": admin, "it-admin": admin,
		}[rest]
		if p.headscale && (kind == admin || kind == shared) {
			return none, fmt.Errorf("%q: Headscale has no such autogroup", s)
		}
		if !ok {
			return none, fmt.Errorf("%q is not supported by this testbed", s)
		}
		return selector{kind: kind, name: s}, nil
	case prefix == "group":
		if _, ok := p.groups[s]; !ok {
			return none, fmt.Errorf("%q is not declared in groups", s)
		}
		return selector{kind: group, name: s}, nil
	case prefix == "tag":
		if _, ok := p.tagOwners[s]; !ok {
			return none, fmt.Errorf("%q is not declared in tagOwners", s)
		}
		return selector{kind: tag, name: s}, nil
	case prefix == "svc":
		if err := tailcfg.ServiceName(s).Validate(); err != nil {
			return none, err
		}
		return selector{kind: service, name: s}, nil
	case prefix == "ipset" || prefix == "user" || prefix == "posture":
		return none, fmt.Errorf("%q: %s is not supported by this testbed", s, prefix)
	case p.isLogin(s):
		return selector{kind: person, name: strings.TrimSuffix(s, "@")}, nil
	}
	if a, ok := parsePrefix(s); ok {
		return selector{kind: address, prefix: a}, nil
	}
	if a, ok := p.hosts[s]; ok {
		return selector{kind: address, prefix: a}, nil
	}
	return none, fmt.Errorf("%q is not a login, group, tag, autogroup, service, address or name of hosts", s)
}

func parsePrefix(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err == nil
}

func isAddress(s string) bool { _, ok := parsePrefix(s); return ok }
