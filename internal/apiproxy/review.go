package apiproxy

import (
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/document"
)

// Attributes are the resource attributes of an authorization.k8s.io review.
type Attributes struct {
	Verb, Group, Resource, Subresource, Namespace, Name string
}

// isReview reports whether r is an access review.
func isReview(r *Request) bool {
	if r.Group != "authorization.k8s.io" || r.Verb != "create" || r.Subresource != "" {
		return false
	}
	switch r.Resource {
	case "selfsubjectaccessreviews", "localsubjectaccessreviews", "subjectaccessreviews", "selfsubjectrulesreviews":
		return true
	}
	return false
}

// review routes an access review to the clusters that would serve the request under review. A review without
// resource attributes goes to the home cluster.
func (t *Table) review(r *Request, o *Object, agent string) Decision {
	if r.Resource == "selfsubjectrulesreviews" {
		return t.rulesReview(o, agent)
	}
	a := o.Attributes
	if a == nil {
		return t.home("the review is not about a resource")
	}
	q := question{verb: a.Verb, group: a.Group, resource: a.Resource, subresource: a.Subresource, namespace: a.Namespace, name: a.Name, agent: agent}
	if document.BuiltinScope(q.group, q.resource) == document.ClusterWide {
		q.namespace = "" // kubectl sets a namespace for cluster-scoped resources too
	}
	if q.isNamespace() {
		q.namespace = q.name
	}
	members, refused := t.may(&q)
	switch {
	case refused != nil:
		d := *refused
		d.Review = true
		return d
	case len(members) == 1:
		return Decision{Kind: Single, Cluster: members[0], Review: true, Why: "it would serve what the review asks about"}
	}
	d := Decision{Kind: Union, Review: true, Why: "they would serve what the review asks about; all must allow it"}
	for _, m := range members {
		d.Members = append(d.Members, Member{Cluster: m})
	}
	return d
}

// rulesReview routes a SelfSubjectRulesReview to the cluster that has the namespace.
func (t *Table) rulesReview(o *Object, agent string) Decision {
	q := question{verb: "*", group: "*", resource: "*", namespace: o.ReviewNamespace, agent: agent}
	members, refused := t.may(&q)
	if refused != nil || len(members) == 0 {
		return t.home("no cluster has the whole namespace")
	}
	last := members[len(members)-1] // the cluster of a rule for the whole namespace, or home
	d := Decision{Kind: Single, Cluster: last, Review: true, Why: "it has the namespace, but for what rules take out of it"}
	if len(members) > 1 {
		d.Warnings = []string{"only of cluster " + last + "; other rules send parts of the namespace to " + strings.Join(members[:len(members)-1], ", ")}
	}
	return d
}

// certainty is how certainly a rule applies to the request under review.
type certainty int

const (
	no certainty = iota
	maybe
	surely
)

// may returns the clusters that could serve q, in the order of the rules. q may have "*" as verb, group or
// resource; an empty namespace means all namespaces. If a rule surely refuses q before any other rule may
// serve it, may returns that decision as refused.
func (t *Table) may(q *question) (members []string, refused *Decision) {
	scope := document.Unknown
	if q.resource != "*" && q.group != "*" {
		scope = t.scopeOf(q.group, q.resource)
	}
	if q.namespace != "" && !q.isNamespace() {
		scope = document.Namespaced
	}
	for i := range t.rules {
		r := &t.rules[i]
		sure := q.about(&r.Match, scope)
		if sure == no {
			continue
		}
		if r.decision.Kind == Deny {
			if sure == surely && len(members) == 0 {
				return nil, &r.decision
			}
			continue // the rule refuses only a part of it
		}
		for _, c := range r.decision.Clusters() {
			if !slices.Contains(members, c) {
				members = append(members, c)
			}
		}
		if sure == surely {
			return members, nil
		}
	}
	last := t.unmatched()
	if last.Kind == Deny && len(members) == 0 {
		return nil, &last
	}
	for _, c := range last.Clusters() {
		if !slices.Contains(members, c) {
			members = append(members, c)
		}
	}
	return members, nil
}

// about returns how certainly a rule applies to the request under review.
func (q *question) about(m *document.Match, scope document.Scope) certainty {
	all := surely
	for _, c := range []certainty{oneOf(m.APIGroups, q.group), oneOf(m.Verbs, q.verb), q.aboutResource(m, scope), q.aboutNamespace(m, scope), aboutName(m.Names, q.name)} {
		all = min(all, c)
	}
	if m.UserAgents != nil && !document.AnyOf(m.UserAgents, q.agent) {
		return no
	}
	return all
}

func oneOf(of []string, s string) certainty {
	switch {
	case of == nil || slices.Contains(of, s):
		return surely
	case s == "*":
		return maybe
	}
	return no
}

func (q *question) aboutResource(m *document.Match, scope document.Scope) certainty {
	if m.Resources == nil {
		switch {
		case scope == document.Namespaced || q.isNamespace() && m.Namespaces != nil && q.namespace != "", q.resource == "*" && q.namespace != "":
			return surely
		case scope == document.ClusterWide:
			return no
		}
		return maybe
	}
	best := no
	for _, r := range m.Resources {
		switch {
		case q.resource == "*":
			best = max(best, maybe)
		case r.Name != q.resource:
		case r.Subresource == "" || r.Subresource == q.subresource:
			return surely
		case q.subresource == "*":
			best = maybe
		}
	}
	return best
}

func (q *question) aboutNamespace(m *document.Match, scope document.Scope) certainty {
	switch {
	case m.Namespaces == nil:
		return surely
	case q.namespace != "":
		if document.AnyOf(m.Namespaces, q.namespace) {
			return surely
		}
	case scope != document.ClusterWide:
		return maybe
	}
	return no
}

func aboutName(names []document.Pattern, name string) certainty {
	switch {
	case names == nil || name != "" && document.AnyOf(names, name):
		return surely
	case name == "":
		return maybe
	}
	return no
}
