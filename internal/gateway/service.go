package gateway

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// A service is a usable egress TailscaleService.
type service struct {
	object  *gatewayv1alpha1.TailscaleService
	name    Name
	tailnet *gatewayv1alpha1.TailscaleTailnet
	group   Name
	label   string // name in the tailnet without "svc:"; empty if the target is an FQDN or an address
	tags    []string
}

// resolveServices processes every TailscaleService, oldest first. If two services need a group of
// the same name, the older service gets it.
func (b *builder) resolveServices() {
	b.recordGroups()
	for _, s := range b.services {
		report, ok := b.validateService(s)
		if ok {
			report = b.assignGroup(s, report)
		}
		report.Generation = s.Generation
		b.result.Services[nameOf(s)] = report
		if !report.Accepted.IsTrue() || !report.ResolvedRefs.IsTrue() || s.Spec.Type == gatewayv1alpha1.Ingress {
			continue
		}
		r := &service{object: s, name: nameOf(s), tailnet: b.tailnets[report.Tailnet], group: report.Group}
		r.label, r.tags = labelAndTags(s)
		b.resolved[r.name] = r
		for _, p := range s.Spec.Ports {
			b.requirePort(r.group, r.key(string(p.Protocol), targetPort(p)))
		}
	}
	for name, w := range b.result.DesiredGroups {
		slices.SortFunc(w.Services, Name.Compare)
		slices.Sort(w.Consumers)
		w.Consumers = slices.Compact(w.Consumers)
		b.result.DesiredGroups[name] = w
	}
	carried := map[Name][]*service{}
	for _, s := range b.resolved {
		carried[s.group] = append(carried[s.group], s)
	}
	for _, g := range b.groups { // the service that a group carries without a TailscaleService
		if t := g.Spec.TailnetTarget; t != nil && b.result.Groups[nameOf(g)].Accepted.IsTrue() {
			b.requireGroupPorts(g, t, carried[nameOf(g)])
		}
	}
}

// requireGroupPorts requires the ports of the group's own tailnetTarget. It does nothing if a
// TailscaleService of the group has the same target.
func (b *builder) requireGroupPorts(g *gatewayv1alpha1.TailscaleProxyGroup, t *gatewayv1alpha1.TailnetTarget, carried []*service) {
	label := strings.TrimPrefix(t.ServiceName, "svc:")
	for _, s := range carried {
		of := s.object.Spec.Target
		if label != "" && s.label == label || label == "" && of.FQDN == t.FQDN && of.IP == t.IP && slices.Equal(of.Tags, t.Tags) {
			return
		}
	}
	name := Name{g.Namespace, cmp.Or(label, g.Name)}
	for _, p := range t.Ports {
		b.requirePort(
			nameOf(g),
			PortKey{Service: ServiceKey(name), Protocol: cmp.Or(string(p.Protocol), "TCP"), TargetPort: uint16(p.Port)},
		)
	}
}

