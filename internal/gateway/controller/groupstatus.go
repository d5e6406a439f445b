package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	maxStatusDevices = 100 // maximum in the status
	maxMessage       = 500 // characters, of a group or a tailnet

	reasonCleanupBlocked  = "CleanupBlocked" // reason of Degraded and of the event
	reasonObjectConflict  = "ObjectInTheWay"
	reasonServicesOmitted = "ServicesLeftOut"
)

// recordDevices writes the devices of the group to the status. The status must contain the devices to
// delete before other records of them are deleted.
func (l *groupReconciliation) recordDevices(ctx context.Context) error {
	was := l.group.DeepCopy()
	l.group.Status.Devices = l.deviceRows()
	return patchStatus(ctx, l.direct, l.group, was, lockedPatch(was), "record the devices")
}

// deviceRows returns the status rows of the replicas and of devices that must still be deleted.
func (l *groupReconciliation) deviceRows() []v1alpha1.RelayDevice {
	previous := map[string]v1alpha1.RelayDevice{}
	for _, d := range l.group.Status.Devices {
		previous[d.NodeID] = d
	}
	known := map[string]bool{}
	var out []v1alpha1.RelayDevice
	for i, r := range l.facts.Ordinals {
		d := v1alpha1.RelayDevice{Ordinal: int32(i), NodeID: r.Node}
		if s := l.state[i]; s != nil && r.Node != "" {
			d.PodUID = types.UID(r.WriterPod)
			d.FQDN, d.Hostname = strings.TrimSuffix(
				string(s.Data[config.DeviceFQDN]),
				".",
			), cmp.Or(
				previous[r.Node].Hostname,
				l.hostname(i),
			)
			var ips []string
			if json.Unmarshal(s.Data[config.DeviceIPs], &ips) == nil {
				d.IPs = ips[:min(len(ips), 4)]
			}
			if d.FQDN == "" { // while the relay starts, keep the values of the same device
				d.FQDN, d.IPs = previous[r.Node].FQDN, previous[r.Node].IPs
			}
		}
		d.Ready = r.Pod != "" && r.Ready && r.WriterPod == r.Pod && r.Node != "" && i < l.facts.Replicas
		if !d.Ready {
			d.Reason = notReadyReason(i < l.facts.Replicas, r.Pod != "", r.Node != "", r.Reissue != "")
		}
		if d.NodeID == "" && i >= l.facts.Replicas {
			continue
		}
		known[d.NodeID] = true
		out = append(out, d)
	}
	for _, d := range l.facts.Recorded {
		if !known[d.Node] {
			one := previous[d.Node]
			one.Ready, one.Reason = false, "Deleting"
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.RelayDevice) int {
		return cmp.Or(cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.NodeID, b.NodeID))
	})
	return out[:min(len(out), maxStatusDevices)]
}

// notReadyReason returns the reason why a replica is not ready.
func notReadyReason(desired, pod, joined, reissue bool) string {
	switch {
	case !desired:
		return "Deleting"
	case !pod:
		return "NoPod"
	case reissue:
		return "NeedsAuthKey"
	case !joined:
		return "Joining"
	}
	return "PodNotReady"
}

