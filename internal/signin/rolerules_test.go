package signin

import "testing"

// The cases are those of the RBAC authorizer of Kubernetes (RuleAllows of its package rbac).
func TestAttributes_AllowedBy(t *testing.T) {
	pods := PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods", "pods/log"}}
	named := PolicyRule{Verbs: []string{"update"}, APIGroups: []string{"apps"}, Resources: []string{"deployments"}, ResourceNames: []string{"web"}}
	scale := PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*/scale"}}
	all := PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}
	paths := PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz", "/metrics/*"}}
	for _, tt := range []struct {
		why        string
		attributes Attributes
		rule       PolicyRule
		namespaces []string
		want       bool
	}{
		{"verb and resource", Attributes{Verb: "get", Resource: "pods", Namespace: "shop"}, pods, nil, true},
		{"another verb", Attributes{Verb: "delete", Resource: "pods"}, pods, nil, false},
		{"another group", Attributes{Verb: "get", Group: "metrics.k8s.io", Resource: "pods"}, pods, nil, false},
		{"a listed subresource", Attributes{Verb: "get", Resource: "pods", Subresource: "log"}, pods, nil, true},
		{"another subresource", Attributes{Verb: "get", Resource: "pods", Subresource: "exec"}, pods, nil, false},
		{"the subresource of every resource", Attributes{Verb: "patch", Group: "apps", Resource: "deployments", Subresource: "scale"}, scale, nil, true},
		{"not the resource itself", Attributes{Verb: "patch", Group: "apps", Resource: "deployments"}, scale, nil, false},
		{"the named object", Attributes{Verb: "update", Group: "apps", Resource: "deployments", Name: "web"}, named, nil, true},
		{"another object", Attributes{Verb: "update", Group: "apps", Resource: "deployments", Name: "api"}, named, nil, false},
		{"any object, where one is named", Attributes{Verb: "update", Group: "apps", Resource: "deployments"}, named, nil, false},
		{"wildcards", Attributes{Verb: "escalate", Group: "x", Resource: "y", Subresource: "z", Name: "n"}, all, nil, true},
		{"wildcards of resources are no paths", Attributes{Verb: "get", Path: "/healthz"}, all, nil, false},
		{"a path", Attributes{Verb: "get", Path: "/healthz"}, paths, nil, true},
		{"below a path", Attributes{Verb: "get", Path: "/healthz/etcd"}, paths, nil, false},
		{"a prefix", Attributes{Verb: "get", Path: "/metrics/slis"}, paths, nil, true},
		{"a bound namespace", Attributes{Verb: "get", Resource: "pods", Namespace: "shop"}, pods, []string{"blog", "shop"}, true},
		{"another namespace", Attributes{Verb: "get", Resource: "pods", Namespace: "other"}, pods, []string{"shop"}, false},
		{"all namespaces, bound in one", Attributes{Verb: "get", Resource: "pods"}, pods, []string{"shop"}, false},
		{"a path, bound in a namespace", Attributes{Verb: "get", Path: "/healthz"}, paths, []string{"shop"}, false},
	} {
		if got := tt.attributes.AllowedBy([]PolicyRule{{}, tt.rule}, tt.namespaces); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.why, got, tt.want)
		}
	}
}

func TestCoversRules(t *testing.T) {
	view := []PolicyRule{{Verbs: []string{"get", "list"}, APIGroups: []string{"", "apps"}, Resources: []string{"pods", "deployments", "deployments/scale"}}}
	edit := append([]PolicyRule{{Verbs: []string{"create"}, APIGroups: []string{"apps"}, Resources: []string{"deployments"}}}, view...)
	one := []PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}, ResourceNames: []string{"web"}}}
	admin := []PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}, {Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}}
	paths := []PolicyRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics/*", "/healthz"}}}
	for _, tt := range []struct {
		why         string
		rules, than []PolicyRule
		want        bool
	}{
		{"itself", edit, edit, true}, {"more", edit, view, true}, {"less", view, edit, false},
		{"every object covers one", view, one, true}, {"one object does not cover all", one, view, false},
		{"wildcards", admin, edit, true}, {"wildcards are not listed", edit, admin, false},
		{"paths", admin, paths, true}, {"no paths", edit, paths, false}, {"nothing", view, nil, true},
	} {
		if got := coversRules(tt.rules, tt.than); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.why, got, tt.want)
		}
	}
}
