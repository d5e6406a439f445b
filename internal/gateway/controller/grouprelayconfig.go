package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/relay/config"
)

const (
	backendRequeue = 15 * time.Second // between checks whether backends have endpoints
)

// A groupIngress is what a group exposes to the tailnet, for Tailplane's relay and in the two formats
// of Tailscale's image.
type groupIngress struct {
	relay    map[string]config.IngressService
	serve    serveConfig
	mappings map[string]ingressMapping
}

type serveConfig struct {
	Services map[string]serveService `json:"Services,omitempty"`
}

type serveService struct {
	TCP map[string]serveTCP `json:"TCP"`
}

type serveTCP struct {
	TCPForward    string `json:"TCPForward"`
	TerminateTLS  string `json:"TerminateTLS,omitempty"`
	ProxyProtocol int    `json:"ProxyProtocol,omitempty"`
}

type ingressMapping struct {
	IPv4Mapping *vipMapping `json:"IPv4Mapping,omitempty"`
	IPv6Mapping *vipMapping `json:"IPv6Mapping,omitempty"`
}

type vipMapping struct {
	TailscaleServiceIP netip.Addr
	ClusterIP          netip.Addr
}

// gatherIngress collects the services that this group exposes to the tailnet.
func (l *groupReconciliation) gatherIngress(ctx context.Context) (*groupIngress, error) {
	var all v1alpha1.TailscaleServiceList
	if err := l.cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	slices.SortFunc(all.Items, func(a, b v1alpha1.TailscaleService) int { return objectName(&a).Compare(objectName(&b)) })
	out := &groupIngress{map[string]config.IngressService{}, serveConfig{map[string]serveService{}}, map[string]ingressMapping{}}
	for _, s := range pointers(all.Items) {
		report := l.result.Services[objectName(s)]
		l.retainCertificate(s, report.Group)
		if s.Spec.Type != v1alpha1.Ingress || s.DeletionTimestamp != nil || report.Group != objectName(l.group) ||
			!report.Accepted.IsTrue() ||
			!report.ResolvedRefs.IsTrue() ||
			s.Spec.BackendRef == nil {
			continue
		}
		if len(out.relay) == config.MaxExposed { // a relay rejects a configuration with more services
			l.omitted = append(
				l.omitted,
				fmt.Sprintf("more than %d services; services from %s on are skipped", config.MaxExposed, objectName(s)),
			)
			break
		}
		if err := l.expose(ctx, s, out); err != nil {
			return nil, err
		}
	}
	if len(out.relay) > 0 {
		l.requeueAt(l.Now().Add(backendRequeue))
	}
	return out, nil
}

// expose adds one service if its backend exists.
func (l *groupReconciliation) expose(ctx context.Context, s *v1alpha1.TailscaleService, out *groupIngress) error {
	backend, err := l.backendService(ctx, s)
	if err != nil || backend == nil {
		return err
	}
	host := backend.Spec.ClusterIP
	if host == "" || host == corev1.ClusterIPNone {
		host = backend.Name + "." + backend.Namespace + ".svc." + l.ClusterDomain
	}
	domain := ""
	if terminatesTLS(s) {
		if !mayHost(s) { // the operator must not hold a certificate for it either
			return nil
		}
		if domain, err = l.ensureCertificate(ctx, s); err != nil || domain == "" {
			return err
		}
	}
	file, serve, omitted := carriedPorts(s, host, domain)
	file.Issue = l.issue[domain]
	if omitted {
		l.omitted = append(
			l.omitted,
			objectName(s).String()+" has UDP together with TCP or with a PROXY header, which relays do not support",
		)
	}
	if file.VIP != "" && !mayHost(s) || len(file.Ports) == 0 {
		return nil
	}
	if file.Ready, err = l.hasEndpoint(ctx, backend); err != nil {
		return err
	}
	out.relay[gateway.ServiceKey(objectName(s))] = file
	if file.VIP != "" && file.Ready {
		out.serve.Services[file.VIP] = serve
		out.mappings[file.VIP] = mappingOf(s, backend)
	}
	return nil
}

// carriedPorts returns the ports of a service that relays forward to a host, in the relay's format and
// in that of Tailscale's image. If relays terminate TLS, domain is the name of the certificate. A
// tailnet service carries only TCP, so UDP uses the relays' own addresses. omitted means that ports
// were left out.
func carriedPorts(s *v1alpha1.TailscaleService, host, domain string) (file config.IngressService, serve serveService, omitted bool) {
	file.Domain = domain
	file.ProxyProtocol, serve.TCP = s.Spec.ProxyProtocol == v1alpha1.ProxyProtocolV2, map[string]serveTCP{}
	if s.Spec.VIPService != nil &&
		slices.ContainsFunc(s.Spec.Ports, func(p v1alpha1.ServicePort) bool { return p.Protocol != v1alpha1.UDP }) {
		file.VIP = s.Spec.VIPService.Name
	}
	for _, p := range s.Spec.Ports {
		to := net.JoinHostPort(host, strconv.Itoa(int(cmp.Or(p.TargetPort, p.Port))))
		protocol := config.Protocol(strings.ToLower(string(cmp.Or(p.Protocol, v1alpha1.TCP))))
		if protocol == config.UDP && (file.VIP != "" || file.ProxyProtocol) {
			omitted = true
			continue
		}
		ends := p.TLS == v1alpha1.TLSTerminate
		file.Ports = append(file.Ports, config.IngressPort{Protocol: protocol, Port: uint16(p.Port), Backend: to,
			Terminate: ends, H2: ends && (p.AppProtocol == v1alpha1.AppH2C || p.AppProtocol == v1alpha1.AppGRPC)})
		if protocol == config.TCP {
			one := serveTCP{TCPForward: to}
			if ends {
				one.TerminateTLS = domain
			}
			if file.ProxyProtocol {
				one.ProxyProtocol = 2
			}
			serve.TCP[strconv.Itoa(int(p.Port))] = one
		}
	}
	return file, serve, omitted
}

