package controller

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// A Gateway counts as private only if no peer except relays can connect to its Envoys.
func TestIsPrivate(t *testing.T) {
	of := map[string]string{owningName: "eg", owningNamespace: "infra"}
	service := func(kind corev1.ServiceType, labels map[string]string) corev1.Service {
		return corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.ServiceSpec{Type: kind}}
	}
	relays := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.ProxyGroupLabel, Operator: metav1.LabelSelectorOpExists}}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "relays"}}}
	policy := func(managed bool, pods map[string]string, from ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicy {
		p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "envoy"}, Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: pods},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}, Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from}}}}
		if managed {
			p.Labels = map[string]string{v1alpha1.ManagedLabel: "true"}
		}
		return p
	}
	inside := []corev1.Service{service(corev1.ServiceTypeClusterIP, of)}
	anywhere := relays
	anywhere.NamespaceSelector = &metav1.LabelSelector{}
	here := relays
	here.NamespaceSelector = nil
	all := relays
	all.PodSelector = &metav1.LabelSelector{}
	for _, c := range []struct {
		why      string
		services []corev1.Service
		policies []networkingv1.NetworkPolicy
		want     bool
	}{
		{"the Service is within the cluster, and our policy admits relays", inside, []networkingv1.NetworkPolicy{policy(true, of, relays)}, true},
		{"a policy about all pods of the namespace does too", inside, []networkingv1.NetworkPolicy{policy(true, nil, relays)}, true},
		{"a policy that admits no peer removes no access", inside, []networkingv1.NetworkPolicy{policy(true, of, relays), {Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}}, true},
		{"another Gateway's policy is not about it", inside, []networkingv1.NetworkPolicy{policy(true, of, relays), policy(false, map[string]string{owningName: "other"}, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}})}, true},
		{"there is no Service: nothing is known", nil, []networkingv1.NetworkPolicy{policy(true, of, relays)}, false},
		{"the Service is another Gateway's", []corev1.Service{service(corev1.ServiceTypeClusterIP, map[string]string{owningName: "eg", owningNamespace: "other"})}, []networkingv1.NetworkPolicy{policy(true, of, relays)}, false},
		{"a load balancer", []corev1.Service{service(corev1.ServiceTypeLoadBalancer, of)}, []networkingv1.NetworkPolicy{policy(true, of, relays)}, false},
		{"one of two Services is a node port", append(inside, service(corev1.ServiceTypeNodePort, of)), []networkingv1.NetworkPolicy{policy(true, of, relays)}, false},
		{"no policy", inside, nil, false},
		{"only another owner's policy", inside, []networkingv1.NetworkPolicy{policy(false, of, relays)}, false},
		{"the policy needs an unknown label", inside, []networkingv1.NetworkPolicy{policy(true, map[string]string{owningName: "eg", owningNamespace: "infra", "x": "y"}, relays)}, false},
		{"all peers are admitted", inside, []networkingv1.NetworkPolicy{policy(true, of)}, false},
		{"addresses are admitted", inside, []networkingv1.NetworkPolicy{policy(true, of, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8"}})}, false},
		{"pods of every namespace that call themselves relays", inside, []networkingv1.NetworkPolicy{policy(true, of, anywhere)}, false},
		{"pods of Envoy's own namespace that do", inside, []networkingv1.NetworkPolicy{policy(true, of, here)}, false},
		{"all pods of the relays' namespace", inside, []networkingv1.NetworkPolicy{policy(true, of, all)}, false},
		{"another policy admits more", inside, []networkingv1.NetworkPolicy{policy(true, of, relays), policy(false, nil, all)}, false},
		{"another policy may admit more", inside, []networkingv1.NetworkPolicy{policy(true, of, relays), policy(false, map[string]string{"app": "envoy"}, all)}, false},
	} {
		if got := isPrivate(gateway.Name{Namespace: "infra", Name: "eg"}, c.services, c.policies, []string{"relays"}); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
	}
}

func TestMethodPath(t *testing.T) {
	for _, c := range []struct {
		method *gatewayapi.GRPCMethodMatch
		want   gateway.Path
	}{
		{nil, gateway.Path{Kind: gateway.PathPrefix}},
		{&gatewayapi.GRPCMethodMatch{Service: new("shop.Cart")}, gateway.Path{Kind: gateway.PathPrefix, Text: "/shop.Cart"}},
		{&gatewayapi.GRPCMethodMatch{Service: new("shop.Cart"), Method: new("Add")}, gateway.Path{Kind: gateway.PathExact, Text: "/shop.Cart/Add"}},
		{&gatewayapi.GRPCMethodMatch{Method: new("Add")}, gateway.Path{Kind: gateway.PathPrefix}},
		{&gatewayapi.GRPCMethodMatch{Type: new(gatewayapi.GRPCMethodMatchRegularExpression), Service: new("shop.*")}, gateway.Path{Kind: gateway.PathUnknown}},
	} {
		if got := methodPath(c.method); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.method, got, c.want)
		}
	}
}

