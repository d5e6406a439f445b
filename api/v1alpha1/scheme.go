package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of Tailplane's own kinds.
const Group = "tailplane.dev"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// AddToScheme makes the kinds of this package known to s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &TkaSignin{}, &TkaSigninList{}, &TkaRequest{}, &TkaRequestList{}, &RunnerForge{}, &RunnerForgeList{}, &RunnerPool{}, &RunnerPoolList{},
		&RunnerEnrollment{}, &RunnerEnrollmentList{}, &RunnerHold{}, &RunnerHoldList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
