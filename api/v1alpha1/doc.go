// Package v1alpha1 is what Tailplane stores in a cluster: the group
// tailplane.dev, version v1alpha1. It keeps law 5: who and what an object
// speaks of cannot be changed by anybody once it is written.
//
// It is data only, and imports nothing but apimachinery and the core types. The
// deepcopy functions and the CRDs in deploy/crds are generated from it; go
// generate makes them and a test compares.
//
// +kubebuilder:object:generate=true
// +groupName=tailplane.dev
package v1alpha1

//go:generate go tool -modfile=../../tools.mod controller-gen object crd paths=. output:crd:artifacts:config=../../deploy/crds
//go:generate go test . -run TestReference -update
