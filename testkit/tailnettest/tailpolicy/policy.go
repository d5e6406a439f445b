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
	"strings"

	"github.com/tailscale/hujson"
	"tailscale.com/tailcfg"
)

// Policy is a policy file that passed all checks, so compiling filters from it cannot fail. It is immutable.
type Policy struct {
	text      string
	headscale bool                // the file is in the dialect of Headscale
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

// Parse checks a whole policy file and runs its tests section. Errors are of type *Error, except for a text that is
// not HuJSON.
func Parse(text string) (*Policy, error) { return parse(text, false) }

// ParseHeadscale is Parse for the dialect of Headscale. It refuses the autogroups that Headscale does not have, and accepts "pat@" for
// a user without an e-mail address whose name is "pat".
func ParseHeadscale(text string) (*Policy, error) { return parse(text, true) }

func parse(text string, headscale bool) (*Policy, error) {
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
		text: text, headscale: headscale, groups: map[string][]string{}, tagOwners: map[string][]selector{}, hosts: map[string]netip.Prefix{}}}
	if err := c.compile(); err != nil {
		return nil, err
	}
	return c.p, nil
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

// compile checks shapes before contents, so that an unsupported field is reported as such.
func (c *compiler) compile() error {
	if err := c.shapes(); err != nil {
		return err
	}
	var raw rawPolicy
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
