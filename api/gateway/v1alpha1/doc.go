// Package v1alpha1 defines the custom resources of the gateway: the API group gateway.tailscale.com, version v1alpha1.
// It enforces law 5: the namespaced kinds that tenants write have no Secrets, rights or API hosts, and an image only
// if the operator allows it. Those belong to the operator and to the cluster-scoped TailscaleTailnet.
//
// The package has only data types. It imports only apimachinery and the core types. go generate writes the deepcopy
// functions and the CRDs in deploy/crds; a test fails if they are out of date.
//
// +kubebuilder:object:generate=true
// +groupName=gateway.tailscale.com
package v1alpha1

//go:generate go tool -modfile=../../../tools.mod controller-gen object crd paths=. output:crd:artifacts:config=../../../deploy/crds
//go:generate go test . -run TestReference -update