// mayHost reports whether the relays may offer themselves as hosts of the service, which requires
// ownership of the tailnet service. Offering before that would impersonate another owner's
// service, and a rule of the tailnet might approve it automatically.
func mayHost(s *v1alpha1.TailscaleService) bool {
	vip, c := s.Status.VIP, meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionProgrammed)
	return vip != nil && vip.Name == s.Spec.VIPService.Name && len(vip.Addresses) > 0 &&
		c != nil && (c.Status == metav1.ConditionTrue || c.Reason != v1alpha1.ReasonVIPNotOwned && c.Reason != v1alpha1.ReasonVIPConflict)
}

// mappingOf combines the addresses of a tailnet service with those of its backend.
func mappingOf(s *v1alpha1.TailscaleService, backend *corev1.Service) (m ingressMapping) {
	for _, text := range cmp.Or(s.Status.VIP, &v1alpha1.VIPStatus{}).Addresses {
		vip, err := netip.ParseAddr(text)
		if err != nil {
			continue
		}
		for _, text := range backend.Spec.ClusterIPs {
			ip, err := netip.ParseAddr(text)
			switch {
			case err != nil || ip.Is4() != vip.Is4():
			case vip.Is4():
				m.IPv4Mapping = &vipMapping{vip, ip}
			default:
				m.IPv6Mapping = &vipMapping{vip, ip}
			}
		}
	}
	return m
}

// backendService returns the Service behind an ingress service: the named Service, or Envoy's Service of
// the named Gateway. It returns nil if there is none.
func (l *groupReconciliation) backendService(ctx context.Context, s *v1alpha1.TailscaleService) (*corev1.Service, error) {
	ref := s.Spec.BackendRef
	namespace := cmp.Or(ref.Namespace, s.Namespace)
	if ref.Kind != v1alpha1.KindGateway {
		out, err := find[corev1.Service](ctx, l.direct, client.ObjectKey{Namespace: namespace, Name: ref.Name})
		return out, wrapError(err, "get the backend of %s", objectName(s))
	}
	for _, envoy := range l.Relays.EnvoyNamespaces {
		var list corev1.ServiceList
		if err := l.direct.List(ctx, &list, client.InNamespace(envoy), client.MatchingLabels{owningName: ref.Name, owningNamespace: namespace}); err != nil {
			return nil, fmt.Errorf("find Envoy's Service of the Gateway %s/%s: %w", namespace, ref.Name, err)
		}
		if len(list.Items) > 0 {
			return &list.Items[0], nil // the first by name, in the API server's list order
		}
	}
	return nil, nil
}

// hasEndpoint reports whether a Service has a ready endpoint. A Service without a selector and
// without EndpointSlices has none.
func (l *groupReconciliation) hasEndpoint(ctx context.Context, s *corev1.Service) (bool, error) {
	var list discoveryv1.EndpointSliceList
	if err := l.direct.List(ctx, &list, client.InNamespace(s.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: s.Name}); err != nil {
		return false, fmt.Errorf("list the endpoints of %s/%s: %w", s.Namespace, s.Name, err)
	}
	return slices.ContainsFunc(list.Items, func(s discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, isReadyEndpoint)
	}), nil
}

// isReadyEndpoint reports whether an endpoint is ready. Kubernetes interprets an unknown state as ready.
func isReadyEndpoint(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) }

// Each certificate is in a Secret with the name of its domain, which the relays of a group share.
// Normally the operator creates the Secret empty, and the first relay issues a certificate. If
// another party created the Secret, that party fills and renews it, and relays only read it.

// terminatesTLS reports whether relays terminate TLS on a port of a service.
func terminatesTLS(s *v1alpha1.TailscaleService) bool {
	return s.Spec.VIPService != nil &&
		slices.ContainsFunc(s.Spec.Ports, func(p v1alpha1.ServicePort) bool { return p.TLS == v1alpha1.TLSTerminate })
}

// domainOf returns the name of a service in the group's tailnet, or "" if it is unknown.
func (l *groupReconciliation) domainOf(s *v1alpha1.TailscaleService) string {
	label, ok := gateway.ServiceLabel(s.Spec.VIPService.Name)
	suffix := strings.ToLower(l.tailnetDomain())
	if !ok || suffix == "" {
		return ""
	}
	return label + "." + suffix
}

