package controller

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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// conflictRequeue is the interval for checking whether a Service name of another owner is free. If the
// name is not that of the object, no event reports this.
const conflictRequeue = time.Minute

// reconcileEgress maintains the path from the cluster to the tailnet:
//
//	pod -> alias (ExternalName) -> front (ClusterIP) -> EndpointSlices -> relays
func (l *serviceReconciliation) reconcileEgress(ctx context.Context) error {
	st := cmp.Or(l.object.Status.Egress, &v1alpha1.EgressStatus{})
	l.object.Status.Egress = st
	st.Endpoints = v1alpha1.EndpointCount{}
	if !l.usable() {
		return l.withdrawEndpoints(ctx, st) // a refused service gets no endpoints, whatever relays report
	}
	g, err := l.carryingGroup(ctx)
	if err != nil {
		return err
	}
	relays, err := l.readyRelays(ctx, l.decision.Group)
	if err != nil {
		return err
	}
	ports, lack := portMappings(l.object, g)
	at := l.decision.Group.Namespace + "/" + gateway.GroupServiceName(objectName(l.object))
	if st.Service != "" && st.Service != at {
		if err := l.deleteFront(ctx, st.Service); err != nil {
			return err
		}
		st.Service = ""
	}
	st.Group, st.Ports = l.decision.Group.String(), nil
	for _, m := range ports {
		st.Ports = append(
			st.Ports,
			v1alpha1.EgressPort{Port: m.port, MatchPort: int32(m.match), Protocol: v1alpha1.PortProtocol(m.protocol)},
		)
	}
	if g != nil {
		st.Endpoints.Total = workload.Replicas(g)
	}
	if len(ports) > 0 {
		st.Service = at
	}
	far := st.Service != "" && l.decision.Group.Namespace != l.object.Namespace
	if err := l.setFinalizer(ctx, far); err != nil {
		return err
	}
	if l.before.Status.Egress == nil || l.before.Status.Egress.Service != st.Service || l.before.Status.Egress.Group != st.Group {
		if err := l.report(ctx); err != nil { // record it before it is created
			return err
		}
		st = l.object.Status.Egress
	}
	l.programmed = conditions.True(v1alpha1.ReasonProgrammed, "")
	if len(lack) > 0 {
		l.programmed = conditions.False(
			v1alpha1.ReasonPending,
			"the proxy group "+st.Group+" has no port yet for "+strings.Join(lack, ", "),
		)
		if g != nil && portsExhausted(g) {
			l.programmed.Reason = v1alpha1.ReasonPortsExhausted
		}
	}
	if len(ports) > 0 {
		uid, free, err := l.ensureService(ctx, frontService(l.object, l.decision.Group, ports))
		if err != nil {
			return err
		}
		if !free {
			l.programmed = conditions.False(v1alpha1.ReasonServiceNameConflict, "another owner already has the Service "+at)
		} else if err := l.applySlices(ctx, at, endpointSlices(l.object, l.decision.Group, uid, ports, relays)); err != nil {
			return err
		}
	} else if st.Service != "" {
		if err := l.applySlices(ctx, st.Service, nil); err != nil {
			return err
		}
	}
	if err := l.ensureAlias(ctx, st, ports); err != nil {
		return err
	}
	if l.programmed.Reason == v1alpha1.ReasonServiceNameConflict {
		l.requeueAt(l.Now().Add(conflictRequeue))
	}
	l.countRelays(st, ports, lack, relays)
	return nil
}

// countRelays counts the relays that carry all ports of the service.
func (l *serviceReconciliation) countRelays(st *v1alpha1.EgressStatus, ports []portMapping, lack []string, relays []readyRelay) {
	key := gateway.ServiceKey(objectName(l.object))
	reached := false
	for _, r := range relays {
		if len(ports) > 0 && len(lack) == 0 && len(r.ips) > 0 &&
			!slices.ContainsFunc(ports, func(m portMapping) bool { return !r.carries(key, m) }) {
			st.Endpoints.Ready++
			reached = reached || r.reaches(key)
		}
	}
	switch {
	case st.Endpoints.Ready == 0:
		l.ready = conditions.False(v1alpha1.ReasonNoReadyEndpoints, "no relay of "+st.Group+" carries the service")
	case !reached:
		l.ready = conditions.False(v1alpha1.ReasonTargetNotFound, "the relays find no such target in the tailnet, or they may not reach it")
	}
}

