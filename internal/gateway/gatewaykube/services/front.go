package services

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// forAnnotation is set on objects that the controller creates for a TailscaleService. Its value is
// the namespace and name of the TailscaleService. An object with it and ManagedLabel belongs to
// this controller.
const forAnnotation = "gateway.tailscale.com/tailscale-service"

// cutFor returns the TailscaleService for which an object was created.
func cutFor(o client.Object) (namespace, name string, ok bool) {
	if o.GetLabels()[v1alpha1.ManagedLabel] != "true" {
		return "", "", false
	}
	return strings.Cut(o.GetAnnotations()[forAnnotation], "/")
}

// madeFor reports whether an object was created for a service.
func madeFor(o client.Object, s *v1alpha1.TailscaleService) bool {
	namespace, name, ok := cutFor(o)
	return ok && namespace == s.Namespace && name == s.Name
}

// A mapping is one port of a service and the corresponding port on the relays.
type mapping struct {
	name     string // of the port in Services and EndpointSlices
	port     int32  // port for clients
	protocol corev1.Protocol
	speaks   v1alpha1.AppProtocol
	target   uint16 // in the tailnet
	match    uint16 // on the relays
}

const healthName = "health"

// mappings returns the ports of a service that have a port on the group's relays, and messages for
// the ports that have none.
func mappings(s *v1alpha1.TailscaleService, g *v1alpha1.TailscaleProxyGroup) (have []mapping, lack []string) {
	key := gateway.ServiceKey(name(s))
	for _, p := range s.Spec.Ports {
		protocol := cmp.Or(p.Protocol, v1alpha1.TCP)
		m := mapping{name: cmp.Or(p.Name, strings.ToLower(string(protocol))+"-"+fmt.Sprint(p.Port)), port: p.Port, protocol: corev1.Protocol(protocol), speaks: p.AppProtocol,
			target: uint16(cmp.Or(p.TargetPort, p.Port))}
		if g != nil {
			for _, given := range g.Status.Ports {
				if given.Service == key && given.Protocol == protocol && given.TargetPort == int32(m.target) {
					m.match = uint16(given.MatchPort)
				}
			}
		}
		if m.match == 0 {
			lack = append(lack, fmt.Sprintf("%s %d", protocol, p.Port))
			continue
		}
		have = append(have, m)
	}
	return have, lack
}

// health returns the health port of the relays as a port of the Service. ok is false if the
// service itself uses that port or name.
func health(ports []mapping) (mapping, bool) {
	m := mapping{name: healthName, port: v1alpha1.HealthPort, protocol: corev1.ProtocolTCP, match: v1alpha1.HealthPort}
	taken := slices.ContainsFunc(ports, func(p mapping) bool { return p.name == m.name || p.port == m.port && p.protocol == m.protocol })
	return m, !taken
}

// spoken returns the appProtocol of a port in Kubernetes' terms.
func (m mapping) spoken() *string {
	switch m.speaks {
	case v1alpha1.AppHTTP, v1alpha1.AppHTTPS, v1alpha1.AppGRPC:
		return new(string(m.speaks))
	case v1alpha1.AppH2C:
		return new("kubernetes.io/h2c")
	}
	return nil
}

func servicePorts(ports []mapping) (out []corev1.ServicePort) {
	for _, m := range ports {
		out = append(out, corev1.ServicePort{Name: m.name, Protocol: m.protocol, Port: m.port, AppProtocol: m.spoken(), TargetPort: intstr.FromInt32(int32(m.match))})
	}
	return out
}

// front returns the Service in front of the relays of a group, which maps client ports to relay
// ports. It has no selector, because the controller writes its EndpointSlices.
func front(s *v1alpha1.TailscaleService, group gateway.Name, ports []mapping) *corev1.Service {
	if h, ok := health(ports); ok {
		ports = append(slices.Clone(ports), h)
	}
	o := &corev1.Service{
		ObjectMeta: made(s, group, gateway.GroupServiceName(name(s))),
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack), Ports: servicePorts(ports)},
	}
	return o
}

