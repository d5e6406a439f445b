package services

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
)

// conflictNap is the interval for checking whether a Service name of another owner is free. If the
// name is not that of the object, no event reports this.
const conflictNap = time.Minute

// egress maintains the path from the cluster to the tailnet:
//
//	pod -> alias (ExternalName) -> front (ClusterIP) -> EndpointSlices -> relays
func (l *look) egress(ctx context.Context) error {
	st := l.object.Status.Egress
	if st == nil {
		st = &v1alpha1.EgressStatus{}
	}
	l.object.Status.Egress = st
	st.Endpoints = v1alpha1.EndpointCount{}
	if !l.usable() {
		return l.withdraw(ctx, st) // a refused service gets no endpoints, whatever relays report
	}
	g, err := l.group(ctx)
	if err != nil {
		return err
	}
	relays, err := l.relays(ctx, l.said.Group)
	if err != nil {
		return err
	}
	ports, lack := mappings(l.object, g)
	at := l.said.Group.Namespace + "/" + gateway.GroupServiceName(name(l.object))
	if st.Service != "" && st.Service != at {
		if err := l.dropFront(ctx, st.Service); err != nil {
			return err
		}
		st.Service = ""
	}
	st.Group, st.Ports = l.said.Group.String(), nil
	for _, m := range ports {
		st.Ports = append(st.Ports, v1alpha1.EgressPort{Port: m.port, MatchPort: int32(m.match), Protocol: v1alpha1.PortProtocol(m.protocol)})
	}
	if g != nil {
		st.Endpoints.Total = replicas(g)
	}
	if len(ports) > 0 {
		st.Service = at
	}
	far := st.Service != "" && l.said.Group.Namespace != l.object.Namespace
	if err := l.hold(ctx, far); err != nil {
		return err
	}
	if l.before.Status.Egress == nil || l.before.Status.Egress.Service != st.Service || l.before.Status.Egress.Group != st.Group {
		if err := l.report(ctx); err != nil { // record it before it is created
			return err
		}
		st = l.object.Status.Egress
	}
	l.programmed = verdict{ok: true, reason: v1alpha1.ReasonProgrammed}
	if len(lack) > 0 {
		l.programmed = verdict{reason: v1alpha1.ReasonPending, message: "the proxy group " + st.Group + " has no port yet for " + strings.Join(lack, ", ")}
		if g != nil && exhausted(g) {
			l.programmed.reason = v1alpha1.ReasonPortsExhausted
		}
	}
	if len(ports) > 0 {
		uid, free, err := l.put(ctx, front(l.object, l.said.Group, ports))
		if err != nil {
			return err
		}
		if !free {
			l.programmed = verdict{reason: v1alpha1.ReasonServiceNameConflict, message: "somebody else has the Service " + at}
		} else if err := l.putSlices(ctx, endpointSlices(l.object, l.said.Group, uid, ports, relays)); err != nil {
			return err
		}
	}
	if len(ports) == 0 && st.Service != "" {
		if err := l.withdraw(ctx, st); err != nil {
			return err
		}
	}
	if err := l.putAlias(ctx, st, ports); err != nil {
		return err
	}
	if l.programmed.reason == v1alpha1.ReasonServiceNameConflict {
		l.again(l.Now().Add(conflictNap))
	}
	l.count(st, ports, lack, relays)
	return nil
}

// count counts the relays that carry all ports of the service.
func (l *look) count(st *v1alpha1.EgressStatus, ports []mapping, lack []string, relays []relay) {
	key := gateway.ServiceKey(name(l.object))
	reached := false
	for _, r := range relays {
		if len(ports) > 0 && len(lack) == 0 && len(r.ips) > 0 && !slices.ContainsFunc(ports, func(m mapping) bool { return !r.carries(key, m) }) {
			st.Endpoints.Ready++
			reached = reached || r.reaches(key)
		}
	}
	switch {
	case st.Endpoints.Ready == 0:
		l.ready = verdict{reason: v1alpha1.ReasonNoReadyEndpoints, message: "no relay of " + st.Group + " carries the service"}
	case !reached:
		l.ready = verdict{reason: v1alpha1.ReasonTargetNotFound, message: "the relays find no such target in the tailnet, or none that they may reach"}
	}
}