// writeStatus writes the status if it changed, and emits events. It is called at the end of every
// reconcile, and no other function writes the complete status. cause is the error that ended the
// reconcile early.
func (l *groupReconciliation) writeStatus(ctx context.Context, cause error) error {
	was := l.group.DeepCopy()
	s := &l.group.Status
	s.ObservedGeneration = l.group.Generation
	if l.facts.Ordinals != nil { // only if the objects were read
		s.Replicas, s.ReadyReplicas, s.Devices = int32(len(l.pods)), 0, l.deviceRows()
		for _, d := range s.Devices {
			if d.Ready {
				s.ReadyReplicas++
			}
		}
	}
	s.Selector = labels.SelectorFromSet(workload.PodLabels(l.group.UID)).String()
	if l.table != nil {
		s.Ports = mappedPorts(*l.table)
	}
	for kind, v := range l.conditions(cause) {
		v.Message = conditions.Truncate(v.Message, maxMessage)
		conditions.Set(&s.Conditions, kind, v, l.group.Generation, l.Now())
	}
	slices.SortStableFunc(s.Conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	if err := client.IgnoreNotFound(patchStatus(ctx, l.direct, l.group, was, client.MergeFrom(was), "write the status")); err != nil {
		return err
	}
	l.emitEvents()
	return nil
}

func (l *groupReconciliation) conditions(cause error) map[string]conditions.Condition {
	out := map[string]conditions.Condition{v1alpha1.ConditionDegraded: l.degradedCondition(cause)}
	switch {
	case l.forbidden && l.group.DeletionTimestamp != nil:
		out[v1alpha1.ConditionReady] = conditions.False(v1alpha1.ReasonDeleting, "It is being deleted.")
	case l.forbidden && conditions.Get(l.before.Status.Conditions, v1alpha1.ConditionReady).IsZero():
		out[v1alpha1.ConditionReady] = conditions.False(v1alpha1.ReasonNamespaceForbidden, forbiddenMessage(l.group.Namespace))
	case l.forbidden, cause != nil && l.facts.Ordinals == nil: // the other conditions may still be true
	default:
		ready, desired := int(l.group.Status.ReadyReplicas), l.facts.Replicas
		out[v1alpha1.ConditionAccepted], out[v1alpha1.ConditionReady] = l.acceptedCondition(), l.readyCondition(ready, desired)
		out[v1alpha1.ConditionAvailable] = conditions.False(v1alpha1.ReasonPodsNotReady, "No relay is ready.")
		if ready > 0 {
			out[v1alpha1.ConditionAvailable] = conditions.True("Available", fmt.Sprintf("%d of %d relays are ready.", ready, desired))
		}
	}
	return out
}

func (l *groupReconciliation) acceptedCondition() conditions.Condition {
	switch v := l.report.Accepted; {
	case v.IsZero(): // the group is being deleted, and there is no decision about it
		return conditions.False(v1alpha1.ReasonDeleting, "It is being deleted.")
	case !v.IsTrue():
		return v
	case len(l.refused) > 0:
		return conditions.False(
			v1alpha1.ReasonPortsExhausted,
			fmt.Sprintf(
				"All %d ports of the relays are allocated; %s has none.",
				gateway.LastPort-gateway.FirstPort+1,
				joinKeys(l.refused),
			),
		)
	}
	return conditions.True(v1alpha1.ReasonAccepted, "")
}

func (l *groupReconciliation) readyCondition(ready, desired int) conditions.Condition {
	g := l.group
	extra := len(l.pods) > desired
	switch {
	case g.DeletionTimestamp != nil:
		return conditions.False(v1alpha1.ReasonDeleting, "It is being deleted.")
	case !l.report.Accepted.IsTrue():
		return l.report.Accepted
	case ready == desired && !extra:
		return conditions.True(v1alpha1.ReasonReady, fmt.Sprintf("%d of %d relays are ready.", ready, desired))
	case l.failure != nil && l.failure.Op == tsapi.CreateKey:
		return conditions.False(v1alpha1.ReasonAuthKeyFailed, l.failure.Error())
	case !l.facts.HasClient && l.needsKey():
		return conditions.False(v1alpha1.ReasonTailnetNotReady, "A relay needs an auth key, but the tailnet is not ready to issue one.")
	case l.pausedUntil().After(l.Now()) && l.needsKey():
		if c := conditions.Get(l.before.Status.Conditions, v1alpha1.ConditionReady); c.Reason == v1alpha1.ReasonAuthKeyFailed {
			return c // the API is paused; keep the last failure
		}
	case g.Status.ObservedGeneration != 0 && (extra || len(l.pods) < desired && len(l.pods) > 0):
		return conditions.False(v1alpha1.ReasonScaling, fmt.Sprintf("There are %d relays; %d are desired.", len(l.pods), desired))
	}
	if ready == 0 && !meta.IsStatusConditionTrue(l.before.Status.Conditions, v1alpha1.ConditionAvailable) &&
		l.before.Status.ReadyReplicas == 0 &&
		!slices.ContainsFunc(l.before.Status.Devices, func(d v1alpha1.RelayDevice) bool { return d.FQDN != "" && d.Ready }) {
		return conditions.False(v1alpha1.ReasonCreating, fmt.Sprintf("%d of %d relays are ready.", ready, desired))
	}
	return conditions.False(v1alpha1.ReasonPodsNotReady, fmt.Sprintf("%d of %d relays are ready.", ready, desired))
}

// needsKey reports whether a desired relay has neither a device nor a key.
func (l *groupReconciliation) needsKey() bool {
	for i, r := range l.facts.Ordinals {
		if i < l.facts.Replicas && (r.Node == "" || r.Reissue != "") && !r.Key.Stored {
			return true
		}
	}
	return false
}

func (l *groupReconciliation) degradedCondition(cause error) conditions.Condition {
	switch {
	case l.blocked:
		why := "the tailnet's API is not available now"
		if l.failure != nil {
			why = l.failure.Error()
		} else if l.forbidden {
			why = forbiddenMessage(l.group.Namespace)
		} else if c := conditions.Get(l.before.Status.Conditions, v1alpha1.ConditionDegraded); c.Reason == reasonCleanupBlocked {
			return c // the API is paused; keep the last reason
		} else if !l.manages(l.group.Namespace) {
			why = "the operator runs no relays in this namespace any more"
		}
		return conditions.True(
			reasonCleanupBlocked,
			fmt.Sprintf(
				"Not deleted yet: %s: %s. The annotation %s=true skips this cleanup.",
				l.remainingObjects(),
				why,
				v1alpha1.SkipRemoteCleanupAnnotation,
			),
		)
	case l.forbidden:
		return conditions.True(v1alpha1.ReasonNamespaceForbidden, forbiddenMessage(l.group.Namespace))
	case l.failure != nil:
		return conditions.True(v1alpha1.ReasonAPIUnavailable, l.failure.Error())
	case cause != nil:
		return conditions.True("Failed", "The cluster rejected a change; the operator's log has the reason.")
	case len(l.conflicts) > 0:
		return conditions.True(reasonObjectConflict, "Other owners already have objects with these names: "+strings.Join(l.conflicts, ", "))
	case len(l.omitted) > 0:
		return conditions.True(reasonServicesOmitted, strings.Join(l.omitted, "; "))
	}
	return conditions.False(v1alpha1.ReasonAsExpected, "")
}

// remainingObjects lists what must still be deleted at Tailscale. A key is listed by its ID, which is
// not secret.
func (l *groupReconciliation) remainingObjects() string {
	var names []string
	for _, d := range l.facts.Recorded {
		if l.facts.Deleting || d.Ordinal >= l.facts.Replicas || l.facts.Ordinals[d.Ordinal].Node != d.Node {
			names = append(names, "device "+d.Node)
		}
	}
	for _, r := range l.facts.Ordinals {
		if r.Key.Stored && l.facts.Deleting {
			names = append(names, "auth key "+r.Key.ID)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "its objects at Tailscale"
	}
	return strings.Join(names, ", ")
}

func joinKeys(keys []gateway.PortKey) string {
	k := keys[0]
	text := fmt.Sprintf("%s %s %d", k.Service, k.Protocol, k.TargetPort)
	if len(keys) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(keys)-1)
	}
	return text
}