// withdrawEndpoints removes the endpoints of the service.
func (l *serviceReconciliation) withdrawEndpoints(ctx context.Context, st *v1alpha1.EgressStatus) error {
	if st.Service == "" {
		return l.setFinalizer(ctx, false)
	}
	return l.applySlices(ctx, st.Service, nil)
}

// deleteFront deletes the Service in front of the relays and its EndpointSlices.
func (l *serviceReconciliation) deleteFront(ctx context.Context, at string) error {
	if err := l.applySlices(ctx, at, nil); err != nil {
		return err
	}
	namespace, serviceName, _ := strings.Cut(at, "/")
	return l.deleteService(ctx, types.NamespacedName{Namespace: namespace, Name: serviceName})
}

// ensureAlias maintains the Service in the object's own namespace.
func (l *serviceReconciliation) ensureAlias(ctx context.Context, st *v1alpha1.EgressStatus, ports []portMapping) error {
	desired := cmp.Or(l.object.Spec.ClusterService, &v1alpha1.ClusterService{})
	serviceName, requested := cmp.Or(desired.Name, l.object.Name), ptr.Deref(desired.Create, true)
	permitted := l.object.Namespace == l.Namespace || slices.Contains(l.ConsumerNamespaces, l.object.Namespace)
	create := requested && permitted && len(ports) > 0
	if st.ExternalName != "" && (st.ExternalName != serviceName || !requested) && permitted {
		if err := l.deleteService(ctx, types.NamespacedName{Namespace: l.object.Namespace, Name: st.ExternalName}); err != nil {
			return err
		}
		st.ExternalName = ""
	}
	switch {
	case requested && !permitted && l.programmed.IsTrue():
		l.programmed.Message = "the operator does not create Services in this namespace: pods reach it by the name of " + st.Service
		return nil
	case !create:
		return nil
	case serviceName[0] >= '0' && serviceName[0] <= '9':
		l.programmed = conditions.False(
			v1alpha1.ReasonServiceNameConflict,
			"no Service can have the name "+serviceName+": set another name with clusterService.name",
		)
		return nil
	}
	_, free, err := l.ensureService(ctx, aliasService(l.object, l.decision.Group, serviceName, l.ClusterDomain, ports))
	if err != nil {
		return err
	}
	if !free {
		l.programmed = conditions.False(
			v1alpha1.ReasonServiceNameConflict,
			"another owner already has the Service "+serviceName+": set another name with clusterService.name",
		)
		st.ExternalName = ""
		return nil
	}
	st.ExternalName = serviceName
	return nil
}

// writtenService is the last known correct version of a Service.
type writtenService struct {
	version string // resourceVersion
	uid     types.UID
	want    *corev1.Service
}

// cachedService returns the cached metadata of a Service, or nil if it does not exist.
func (l *serviceReconciliation) cachedService(ctx context.Context, key types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	o := partialMetadata("Service")
	if err := l.client.Get(ctx, key, o); err != nil {
		return nil, wrapError(client.IgnoreNotFound(err), "get the Service %s", key)
	}
	return o, nil
}

// ensureService creates or updates a Service. free is false if another owner has the name. A correct Service
// is not read again until it changes.
func (l *serviceReconciliation) ensureService(ctx context.Context, want *corev1.Service) (uid types.UID, free bool, err error) {
	key := client.ObjectKeyFromObject(want)
	seen, err := l.cachedService(ctx, key)
	if err != nil {
		return "", false, err
	}
	if seen == nil {
		o := want.DeepCopy()
		if err := l.client.Create(ctx, o, client.DisableReadYourWritesConsistency); err != nil {
			if apierrors.IsAlreadyExists(err) {
				return l.correctService(ctx, want) // the cache does not contain it yet
			}
			return "", false, fmt.Errorf("create the Service %s: %w", key, err)
		}
		l.recordWritten(key, o, want)
		return o.UID, true, nil
	}
	if !createdFor(seen, l.object) {
		return "", false, nil
	}
	l.mu.Lock()
	was, ok := l.written[key]
	l.mu.Unlock()
	if ok && was.version == seen.ResourceVersion && deepEqual(was.want, want) {
		return was.uid, true, nil
	}
	return l.correctService(ctx, want)
}