// withdraw removes the endpoints of the service.
func (l *look) withdraw(ctx context.Context, st *v1alpha1.EgressStatus) error {
	if st.Service == "" {
		return l.hold(ctx, false)
	}
	namespace, called, _ := strings.Cut(st.Service, "/")
	return l.dropSlices(ctx, namespace, called, nil)
}

// dropFront deletes the Service in front of the relays and its EndpointSlices.
func (l *look) dropFront(ctx context.Context, at string) error {
	namespace, called, _ := strings.Cut(at, "/")
	if err := l.dropSlices(ctx, namespace, called, nil); err != nil {
		return err
	}
	return l.drop(ctx, types.NamespacedName{Namespace: namespace, Name: called})
}

// putAlias maintains the Service in the object's own namespace.
func (l *look) putAlias(ctx context.Context, st *v1alpha1.EgressStatus, ports []mapping) error {
	wish := l.object.Spec.ClusterService
	if wish == nil {
		wish = &v1alpha1.ClusterService{}
	}
	called := cmp.Or(wish.Name, l.object.Name)
	permitted := l.object.Namespace == l.Namespace || slices.Contains(l.ConsumerNamespaces, l.object.Namespace)
	create := (wish.Create == nil || *wish.Create) && permitted && len(ports) > 0
	if st.ExternalName != "" && (st.ExternalName != called || wish.Create != nil && !*wish.Create) && permitted {
		if err := l.drop(ctx, types.NamespacedName{Namespace: l.object.Namespace, Name: st.ExternalName}); err != nil {
			return err
		}
		st.ExternalName = ""
	}
	switch {
	case !create && !permitted && l.programmed.ok && (wish.Create == nil || *wish.Create):
		l.programmed.message = "the operator writes no Services into this namespace: pods reach it by the name of " + st.Service
		return nil
	case !create:
		return nil
	case called[0] >= '0' && called[0] <= '9':
		l.programmed = verdict{reason: v1alpha1.ReasonServiceNameConflict, message: "no Service can be called " + called + ": clusterService.name gives it another name"}
		return nil
	}
	_, free, err := l.put(ctx, alias(l.object, l.said.Group, called, l.ClusterDomain, ports))
	if err != nil {
		return err
	}
	if !free {
		l.programmed = verdict{reason: v1alpha1.ReasonServiceNameConflict, message: "somebody else has the Service " + called + ": clusterService.name gives ours another name"}
		st.ExternalName = ""
		return nil
	}
	st.ExternalName = called
	return nil
}

// written is the last known correct version of a Service.
type written struct {
	version string // resourceVersion
	uid     types.UID
	want    *corev1.Service
}

// seen returns the cached metadata of a Service, or nil if it does not exist.
func (l *look) seen(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	if err := l.client.Get(ctx, key, o); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("look at the Service %s: %w", key, err)
	}
	return o, nil
}

// put creates or updates a Service. free is false if another owner has the name. A correct Service
// is not read again until it changes.
func (l *look) put(ctx context.Context, want *corev1.Service) (uid types.UID, free bool, err error) {
	key := client.ObjectKeyFromObject(want)
	seen, err := l.seen(ctx, key)
	if err != nil {
		return "", false, err
	}
	if seen == nil {
		o := want.DeepCopy()
		if err := l.client.Create(ctx, o, client.DisableReadYourWritesConsistency); err != nil {
			if apierrors.IsAlreadyExists(err) {
				return l.settle(ctx, want) // the cache does not contain it yet
			}
			return "", false, fmt.Errorf("make the Service %s: %w", key, err)
		}
		l.remember(key, o, want)
		return o.UID, true, nil
	}
	if !madeFor(seen, l.object) {
		return "", false, nil
	}
	l.mu.Lock()
	was, ok := l.written[key]
	l.mu.Unlock()
	if ok && was.version == seen.ResourceVersion && equal(was.want, want) {
		return was.uid, true, nil
	}
	return l.settle(ctx, want)
}

