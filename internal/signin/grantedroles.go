package signin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// A RolesRequest names a request to the Kubernetes API. Resource or Path is required.
type RolesRequest struct {
	RequestToken
	Verb        Word `json:"-" query:"verb" doc:"required; such as get"`
	Group       Word `json:"-" query:"group" doc:"API group of the resource; without it, the core group"`
	Resource    Word `json:"-" query:"resource" doc:"plural"`
	Subresource Word `json:"-" query:"subresource"`
	Name        Word `json:"-" query:"name" doc:"name of the object; without it, every object"`
	Namespace   Word `json:"-" query:"namespace" doc:"without it, all namespaces, or a cluster-scoped resource"`
	Path        Word `json:"-" query:"path" doc:"a path that is not a resource, such as /healthz"`
}

// attributes returns the request, or the error for a request that is neither a resource nor a path.
func (r RolesRequest) attributes() (Attributes, error) {
	a := Attributes{Verb: string(r.Verb), Group: string(r.Group), Resource: string(r.Resource), Subresource: string(r.Subresource),
		Name: string(r.Name), Namespace: string(r.Namespace), Path: string(r.Path)}
	switch {
	case a.Verb == "" || (a.Resource == "") == (a.Path == ""):
		return a, errors.New("a verb is required, and either a resource or a path")
	case a.Path != "" && a != (Attributes{Verb: a.Verb, Path: a.Path}):
		return a, errors.New("a path has no group, resource, name or namespace")
	case a.Path != "" && !strings.HasPrefix(a.Path, "/"):
		return a, errors.New(`a path begins with "/"`)
	}
	return a, nil
}

// A Word is a parameter of a request: at most 253 bytes, without spaces and control characters.
type Word string

// maxWord is the maximum length of the name of an object of Kubernetes.
const maxWord = 253

// MarshalText implements [encoding.TextMarshaler].
func (w Word) MarshalText() ([]byte, error) { return []byte(w), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (w *Word) UnmarshalText(text []byte) error {
	s := string(text)
	switch {
	case len(s) > maxWord:
		return fmt.Errorf("it has %d bytes, more than %d", len(s), maxWord)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return errors.New("it contains a space or a character that cannot be printed")
	}
	*w = Word(s)
	return nil
}

// GrantedRoles are the rules of the caller that a login can use.
type GrantedRoles struct {
	Roles []GrantedRole `json:"roles" null:"never" doc:"the least first: a role comes before the roles that allow all that it allows"`
}

// A GrantedRole is a rule that a login can use: a role, or several.
type GrantedRole struct {
	Name       string   `json:"name,omitempty" doc:"the rule's name; a login can request it instead of the role"`
	Role       string   `json:"role" doc:"several roles are separated by commas"`
	Namespaces []string `json:"namespaces" null:"never" doc:"where the role is granted; none: the whole cluster, or as in bind"`
	Bind       []Role   `json:"bind,omitempty" doc:"each role and where it applies; absent: role and namespaces say it"`
	Allows     bool     `json:"allows" doc:"the stored rules of the ClusterRoles allow the request there; other authorizers of the cluster may decide differently"`
	Selector   string   `json:"namespaceSelector,omitempty" doc:"allows is true only if the namespace has these labels"`

	rules []PolicyRule // of all its roles
	width int          // number of namespaces
}

// grantedRoles returns which of the caller's rules allow a request, from the rules of their roles.
func (d *Service) grantedRoles(ctx context.Context, p access.Permit, req RolesRequest) (GrantedRoles, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.SigninRoles, d.Now()); err != nil {
		return GrantedRoles{}, err
	}
	p, err := d.withToken(ctx, p, req.Token)
	if err != nil {
		return GrantedRoles{}, err
	}
	a, err := req.attributes()
	if err != nil {
		return GrantedRoles{}, problem.New(problem.BadRequest, fmt.Sprintf("The request is invalid: %v.", err))
	}
	all := []GrantedRole{}
	for _, r := range p.Explain().Rules {
		if r.Problem != "" {
			continue
		}
		switch check, err := d.checkClusterWide(ctx, r.Binds, false); {
		case err != nil:
			return GrantedRoles{}, err
		case check.refusal != nil:
			continue
		}
		g, err := d.grantedRole(ctx, r.Grant, a)
		if err != nil {
			return GrantedRoles{}, err
		}
		all = append(all, g)
	}
	sortLeastFirst(all)
	return GrantedRoles{Roles: all}, nil
}

// grantedRole returns whether one rule allows a request.
func (d *Service) grantedRole(ctx context.Context, rule access.Grant, a Attributes) (GrantedRole, error) {
	g := GrantedRole{Name: rule.Name, Role: string(rule.Binds.Role()), Namespaces: append([]string{}, rule.Binds.Namespaces()...)}
	if !rule.Binds.IsSimple() {
		g.Bind = rolesOfBinds(rule.Binds)
	}
	for _, b := range rule.Binds {
		rules, err := d.roleRules(ctx, b.Role)
		if err != nil {
			return g, unavailable(err)
		}
		g.rules = append(g.rules, rules...)
		if g.width += len(b.Namespaces); len(b.Namespaces) == 0 {
			g.width += wholeCluster
		}
		switch {
		case !a.AllowedBy(rules, b.Namespaces):
		case b.Selector == "":
			g.Allows, g.Selector = true, ""
		case !g.Allows && a.Namespace != "":
			g.Allows, g.Selector = true, string(b.Selector)
		}
	}
	return g, nil
}

// wholeCluster counts as more namespaces than a rule can list.
const wholeCluster = 1000

// roleRules returns the rules of a ClusterRole; none if it does not exist.
func (d *Service) roleRules(ctx context.Context, role access.Role) ([]PolicyRule, error) {
	if d.RoleRules == nil {
		return nil, nil
	}
	return d.RoleRules(ctx, role)
}

// sortLeastFirst sorts the rules so that each comes before those that cover it. A rule that covers
// another covers at least one rule more, so the number of covered rules gives the order. Among equal
// rules, those of few namespaces come first; then the order of the policy decides.
func sortLeastFirst(all []GrantedRole) {
	type counted struct {
		GrantedRole
		covers int
	}
	list := make([]counted, len(all))
	for i, g := range all {
		list[i].GrantedRole = g
		for _, other := range all {
			if coversRules(g.rules, other.rules) {
				list[i].covers++
			}
		}
	}
	slices.SortStableFunc(list, func(x, y counted) int {
		return cmp.Or(cmp.Compare(x.covers, y.covers), cmp.Compare(x.width, y.width))
	})
	for i, g := range list {
		all[i] = g.GrantedRole
	}
}
