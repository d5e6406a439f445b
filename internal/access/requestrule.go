package access

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A RequestRule is one rule of the capability for access requests. It says what a caller may ask for, or, with Approve,
// what a caller may decide about.
type RequestRule struct {
	Grant         // what may be asked for; zero in a rule with Approve
	Approvals int // how many other people must approve; 0: the caller's own request is enough

	Approve    []Role   // the roles whose requests the caller may decide about; nil: the rule is not for deciding
	Namespaces []string // of a rule with Approve: where; empty: anywhere
}

const (
	defaultApprovals = 1
	maxApprovals     = 5
)

// covers reports whether a rule with Approve lets a person decide about all of binds.
func (r RequestRule) covers(binds Binds) bool {
	return len(binds) > 0 && !slices.ContainsFunc(binds, func(b Bind) bool {
		return !slices.Contains(r.Approve, b.Role) || len(r.Namespaces) > 0 && (len(b.Namespaces) == 0 || !subset(b.Namespaces, r.Namespaces))
	})
}

// ParseRequestRule decodes one rule of the capability for access requests strictly, as [ParseGrant] does.
func ParseRequestRule(raw []byte) (RequestRule, error) {
	r := RequestRule{Approvals: defaultApprovals}
	var short bindFields
	var fields []string
	err := eachField(raw, func(field string, value json.Token, d *json.Decoder) (err error) {
		fields = append(fields, field)
		switch field {
		case "approve":
			r.Approve, err = decodeRoles(value, d)
		case "approvals":
			r.Approvals, err = decodeApprovals(value)
		case "role", "namespaces", "namespaceSelector":
			_, err = short.set(field, value, d)
		case "name", "bind", "period", "allowTagged", "record":
			err = r.set(field, value, d)
		default:
			err = fmt.Errorf("%.60q is not a field of a rule for requests", field)
		}
		return err
	})
	if err != nil {
		return RequestRule{}, err
	}
	if r.Approve != nil {
		r.Namespaces = short.b.Namespaces
		if i := slices.IndexFunc(fields, func(f string) bool { return f != "approve" && f != "namespaces" }); i >= 0 {
			return RequestRule{}, fmt.Errorf(`%q is not possible together with "approve"`, fields[i])
		}
		return r, nil
	}
	return r.finish(short, fields)
}

// finish checks a rule that lets a caller ask.
func (r RequestRule) finish(short bindFields, fields []string) (RequestRule, error) {
	switch {
	case !slices.Contains(fields, "period"):
		return RequestRule{}, fmt.Errorf(`"period" is missing`)
	case r.Binds != nil && short.seen != "":
		return RequestRule{}, fmt.Errorf("%q is not possible together with \"bind\"", short.seen)
	case r.Binds != nil && r.Name == "":
		return RequestRule{}, fmt.Errorf(`"name" is missing: a rule with "bind" needs one`)
	case r.Binds != nil:
		return r, nil
	}
	b, err := short.bind()
	if err != nil {
		return RequestRule{}, err
	}
	r.Binds = Binds{b}
	return r, nil
}

// decodeRoles decodes the value of "approve", whose first token is value.
func decodeRoles(value json.Token, d *json.Decoder) (roles []Role, err error) {
	names, err := decodeList(value, d)
	if err != nil {
		return nil, fmt.Errorf(`"approve": %w`, err)
	}
	if len(names) == 0 || len(names) > 50 {
		return nil, fmt.Errorf(`"approve": %d roles; a rule must list 1 to 50`, len(names))
	}
	for _, name := range names {
		role, err := ParseRole(name)
		if err != nil {
			return nil, fmt.Errorf(`"approve": %w`, err)
		}
		if slices.Contains(roles, role) {
			return nil, fmt.Errorf(`"approve": the role %q is listed twice`, role)
		}
		roles = append(roles, role)
	}
	return roles, nil
}

func decodeApprovals(value json.Token) (int, error) {
	text, _ := value.(json.Number)
	n, err := strconv.Atoi(text.String())
	if err != nil || n < 0 || n > maxApprovals || strings.HasPrefix(text.String(), "-") {
		return 0, fmt.Errorf(`"approvals" is not a whole number from 0 to %d`, maxApprovals)
	}
	return n, nil
}

// requestRule decodes one rule and checks it against the server's roles and reserved namespaces.
func (pol Policy) requestRule(raw []byte) (RequestRule, error) {
	r, err := ParseRequestRule(raw)
	if err != nil {
		return r, err
	}
	if slices.Contains(pol.Roles, Role(r.Name)) {
		return r, fmt.Errorf(`"name": %q is the name of a role`, r.Name)
	}
	for _, b := range append(slices.Clone(r.Binds), Bind{Namespaces: r.Namespaces}) {
		for _, ns := range b.Namespaces {
			if slices.Contains(pol.Reserved, ns) {
				return r, fmt.Errorf(`"namespaces": %q is reserved for Tailplane`, ns)
			}
		}
	}
	return r, nil
}
