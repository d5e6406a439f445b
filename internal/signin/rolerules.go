package signin

import (
	"slices"
	"strings"
)

// Attributes are those of a request to the Kubernetes API: a verb on a resource, or on a path that is
// not a resource.
type Attributes struct {
	Verb        string
	Group       string // API group of the resource; "" is the core group
	Resource    string // plural
	Subresource string
	Name        string
	Namespace   string // "": all namespaces, or a cluster-scoped resource
	Path        string // such as /healthz; all fields except Verb are then empty
}

// AllowedBy reports whether a role with these rules allows the request when it is bound in the
// namespaces; none: in the whole cluster. It decides as the RBAC authorizer of Kubernetes does. Other
// authorizers of a cluster may decide differently.
func (a Attributes) AllowedBy(rules []PolicyRule, namespaces []string) bool {
	if len(namespaces) > 0 && (a.Path != "" || !slices.Contains(namespaces, a.Namespace)) {
		return false
	}
	return slices.ContainsFunc(rules, a.isIn)
}

// isIn reports whether the rule includes the request.
func (a Attributes) isIn(rule PolicyRule) bool {
	includes := func(words []string, word string) bool {
		return slices.Contains(words, "*") || slices.Contains(words, word)
	}
	switch {
	case !includes(rule.Verbs, a.Verb):
		return false
	case a.Path != "":
		return slices.ContainsFunc(rule.NonResourceURLs, func(s string) bool {
			prefix, isPrefix := strings.CutSuffix(s, "*")
			return s == a.Path || isPrefix && strings.HasPrefix(a.Path, prefix)
		})
	case len(rule.ResourceNames) > 0 && !slices.Contains(rule.ResourceNames, a.Name):
		return false
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	return includes(rule.APIGroups, a.Group) && matchesResource(rule.Resources, resource)
}

// matchesResource reports whether the resources of a rule include resource, as the authorizer of
// Kubernetes decides it: "*" includes every resource and subresource, "*/token" the subresource token
// of every resource.
func matchesResource(rule []string, resource string) bool {
	_, sub, isSub := strings.Cut(resource, "/")
	return slices.ContainsFunc(rule, func(s string) bool { return s == "*" || s == resource || isSub && s == "*/"+sub })
}

// coversRules reports whether the rules of a role allow everything that the other rules allow. A
// wildcard is covered by a wildcard only, so roles that list everything do not cover it.
func coversRules(rules, other []PolicyRule) bool {
	for _, r := range other {
		for _, verb := range r.Verbs {
			for _, path := range r.NonResourceURLs {
				if !(Attributes{Verb: verb, Path: path}).AllowedBy(rules, nil) {
					return false
				}
			}
			names := r.ResourceNames
			if len(names) == 0 {
				names = []string{""}
			}
			for _, group := range r.APIGroups {
				for _, word := range r.Resources {
					resource, sub, _ := strings.Cut(word, "/")
					for _, name := range names {
						if !(Attributes{Verb: verb, Group: group, Resource: resource, Subresource: sub, Name: name}).AllowedBy(rules, nil) {
							return false
						}
					}
				}
			}
		}
	}
	return true
}
