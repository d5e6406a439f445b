// Package tailpolicy compiles a tailnet's policy file (HuJSON in Tailscale's own syntax) into packet filters,
// capability grants and node attributes. It fails closed: an unknown feature is an error that names it, because a
// rule that is silently ignored would make tests meaningless. The package has no I/O and no clock. From Tailscale it
// uses only the types of package tailcfg.
package tailpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
	"tailscale.com/tailcfg"
)

// Policy is a policy file that passed all checks, so compiling filters from it cannot fail. It is immutable.
type Policy struct {
	text      string
	groups    map[string][]string // "group:dev" -> logins
	tagOwners map[string][]selector
	hosts     map[string]netip.Prefix
	grants    []grant
	attrs     []attrRule
}

// grant is one rule: an entry of grants, or of acls.
type grant struct {
	src, dst []selector
	self     bool // autogroup:self is one of the destinations
	ip       []ports
	app      tailcfg.PeerCapMap
}

// attrRule is an entry of nodeAttrs.
type attrRule struct {
	target []selector
	attrs  tailcfg.NodeCapMap
}

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

// Error is an error at a position in a policy file.
type Error struct {
	Line int    // starts at 1
	Path string // such as "/grants/0/src/1"; empty for the file as a whole
	Msg  string
	Test bool // the file is well-formed, but its own tests section fails
}

func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("policy line %d: %s", e.Line, e.Msg)
	}
	return fmt.Sprintf("policy line %d, %s: %s", e.Line, e.Path, e.Msg)
}

// sections are all supported sections of a file. Other sections of Tailscale are rejected by name.
var sections = []string{"groups", "hosts", "tagOwners", "grants", "acls", "nodeAttrs", "tests"}

type rawPolicy struct {
	Groups    map[string][]string `json:"groups"`
	Hosts     map[string]string   `json:"hosts"`
	TagOwners map[string][]string `json:"tagOwners"`
	Grants    []rawGrant          `json:"grants"`
	ACLs      []rawACL            `json:"acls"`
	NodeAttrs []rawAttr           `json:"nodeAttrs"`
	Tests     []rawTest           `json:"tests"`
}

type rawGrant struct {
	Src []string                     `json:"src"`
	Dst []string                     `json:"dst"`
	IP  []string                     `json:"ip"`
	App map[string][]json.RawMessage `json:"app"`
}

type rawACL struct {
	Action string   `json:"action"`
	Src    []string `json:"src"`
	Proto  string   `json:"proto"`
	Dst    []string `json:"dst"`
}

type rawAttr struct {
	Target []string                     `json:"target"`
	Attr   []string                     `json:"attr"`
	App    map[string][]json.RawMessage `json:"app"`
}

type rawTest struct {
	Src    string   `json:"src"`
	Proto  string   `json:"proto"`
	Accept []string `json:"accept"`
	Deny   []string `json:"deny"`
}

// MaxSize is the maximum size of a policy file, in bytes.
const MaxSize = 1 << 20

// maxDepth is the maximum nesting of lists and objects. It equals the limit of encoding/json, with which the nodes
// read the values of capabilities.
const maxDepth = 10_000

// Parse checks a whole policy file and runs its tests section. Errors are of type *Error, except for a text that is
// not HuJSON.
func Parse(text string) (*Policy, error) {
	if len(text) > MaxSize {
		return nil, &Error{Line: 1, Msg: "is longer than 1 MiB"}
	}
	// This must come before the parser: a megabyte of brackets overflows its stack, which is not recoverable.
	if at := tooDeep(text, maxDepth); at >= 0 {
		return nil, &Error{Line: 1 + strings.Count(text[:at], "\n"), Msg: fmt.Sprintf("lists and objects are nested deeper than %d", maxDepth)}
	}
	ast, err := hujson.Parse([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	c := &compiler{text: text, ast: &ast, p: &Policy{
		text: text, groups: map[string][]string{}, tagOwners: map[string][]selector{}, hosts: map[string]netip.Prefix{}}}
	if err := c.compile(); err != nil {
		return nil, err
	}
	return c.p, nil
}

// tooDeep returns the offset of the bracket that exceeds most levels, or -1. It counts brackets outside of strings
// and comments, and leaves other checks to the parser. The parser is never deeper than the number of open brackets.
func tooDeep(text string, most int) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch rest := text[i:]; {
		case rest[0] == '[' || rest[0] == '{':
			if depth++; depth > most {
				return i
			}
		case rest[0] == ']' || rest[0] == '}':
			depth--
		case rest[0] == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++ // an escaped character does not end the string
				}
			}
		case strings.HasPrefix(rest, "//"):
			i += len(before(rest, "\n"))
		case strings.HasPrefix(rest, "/*"):
			i += len("/*") + len(before(rest[len("/*"):], "*/")) + len("/") // in addition to the step of the loop
		}
	}
	return -1
}

