// Package v1alpha1 defines the custom resources of the API group tailplane.dev, version v1alpha1. It enforces law 5:
// the identity of an object (its person, device, role, forge or scope) is immutable after creation.
//
// The package has only data types. It imports only apimachinery and the core types. go generate writes the deepcopy
// functions and the CRDs in deploy/crds; a test fails if they are out of date.
//
// +kubebuilder:object:generate=true
// +groupName=tailplane.dev
package v1alpha1

//go:generate go tool -modfile=../../tools.mod controller-gen object crd paths=. output:crd:artifacts:config=../../deploy/crds
//go:generate go test . -run TestReference -update
