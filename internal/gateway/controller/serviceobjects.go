package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/tailplane/tailplane/internal/relay/config"
)

// serviceAnnotation is set on objects that the controller creates for a TailscaleService. Its value is
// the namespace and name of the TailscaleService. An object with it and ManagedLabel belongs to
// this controller.
const serviceAnnotation = "gateway.tailscale.com/tailscale-service"

// parseServiceAnnotation returns the TailscaleService for which an object was created.
func parseServiceAnnotation(o client.Object) (namespace, name string, ok bool) {
	if o.GetLabels()[v1alpha1.ManagedLabel] != "true" {
		return "", "", false
	}
	return strings.Cut(o.GetAnnotations()[serviceAnnotation], "/")
}

// createdFor reports whether an object was created for a service.
func createdFor(o client.Object, s *v1alpha1.TailscaleService) bool {
	namespace, name, ok := parseServiceAnnotation(o)
	return ok && namespace == s.Namespace && name == s.Name
}

// A portMapping is one port of a service and the corresponding port on the relays.
type portMapping struct {
	name        string // of the port in Services and EndpointSlices
	port        int32  // port for clients
	protocol    corev1.Protocol
	appProtocol v1alpha1.AppProtocol
	target      uint16 // in the tailnet
	match       uint16 // on the relays
}

const healthPortName = "health"

// portMappings returns the ports of a service that have a port on the group's relays, and messages for
// the ports that have none.
func portMappings(s *v1alpha1.TailscaleService, g *v1alpha1.TailscaleProxyGroup) (have []portMapping, lack []string) {
	key := gateway.ServiceKey(objectName(s))
	for _, p := range s.Spec.Ports {
		protocol := cmp.Or(p.Protocol, v1alpha1.TCP)
		m := portMapping{
			name:        cmp.Or(p.Name, strings.ToLower(string(protocol))+"-"+fmt.Sprint(p.Port)),
			port:        p.Port,
			protocol:    corev1.Protocol(protocol),
			appProtocol: p.AppProtocol,
			target:      uint16(cmp.Or(p.TargetPort, p.Port)),
		}
		for _, allocated := range cmp.Or(g, &v1alpha1.TailscaleProxyGroup{}).Status.Ports {
			if allocated.Service == key && allocated.Protocol == protocol && allocated.TargetPort == int32(m.target) {
				m.match = uint16(allocated.MatchPort)
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

// healthPort returns the health port of the relays as a port of the Service. ok is false if the
// service itself uses that port or name.
func healthPort(ports []portMapping) (portMapping, bool) {
	m := portMapping{name: healthPortName, port: v1alpha1.HealthPort, protocol: corev1.ProtocolTCP, match: v1alpha1.HealthPort}
	taken := slices.ContainsFunc(
		ports,
		func(p portMapping) bool { return p.name == m.name || p.port == m.port && p.protocol == m.protocol },
	)
	return m, !taken
}

// kubeAppProtocol returns the appProtocol of a port in Kubernetes' terms.
func (m portMapping) kubeAppProtocol() *string {
	switch m.appProtocol {
	case v1alpha1.AppHTTP, v1alpha1.AppHTTPS, v1alpha1.AppGRPC:
		return new(string(m.appProtocol))
	case v1alpha1.AppH2C:
		return new("kubernetes.io/h2c")
	}
	return nil
}

func servicePorts(ports []portMapping) (out []corev1.ServicePort) {
	for _, m := range ports {
		out = append(
			out,
			corev1.ServicePort{
				Name:        m.name,
				Protocol:    m.protocol,
				Port:        m.port,
				AppProtocol: m.kubeAppProtocol(),
				TargetPort:  intstr.FromInt32(int32(m.match)),
			},
		)
	}
	return out
}

// frontService returns the Service in front of the relays of a group, which maps client ports to relay
// ports. It has no selector, because the controller writes its EndpointSlices.
func frontService(s *v1alpha1.TailscaleService, group gateway.Name, ports []portMapping) *corev1.Service {
	if h, ok := healthPort(ports); ok {
		ports = append(slices.Clone(ports), h)
	}
	return &corev1.Service{
		ObjectMeta: serviceObjectMeta(s, group, gateway.GroupServiceName(objectName(s))),
		Spec: corev1.ServiceSpec{
			Type:           corev1.ServiceTypeClusterIP,
			IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
			Ports:          servicePorts(ports),
		},
	}
}

// aliasService returns the Service through which pods in the namespace of the TailscaleService reach
// front.
func aliasService(s *v1alpha1.TailscaleService, group gateway.Name, serviceName, domain string, ports []portMapping) *corev1.Service {
	meta := serviceObjectMeta(s, group, serviceName)
	meta.Namespace = s.Namespace
	meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s, v1alpha1.GroupVersion.WithKind("TailscaleService"))}
	o := &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: gateway.GroupServiceName(objectName(s)) + "." + group.Namespace + ".svc." + domain,
	}}
	for _, p := range servicePorts(ports) { // an ExternalName has no port mapping; the ports are only information
		p.TargetPort = intstr.FromInt32(p.Port)
		o.Spec.Ports = append(o.Spec.Ports, p)
	}
	return o
}