// emitEvents emits events for actions and changes.
func (l *groupReconciliation) emitEvents() {
	event := func(kind, reason, action, format string, args ...any) {
		l.events.Eventf(l.group, nil, kind, reason, action, "%s", conditions.Truncate(fmt.Sprintf(format, args...), maxMessage))
	}
	slices.SortFunc(l.issuedKeys, func(a, b issuedKey) int { return cmp.Compare(a.ordinal, b.ordinal) })
	for _, m := range l.issuedKeys {
		reason := "AuthKeyIssued"
		if m.reissued {
			reason = "AuthKeyReissued"
		}
		event(corev1.EventTypeNormal, reason, "Mint", "Issued the auth key %s for relay %d.", m.id, m.ordinal)
	}
	for _, d := range l.group.Status.Devices {
		known := slices.ContainsFunc(l.before.Status.Devices, func(was v1alpha1.RelayDevice) bool { return was.NodeID == d.NodeID })
		if d.NodeID != "" && !known {
			event(corev1.EventTypeNormal, "DeviceRegistered", "Join", "Relay %d is the device %s.", d.Ordinal, d.NodeID)
		}
	}
	slices.Sort(l.deleted)
	for _, id := range l.deleted {
		event(corev1.EventTypeNormal, "DeviceDeleted", "Delete", "Deleted the device %s from the tailnet.", id)
	}
	if l.allocated > 0 {
		event(corev1.EventTypeNormal, "PortAllocated", "Allocate", "Allocated %d ports to services of the relays.", l.allocated)
	}
	is, was := conditions.Get(
		l.group.Status.Conditions,
		v1alpha1.ConditionDegraded,
	), conditions.Get(
		l.before.Status.Conditions,
		v1alpha1.ConditionDegraded,
	)
	if is.Reason == reasonCleanupBlocked && was.Reason != reasonCleanupBlocked {
		event(corev1.EventTypeWarning, reasonCleanupBlocked, "Delete", "%s", is.Message)
	}
}

