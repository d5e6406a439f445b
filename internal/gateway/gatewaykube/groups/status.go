package groups

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/gatewaykube/gather"
	"github.com/tailplane/tailplane/internal/gateway/portmap"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/relay/relaykube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	mostDevices = 100 // maximum in the status
	mostMessage = 500 // characters

	cleanupBlocked = "CleanupBlocked" // reason of Degraded and of the event
	inTheWay       = "ObjectInTheWay"
	leftOut        = "ServicesLeftOut"
)

// record writes the devices of the group to the status. The status must contain the devices to
// delete before other records of them are deleted.
func (l *look) record(ctx context.Context) error {
	was := l.group.DeepCopy()
	l.group.Status.Devices = l.devices()
	if apiequality.Semantic.DeepEqual(was.Status, l.group.Status) {
		return nil
	}
	if err := l.direct.Status().Patch(ctx, l.group, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the devices down: %w", err)
	}
	return nil
}

// devices returns the status rows of the replicas and of devices that must still be deleted.
func (l *look) devices() []v1alpha1.RelayDevice {
	had := map[string]v1alpha1.RelayDevice{}
	for _, d := range l.group.Status.Devices {
		had[d.NodeID] = d
	}
	known := map[string]bool{}
	var out []v1alpha1.RelayDevice
	for i, r := range l.facts.Ordinals {
		d := v1alpha1.RelayDevice{Ordinal: int32(i), NodeID: r.Node}
		if s := l.state[i]; s != nil && r.Node != "" {
			d.PodUID = types.UID(r.RanIn)
			d.FQDN, d.Hostname = strings.TrimSuffix(string(s.Data[relaykube.DeviceFQDN]), "."), cmp.Or(had[r.Node].Hostname, l.hostname(i))
			var ips []string
			if json.Unmarshal(s.Data[relaykube.DeviceIPs], &ips) == nil {
				d.IPs = ips[:min(len(ips), 4)]
			}
			if d.FQDN == "" { // while the relay starts, keep the values of the same device
				d.FQDN, d.IPs = had[r.Node].FQDN, had[r.Node].IPs
			}
		}
		d.Ready = r.Pod != "" && r.Ready && r.RanIn == r.Pod && r.Node != "" && i < l.facts.Replicas
		if !d.Ready {
			d.Reason = reasonOf(i < l.facts.Replicas, r.Pod != "", r.Node != "", r.Reissue != "")
		}
		if d.NodeID == "" && i >= l.facts.Replicas {
			continue
		}
		known[d.NodeID] = true
		out = append(out, d)
	}
	for _, d := range l.facts.Recorded {
		if !known[d.Node] {
			one := had[d.Node]
			one.Ready, one.Reason = false, "Deleting"
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.RelayDevice) int {
		return cmp.Or(cmp.Compare(a.Ordinal, b.Ordinal), cmp.Compare(a.NodeID, b.NodeID))
	})
	return out[:min(len(out), mostDevices)]
}

// reasonOf returns the reason why a replica is not ready.
func reasonOf(wished, pod, joined, asks bool) string {
	switch {
	case !wished:
		return "Deleting"
	case !pod:
		return "NoPod"
	case asks:
		return "NeedsAuthKey"
	case !joined:
		return "Joining"
	}
	return "PodNotReady"
}

// A verdict is a condition without its times.
type verdict struct {
	status          metav1.ConditionStatus
	reason, message string
}

func yes(reason, message string) verdict { return verdict{metav1.ConditionTrue, reason, message} }
func no(reason, message string) verdict  { return verdict{metav1.ConditionFalse, reason, message} }

// tell writes the status if it changed, and emits events. It is called at the end of every
// reconcile, and no other function writes the complete status. trouble is the error that ended the
// reconcile early.
func (l *look) tell(ctx context.Context, trouble error) error {
	was := l.group.DeepCopy()
	s := &l.group.Status
	s.ObservedGeneration = l.group.Generation
	if l.facts.Ordinals != nil { // only if the objects were read
		s.Replicas, s.ReadyReplicas, s.Devices = int32(len(l.pods)), 0, l.devices()
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
	for kind, v := range l.verdicts(trouble) {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: v.status, Reason: v.reason, Message: short(v.message), ObservedGeneration: l.group.Generation})
	}
	slices.SortStableFunc(s.Conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	if !apiequality.Semantic.DeepEqual(was.Status, *s) {
		if err := l.direct.Status().Patch(ctx, l.group, client.MergeFrom(was)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("write the status: %w", err)
		}
	}
	l.tellEvents()
	return nil
}