// serviceObjectMeta returns the metadata of objects for a service in the namespace of its group.
func serviceObjectMeta(s *v1alpha1.TailscaleService, group gateway.Name, serviceName string) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: group.Namespace, Name: serviceName,
		Labels:      map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: group.Name},
		Annotations: map[string]string{serviceAnnotation: s.Namespace + "/" + s.Name}}
	if group.Namespace == s.Namespace {
		meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(s, v1alpha1.GroupVersion.WithKind("TailscaleService"))}
	}
	return meta
}

// A portSet is the ports that the same relays carry.
type portSet struct {
	ports  []portMapping
	relays []int // sorted
}

// endpointSlices returns the EndpointSlices of front. A relay is an endpoint only for the ports
// that it has reported. Ports with the same set of relays share one EndpointSlice. A service has
// at most 33 ports and a group at most 50 relays, so they fit in one EndpointSlice.
func endpointSlices(
	s *v1alpha1.TailscaleService,
	group gateway.Name,
	frontUID types.UID,
	ports []portMapping,
	relays []readyRelay,
) (out []*discoveryv1.EndpointSlice) {
	key := gateway.ServiceKey(objectName(s))
	serviceName := gateway.GroupServiceName(objectName(s))
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		var sets []portSet
		add := func(m portMapping, carriers []int) {
			i := slices.IndexFunc(sets, func(s portSet) bool { return slices.Equal(s.relays, carriers) })
			if i < 0 {
				i, sets = len(sets), append(sets, portSet{relays: carriers})
			}
			sets[i].ports = append(sets[i].ports, m)
		}
		var carrying []int // relays that carry any port
		for _, m := range ports {
			var carriers []int
			for i, r := range relays {
				if r.carries(key, m) && len(r.addresses(family)) > 0 {
					carriers = append(carriers, i)
				}
			}
			add(m, carriers)
			carrying = append(carrying, carriers...)
		}
		if h, ok := healthPort(ports); ok {
			slices.Sort(carrying)
			add(h, slices.Compact(carrying))
		}
		slices.SortFunc(sets, func(a, b portSet) int { return cmp.Compare(a.ports[0].match, b.ports[0].match) })
		n := 0
		for _, set := range sets {
			if len(set.relays) == 0 {
				continue // no relay carries these ports
			}
			o := &discoveryv1.EndpointSlice{
				ObjectMeta:  serviceObjectMeta(s, group, serviceName+"-"+strings.ToLower(string(family))),
				AddressType: family,
			}
			if n++; n > 1 {
				o.Name += fmt.Sprint("-", n)
			}
			o.Labels[discoveryv1.LabelServiceName] = serviceName
			o.Labels[discoveryv1.LabelManagedBy] = v1alpha1.EndpointsManager
			o.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Service", Name: serviceName, UID: frontUID, Controller: new(true)},
			} // nothing waits for it
			for _, m := range set.ports {
				o.Ports = append(o.Ports, discoveryv1.EndpointPort{
					Name:        new(m.name),
					Protocol:    new(m.protocol),
					Port:        new(int32(m.match)),
					AppProtocol: m.kubeAppProtocol(),
				})
			}
			for _, i := range set.relays {
				o.Endpoints = append(o.Endpoints, relays[i].endpoint(group, family))
			}
			out = append(out, o)
		}
	}
	return out
}

// endpoint returns the relay as an endpoint with an address of a family, which it must have.
func (r readyRelay) endpoint(group gateway.Name, family discoveryv1.AddressType) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{
		Addresses:  []string{r.addresses(family)[0].String()}, // Kubernetes does not define the meaning of more than one
		Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: group.Namespace, Name: r.pod, UID: types.UID(r.uid)},
	}
	if r.node != "" {
		e.NodeName = new(r.node)
	}
	return e
}