// settle reads a Service and corrects it.
func (l *look) settle(ctx context.Context, want *corev1.Service) (uid types.UID, free bool, err error) {
	key := client.ObjectKeyFromObject(want)
	have := &corev1.Service{}
	if err := l.direct.Get(ctx, key, have); err != nil {
		return "", false, fmt.Errorf("read the Service %s: %w", key, err)
	}
	if !madeFor(have, l.object) {
		return "", false, nil
	}
	next := have.DeepCopy()
	for k, v := range want.Labels {
		metav1.SetMetaDataLabel(&next.ObjectMeta, k, v)
	}
	next.OwnerReferences = want.OwnerReferences
	next.Spec.Type, next.Spec.Selector = want.Spec.Type, nil
	if want.Spec.Type == corev1.ServiceTypeExternalName {
		next.Spec.ExternalName = want.Spec.ExternalName
	}
	next.Spec.Ports = want.DeepCopy().Spec.Ports
	if !equal(have, next) {
		if err := l.client.Update(ctx, next, client.DisableReadYourWritesConsistency); err != nil {
			return "", false, fmt.Errorf("change the Service %s: %w", key, err)
		}
	}
	l.remember(key, next, want)
	return next.UID, true, nil
}

func (l *look) remember(key types.NamespacedName, o, want *corev1.Service) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written[key] = written{o.ResourceVersion, o.UID, want}
}

// drop deletes a Service if it belongs to this object.
func (l *look) drop(ctx context.Context, key types.NamespacedName) error {
	l.mu.Lock()
	delete(l.written, key)
	l.mu.Unlock()
	seen, err := l.seen(ctx, key)
	if err != nil || seen == nil || !madeFor(seen, l.object) {
		return err
	}
	if err := kube.Delete(ctx, l.client, seen); err != nil {
		return fmt.Errorf("delete the Service %s: %w", key, err)
	}
	return nil
}

// putSlices creates, updates and deletes the EndpointSlices of front.
func (l *look) putSlices(ctx context.Context, want []*discoveryv1.EndpointSlice) error {
	namespace, called := l.said.Group.Namespace, gateway.GroupServiceName(name(l.object))
	have, err := l.slices(ctx, namespace, called)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, w := range want {
		keep[w.Name] = true
		i := slices.IndexFunc(have, func(h discoveryv1.EndpointSlice) bool { return h.Name == w.Name })
		if i < 0 {
			if err := l.client.Create(ctx, w); err != nil {
				return fmt.Errorf("make the EndpointSlice %s/%s: %w", namespace, w.Name, err)
			}
			continue
		}
		next := have[i].DeepCopy()
		next.OwnerReferences, next.Ports, next.Endpoints = w.OwnerReferences, w.Ports, w.Endpoints
		for k, v := range w.Labels {
			metav1.SetMetaDataLabel(&next.ObjectMeta, k, v)
		}
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, forAnnotation, w.Annotations[forAnnotation])
		if !equal(&have[i], next) {
			if err := l.client.Update(ctx, next); err != nil {
				return fmt.Errorf("change the EndpointSlice %s/%s: %w", namespace, w.Name, err)
			}
		}
	}
	return l.dropSlices(ctx, namespace, called, keep)
}

// slices returns the EndpointSlices that the operator wrote for a Service.
func (l *look) slices(ctx context.Context, namespace, service string) ([]discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	err := l.client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy,
		client.MatchingLabels{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: v1alpha1.EndpointsManager})
	if err != nil {
		return nil, fmt.Errorf("look up the EndpointSlices of %s/%s: %w", namespace, service, err)
	}
	return list.Items, nil
}

func (l *look) dropSlices(ctx context.Context, namespace, service string, keep map[string]bool) error {
	have, err := l.slices(ctx, namespace, service)
	if err != nil {
		return err
	}
	for i := range have {
		if o := &have[i]; !keep[o.Name] && madeFor(o, l.object) {
			if err := kube.Delete(ctx, l.client, o.DeepCopy()); err != nil {
				return fmt.Errorf("delete the EndpointSlice %s/%s: %w", namespace, o.Name, err)
			}
		}
	}
	return nil
}
