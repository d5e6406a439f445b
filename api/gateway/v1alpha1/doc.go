// Package v1alpha1 is what the gateway stores in a cluster: the group
// gateway.tailscale.com, version v1alpha1. It keeps law 5: what a tenant writes
// here names no Secret, image, right or API host; those belong to the operator
// and to the cluster-scoped TailscaleTailnet.
//
// It is data only, and imports nothing but apimachinery and the core types. The
// deepcopy functions and the CRDs in deploy/crds are generated from it; go
// generate makes them and a test compares.
//
// +kubebuilder:object:generate=true
// +groupName=gateway.tailscale.com
package v1alpha1

//go:generate go tool -modfile=../../../tools.mod controller-gen object crd paths=. output:crd:artifacts:config=../../../deploy/crds
//go:generate go test . -run TestReference -update
