package config

import "strings"

// Scope is whether a resource is namespaced or cluster-scoped.
type Scope int

// The scopes. ScopeUnknown means that discovery has not reported the scope yet.
const (
	ScopeUnknown Scope = iota
	ScopeNamespaced
	ScopeCluster
)

// BuiltinScope returns the scope of a built-in Kubernetes resource, or ScopeUnknown for all others.
func BuiltinScope(group, resource string) Scope {
	all, known := clusterScoped[group]
	if !known {
		return ScopeUnknown
	}
	for name := range strings.FieldsSeq(all) {
		if name == resource {
			return ScopeCluster
		}
	}
	return ScopeNamespaced
}

// clusterScoped lists the cluster-scoped resources of Kubernetes 1.37 by group. All other resources in these
// groups are namespaced.
var clusterScoped = map[string]string{
	"":                             "componentstatuses namespaces nodes persistentvolumes",
	"admissionregistration.k8s.io": "mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations validatingadmissionpolicies validatingadmissionpolicybindings validatingwebhookconfigurations",
	"apiextensions.k8s.io":         "customresourcedefinitions",
	"apiregistration.k8s.io":       "apiservices",
	"apps":                         "",
	"authentication.k8s.io":        "selfsubjectreviews tokenreviews",
	"authorization.k8s.io":         "selfsubjectaccessreviews selfsubjectrulesreviews subjectaccessreviews",
	"autoscaling":                  "",
	"batch":                        "",
	"certificates.k8s.io":          "certificatesigningrequests clustertrustbundles",
	"coordination.k8s.io":          "",
	"discovery.k8s.io":             "",
	"events.k8s.io":                "",
	"flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
	"internal.apiserver.k8s.io":    "storageversions",
	"lifecycle.k8s.io":             "",
	"networking.k8s.io":            "ingressclasses ipaddresses servicecidrs",
	"node.k8s.io":                  "runtimeclasses",
	"policy":                       "",
	"rbac.authorization.k8s.io":    "clusterrolebindings clusterroles",
	"resource.k8s.io":              "deviceclasses devicetaintrules resourcepoolstatusrequests resourceslices",
	"scheduling.k8s.io":            "priorityclasses",
	"storage.k8s.io":               "csidrivers csinodes storageclasses volumeattachments volumeattributesclasses",
	"storagemigration.k8s.io":      "storageversionmigrations",
}
