package multicluster

import (
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// reviewAttributes are the resource attributes of an authorization.k8s.io review.
type reviewAttributes struct {
	Verb, Group, Resource, Subresource, Namespace, Name string
}

// isReview reports whether r is an access review.
func isReview(r *apiproxy.Request) bool {
	return r.Group == "authorization.k8s.io" && r.Verb == "create" && r.Subresource == "" && slices.Contains(reviews, r.Resource)
}

var reviews = []string{"selfsubjectaccessreviews", "localsubjectaccessreviews", "subjectaccessreviews", "selfsubjectrulesreviews"}

// routeReview routes an access review to the clusters that would serve the request under review. A review without
// resource attributes goes to the home cluster.
func (t *Table) routeReview(r *apiproxy.Request, o *requestObject, agent string) Decision {
	if r.Resource == "selfsubjectrulesreviews" {
		return t.routeRulesReview(o, agent)
	}
	a := o.Attributes
	if a == nil {
		return t.homeDecision("the review does not name a resource")
	}
	q := routeQuery{
		verb:        a.Verb,
		group:       a.Group,
		resource:    a.Resource,
		subresource: a.Subresource,
		namespace:   a.Namespace,
		name:        a.Name,
		agent:       agent,
	}
	if config.BuiltinScope(q.group, q.resource) == config.ScopeCluster {
		q.namespace = "" // kubectl sets a namespace for cluster-scoped resources too
	}
	if q.isNamespace() {
		q.namespace = q.name
	}
	members, refused := t.reviewMembers(&q)
	switch {
	case refused != nil:
		d := *refused
		d.Review = true
		return d
	case len(members) == 1:
		return Decision{Kind: DecisionSingle, Cluster: members[0], Review: true, Why: "it would serve the request under review"}
	}
	d := Decision{Kind: DecisionUnion, Review: true, Why: "they would serve the request under review; all must allow it"}
	for _, m := range members {
		d.Members = append(d.Members, Member{Cluster: m})
	}
	return d
}

// routeRulesReview routes a SelfSubjectRulesReview to the cluster that has the namespace.
func (t *Table) routeRulesReview(o *requestObject, agent string) Decision {
	q := routeQuery{verb: "*", group: "*", resource: "*", namespace: o.ReviewNamespace, agent: agent}
	members, refused := t.reviewMembers(&q)
	if refused != nil || len(members) == 0 {
		return t.homeDecision("no single cluster has the whole namespace")
	}
	last := members[len(members)-1] // the cluster of a rule for the whole namespace, or home
	d := Decision{
		Kind:    DecisionSingle,
		Cluster: last,
		Review:  true,
		Why:     "it has the namespace, except for the objects that rules send elsewhere",
	}
	if len(members) > 1 {
		d.Warnings = []string{
			"only for cluster " + last + "; other rules send parts of the namespace to " + strings.Join(members[:len(members)-1], ", "),
		}
	}
	return d
}

// matchCertainty is how certainly a rule applies to the request under review.
type matchCertainty int

const (
	matchNo matchCertainty = iota
	matchMaybe
	matchYes
)

// reviewMembers returns the clusters that could serve q, in the order of the rules. q may have "*" as verb, group or
// resource; an empty namespace means all namespaces. If a rule surely refuses q before any other rule may
// serve it, may returns that decision as refused.
func (t *Table) reviewMembers(q *routeQuery) (members []string, refused *Decision) {
	scope := config.ScopeUnknown
	if q.resource != "*" && q.group != "*" {
		scope = t.scopeOf(q.group, q.resource)
	}
	if q.namespace != "" && !q.isNamespace() {
		scope = config.ScopeNamespaced
	}
	for i := range t.rules {
		r := &t.rules[i]
		sure := q.certainty(&r.Match, scope)
		if sure == matchNo {
			continue
		}
		if r.decision.Kind == DecisionDeny {
			if sure == matchYes && len(members) == 0 {
				return nil, &r.decision
			}
			continue // the rule refuses only a part of it
		}
		members = appendMissing(members, r.decision.ClusterNames())
		if sure == matchYes {
			return members, nil
		}
	}
	last := t.unmatched()
	if last.Kind == DecisionDeny && len(members) == 0 {
		return nil, &last
	}
	return appendMissing(members, last.ClusterNames()), nil
}

// certainty returns how certainly a rule applies to the request under review.
func (q *routeQuery) certainty(m *config.Match, scope config.Scope) matchCertainty {
	all := matchYes
	for _, c := range []matchCertainty{memberCertainty(m.APIGroups, q.group), memberCertainty(m.Verbs, q.verb), q.resourceCertainty(m, scope), q.namespaceCertainty(m, scope), nameCertainty(m.Names, q.name)} {
		all = min(all, c)
	}
	if m.UserAgents != nil && !config.MatchAny(m.UserAgents, q.agent) {
		return matchNo
	}
	return all
}

func memberCertainty(of []string, s string) matchCertainty {
	switch {
	case of == nil || slices.Contains(of, s):
		return matchYes
	case s == "*":
		return matchMaybe
	}
	return matchNo
}

func (q *routeQuery) resourceCertainty(m *config.Match, scope config.Scope) matchCertainty {
	if m.Resources == nil {
		switch {
		case scope == config.ScopeNamespaced || q.isNamespace() && m.Namespaces != nil && q.namespace != "",
			q.resource == "*" && q.namespace != "":
			return matchYes
		case scope == config.ScopeCluster:
			return matchNo
		}
		return matchMaybe
	}
	best := matchNo
	for _, r := range m.Resources {
		switch {
		case q.resource == "*":
			best = max(best, matchMaybe)
		case r.Name != q.resource:
		case r.Subresource == "" || r.Subresource == q.subresource:
			return matchYes
		case q.subresource == "*":
			best = matchMaybe
		}
	}
	return best
}

func (q *routeQuery) namespaceCertainty(m *config.Match, scope config.Scope) matchCertainty {
	switch {
	case m.Namespaces == nil:
		return matchYes
	case q.namespace != "":
		if config.MatchAny(m.Namespaces, q.namespace) {
			return matchYes
		}
	case scope != config.ScopeCluster:
		return matchMaybe
	}
	return matchNo
}

func nameCertainty(names []config.Pattern, name string) matchCertainty {
	switch {
	case names == nil || name != "" && config.MatchAny(names, name):
		return matchYes
	case name == "":
		return matchMaybe
	}
	return matchNo
}
