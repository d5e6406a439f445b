package access

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Limits of one rule and of one sign-in.
const (
	maxBinds      = 8  // roles
	maxNamespaces = 50 // namespaces over all roles; each is one RoleBinding
)

// A Bind is a role and where it applies.
type Bind struct {
	Role       Role
	Namespaces []string // sorted; empty: no limit by name
	Selector   Selector // "": no limit by labels
}

// IsClusterWide reports whether the role applies in the whole cluster.
func (b Bind) IsClusterWide() bool { return len(b.Namespaces) == 0 && b.Selector == "" }

// Where returns where the role applies, for a sentence, such as "in shop, shop-jobs".
func (b Bind) Where() string {
	switch {
	case b.IsClusterWide():
		return "in the whole cluster"
	case b.Selector == "":
		return "in " + strings.Join(b.Namespaces, ", ")
	case len(b.Namespaces) == 0:
		return fmt.Sprintf("in the namespaces with the labels %s", b.Selector)
	}
	return fmt.Sprintf("in those of %s with the labels %s", strings.Join(b.Namespaces, ", "), b.Selector)
}

// includes reports whether the role applies in the namespace, as far as its name decides it.
func (b Bind) includes(ns string) bool {
	return len(b.Namespaces) == 0 || slices.Contains(b.Namespaces, ns)
}

// covers reports whether b gives everything that narrow gives. Two selectors compare by their text,
// and a selector never covers names, because labels change.
func (b Bind) covers(narrow Bind) bool {
	return b.Role == narrow.Role && (b.Selector == "" || b.Selector == narrow.Selector) &&
		(len(b.Namespaces) == 0 || len(narrow.Namespaces) > 0 && subset(narrow.Namespaces, b.Namespaces))
}

// Binds are the roles of one rule or one sign-in: at most maxBinds, each role once. Their order only
// matters for names and for people.
type Binds []Bind

// Role returns the names of the roles, separated by commas: "view" or "view,edit". It is the name of
// the combination in requests, messages and records.
func (bs Binds) Role() Role {
	names := make([]string, len(bs))
	for i, b := range bs {
		names[i] = string(b.Role)
	}
	return Role(strings.Join(names, ","))
}

// Namespaces returns all namespaces that the roles name, sorted. It returns nil if a role is not
// limited to named namespaces. Requesting these namespaces again does not change the roles.
func (bs Binds) Namespaces() (all []string) {
	for _, b := range bs {
		if len(b.Namespaces) == 0 {
			return nil
		}
		all = append(all, b.Namespaces...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// IsSimple reports whether a role and a list of namespaces describe bs completely: it is one role
// without a selector.
func (bs Binds) IsSimple() bool { return len(bs) == 1 && bs[0].Selector == "" }

// Equal reports whether both give the same, in any order.
func (bs Binds) Equal(others Binds) bool {
	return len(bs) == len(others) && !slices.ContainsFunc(bs, func(b Bind) bool {
		return !slices.ContainsFunc(others, func(o Bind) bool {
			return b.Role == o.Role && b.Selector == o.Selector && slices.Equal(b.Namespaces, o.Namespaces)
		})
	})
}

// String returns the roles for people, such as "view in the whole cluster, edit in shop".
func (bs Binds) String() string {
	texts := make([]string, len(bs))
	for i, b := range bs {
		texts[i] = string(b.Role) + " " + b.Where()
	}
	return strings.Join(texts, ", ")
}

// contain reports whether role is one of the roles.
func (bs Binds) contain(role Role) bool {
	return slices.ContainsFunc(bs, func(b Bind) bool { return b.Role == role })
}

// cover reports whether each of others is covered.
func (bs Binds) cover(others Binds) bool {
	return !slices.ContainsFunc(others, func(o Bind) bool {
		return !slices.ContainsFunc(bs, func(b Bind) bool { return b.covers(o) })
	})
}

// isMeantBy reports whether the request names the rule, or names exactly its roles in any order.
func (g Grant) isMeantBy(request Role) bool {
	asked := strings.Split(string(request), ",")
	return g.Name != "" && g.Name == string(request) ||
		len(asked) == len(g.Binds) && !slices.ContainsFunc(g.Binds, func(b Bind) bool { return !slices.Contains(asked, string(b.Role)) })
}

// choice returns what a caller can request to get this rule.
func (g Grant) choice() string {
	if g.Name != "" {
		return g.Name
	}
	return string(g.Binds.Role())
}

// Validate checks the number of roles and namespaces, and that each role occurs once.
func (bs Binds) Validate() error {
	if len(bs) == 0 || len(bs) > maxBinds {
		return fmt.Errorf("%d roles; a rule has 1 to %d", len(bs), maxBinds)
	}
	namespaces := 0
	for i, b := range bs {
		if bs[:i].contain(b.Role) {
			return fmt.Errorf("the role %q is listed twice", b.Role)
		}
		namespaces += len(b.Namespaces)
	}
	if namespaces > maxNamespaces {
		return fmt.Errorf("%d namespaces; all roles together have at most %d", namespaces, maxNamespaces)
	}
	return nil
}

// decodeBinds decodes the value of "bind", whose first token is value.
func decodeBinds(value json.Token, d *json.Decoder) (out Binds, err error) {
	if value != json.Delim('[') {
		return nil, fmt.Errorf("not a list")
	}
	for d.More() {
		if t, err := d.Token(); err != nil || t != json.Delim('{') {
			return nil, fmt.Errorf("contains a value that is not an object")
		}
		var f bindFields
		err := eachFieldOf(d, func(field string, value json.Token, d *json.Decoder) error {
			known, err := f.set(field, value, d)
			if !known {
				return fmt.Errorf("%.60q is not a field of a role to bind", field)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		b, err := f.bind()
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("not JSON: %w", err)
	}
	return out, out.Validate()
}

// bindFields are the decoded fields of one Bind.
type bindFields struct {
	b    Bind
	seen string // the first field; "" if there is none
}

// set decodes the value of one field. known is false if the field is not one of a Bind.
func (f *bindFields) set(field string, value json.Token, d *json.Decoder) (known bool, err error) {
	text, isText := value.(string)
	switch field {
	case "role":
		if !isText {
			return true, fmt.Errorf(`"role" is not a string`)
		}
		f.b.Role, err = ParseRole(text)
	case "namespaces":
		var names []string
		if names, err = decodeList(value, d); err == nil {
			f.b.Namespaces, err = ParseNamespaces(names)
		}
	case "namespaceSelector":
		if !isText {
			return true, fmt.Errorf(`"namespaceSelector" is not a string such as "team=shop"`)
		}
		f.b.Selector, err = ParseSelector(text)
	default:
		return false, nil
	}
	if f.seen == "" {
		f.seen = field
	}
	if err != nil {
		return true, fmt.Errorf("%q: %w", field, err)
	}
	return true, nil
}

// bind returns the decoded Bind.
func (f *bindFields) bind() (Bind, error) {
	switch {
	case f.b.Role == "":
		return Bind{}, fmt.Errorf(`"role" is missing`)
	case len(f.b.Namespaces) > 0 && f.b.Selector != "":
		return Bind{}, fmt.Errorf(`"namespaces" is not possible together with "namespaceSelector"`)
	}
	return f.b, nil
}

// subset reports whether every element of a is in of.
func subset(a, of []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(of, s) })
}