// before returns s up to the end mark, or all of it.
func before(s, end string) string {
	s, _, _ = strings.Cut(s, end)
	return s
}

// Text returns the file as it was passed to Parse.
func (p *Policy) Text() string { return p.text }

// compiler turns text into a policy, and tracks positions in the text.
type compiler struct {
	text string
	ast  *hujson.Value
	p    *Policy
}

// fail returns the error for the value at a JSON pointer.
func (c *compiler) fail(path, format string, args ...any) *Error {
	e := &Error{Line: 1, Path: path, Msg: fmt.Sprintf(format, args...)}
	if v := c.ast.Find(path); v != nil {
		e.Line += strings.Count(c.text[:v.StartOffset], "\n")
	}
	return e
}

func (c *compiler) compile() error {
	if path, found := duplicate(c.ast); found {
		return c.fail(path, "%q occurs twice", path[strings.LastIndexByte(path, '/')+1:])
	}
	if err := c.fields("", "this testbed", sections...); err != nil {
		return err
	}
	var raw rawPolicy
	// Check shapes before contents, so that an unsupported field is reported as such.
	for _, section := range []struct {
		path  string
		known []string
	}{
		{"/grants", []string{"src", "dst", "ip", "app"}},
		{"/acls", []string{"action", "src", "proto", "dst"}},
		{"/nodeAttrs", []string{"target", "attr", "app"}},
		{"/tests", []string{"src", "proto", "accept", "deny"}},
	} {
		path, known := section.path, section.known
		list := c.ast.Find(path)
		if list == nil {
			continue
		}
		array, ok := list.Value.(*hujson.Array)
		if !ok {
			return c.fail(path, "must be a list")
		}
		for i := range array.Elements {
			if err := c.fields(fmt.Sprintf("%s/%d", path, i), "this testbed", known...); err != nil {
				return err
			}
		}
	}
	std := c.ast.Clone()
	std.Minimize() // standard JSON, and capability values without comments and spaces
	if err := json.Unmarshal(std.Pack(), &raw); err != nil {
		if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return c.fail("", "%s: a %s is not allowed here", te.Field, te.Value)
		}
		return c.fail("", "%v", err)
	}
	for _, step := range []func(*rawPolicy) error{c.groups, c.hosts, c.tagOwners, c.grants, c.acls, c.nodeAttrs, c.tests} {
		if err := step(&raw); err != nil {
			return err
		}
	}
	return nil
}

// fields rejects unknown fields of an object.
func (c *compiler) fields(path, where string, known ...string) error {
	v := c.ast.Find(path)
	if v == nil {
		return nil
	}
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return c.fail(path, "must be an object")
	}
	for _, m := range object.Members {
		if name := m.Name.Value.(hujson.Literal).String(); !slices.Contains(known, name) {
			return c.fail(path+"/"+pointer(name), "%q is not supported by %s, which supports %s", name, where, strings.Join(known, ", "))
		}
	}
	return nil
}

// duplicate finds a duplicate name in an object and returns its position. A policy must not depend on which of the
// two counts.
func duplicate(v *hujson.Value) (path string, found bool) {
	switch x := v.Value.(type) {
	case *hujson.Object:
		seen := map[string]bool{}
		for i := range x.Members {
			m := &x.Members[i]
			name := m.Name.Value.(hujson.Literal).String()
			if seen[name] {
				return "/" + pointer(name), true
			}
			seen[name] = true
			if path, found = duplicate(&m.Value); found {
				return "/" + pointer(name) + path, true
			}
		}
	case *hujson.Array:
		for i := range x.Elements {
			if path, found = duplicate(&x.Elements[i]); found {
				return fmt.Sprintf("/%d", i) + path, true
			}
		}
	}
	return "", false
}

// pointer escapes a name for a JSON pointer.
func pointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
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

func (c *compiler) groups(raw *rawPolicy) error {
	for name, logins := range raw.Groups {
		at := "/groups/" + pointer(name)
		if !groupName.MatchString(name) {
			return c.fail(at, "%q is not the name of a group such as group:dev", name)
		}
		for i, l := range logins {
			if !IsLogin(l) {
				return c.fail(fmt.Sprintf("%s/%d", at, i), "%q is not a login: a group has logins only", l)
			}
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
			return g, c.fail(fmt.Sprintf("%s/src/%d", at, i), "with autogroup:self as destination the sources can be logins, groups and autogroup:member only, not %q", src[i])
		}
	}
	return g, nil
}

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
	case IsLogin(s):
		return selector{kind: person, name: s}, nil
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