func (l *look) verdicts(trouble error) map[string]verdict {
	if l.forbidden { // the other conditions may still be true
		out := map[string]verdict{v1alpha1.ConditionDegraded: l.degraded(trouble)}
		switch {
		case l.group.DeletionTimestamp != nil:
			out[v1alpha1.ConditionReady] = no(v1alpha1.ReasonDeleting, "It is being deleted.")
		case meta.FindStatusCondition(l.before.Status.Conditions, v1alpha1.ConditionReady) == nil:
			out[v1alpha1.ConditionReady] = no(v1alpha1.ReasonNamespaceForbidden, gather.Forbidden(l.group.Namespace))
		}
		return out
	}
	if trouble != nil && l.facts.Ordinals == nil { // the other conditions may still be true
		return map[string]verdict{v1alpha1.ConditionDegraded: l.degraded(trouble)}
	}
	out := map[string]verdict{v1alpha1.ConditionAccepted: l.accepted()}
	ready, wished := int(l.group.Status.ReadyReplicas), l.facts.Replicas
	out[v1alpha1.ConditionAvailable] = no(v1alpha1.ReasonPodsNotReady, "No relay is ready.")
	if ready > 0 {
		out[v1alpha1.ConditionAvailable] = yes("Available", fmt.Sprintf("%d of %d relays are ready.", ready, wished))
	}
	out[v1alpha1.ConditionReady] = l.ready(ready, wished)
	out[v1alpha1.ConditionDegraded] = l.degraded(trouble)
	return out
}

func (l *look) accepted() verdict {
	switch v := l.report.Accepted; {
	case !v.OK && v.Reason == "": // the group is being deleted, and there is no decision about it
		return no(v1alpha1.ReasonDeleting, "It is being deleted.")
	case !v.OK:
		return no(v.Reason, v.Message)
	case len(l.refused) > 0:
		return no(v1alpha1.ReasonPortsExhausted, fmt.Sprintf("All %d ports of the relays are given; %s has none.", portmap.Last-portmap.First+1, someKeys(l.refused)))
	}
	return yes(v1alpha1.ReasonAccepted, "")
}

func (l *look) ready(ready, wished int) verdict {
	g := l.group
	extra := len(l.pods) > wished
	switch {
	case g.DeletionTimestamp != nil:
		return no(v1alpha1.ReasonDeleting, "It is being deleted.")
	case !l.report.Accepted.OK:
		return no(l.report.Accepted.Reason, l.report.Accepted.Message)
	case ready == wished && !extra:
		return yes(v1alpha1.ReasonReady, fmt.Sprintf("%d of %d relays are ready.", ready, wished))
	case l.failure != nil && l.failure.Op == tsapi.CreateKey:
		return no(v1alpha1.ReasonAuthKeyFailed, l.failure.Error())
	case !l.facts.API && l.needsKey():
		return no(v1alpha1.ReasonTailnetNotReady, "A relay needs an auth key, and the tailnet cannot be asked for one.")
	case l.paused().After(l.Now()) && l.needsKey():
		if c := meta.FindStatusCondition(l.before.Status.Conditions, v1alpha1.ConditionReady); c != nil && c.Reason == v1alpha1.ReasonAuthKeyFailed {
			return no(c.Reason, c.Message) // the API is paused; keep the last failure
		}
	case g.Status.ObservedGeneration != 0 && (extra || len(l.pods) < wished && len(l.pods) > 0):
		return no(v1alpha1.ReasonScaling, fmt.Sprintf("There are %d relays, and there are to be %d.", len(l.pods), wished))
	}
	if ready == 0 && !meta.IsStatusConditionTrue(l.before.Status.Conditions, v1alpha1.ConditionAvailable) && l.before.Status.ReadyReplicas == 0 &&
		!slices.ContainsFunc(l.before.Status.Devices, func(d v1alpha1.RelayDevice) bool { return d.FQDN != "" && d.Ready }) {
		return no(v1alpha1.ReasonCreating, fmt.Sprintf("%d of %d relays are ready.", ready, wished))
	}
	return no(v1alpha1.ReasonPodsNotReady, fmt.Sprintf("%d of %d relays are ready.", ready, wished))
}

// needsKey reports whether a desired relay has neither a device nor a key.
func (l *look) needsKey() bool {
	for i, r := range l.facts.Ordinals {
		if i < l.facts.Replicas && (r.Node == "" || r.Reissue != "") && !r.Key.AtHand {
			return true
		}
	}
	return false
}

