package document

import "strings"

// A Scope says whether the objects of a resource are in namespaces.
type Scope int

// Unknown is what nobody has said yet.
const (
	Unknown Scope = iota
	Namespaced
	ClusterWide
)

// BuiltinScope returns the scope of a resource of Kubernetes itself; Unknown for
// all others.
func BuiltinScope(group, resource string) Scope {
	all, ours := clusterWide[group]
	if !ours {
		return Unknown
	}
	for name := range strings.FieldsSeq(all) {
		if name == resource {
			return ClusterWide
		}
	}
	return Namespaced
}

// clusterWide lists by group, of Kubernetes 1.37, what is not in a namespace. All
// else in these groups is.
var clusterWide = map[string]string{
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
