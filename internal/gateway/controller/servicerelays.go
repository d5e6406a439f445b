package controller

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
)

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
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
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
	return slices.Contains(r.status.Services[service].Ports, config.Port{Protocol: config.Protocol(strings.ToLower(string(m.protocol))), Match: m.match, Target: m.target})
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
