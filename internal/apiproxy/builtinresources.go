package apiproxy

import "strings"

// builtinResources lists the built-in Kubernetes resources. Each line has a group and its resources. A colon separates
// a resource from its subresources.
const builtinResources = `
. bindings componentstatuses configmaps endpoints events limitranges namespaces:status,finalize nodes:status,proxy persistentvolumeclaims:status persistentvolumes:status pods:attach,binding,ephemeralcontainers,eviction,exec,log,portforward,proxy,resize,status podtemplates replicationcontrollers:scale,status resourcequotas:status secrets serviceaccounts:token services:proxy,status
admissionregistration.k8s.io mutatingadmissionpolicies mutatingadmissionpolicybindings mutatingwebhookconfigurations validatingadmissionpolicies:status validatingadmissionpolicybindings validatingwebhookconfigurations
apiextensions.k8s.io customresourcedefinitions:status
apiregistration.k8s.io apiservices:status
apps controllerrevisions daemonsets:status deployments:scale,status replicasets:scale,status statefulsets:scale,status
authentication.k8s.io selfsubjectreviews tokenreviews
authorization.k8s.io localsubjectaccessreviews selfsubjectaccessreviews selfsubjectrulesreviews subjectaccessreviews
autoscaling horizontalpodautoscalers:status
batch cronjobs:status jobs:status
certificates.k8s.io certificatesigningrequests:approval,status clustertrustbundles podcertificaterequests:status
coordination.k8s.io leasecandidates leases
discovery.k8s.io endpointslices
events.k8s.io events
flowcontrol.apiserver.k8s.io flowschemas:status prioritylevelconfigurations:status
metrics.k8s.io nodes pods
networking.k8s.io ingressclasses ingresses:status ipaddresses networkpolicies servicecidrs:status
node.k8s.io runtimeclasses
policy poddisruptionbudgets:status
rbac.authorization.k8s.io clusterrolebindings clusterroles rolebindings roles
resource.k8s.io deviceclasses devicetaintrules resourceclaims:status resourceclaimtemplates resourceslices
scheduling.k8s.io priorityclasses
storage.k8s.io csidrivers csinodes csistoragecapacities storageclasses volumeattachments:status volumeattributesclasses
`

// BuiltinResources returns a function that reports whether a resource is built into Kubernetes. Metrics use it in
// addition to discovery, and alone until discovery has been read.
func BuiltinResources() (known func(group, resource, subresource string) bool) {
	all := map[resourceLabels]bool{}
	for line := range strings.Lines(builtinResources) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		group := strings.TrimPrefix(fields[0], ".") // a dot stands for the core group
		for _, f := range fields[1:] {
			name, subs, _ := strings.Cut(f, ":")
			all[resourceLabels{group, name, ""}] = true
			for sub := range strings.SplitSeq(subs, ",") {
				all[resourceLabels{group, name, sub}] = true
			}
		}
	}
	return func(group, name, sub string) bool { return all[resourceLabels{group, name, sub}] }
}