// gather reads the current objects of the group.
func (l *groupReconciliation) gather(ctx context.Context) error {
	err := l.readObjects(ctx)
	switch forbidden := apierrors.IsForbidden(err); {
	case forbidden && l.group.DeletionTimestamp != nil && l.namespaceDeleting(ctx):
		// The rights were deleted with the namespace, and so will be its contents. The status
		// contains the devices at Tailscale, and keys can be found by their description.
		l.clearObjects()
	case forbidden: // reconcile again when the rights are back
		l.clearObjects()
		l.facts, l.forbidden = gateway.GroupFacts{}, true
		l.requeueAt(l.Now().Add(forbiddenRequeue))
		return nil
	case err != nil:
		return err
	}
	l.facts = l.groupFacts()
	return nil
}

// namespaceDeleting reports whether the group's namespace is being deleted.
func (l *groupReconciliation) namespaceDeleting(ctx context.Context) bool {
	ns := partialMetadata("Namespace")
	return l.cache.Get(ctx, client.ObjectKey{Name: l.group.Namespace}, ns) == nil && ns.DeletionTimestamp != nil
}

// clearObjects clears the objects that were read.
func (l *groupReconciliation) clearObjects() {
	l.set, l.pods, l.state, l.config = nil, map[int]*corev1.Pod{}, map[int]*corev1.Secret{}, map[int]*corev1.Secret{}
	l.certs = map[string]*corev1.Secret{}
}

func (l *groupReconciliation) readObjects(ctx context.Context) error {
	g := l.group
	l.clearObjects()
	set, err := find[appsv1.StatefulSet](ctx, l.direct, client.ObjectKeyFromObject(g))
	if err != nil {
		return fmt.Errorf("get the StatefulSet: %w", err)
	}
	if set != nil && metav1.IsControlledBy(set, g) {
		l.set = set
	}
	var pods corev1.PodList
	if err := l.direct.List(ctx, &pods, client.InNamespace(g.Namespace), client.MatchingLabels(workload.PodLabels(g.UID))); err != nil {
		return fmt.Errorf("list the pods: %w", err)
	}
	for _, p := range pointers(pods.Items) {
		if n, ok := ordinalOf(g.Name, p.Name); ok {
			l.pods[n] = p
		}
	}
	var secrets corev1.SecretList
	if err := l.direct.List(ctx, &secrets, client.InNamespace(g.Namespace), client.MatchingLabels{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: g.Name}); err != nil {
		return fmt.Errorf("list the Secrets: %w", err)
	}
	for _, s := range pointers(secrets.Items) {
		if !metav1.IsControlledBy(s, g) {
			continue
		}
		if n, ok := ordinalOf(g.Name, s.Name); ok && s.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeState {
			l.state[n] = s
		} else if n, ok := ordinalOf(g.Name, strings.TrimSuffix(s.Name, "-config")); ok && s.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeConfig {
			l.config[n] = s
		} else if s.Labels[v1alpha1.SecretTypeLabel] == v1alpha1.SecretTypeCert {
			l.certs[s.Name] = s
		}
	}
	return nil
}

