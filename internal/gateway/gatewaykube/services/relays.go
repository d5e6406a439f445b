package services

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/document"
)

// A relay is one pod of a group that is ready, and what it says that it does.
type relay struct {
	pod, uid, node string
	ips            []netip.Addr
	status         document.Status // of this very pod; empty if there is none yet
}

// A state is what a relay's Secret says, at a version of it. The Secret holds the
// relay's node key too; nothing of that is kept.
type state struct {
	version string
	pod     string // its UID
	status  document.Status
}

const mostStates = 1000 // that are kept: those of many groups

// Fields of a relay's Secret. What they hold is in internal/relay.
const (
	podUIDField = "pod_uid"
	statusField = document.EgressKey
)

// serves says whether connections may be led to a pod.
func serves(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// relays are those of a group that are ready, by name.
func (l *look) relays(ctx context.Context, group gateway.Name) (out []relay, err error) {
	if group.Name == "" {
		return nil, nil
	}
	var pods corev1.PodList
	if err := l.client.List(ctx, &pods, client.InNamespace(group.Namespace), client.MatchingLabels{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: group.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("look up the relays of %s: %w", group, err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !serves(p) || !strings.HasPrefix(p.Name, group.Name+"-") {
			continue
		}
		r := relay{pod: p.Name, uid: string(p.UID), node: p.Spec.NodeName}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil && endpoint(a) {
				r.ips = append(r.ips, a)
			}
		}
		st, err := l.state(ctx, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
		if err != nil {
			return nil, err
		}
		if st.pod == r.uid { // else it is what a former pod of the name said
			r.status = st.status
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b relay) int { return strings.Compare(a.pod, b.pod) })
	return out, nil
}

// endpoint says whether an address can be one of an EndpointSlice: of those that the
// API server refuses, one would keep all the others out.
func endpoint(a netip.Addr) bool {
	return a.IsValid() && !a.Is4In6() && a.Zone() == "" && !a.IsUnspecified() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

// state reads a relay's Secret, if it is another than was read before.
func (l *look) state(ctx context.Context, key types.NamespacedName) (state, error) {
	seen := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}}
	err := l.cached.Get(ctx, key, seen)
	if apierrors.IsNotFound(err) {
		l.mu.Lock()
		delete(l.states, key)
		l.mu.Unlock()
		return state{}, nil
	}
	if err != nil {
		return state{}, fmt.Errorf("look at the state Secret %s: %w", key, err)
	}
	l.mu.Lock()
	st, ok := l.states[key]
	l.mu.Unlock()
	if ok && st.version == seen.ResourceVersion {
		return st, nil
	}
	secret := &corev1.Secret{}
	if err := l.direct.Get(ctx, key, secret); err != nil {
		return state{}, fmt.Errorf("read the state Secret %s: %w", key, err)
	}
	st = state{version: secret.ResourceVersion, pod: string(secret.Data[podUIDField])}
	if text := secret.Data[statusField]; len(text) > 0 && secret.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeState {
		if err := json.Unmarshal(text, &st.status); err != nil {
			st.status = document.Status{} // what cannot be read says nothing
		}
	}
	l.mu.Lock()
	if len(l.states) >= mostStates {
		clear(l.states) // of relays that are gone too; the others are read again
	}
	l.states[key] = st
	l.mu.Unlock()
	return st, nil
}

// carries says whether a relay has said that exactly this port leads there.
func (r relay) carries(service string, m mapping) bool {
	return slices.Contains(r.status.Services[service].Ports, document.Port{Protocol: document.Protocol(strings.ToLower(string(m.protocol))), Match: m.match, Target: m.target})
}

// reaches says whether it has found the target in the tailnet.
func (r relay) reaches(service string) bool { return len(r.status.Services[service].IPs) > 0 }

// exposes says whether it has said that it carries an ingress service, with so many ports.
func (r relay) exposes(service string, ports int) bool {
	return len(r.status.Exposed[service].Ports) == ports
}

// uncertified is why no relay can end TLS of an ingress service, as one of them says;
// "" if one can, or need not.
func uncertified(relays []relay, service string) (why string) {
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
