package gateway

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// An attachedTailnet is one usable tailnet of a TailscaleGateway.
type attachedTailnet struct {
	tailnet  string
	spec     gatewayv1alpha1.AttachedTailnet
	services []member
	byLabel  map[string]member
}

// A member is one service of an attached tailnet.
type member struct {
	*service
	routeLabel string // the name used in generated names: the label, plus the tailnet if an earlier tailnet has the same label
}

// processAttachments processes every TailscaleGateway. A Gateway accepts one attachment: the oldest.
func (b *builder) processAttachments() {
	for _, s := range b.services {
		if r := b.resolved[nameOf(s)]; r != nil {
			key := [2]string{r.name.Namespace, r.tailnet.Name}
			b.servicesByScope[key] = append(b.servicesByScope[key], r)
		}
	}
	for _, a := range slices.SortedFunc(slices.Values(b.o.Attachments), func(x, y *gatewayv1alpha1.TailscaleGateway) int { return older(x, y) }) {
		if a.DeletionTimestamp.IsZero() {
			b.result.Attachments[nameOf(a)] = b.processAttachment(a)
		}
	}
}

func (b *builder) processAttachment(a *gatewayv1alpha1.TailscaleGateway) AttachmentReport {
	report := AttachmentReport{
		Accepted:     conditions.True(gatewayv1alpha1.ReasonAccepted, ""),
		ResolvedRefs: conditions.True(gatewayv1alpha1.ReasonResolved, ""),
		Programmed:   conditions.True(gatewayv1alpha1.ReasonProgrammed, ""),
	}
	target := Name{a.Namespace, a.Spec.TargetRef.Name}
	object, ok := b.gatewayObjects[target]
	section := a.Spec.TargetRef.SectionName
	switch {
	case !ok && b.foreignGateways[target]:
		report.Accepted = conditions.False(gatewayv1alpha1.ReasonNotEnvoyGateway, "Envoy Gateway does not manage the Gateway")
	case !ok:
		report.Accepted = conditions.False(gatewayv1alpha1.ReasonGatewayNotFound, "there is no such Gateway in this namespace")
	case section != "" && !object.hasListener(section):
		report.Accepted = conditions.False(gatewayv1alpha1.ReasonGatewayNotFound, "the Gateway has no listener with that name")
	case b.gatewayStates[target] != nil && b.gatewayStates[target].attachment != nil:
		report.Accepted = conditions.False(
			gatewayv1alpha1.ReasonConflicted,
			"an older TailscaleGateway already uses this Gateway: "+b.gatewayStates[target].attachment.Name,
		)
	}
	if !report.Accepted.IsTrue() {
		report.Programmed = conditions.False(report.Accepted.Reason, report.Accepted.Message)
		return report
	}
	r := b.gatewayState(target)
	r.attachment, r.gateway.Attachment = a, nameOf(a)
	known := map[string]bool{}
	for _, spec := range a.Spec.Tailnets {
		name := spec.TailnetRef.Name
		t, ok := b.tailnetFor(name, a.Namespace)
		if !ok {
			report.ResolvedRefs = conditions.False(gatewayv1alpha1.ReasonTailnetNotPermitted, Printable(name)+": "+notPermitted)
			continue
		}
		if report.ResolvedRefs.IsTrue() && !isReady(t) {
			report.ResolvedRefs = conditions.False(
				gatewayv1alpha1.ReasonTailnetNotReady,
				name+" is not ready; its last known state stays in use",
			)
		}
		report.TailnetCount++
		in := attachedTailnet{tailnet: name, spec: spec, byLabel: map[string]member{}}
		for _, s := range b.discoveredServices(a, spec) {
			m := member{s, s.label}
			if known[s.label] {
				m.routeLabel += "." + name
			}
			in.services, in.byLabel[s.label] = append(in.services, m), m
		}
		for label := range in.byLabel {
			known[label] = true
		}
		r.attached = append(r.attached, in)
		if spec.RouteGeneration.Egress != nil {
			report.Routed = append(report.Routed, b.addServiceRoutes(r, in, section)...)
		}
		if i := spec.RouteGeneration.Ingress; i != nil && i.ProxyProtocol == gatewayv1alpha1.ProxyProtocolV2 {
			r.proxyProtocol[section] = true
		}
		for _, s := range b.services {
			if rep := b.result.Services[nameOf(s)]; rep.Accepted.Reason == gatewayv1alpha1.ReasonProxyGroupLimit && rep.Tailnet == name &&
				s.Namespace == a.Namespace {
				report.Programmed = conditions.False(gatewayv1alpha1.ReasonProxyGroupLimit, rep.Accepted.Message)
				break
			}
		}
	}
	slices.SortFunc(report.Routed, func(x, y gatewayv1alpha1.RoutedService) int { return cmp.Compare(x.Name, y.Name) })
	report.checkVirtualHosts()
	return report
}

