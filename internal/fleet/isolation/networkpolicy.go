package isolation

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// policies renders policies that deny all traffic in both directions, and then allow what the
// organisation may use. In the shared namespace, the allowed traffic differs by organisation. There
// the policies select pods by the organisation's label, which a job cannot change.
func (g *baseline) policies() ([]*networkingv1.NetworkPolicy, error) {
	all := labelSelector(nil)
	base := g.policy(egressName, g.org, nil)
	base.Spec.PolicyTypes = append(base.Spec.PolicyTypes, networkingv1.PolicyTypeIngress)
	base.Spec.PodSelector = all
	base.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{
		To:    []networkingv1.NetworkPolicyPeer{{NamespaceSelector: new(labelSelector(map[string]string{corev1.LabelMetadataName: "kube-system"})), PodSelector: new(labelSelector(map[string]string{"k8s-app": "kube-dns"}))}},
		Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolUDP, 53), port(corev1.ProtocolTCP, 53)}}}
	out := []*networkingv1.NetworkPolicy{base}
	rules, err := g.egress(g.own.Enrollment)
	if err != nil {
		return nil, fmt.Errorf("network of %s: %w", g.own.Enrollment.Name, err)
	}
	if g.org != "" {
		base.Spec.Egress = append(base.Spec.Egress, rules...)
	} else {
		name := g.own.Enrollment.Name
		p := g.policy(egressName+"-"+name, name, map[string]string{v1alpha1.OrgLabel: name})
		p.Spec.Egress = rules
		out = append(out, p)
	}
	if g.gitlab || g.pods {
		if len(g.APIServers) == 0 {
			return nil, fmt.Errorf("the addresses of the API server are not known")
		}
		p := g.policy(apiServerName, g.org, map[string]string{apiLabel: "true"})
		for _, a := range slices.Compact(slices.SortedFunc(slices.Values(g.APIServers), netip.AddrPort.Compare)) {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{
				To:    []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(a.Addr(), a.Addr().BitLen()).String()}}},
				Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolTCP, int32(a.Port()))}})
		}
		out = append(out, p)
	}
	return out, nil
}

func (g *baseline) policy(name, org string, pods map[string]string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{TypeMeta: typeMeta(networkingv1.SchemeGroupVersion, "NetworkPolicy"), ObjectMeta: objectMeta(g.namespace, name, org, nil),
		Spec: networkingv1.NetworkPolicySpec{PodSelector: labelSelector(pods), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}}
}

func port(p corev1.Protocol, n int32) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: &p, Port: new(intstr.FromInt32(n))}
}

// egress returns the destinations that one organisation may connect to, in addition to the
// cluster's DNS.
func (g *baseline) egress(e *v1alpha1.RunnerEnrollment) (rules []networkingv1.NetworkPolicyEgressRule, err error) {
	network := e.Spec.Network
	if network == nil {
		network = &v1alpha1.EnrollmentNetwork{}
	}
	outside := network.Egress
	if len(outside) == 0 {
		outside = []v1alpha1.NetworkEgress{{CIDR: "0.0.0.0/0", Ports: []int32{443}}, {CIDR: "::/0", Ports: []int32{443}}}
	}
	for _, o := range outside {
		cidr, err := netip.ParsePrefix(o.CIDR)
		if err != nil || cidr != cidr.Masked() || len(o.Ports) == 0 {
			return nil, fmt.Errorf("egress %q with %d ports is not a valid range", o.CIDR, len(o.Ports))
		}
		block := &networkingv1.IPBlock{CIDR: cidr.String()}
		for _, private := range slices.Concat(fleet.PrivatePrefixes(), g.ClusterCIDRs) {
			private = private.Masked()
			switch {
			case !private.Overlaps(cidr):
			case private.Bits() <= cidr.Bits():
				return nil, fmt.Errorf("egress %s is within %s, which jobs may not connect to", cidr, private)
			case !slices.Contains(block.Except, private.String()):
				block.Except = append(block.Except, private.String())
			}
		}
		r := networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{{IPBlock: block}}}
		for _, n := range o.Ports {
			r.Ports = append(r.Ports, port(corev1.ProtocolTCP, n))
		}
		rules = append(rules, r)
	}
	for _, c := range network.Caches {
		if c.Namespace == "" || len(c.PodSelector) == 0 || c.Port == 0 {
			return nil, fmt.Errorf("a cache in %q has no pod selector or no port", c.Namespace)
		}
		if !slices.Contains(g.CacheNamespaces, c.Namespace) {
			continue // the enrollment is refused because of it; its running jobs get no access either
		}
		rules = append(rules, networkingv1.NetworkPolicyEgressRule{
			To:    []networkingv1.NetworkPolicyPeer{{NamespaceSelector: new(labelSelector(map[string]string{corev1.LabelMetadataName: c.Namespace})), PodSelector: new(labelSelector(c.PodSelector))}},
			Ports: []networkingv1.NetworkPolicyPort{port(corev1.ProtocolTCP, c.Port)}})
	}
	return rules, nil
}
