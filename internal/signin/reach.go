package signin

import (
	"slices"
	"strings"
)

// A PolicyRule is a rule of a ClusterRole. Its fields are those of the Kubernetes API, so that one
// converts to the other; this package does not import the API, because tka links it.
type PolicyRule struct {
	Verbs           []string
	APIGroups       []string
	Resources       []string
	ResourceNames   []string
	NonResourceURLs []string
}

// A reach is a right that gives its holder the rights of other accounts.
type reach struct {
	group     string // "*": every resource of every group
	resources []string
	verbs     []string
	does      string // completes "it may"
}

// reaches lists the rights with which a role that is bound in the whole cluster reaches every
// ServiceAccount, including those of Tailplane and of kube-system. Admission policies cannot limit
// them: they see no reads, and not the person behind an impersonated request.
var reaches = []reach{
	{"*", nil, []string{"impersonate"}, "impersonate accounts"}, // also in the forms that a later version of Kubernetes adds
	{"", []string{"users", "groups", "serviceaccounts"}, []string{"impersonate"}, "impersonate accounts"},
	{"authentication.k8s.io", []string{"userextras", "uids"}, []string{"impersonate"}, "impersonate accounts"},
	{"", []string{"serviceaccounts/token"}, []string{"create"}, "create tokens of ServiceAccounts"},
	{"", []string{"secrets"}, []string{"get", "list", "watch"}, "read Secrets"},
	{"", []string{"pods", "replicationcontrollers"}, writes, "write pods"},
	{"", []string{"pods/ephemeralcontainers"}, writes, "add containers to pods"},
	// Until Kubernetes 1.35, get is enough to execute commands over a WebSocket.
	{"", []string{"pods/exec", "pods/attach"}, []string{"create", "get"}, "execute commands in pods"},
	{"apps", []string{"deployments", "replicasets", "statefulsets", "daemonsets"}, writes, "write workloads"},
	{"batch", []string{"jobs", "cronjobs"}, writes, "write workloads"},
	{"", []string{"nodes/proxy"}, []string{"get", "create", "update", "patch", "delete"}, "reach pods through their nodes"},
	{"rbac.authorization.k8s.io", []string{"roles", "clusterroles"}, []string{"bind", "escalate"}, "give rights that it does not have"},
}

// writes are the verbs with which a pod or its template gets another account. Deletion gives none.
var writes = []string{"create", "update", "patch"}

// ReachesAccounts returns what a role with these rules may do that reaches every ServiceAccount when
// it is bound in the whole cluster, such as "read Secrets, write pods". It returns "" if the role
// reaches none. Wildcards count. Names of resources do not limit a rule, because an object of that
// name can exist in every namespace. The order of the rules does not change the result.
func ReachesAccounts(rules []PolicyRule) string {
	var found []string
	for _, r := range reaches {
		if !slices.Contains(found, r.does) && slices.ContainsFunc(rules, r.isIn) {
			found = append(found, r.does)
		}
	}
	return strings.Join(found, ", ")
}

// isIn reports whether rule includes the right.
func (r reach) isIn(rule PolicyRule) bool {
	if r.group == "*" { // by the name of the verb alone
		return len(rule.Resources) > 0 && slices.ContainsFunc(rule.Verbs, func(v string) bool { return strings.HasPrefix(v, r.verbs[0]) })
	}
	includes := func(words []string, wanted ...string) bool {
		return slices.Contains(words, "*") || slices.ContainsFunc(wanted, func(s string) bool { return slices.Contains(words, s) })
	}
	return includes(rule.Verbs, r.verbs...) && includes(rule.APIGroups, r.group) &&
		slices.ContainsFunc(r.resources, func(s string) bool { return includesResource(rule.Resources, s) })
}

// includesResource is like matchesResource. userextras has one subresource for each key.
func includesResource(rule []string, resource string) bool {
	return matchesResource(rule, resource) ||
		resource == "userextras" && slices.ContainsFunc(rule, func(s string) bool { return strings.HasPrefix(s, "userextras/") })
}