// checkVirtualHosts reports services that no route of the Gateway can name.
func (r *AttachmentReport) checkVirtualHosts() {
	nowhere := 0
	for _, s := range r.Routed {
		if s.State == gatewayv1alpha1.ReasonNoVirtualHost {
			nowhere++
		}
	}
	if nowhere > 0 && r.Programmed.IsTrue() {
		r.Programmed = conditions.False(
			gatewayv1alpha1.ReasonNoVirtualHost,
			fmt.Sprintf("the Gateway has no virtual host for %d of %d services: none of its routes has a matching host", nowhere, len(r.Routed)),
		)
	}
}

// hasListener reports whether the Gateway has a listener with this name.
func (g GatewayObject) hasListener(section string) bool {
	return slices.ContainsFunc(g.Listeners, func(l ListenerObject) bool { return l.Name == section })
}

func isReady(t *gatewayv1alpha1.TailscaleTailnet) bool {
	return conditions.Get(t.Status.Conditions, gatewayv1alpha1.ConditionReady).IsTrue()
}

// discoveredServices returns the services of one tailnet that belong to a TailscaleGateway, sorted by
// label, one per label. These are the services that its discovery created, and the services that a
// user created and that match its discovery patterns. If both exist for a label, the user's
// service wins.
func (b *builder) discoveredServices(a *gatewayv1alpha1.TailscaleGateway, spec gatewayv1alpha1.AttachedTailnet) []*service {
	var found []*service
	for _, own := range []bool{false, true} {
		for _, s := range b.servicesByScope[[2]string{a.Namespace, spec.TailnetRef.Name}] {
			isDiscovered := s.object.Labels[gatewayv1alpha1.DiscoveredLabel] == "true"
			if s.label == "" || isDiscovered != own || own && !ownedBy(s.object, a) {
				continue
			}
			if d := spec.ServiceDiscovery; !own && (!MatchAny(d.Patterns, "svc:"+s.label) || MatchAny(d.ExcludePatterns, "svc:"+s.label)) {
				continue
			}
			found = append(found, s)
		}
	}
	slices.SortStableFunc(found, func(x, y *service) int { return strings.Compare(x.label, y.label) })
	return slices.CompactFunc(found, func(x, y *service) bool { return x.label == y.label })
}

func ownedBy(s *gatewayv1alpha1.TailscaleService, a *gatewayv1alpha1.TailscaleGateway) bool {
	return slices.ContainsFunc(s.OwnerReferences, func(o metav1.OwnerReference) bool {
		return o.Kind == "TailscaleGateway" && o.Name == a.Name && o.UID == a.UID
	})
}

// addServiceRoutes adds the routes to the services of one tailnet to r and returns one status row per
// service.
func (b *builder) addServiceRoutes(r *gatewayState, in attachedTailnet, section string) []gatewayv1alpha1.RoutedService {
	e := in.spec.RouteGeneration.Egress
	hosts := slices.Clone(e.Hostnames)
	if len(hosts) == 0 {
		hosts = []string{"*"}
	}
	slices.Sort(hosts)
	covered := slices.ContainsFunc(b.virtualHosts[r.gateway.Name], func(h virtualHost) bool {
		return (section == "" || section == h.section) && Route{Hosts: hosts}.Covers(h.domain)
	})
	var routed []gatewayv1alpha1.RoutedService
	for _, m := range in.services {
		prefix := strings.ReplaceAll(cmp.Or(e.PathPrefix, "/svc/{service}"), "{service}", m.routeLabel)
		row := gatewayv1alpha1.RoutedService{
			Name: m.routeLabel, Tailnet: in.tailnet, Route: routeName(m.routeLabel), Path: prefix, Cluster: clusterName(m.routeLabel), State: gatewayv1alpha1.ReasonPending,
		}
		port, _, ok := m.defaultPort(in.requestedPort())
		var c Cluster
		if ok {
			c, ok = b.memberCluster(in, m, port)
		}
		if ok {
			row.State = gatewayv1alpha1.ReasonProgrammed
			if !covered {
				row.State = gatewayv1alpha1.ReasonNoVirtualHost
			}
			r.clusters[c.Name] = c
			r.gateway.Mappings = append(r.gateway.Mappings, Mapping{
				ServiceName: m.routeLabel, ClusterName: c.Name, ProxyGroupName: m.group.Name, HeadlessFQDN: b.headlessFQDN(m.group), Port: port, Protocol: "TCP",
				Tailnet: in.tailnet, Service: m.name, MatchPort: c.Port, Path: prefix,
			})
			route := Route{
				Name:    row.Route,
				Hosts:   hosts,
				Section: section,
				Prefix:  prefix,
				Strip:   e.Rewrite == gatewayv1alpha1.PathStrip,
				Cluster: c.Name,
			}
			if e.HostRewrite == gatewayv1alpha1.HostTarget {
				route.HostRewrite = m.fqdn()
			}
			if e.InheritFrom != nil {
				route.InheritFrom = Name{cmp.Or(e.InheritFrom.Namespace, r.attachment.Namespace), e.InheritFrom.Name}
			}
			r.gateway.Routes = append(r.gateway.Routes, route)
		}
		routed = append(routed, row)
	}
	return routed
}

