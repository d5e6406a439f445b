package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the gateway's kinds.
const Group = "gateway.tailscale.com"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1alpha1"}

// AddToScheme registers the kinds of this package with s.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&TailscaleTailnet{}, &TailscaleTailnetList{},
		&TailscaleProxyGroup{}, &TailscaleProxyGroupList{},
		&TailscaleService{}, &TailscaleServiceList{},
		&TailscaleGateway{}, &TailscaleGatewayList{},
		&TailscaleRoutePolicy{}, &TailscaleRoutePolicyList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