// ordinalOf parses the ordinal in <group>-<ordinal>.
func ordinalOf(group, name string) (int, bool) {
	text, ok := strings.CutPrefix(name, group+"-")
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && n >= 0 && n < 1000 && strconv.Itoa(n) == text
}

func (l *groupReconciliation) groupFacts() gateway.GroupFacts {
	g := l.group
	f := gateway.GroupFacts{
		Deleting: g.DeletionTimestamp != nil, HasFinalizer: controllerutil.ContainsFinalizer(g, v1alpha1.Finalizer),
		SkipRemote: g.Annotations[v1alpha1.SkipRemoteCleanupAnnotation] == "true",
		Accepted:   l.report.Accepted.IsTrue(), Replicas: int(workload.Replicas(g)), NotBefore: l.pausedUntil(),
		HasClient: l.api != nil && (g.DeletionTimestamp != nil || l.tailnetReady()),
		Ordinals:  map[int]gateway.RelayReplica{},
	}
	if l.set != nil {
		f.SetExists, f.SetDeleting, f.SetReplicas = true, l.set.DeletionTimestamp != nil, int(ptr.Deref(l.set.Spec.Replicas, 0))
	}
	for i := range f.Replicas {
		f.Ordinals[i] = gateway.RelayReplica{}
	}
	change := func(i int, do func(*gateway.RelayReplica)) {
		r := f.Ordinals[i]
		do(&r)
		f.Ordinals[i] = r
	}
	for i, pod := range l.pods {
		change(i, func(r *gateway.RelayReplica) { r.Pod, r.Ready = string(pod.UID), podReady(pod) })
	}
	recorded := map[string]bool{}
	for _, d := range g.Status.Devices {
		if d.NodeID != "" && !l.deletedDevices[d.NodeID] {
			f.Recorded = append(f.Recorded, gateway.RecordedDevice{Ordinal: int(d.Ordinal), Node: d.NodeID})
			recorded[d.NodeID] = true
		}
	}
	for i, s := range l.state {
		change(i, func(r *gateway.RelayReplica) {
			r.State = true
			r.Node, r.WriterPod, r.Reissue = string(s.Data[config.DeviceID]), string(s.Data[config.PodUID]), string(s.Data[config.Reissue])
			r.Joined = len(s.Data["_current-profile"]) > 0
			r.DeviceGone, r.DeviceExists = l.gone[r.Node], l.existing[r.Node]
			if !f.Accepted && !recorded[r.Node] || l.deletedDevices[r.Node] {
				// A tenant that can write Secrets in a namespace must not be able to point the
				// operator at a device of a tailnet that the namespace may not use.
				r.Node = ""
			}
		})
	}
	for i, s := range l.config {
		change(i, func(r *gateway.RelayReplica) { r.Config, r.Key = true, authKeyOf(s) })
	}
	if f.Deleting && f.HasFinalizer && !l.keysDeleted {
		// The Secret with the key's record may already be deleted, with the namespace or manually.
		// No key was created since the deletion began.
		for i := range max(f.Replicas, 1) {
			if l.config[i] == nil {
				change(i, func(r *gateway.RelayReplica) {
					r.Key = gateway.AuthKeyState{Pending: true, Until: g.DeletionTimestamp.Add(gateway.AuthKeyLifetime)}
				})
			}
		}
	}
	return f
}

func podReady(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