func TestAcceptedParents(t *testing.T) {
	yes := []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue}}
	eg := gateway.Name{Namespace: "infra", Name: "eg"}
	gateways := map[gateway.Name]*gatewayapi.Gateway{eg: {Spec: gatewayapi.GatewaySpec{Listeners: []gatewayapi.Listener{{Name: "a", Port: 80}, {Name: "b", Port: 443}, {Name: "c", Port: 443}}}}}
	for _, c := range []struct {
		why    string
		parent gatewayapi.RouteParentStatus
		want   []gateway.ParentObject
	}{
		{"accepted", gatewayapi.RouteParentStatus{ParentRef: gatewayapi.ParentReference{Name: "eg"}, ControllerName: "us", Conditions: yes}, []gateway.ParentObject{{Gateway: eg}}},
		{"one listener", gatewayapi.RouteParentStatus{ParentRef: gatewayapi.ParentReference{Name: "eg", SectionName: new(gatewayapi.SectionName("a"))}, ControllerName: "us", Conditions: yes}, []gateway.ParentObject{{Gateway: eg, Section: "a"}}},
		{"the listeners of a port", gatewayapi.RouteParentStatus{ParentRef: gatewayapi.ParentReference{Name: "eg", Port: new(gatewayapi.PortNumber(443))}, ControllerName: "us", Conditions: yes}, []gateway.ParentObject{{Gateway: eg, Section: "b"}, {Gateway: eg, Section: "c"}}},
		{"not accepted", gatewayapi.RouteParentStatus{ParentRef: gatewayapi.ParentReference{Name: "eg"}, ControllerName: "us"}, nil},
		{"by another controller", gatewayapi.RouteParentStatus{ParentRef: gatewayapi.ParentReference{Name: "eg"}, ControllerName: "them", Conditions: yes}, nil},
		{"no Gateway", gatewayapi.RouteParentStatus{ParentRef: gatewayapi.ParentReference{Name: "eg", Kind: new(gatewayapi.Kind("Service"))}, ControllerName: "us", Conditions: yes}, nil},
	} {
		got := acceptedParents("infra", "us", []gatewayapi.RouteParentStatus{c.parent}, gateways)
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v", c.why, got)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %+v", c.why, got)
			}
		}
	}
}

// GTW-32: a change of a report only does not trigger a decision.
func TestAffectsDecision(t *testing.T) {
	ready := func(status metav1.ConditionStatus) []metav1.Condition {
		return []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: status}}
	}
	at := func(generation int64) metav1.ObjectMeta { return metav1.ObjectMeta{Generation: generation} }
	noted := func(key string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Annotations: map[string]string{key: "x"}}
	}
	for _, c := range []struct {
		why     string
		was, is client.Object
		want    bool
	}{
		{"a policy's conditions", &v1alpha1.TailscaleRoutePolicy{}, &v1alpha1.TailscaleRoutePolicy{Status: v1alpha1.TailscaleRoutePolicyStatus{Conditions: ready("True")}}, false},
		{"a policy's spec", &v1alpha1.TailscaleRoutePolicy{ObjectMeta: at(1)}, &v1alpha1.TailscaleRoutePolicy{ObjectMeta: at(2)}, true},
		{"which revision was rendered", &v1alpha1.TailscaleRoutePolicy{}, &v1alpha1.TailscaleRoutePolicy{ObjectMeta: noted(v1alpha1.TranslatedAnnotation)}, false},
		{"another annotation", &v1alpha1.TailscaleTailnet{}, &v1alpha1.TailscaleTailnet{ObjectMeta: noted(v1alpha1.DefaultAnnotation)}, true},
		{"a service's conditions", &v1alpha1.TailscaleService{}, &v1alpha1.TailscaleService{Status: v1alpha1.TailscaleServiceStatus{Conditions: ready("True")}}, false},
		{"a service's group", &v1alpha1.TailscaleService{}, &v1alpha1.TailscaleService{Status: v1alpha1.TailscaleServiceStatus{Egress: &v1alpha1.EgressStatus{Group: "a/b"}}}, true},
		{"a group's devices", &v1alpha1.TailscaleProxyGroup{}, &v1alpha1.TailscaleProxyGroup{Status: v1alpha1.TailscaleProxyGroupStatus{Devices: []v1alpha1.RelayDevice{{}}}}, false},
		{"a group's ports", &v1alpha1.TailscaleProxyGroup{}, &v1alpha1.TailscaleProxyGroup{Status: v1alpha1.TailscaleProxyGroupStatus{Ports: []v1alpha1.MappedPort{{MatchPort: 10000}}}}, true},
		{"a tailnet's check", &v1alpha1.TailscaleTailnet{}, &v1alpha1.TailscaleTailnet{Status: v1alpha1.TailscaleTailnetStatus{DeviceCount: 3}}, false},
		{"a tailnet's readiness", &v1alpha1.TailscaleTailnet{}, &v1alpha1.TailscaleTailnet{Status: v1alpha1.TailscaleTailnetStatus{Conditions: ready("True")}}, true},
		{"a Gateway's status", &gatewayapi.Gateway{}, &gatewayapi.Gateway{Status: gatewayapi.GatewayStatus{Conditions: ready("True")}}, false},
		{"the controller that accepted a route", &gatewayapi.HTTPRoute{}, &gatewayapi.HTTPRoute{Status: gatewayapi.HTTPRouteStatus{RouteStatus: gatewayapi.RouteStatus{Parents: []gatewayapi.RouteParentStatus{{}}}}}, true},
		{"a namespace's labels", partialMetadata("Namespace"), &metav1.PartialObjectMetadata{TypeMeta: partialMetadata("Namespace").TypeMeta, ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}}, true},
		{"a Service's annotations", partialMetadata("Service"), &metav1.PartialObjectMetadata{TypeMeta: partialMetadata("Service").TypeMeta, ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}, false},
	} {
		if got := affectsDecision(c.was, c.is); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
	}
}