// validateService checks everything about a TailscaleService except its group.
func (b *builder) validateService(s *gatewayv1alpha1.TailscaleService) (ServiceReport, bool) {
	tailnet := b.defaultTailnetName
	if ref := s.Spec.ProxyGroupRef; ref != nil {
		name := Name{cmp.Or(ref.Namespace, s.Namespace), ref.Name}
		// A group that this namespace may not use must look like a group that does not exist.
		if g := b.groupOf[name]; g != nil && b.result.Groups[name].Accepted.IsTrue() &&
			b.selects(g.Spec.Consumers, g.Namespace, s.Namespace) {
			tailnet = b.result.Groups[name].Tailnet
		}
	}
	if s.Spec.TailnetRef != nil {
		tailnet = s.Spec.TailnetRef.Name
	}
	if tailnet == "" {
		return ServiceReport{
			Accepted: conditions.False(
				gatewayv1alpha1.ReasonTailnetNotSpecified,
				"set a tailnet: not exactly one tailnet is annotated as the default",
			),
		}, false
	}
	t, ok := b.tailnetFor(tailnet, s.Namespace)
	if !ok {
		return ServiceReport{Accepted: conditions.False(gatewayv1alpha1.ReasonTailnetNotPermitted, notPermitted)}, false
	}
	report := ServiceReport{
		Accepted:     conditions.True(gatewayv1alpha1.ReasonAccepted, ""),
		ResolvedRefs: conditions.True(gatewayv1alpha1.ReasonResolved, ""),
		Tailnet:      tailnet,
	}
	if s.Spec.Type == gatewayv1alpha1.Ingress {
		report.ResolvedRefs = b.validateBackendRef(s)
		return report, report.ResolvedRefs.IsTrue()
	}
	target := s.Spec.Target
	if target == nil {
		report.Accepted = conditions.False(gatewayv1alpha1.ReasonTargetNotFound, "there is no target")
		return report, false
	}
	if v := b.validateTarget(target.FQDN, target.IP, t); !v.IsTrue() {
		report.Accepted = v
		return report, false
	}
	if label, _ := labelAndTags(s); target.ServiceName != "" && label == "" {
		report.Accepted = conditions.False(gatewayv1alpha1.ReasonTargetForbidden, "the service's name is not a DNS label")
		return report, false
	}
	if tls := s.Spec.UpstreamTLS; tls != nil && tls.CABundleRef != nil {
		roots := Name{cmp.Or(tls.CABundleRef.Namespace, s.Namespace), tls.CABundleRef.Name}
		_, exists := b.o.Roots[roots]
		if !b.granted(fromService(s), "", "ConfigMap", roots) {
			report.ResolvedRefs = conditions.False(
				gatewayv1alpha1.ReasonRefNotPermitted,
				"no ReferenceGrant allows this service to use the CA bundle in caBundleRef",
			)
		} else if !exists {
			report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonBackendNotFound, "caBundleRef does not refer to a ConfigMap with ca.crt")
		}
	}
	return report, report.ResolvedRefs.IsTrue()
}

func fromService(s *gatewayv1alpha1.TailscaleService) GrantFrom {
	return GrantFrom{gatewayv1alpha1.Group, "TailscaleService", s.Namespace}
}

// validateBackendRef checks the backend of an ingress service.
func (b *builder) validateBackendRef(s *gatewayv1alpha1.TailscaleService) conditions.Condition {
	ref := s.Spec.BackendRef
	if ref == nil {
		return conditions.False(gatewayv1alpha1.ReasonBackendNotFound, "there is no backendRef")
	}
	name := Name{cmp.Or(ref.Namespace, s.Namespace), ref.Name}
	group, exists := "", b.o.KubeServices[name]
	if ref.Kind == gatewayv1alpha1.KindGateway {
		group = "gateway.networking.k8s.io"
		_, exists = b.gatewayObjects[name]
	}
	switch {
	case !b.granted(fromService(s), group, cmp.Or(ref.Kind, "Service"), name):
		return conditions.False(gatewayv1alpha1.ReasonRefNotPermitted, "no ReferenceGrant allows this service to use the backend")
	case !exists:
		return conditions.False(gatewayv1alpha1.ReasonBackendNotFound, "there is no such backend")
	}
	return conditions.True(gatewayv1alpha1.ReasonResolved, "")
}

// labelAndTags returns the label of a service in its tailnet and its tags.
func labelAndTags(s *gatewayv1alpha1.TailscaleService) (label string, tags []string) {
	target := s.Spec.Target
	if target == nil {
		return "", nil
	}
	tags = slices.Clone(target.Tags)
	if text := s.Annotations[gatewayv1alpha1.ServiceTagsAnnotation]; text != "" && s.Labels[gatewayv1alpha1.DiscoveredLabel] == "true" {
		tags = append(tags, strings.Split(text, ",")...)
	}
	slices.Sort(tags)
	tags = slices.Compact(tags)
	if target.ServiceName != "" {
		label, _ = strings.CutPrefix(target.ServiceName, "svc:")
	} else if len(target.Tags) == 1 {
		label, _ = strings.CutPrefix(target.Tags[0], "tag:svc-")
	}
	if !IsLabel(label) {
		label = ""
	}
	return label, tags
}

func targetPort(p gatewayv1alpha1.ServicePort) uint16 { return uint16(cmp.Or(p.TargetPort, p.Port)) }