// alias returns the Service through which pods in the namespace of the TailscaleService reach
// front.
func alias(s *v1alpha1.TailscaleService, group gateway.Name, called, domain string, ports []mapping) *corev1.Service {
	meta := made(s, group, called)
	meta.Namespace = s.Namespace
	meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s, v1alpha1.GroupVersion.WithKind("TailscaleService"))}
	o := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: gateway.GroupServiceName(name(s)) + "." + group.Namespace + ".svc." + domain,
	}}
	for _, p := range servicePorts(ports) { // an ExternalName has no port mapping; the ports are only information
		p.TargetPort = intstr.FromInt32(p.Port)
		o.Spec.Ports = append(o.Spec.Ports, p)
	}
	return o
}

// made returns the metadata of objects for a service in the namespace of its group.
func made(s *v1alpha1.TailscaleService, group gateway.Name, called string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: group.Namespace, Name: called,
		Labels:      map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: group.Name},
		Annotations: map[string]string{forAnnotation: s.Namespace + "/" + s.Name}}
	if group.Namespace == s.Namespace {
		meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s, v1alpha1.GroupVersion.WithKind("TailscaleService"))}
	}
	return meta
}

// endpointSlices returns the EndpointSlices of front. A relay is an endpoint only for the ports
// that it has reported. Ports with the same set of relays share one EndpointSlice. A service has
// at most 33 ports and a group at most 50 relays, so they fit in one EndpointSlice.
func endpointSlices(s *v1alpha1.TailscaleService, group gateway.Name, frontUID types.UID, ports []mapping, relays []relay) (out []*discoveryv1.EndpointSlice) {
	key := gateway.ServiceKey(name(s))
	called := gateway.GroupServiceName(name(s))
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		sets := map[string][]mapping{} // by the set of relays that carry the ports
		carried := map[int]bool{}
		for _, m := range ports {
			set := ""
			for i, r := range relays {
				if r.carries(key, m) && len(r.of(family)) > 0 {
					set += fmt.Sprint(i, " ")
					carried[i] = true
				}
			}
			sets[set] = append(sets[set], m)
		}
		if h, ok := health(ports); ok {
			set := ""
			for _, i := range slices.Sorted(maps.Keys(carried)) {
				set += fmt.Sprint(i, " ")
			}
			sets[set] = append(sets[set], h)
		}
		n := 0
		for _, set := range slices.SortedFunc(maps.Keys(sets), func(a, b string) int { return cmp.Compare(sets[a][0].match, sets[b][0].match) }) {
			if set == "" {
				continue // no relay carries these ports
			}
			o := &discoveryv1.EndpointSlice{ObjectMeta: made(s, group, called+"-"+strings.ToLower(string(family))), AddressType: family}
			if n++; n > 1 {
				o.Name += fmt.Sprint("-", n)
			}
			o.Labels[discoveryv1.LabelServiceName] = called
			o.Labels[discoveryv1.LabelManagedBy] = v1alpha1.EndpointsManager
			o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: called, UID: frontUID, Controller: new(true)}} // nothing waits for it
			for _, m := range sets[set] {
				o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: new(m.name), Protocol: new(m.protocol), Port: new(int32(m.match)), AppProtocol: m.spoken()})
			}
			for index := range strings.FieldsSeq(set) {
				var i int
				if _, err := fmt.Sscan(index, &i); err != nil {
					panic(err) // the index was written above
				}
				r := relays[i]
				e := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
					TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: group.Namespace, Name: r.pod, UID: types.UID(r.uid)}}
				for _, a := range r.of(family)[:1] { // an endpoint has one address; Kubernetes does not define the meaning of more
					e.Addresses = append(e.Addresses, a.String())
				}
				if r.node != "" {
					e.NodeName = new(r.node)
				}
				o.Endpoints = append(o.Endpoints, e)
			}
			out = append(out, o)
		}
	}
	return out
}

// of returns the relay's addresses of a family.
func (r relay) of(family discoveryv1.AddressType) (out []netip.Addr) {
	for _, a := range r.ips {
		if a.Is4() == (family == discoveryv1.AddressTypeIPv4) {
			out = append(out, a)
		}
	}
	return out
}