// correctService reads a Service and corrects it.
func (l *serviceReconciliation) correctService(ctx context.Context, want *corev1.Service) (uid types.UID, free bool, err error) {
	key := client.ObjectKeyFromObject(want)
	have := &corev1.Service{}
	if err := l.direct.Get(ctx, key, have); err != nil {
		return "", false, fmt.Errorf("read the Service %s: %w", key, err)
	}
	if !createdFor(have, l.object) {
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
	if !deepEqual(have, next) {
		if err := l.client.Update(ctx, next, client.DisableReadYourWritesConsistency); err != nil {
			return "", false, fmt.Errorf("update the Service %s: %w", key, err)
		}
	}
	l.recordWritten(key, next, want)
	return next.UID, true, nil
}

func (l *serviceReconciliation) recordWritten(key types.NamespacedName, o, want *corev1.Service) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written[key] = writtenService{o.ResourceVersion, o.UID, want}
}

// deleteService deletes a Service if it belongs to this object.
func (l *serviceReconciliation) deleteService(ctx context.Context, key types.NamespacedName) error {
	l.mu.Lock()
	delete(l.written, key)
	l.mu.Unlock()
	seen, err := l.cachedService(ctx, key)
	if err != nil || seen == nil || !createdFor(seen, l.object) {
		return err
	}
	return wrapError(kube.Delete(ctx, l.client, seen), "delete the Service %s", key)
}

// applySlices creates, updates and deletes the EndpointSlices that the operator writes for the Service
// at, which is namespace/name.
func (l *serviceReconciliation) applySlices(ctx context.Context, at string, want []*discoveryv1.EndpointSlice) error {
	namespace, serviceName, _ := strings.Cut(at, "/")
	var have discoveryv1.EndpointSliceList
	err := l.client.List(ctx, &have, client.InNamespace(namespace), client.UnsafeDisableDeepCopy,
		client.MatchingLabels{discoveryv1.LabelServiceName: serviceName, discoveryv1.LabelManagedBy: v1alpha1.EndpointsManager})
	if err != nil {
		return fmt.Errorf("list the EndpointSlices of %s: %w", at, err)
	}
	keep := map[string]bool{}
	for _, w := range want {
		keep[w.Name] = true
		i := slices.IndexFunc(have.Items, func(h discoveryv1.EndpointSlice) bool { return h.Name == w.Name })
		if i < 0 {
			if err := l.client.Create(ctx, w); err != nil {
				return fmt.Errorf("create the EndpointSlice %s/%s: %w", namespace, w.Name, err)
			}
			continue
		}
		next := have.Items[i].DeepCopy()
		next.OwnerReferences, next.Ports, next.Endpoints = w.OwnerReferences, w.Ports, w.Endpoints
		for k, v := range w.Labels {
			metav1.SetMetaDataLabel(&next.ObjectMeta, k, v)
		}
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, serviceAnnotation, w.Annotations[serviceAnnotation])
		if !deepEqual(&have.Items[i], next) {
			if err := l.client.Update(ctx, next); err != nil {
				return fmt.Errorf("update the EndpointSlice %s/%s: %w", namespace, w.Name, err)
			}
		}
	}
	for _, o := range pointers(have.Items) {
		if !keep[o.Name] && createdFor(o, l.object) {
			if err := kube.Delete(ctx, l.client, o.DeepCopy()); err != nil {
				return fmt.Errorf("delete the EndpointSlice %s/%s: %w", namespace, o.Name, err)
			}
		}
	}
	return nil
}