// requestedPort returns the port that the routes of this tailnet use if the service has it.
func (in attachedTailnet) requestedPort() uint16 {
	return uint16(cmp.Or(in.egress().Port, 80))
}

// egress returns the settings of the tailnet's routes; they are empty if it has none.
func (in attachedTailnet) egress() *gatewayv1alpha1.EgressRoutes {
	return cmp.Or(in.spec.RouteGeneration.Egress, &gatewayv1alpha1.EgressRoutes{})
}

// memberCluster creates the cluster for a port of an attached service. The cluster of the default
// port has the name that the route uses; clusters of other ports have the port in the name.
func (b *builder) memberCluster(in attachedTailnet, m member, port uint16) (Cluster, bool) {
	name := portClusterName(m.routeLabel, port)
	if d, _, ok := m.defaultPort(in.requestedPort()); ok && d == port {
		name = clusterName(m.routeLabel)
	}
	return b.cluster(m.service, name, port, cmp.Or(m.appProtocol(port), in.egress().AppProtocol))
}

// appProtocol returns the application protocol that the TailscaleService specifies for a port, numbered
// as in the tailnet. It is empty if the spec does not set one.
func (s *service) appProtocol(port uint16) gatewayv1alpha1.AppProtocol {
	p, _ := s.tcpPort(port)
	return p.AppProtocol
}

// tcpPort returns the TCP port of the spec that has this number in the tailnet.
func (s *service) tcpPort(port uint16) (gatewayv1alpha1.ServicePort, bool) {
	for _, p := range s.object.Spec.Ports {
		if p.Protocol != gatewayv1alpha1.UDP && targetPort(p) == port {
			return p, true
		}
	}
	return gatewayv1alpha1.ServicePort{}, false
}

// A virtualHost is a virtual host that Envoy Gateway probably creates for a Gateway, derived from
// routes and listeners.
type virtualHost struct{ section, domain string }

// computeVirtualHosts computes the virtual hosts of every Gateway: the hostnames of its routes that its
// listeners accept.
func (b *builder) computeVirtualHosts() {
	type gatewayHost struct {
		gateway Name
		virtualHost
	}
	seen := map[gatewayHost]bool{}
	for _, route := range b.routes {
		names := route.Hostnames
		if len(names) == 0 {
			names = []string{"*"}
		}
		for _, p := range route.Parents {
			for _, l := range b.gatewayObjects[p.Gateway].Listeners {
				if !l.HTTP || p.Section != "" && p.Section != l.Name {
					continue
				}
				for _, n := range names {
					domain, ok := intersectHosts(n, cmp.Or(l.Hostname, "*"))
					h := virtualHost{l.Name, domain}
					if at := (gatewayHost{p.Gateway, h}); ok && !seen[at] {
						seen[at] = true
						b.virtualHosts[p.Gateway] = append(b.virtualHosts[p.Gateway], h)
					}
				}
			}
		}
	}
}

// intersectHosts returns the narrower of two host patterns. ok is false if no host matches both.
func intersectHosts(x, y string) (string, bool) {
	switch {
	case (Route{Hosts: []string{y}}).Covers(x):
		return x, true
	case (Route{Hosts: []string{x}}).Covers(y):
		return y, true
	}
	return "", false
}