func (s *service) key(protocol string, port uint16) PortKey {
	return PortKey{Service: ServiceKey(s.name), Protocol: cmp.Or(protocol, "TCP"), TargetPort: port}
}

// cluster creates the cluster for one TCP port, numbered as in the tailnet. ok is false if the
// relays have no port for it, if HTTP routes cannot use its protocol, or if the name to verify
// over TLS is unknown.
func (b *builder) cluster(s *service, name string, port uint16, protocol gatewayv1alpha1.AppProtocol) (Cluster, bool) {
	match, ok := b.ports[s.group][s.key("TCP", port)]
	if !ok {
		return Cluster{}, false
	}
	c := Cluster{
		Name: name, StatName: strings.NewReplacer(".", "_", "/", "_").Replace(name), Port: match,
		Host:       b.headlessFQDN(s.group),
		HealthPort: gatewayv1alpha1.HealthPort, HealthPath: "/readyz/" + ServiceKey(s.name), Protocol: HTTP1,
	}
	// In an unreadable namespace the relays are unknown. A DNS name still leads to the ready
	// relays, so use it.
	if relays := b.o.Relays[s.name]; b.o.Addresses && (len(relays) > 0 || !b.o.Unreadable[s.group.Namespace]) {
		c.Endpoints = []netip.AddrPort{}
		for _, a := range relays {
			c.Endpoints = append(c.Endpoints, netip.AddrPortFrom(a, match))
		}
		slices.SortFunc(c.Endpoints, netip.AddrPort.Compare)
		c.Endpoints = slices.Compact(c.Endpoints)
	}
	secure := false
	switch cmp.Or(protocol, gatewayv1alpha1.AppHTTP) {
	case gatewayv1alpha1.AppHTTP:
	case gatewayv1alpha1.AppHTTPS:
		secure = true
	case gatewayv1alpha1.AppH2C, gatewayv1alpha1.AppGRPC:
		c.Protocol = HTTP2
	default:
		return Cluster{}, false
	}
	tls := cmp.Or(s.object.Spec.UpstreamTLS, &gatewayv1alpha1.UpstreamTLS{})
	if tls.Mode != "" {
		secure = tls.Mode == gatewayv1alpha1.UpstreamTLSSimple
	}
	if !secure {
		return c, true
	}
	c.TLS = &TLS{ServerName: cmp.Or(tls.ServerName, s.fqdn())}
	if tls.CABundleRef != nil {
		c.TLS.Roots = b.o.Roots[Name{cmp.Or(tls.CABundleRef.Namespace, s.name.Namespace), tls.CABundleRef.Name}]
	}
	return c, c.TLS.ServerName != "" // without a server name, Envoy cannot verify the certificate
}

// fqdn returns the name of the target in the tailnet, or "" if it has none.
func (s *service) fqdn() string {
	target := s.object.Spec.Target
	if target.FQDN != "" {
		return target.FQDN
	}
	if suffix := suffixOf(s.tailnet); target.ServiceName != "" && suffix != "" {
		return s.label + "." + suffix
	}
	return ""
}

func (b *builder) headlessFQDN(group Name) string {
	return group.Name + "." + group.Namespace + ".svc." + b.o.ClusterDomain
}

// defaultPort returns the port of a service to use where no port is named: preferred if the service
// has it, otherwise its lowest port. The number is the one in the tailnet. ok is false if the
// service has no HTTP port.
func (s *service) defaultPort(preferred uint16) (uint16, gatewayv1alpha1.AppProtocol, bool) {
	ports := map[uint16]gatewayv1alpha1.AppProtocol{}
	for _, p := range s.object.Spec.Ports {
		if p.Protocol != gatewayv1alpha1.UDP && p.AppProtocol != gatewayv1alpha1.AppTCP {
			ports[targetPort(p)] = p.AppProtocol
		}
	}
	if protocol, ok := ports[preferred]; ok {
		return preferred, protocol, true
	}
	for _, port := range slices.Sorted(maps.Keys(ports)) {
		return port, ports[port], true
	}
	return 0, "", false
}