func (l *look) degraded(trouble error) verdict {
	switch {
	case l.blocked:
		why := "the tailnet's API cannot be asked now"
		if l.failure != nil {
			why = l.failure.Error()
		} else if l.forbidden {
			why = gather.Forbidden(l.group.Namespace)
		} else if c := meta.FindStatusCondition(l.before.Status.Conditions, v1alpha1.ConditionDegraded); c != nil && c.Reason == cleanupBlocked {
			return yes(c.Reason, c.Message) // the API is paused; keep the last reason
		} else if !l.manages(l.group.Namespace) {
			why = "the operator runs no relays in this namespace any more"
		}
		return yes(cleanupBlocked, fmt.Sprintf("Not deleted yet: %s: %s. The annotation %s=true lets it go without.", l.leftBehind(), why, v1alpha1.SkipRemoteCleanupAnnotation))
	case l.forbidden:
		return yes(v1alpha1.ReasonNamespaceForbidden, gather.Forbidden(l.group.Namespace))
	case l.failure != nil:
		return yes(v1alpha1.ReasonAPIUnavailable, l.failure.Error())
	case trouble != nil:
		return yes("Failed", "The cluster refused what was to be done; the operator's log has the reason.")
	case len(l.inTheWay) > 0:
		return yes(inTheWay, "Somebody else has objects of these names: "+strings.Join(l.inTheWay, ", "))
	case len(l.troubles) > 0:
		return yes(leftOut, strings.Join(l.troubles, "; "))
	}
	return no(v1alpha1.ReasonAsExpected, "")
}

// leftBehind lists what must still be deleted at Tailscale. A key is listed by its ID, which is
// not secret.
func (l *look) leftBehind() string {
	var names []string
	for _, d := range l.facts.Recorded {
		if l.facts.Deleting || d.Ordinal >= l.facts.Replicas || l.facts.Ordinals[d.Ordinal].Node != d.Node {
			names = append(names, "device "+d.Node)
		}
	}
	for _, r := range l.facts.Ordinals {
		if r.Key.AtHand && l.facts.Deleting {
			names = append(names, "auth key "+r.Key.ID)
		}
	}
	slices.Sort(names)
	if len(names) == 0 {
		return "what it has at Tailscale"
	}
	return strings.Join(names, ", ")
}

func someKeys(keys []portmap.Key) string {
	k := keys[0]
	text := fmt.Sprintf("%s %s %d", k.Service, k.Protocol, k.TargetPort)
	if len(keys) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(keys)-1)
	}
	return text
}

// short limits a message to the maximum length in the status.
func short(s string) string {
	if r := []rune(s); len(r) > mostMessage {
		return string(r[:mostMessage]) + "…"
	}
	return s
}

// tellEvents emits events for actions and changes.
func (l *look) tellEvents() {
	event := func(kind, reason, action, format string, args ...any) {
		l.events.Eventf(l.group, nil, kind, reason, action, "%s", short(fmt.Sprintf(format, args...)))
	}
	slices.SortFunc(l.minted, func(a, b mint) int { return cmp.Compare(a.ordinal, b.ordinal) })
	for _, m := range l.minted {
		reason := "AuthKeyIssued"
		if m.again {
			reason = "AuthKeyReissued"
		}
		event(corev1.EventTypeNormal, reason, "Mint", "Auth key %s for relay %d.", m.id, m.ordinal)
	}
	had := map[string]bool{}
	for _, d := range l.before.Status.Devices {
		had[d.NodeID] = true
	}
	for _, d := range l.group.Status.Devices {
		if d.NodeID != "" && !had[d.NodeID] {
			event(corev1.EventTypeNormal, "DeviceRegistered", "Join", "Relay %d is the device %s.", d.Ordinal, d.NodeID)
		}
	}
	slices.Sort(l.deleted)
	for _, id := range l.deleted {
		event(corev1.EventTypeNormal, "DeviceDeleted", "Delete", "The device %s is gone from the tailnet.", id)
	}
	if l.allocated > 0 {
		event(corev1.EventTypeNormal, "PortAllocated", "Allocate", "%d ports were given to what the relays carry.", l.allocated)
	}
	is, was := meta.FindStatusCondition(l.group.Status.Conditions, v1alpha1.ConditionDegraded), meta.FindStatusCondition(l.before.Status.Conditions, v1alpha1.ConditionDegraded)
	if is.Reason == cleanupBlocked && (was == nil || was.Reason != cleanupBlocked) {
		event(corev1.EventTypeWarning, cleanupBlocked, "Delete", "%s", is.Message)
	}
}