// retainCertificate keeps the certificate of a service that this group may carry, even while it does
// not carry it. Reissuing is costly, because a CA limits the certificates per name.
func (l *groupReconciliation) retainCertificate(s *v1alpha1.TailscaleService, group gateway.Name) {
	if s.Spec.Type == v1alpha1.Ingress && s.DeletionTimestamp == nil && terminatesTLS(s) &&
		(group == objectName(l.group) || group.Name == "") {
		l.retained[l.domainOf(s)] = true
	}
}

// ensureCertificate finds the Secret for a service's name, or records that it must be created. domain
// is "" if there can be no certificate.
func (l *groupReconciliation) ensureCertificate(ctx context.Context, s *v1alpha1.TailscaleService) (domain string, err error) {
	domain = l.domainOf(s)
	if domain == "" {
		l.omitted = append(l.omitted, objectName(s).String()+" terminates TLS, but the domain of the tailnet is not known yet")
		return "", nil
	}
	if l.certs[domain] != nil {
		l.issue[domain] = true
		return domain, nil
	}
	other, err := find[corev1.Secret](ctx, l.direct, client.ObjectKey{Namespace: l.group.Namespace, Name: domain})
	switch {
	case err != nil:
		return "", fmt.Errorf("get the Secret %s: %w", domain, err)
	case other != nil && other.Type != corev1.SecretTypeTLS:
		l.omitted = append(
			l.omitted,
			objectName(s).String()+" terminates TLS, but the Secret "+domain+" has another type than "+string(corev1.SecretTypeTLS),
		)
		return "", nil
	}
	l.issue[domain] = other == nil
	return domain, nil
}

// applyCertificates creates missing Secrets and deletes those that no service needs.
func (l *groupReconciliation) applyCertificates(ctx context.Context, objects *workload.Objects) error {
	for _, s := range objects.Certs {
		if l.certs[s.Name] != nil || !l.issue[s.Name] {
			continue
		}
		if err := l.direct.Create(ctx, s, client.FieldOwner(v1alpha1.FieldManager)); apierrors.IsAlreadyExists(err) {
			l.requeueAt(l.Now().Add(groupRequeueSoon)) // another party created it first; its owner decides who fills it
		} else if err != nil {
			return fmt.Errorf("create the Secret %s: %w", s.Name, err)
		}
	}
	if l.retained[""] {
		return nil // the domain of a service is unknown, so delete nothing
	}
	for _, name := range slices.Sorted(maps.Keys(l.certs)) {
		if !l.retained[name] {
			if err := l.delete(ctx, l.certs[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// pingsPerRelay is the number of pings that a draining relay sends per relay of the group, so that the
// pings probably reach each of them.
const pingsPerRelay = 3

// relayConfig returns the data of the group's ConfigMap for the relays.
func (l *groupReconciliation) relayConfig(
	ctx context.Context,
	table gateway.PortTable,
	current *corev1.ConfigMap,
) (map[string]string, error) {
	file := config.RelayFile{Tailnet: config.Tailnet{HostnamePrefix: l.hostnamePrefix(), Tags: l.tags()}}
	if l.tailnet != nil {
		file.Tailnet.ControlURL = l.tailnet.Spec.ControlURL
	}
	if d := l.group.Spec.DrainTimeout; d != nil {
		file.DrainTimeout = d.Duration.String()
	}
	data := map[string]any{}
	if l.group.Spec.Type == v1alpha1.Egress {
		services, targets, err := l.egressServices(ctx, table, lastTargets(current))
		if err != nil {
			return nil, err
		}
		file.Targets = targets
		data[config.EgressKey] = services
	} else {
		ingress, err := l.gatherIngress(ctx)
		if err != nil {
			return nil, err
		}
		file.Ingress = ingress.relay
		data["serve-config"], data["ingress-config.json"] = ingress.serve, ingress.mappings
	}
	data[config.RelayKey] = file
	out := map[string]string{}
	for key, value := range data {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		out[key] = string(text)
	}
	if l.group.Spec.Type == v1alpha1.Egress {
		out[config.PingsKey] = strconv.Itoa(pingsPerRelay * int(workload.Replicas(l.group)))
		out[portsKey] = string(table.Encode())
	}
	return out, nil
}

// lastTargets returns the targets in the current configuration of the relays.
func lastTargets(current *corev1.ConfigMap) map[string][]config.Target {
	var file config.RelayFile
	if current == nil || json.Unmarshal([]byte(current.Data[config.RelayKey]), &file) != nil {
		return nil
	}
	return file.Targets
}

// withoutServices removes all services from relay.json and keeps the node settings.
func withoutServices(text string) (string, error) {
	var file config.RelayFile
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		return "", fmt.Errorf("%s: %w", config.RelayKey, err)
	}
	file.Targets, file.Ingress = nil, nil
	out, err := json.Marshal(file)
	return string(out), err
}