// addresses returns the relay's addresses of a family.
func (r readyRelay) addresses(family discoveryv1.AddressType) (out []netip.Addr) {
	for _, a := range r.ips {
		if a.Is4() == (family == discoveryv1.AddressTypeIPv4) {
			out = append(out, a)
		}
	}
	return out
}

// A readyRelay is one ready pod of a group with its reported status.
type readyRelay struct {
	pod, uid, node string
	ips            []netip.Addr
	status         config.Status // reported by this pod; empty if there is no report yet
}

// A relayState is the status in a relay's Secret at one version. The Secret also contains the relay's
// node key, which is not kept in memory.
type relayState struct {
	version string
	pod     string // UID of the pod
	status  config.Status
}

const maxRelayStates = 1000 // maximum number of cached states; enough for many groups

// podServes reports whether a pod can receive connections.
func podServes(p *corev1.Pod) bool {
	return podReady(p) && p.Status.Phase == corev1.PodRunning
}

// readyRelays returns the ready relays of a group, sorted by name.
func (l *serviceReconciliation) readyRelays(ctx context.Context, group gateway.Name) (out []readyRelay, err error) {
	if group.Name == "" {
		return nil, nil
	}
	var pods corev1.PodList
	if err := l.client.List(ctx, &pods, client.InNamespace(group.Namespace), client.MatchingLabels{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: group.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the relays of %s: %w", group, err)
	}
	for _, p := range pointers(pods.Items) {
		if !podServes(p) || !strings.HasPrefix(p.Name, group.Name+"-") {
			continue
		}
		r := readyRelay{pod: p.Name, uid: string(p.UID), node: p.Spec.NodeName}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && validEndpoint(a) {
				r.ips = append(r.ips, a)
			}
		}
		st, err := l.relayState(ctx, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		if err != nil {
			return nil, err
		}
		if st.pod == r.uid { // otherwise a previous pod with this name wrote the status
			r.status = st.status
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b readyRelay) int { return strings.Compare(a.pod, b.pod) })
	return out, nil
}

// validEndpoint reports whether an EndpointSlice may contain the address. The API server rejects a
// whole EndpointSlice if one address is invalid.
func validEndpoint(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() &&
		!a.IsMulticast()
}

// relayState returns the status in a relay's Secret. It reads the Secret only if its version changed.
func (l *serviceReconciliation) relayState(ctx context.Context, key types.NamespacedName) (relayState, error) {
	seen := partialMetadata("Secret")
	if err := l.cached.Get(ctx, key, seen); err != nil {
		return relayState{}, wrapError(client.IgnoreNotFound(err), "get the state Secret %s", key)
	}
	l.mu.Lock()
	st, ok := l.states[key]
	l.mu.Unlock()
	if ok && st.version == seen.ResourceVersion {
		return st, nil
	}
	secret := &corev1.Secret{}
	if err := l.direct.Get(ctx, key, secret); err != nil {
		return relayState{}, fmt.Errorf("read the state Secret %s: %w", key, err)
	}
	st = relayState{version: secret.ResourceVersion, pod: string(secret.Data[config.PodUID])}
	if text := secret.Data[config.EgressKey]; len(text) > 0 && secret.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeState {
		if err := json.Unmarshal(text, &st.status); err != nil {
			st.status = config.Status{} // ignore a status that cannot be parsed
		}
	}
	l.mu.Lock()
	if len(l.states) >= maxRelayStates {
		clear(l.states) // also removes deleted relays; the others are read again
	}
	l.states[key] = st
	l.mu.Unlock()
	return st, nil
}

// carries reports whether the relay has reported this port mapping.
func (r readyRelay) carries(service string, m portMapping) bool {
	return slices.Contains(
		r.status.Services[service].Ports,
		config.Port{Protocol: config.Protocol(strings.ToLower(string(m.protocol))), Match: m.match, Target: m.target},
	)
}

// reaches reports whether the relay has found the target in the tailnet.
func (r readyRelay) reaches(service string) bool { return len(r.status.Services[service].IPs) > 0 }

// exposes reports whether the relay has reported this ingress service with the given number of
// ports.
func (r readyRelay) exposes(service string, ports int) bool {
	return len(r.status.Exposed[service].Ports) == ports
}

// uncertifiedReason returns the reason that a relay reports if no relay can terminate TLS for an ingress
// service. It returns "" if a relay can or if there is no TLS termination.
func uncertifiedReason(relays []readyRelay, service string) (why string) {
	for _, r := range relays {
		if e, is := r.status.Exposed[service]; is && len(e.Ports) > 0 {
			if e.Uncertified == "" {
				return ""
			}
			why = e.Uncertified
		}
	}
	return why
}
