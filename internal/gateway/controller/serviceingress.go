package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	defaultInterval = 5 * time.Minute // between two reads of a tailnet without an interval
	hostsRequeue    = 5 * time.Second // while relays are not hosts yet; doubled each time
	refusedRequeue  = 5 * time.Minute // after a refusal; a change of the object triggers an earlier reconcile
	noClientRequeue = 2 * time.Second // after a start, the client appears without a change of any object
)

// A vipState is the state of a tailnet service that the object does not contain. If it is lost,
// the service is read again.
type vipState struct {
	uid           types.UID // of the object
	tailnet, name string
	at            time.Time      // last read of this service alone; zero means none
	current       *tsapi.Service // result of that read; nil if the service did not exist
	due           time.Time      // next read after a write; zero means none
	confirmed     bool           // for a deletion: the service was read again after the write
	hosts         string         // key of the relays if all are approved hosts
	awaited       string         // key of the relays and the state that is awaited while they are not
	queries       int            // number of unsuccessful queries since then for that reason
	nextQuery     time.Time      // time of the next query
}

func (l *serviceReconciliation) vipState(tailnet, name string) *vipState {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(l.object)
	m := l.vips[key]
	if m == nil || m.uid != l.object.UID || m.tailnet != tailnet || m.name != name {
		m = &vipState{uid: l.object.UID, tailnet: tailnet, name: name}
		l.vips[key] = m
	}
	return m // reconciles of one object never run concurrently
}

// owner returns the owner entry of this object for other operators.
func (l *serviceReconciliation) owner() gateway.VIPOwner {
	return gateway.VIPOwner{OperatorID: l.operatorID, Instance: l.instance,
		Resource: gateway.OwnerResource{
			Kind:      "TailscaleService",
			Namespace: l.object.Namespace,
			Name:      l.object.Name,
			UID:       string(l.object.UID),
		}}
}

// reconcileIngress maintains the tailnet service and its hosts. The group's ConfigMap contains the mapping
// from relays to the backend.
func (l *serviceReconciliation) reconcileIngress(ctx context.Context) error {
	l.degraded = conditions.False(v1alpha1.ReasonAsExpected, "")
	if !l.usable() {
		return nil // the tailnet service and its addresses stay, but no relay carries it
	}
	var t v1alpha1.TailscaleTailnet
	if err := l.client.Get(ctx, types.NamespacedName{Name: l.decision.Tailnet}, &t); err != nil {
		return fmt.Errorf("get the tailnet %s: %w", l.decision.Tailnet, err)
	}
	desired := l.desiredVIP(&t)
	if old := l.object.Status.VIP; old != nil && old.Name != "" &&
		(old.Name != desired.Name || old.Tailnet != t.Name || len(desired.Ports) == 0) {
		gone, err := l.releaseVIP(ctx, old.Tailnet, old.Name)
		if err != nil {
			l.reportFailure(err, "the former service "+old.Name+" of the tailnet "+old.Tailnet)
			return nil
		}
		if !gone {
			l.programmed = conditions.False(
				v1alpha1.ReasonPending,
				"the former service "+old.Name+" of the tailnet "+old.Tailnet+" is being removed",
			)
			return nil
		}
		l.object.Status.VIP = nil
		if err := l.report(ctx); err != nil {
			return err
		}
	}
	l.programmed = conditions.True(v1alpha1.ReasonProgrammed, "")
	if len(desired.Ports) > 0 {
		if err := l.reconcileVIP(ctx, &t, desired); err != nil {
			return err
		}
	} else if err := l.setFinalizer(ctx, false); err != nil { // UDP uses the relays' own addresses
		return err
	}
	relays, err := l.readyRelays(ctx, l.decision.Group)
	if err != nil {
		return err
	}
	carrying, ports := 0, cmp.Or(len(desired.Ports), len(l.object.Spec.Ports)) // a tailnet service carries only TCP
	for _, r := range relays {
		if r.exposes(gateway.ServiceKey(objectName(l.object)), ports) {
			carrying++
		}
	}
	if err := l.reconcileHosts(ctx, &t, carrying, len(desired.Ports) > 0); err != nil {
		return err
	}
	if why := uncertifiedReason(relays, gateway.ServiceKey(objectName(l.object))); why != "" && l.ready.IsTrue() {
		l.ready = conditions.False(
			v1alpha1.ReasonNoCertificate,
			fmt.Sprintf("relays refuse TLS, because no relay has a certificate: %q", why),
		)
	}
	return nil
}

// desiredVIP returns the desired state of the tailnet service.
func (l *serviceReconciliation) desiredVIP(t *v1alpha1.TailscaleTailnet) gateway.DesiredVIP {
	spec := cmp.Or(l.object.Spec.VIPService, &v1alpha1.VIPService{})
	w := gateway.DesiredVIP{Name: spec.Name, Tags: spec.Tags, Comment: spec.Comment, Adopt: spec.Adopt}
	if len(w.Tags) == 0 {
		w.Tags = t.Spec.Tags
	}
	for _, p := range l.object.Spec.Ports {
		if p.Protocol != v1alpha1.UDP {
			w.Ports = append(w.Ports, fmt.Sprintf("tcp:%d", p.Port))
		}
	}
	slices.Sort(w.Ports)
	if st := l.object.Status.VIP; st != nil && st.Name == spec.Name && st.Tailnet == t.Name {
		for _, text := range st.Addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				w.Addrs = append(w.Addrs, a)
			}
		}
	}
	return w
}

// reconcileVIP brings the tailnet service to the desired state and sets its status.
func (l *serviceReconciliation) reconcileVIP(ctx context.Context, t *v1alpha1.TailscaleTailnet, desired gateway.DesiredVIP) error {
	api, err := l.apiClient(t.Name)
	if err != nil {
		l.reportFailure(err, desired.Name)
		return nil
	}
	m := l.vipState(t.Name, desired.Name)
	interval := cmp.Or(t.Spec.SyncInterval.Duration, defaultInterval)
	l.requeueAt(l.Now().Add(interval))
	have, fresh, err := l.currentVIP(ctx, api, m, interval)
	if err != nil {
		l.reportFailure(err, desired.Name)
		return nil
	}
	d := gateway.ReconcileVIP(have, desired, l.owner())
	if d.Action == gateway.VIPWrite && !fresh {
		if have, err = l.readVIP(ctx, api, m); err != nil {
			l.reportFailure(err, desired.Name)
			return nil
		}
		d = gateway.ReconcileVIP(have, desired, l.owner())
	}
	if d.Action == gateway.VIPRefuse {
		l.reportRefused(d)
		return nil
	}
	if err := l.recordOwnership(ctx, t.Name, desired.Name); err != nil {
		return err
	}
	if d.Action == gateway.VIPWrite {
		if have, err = l.writeVIP(ctx, api, m, d.Service); err != nil {
			l.reportFailure(err, desired.Name)
			return nil
		}
		if have == nil {
			l.requeueAt(l.Now()) // another party deleted it in the meantime
			return nil
		}
	} else if fresh {
		m.due = time.Time{}
	}
	l.requeueAt(m.due)
	st := l.object.Status.VIP
	st.Addresses, st.Owners = nil, int32(d.Owners)
	for _, a := range have.Addrs[:min(len(have.Addrs), 4)] {
		st.Addresses = append(st.Addresses, a.String())
	}
	st.DNSName = ""
	if i := t.Status.TailnetInfo; i != nil && i.Name != "" {
		st.DNSName = strings.TrimPrefix(desired.Name, "svc:") + "." + i.Name
	}
	return nil
}

// recordOwnership records in the object, before a write, that the object owns the tailnet service.
func (l *serviceReconciliation) recordOwnership(ctx context.Context, tailnet, name string) error {
	if err := l.setFinalizer(ctx, true); err != nil {
		return err
	}
	if st := l.object.Status.VIP; st != nil && st.Name == name && st.Tailnet == tailnet {
		return nil
	}
	l.object.Status.VIP = &v1alpha1.VIPStatus{Name: name, Tailnet: tailnet}
	return l.report(ctx)
}

var errNoClient = errors.New("the tailnet is not ready")

func (l *serviceReconciliation) apiClient(tailnet string) (*tsapi.Client, error) {
	api, _, ok := l.Clients.Get(tailnet)
	if !ok {
		return nil, errNoClient
	}
	return api, nil
}

// currentVIP returns the service as it was last read. This is the shared list of all services, or a read
// of this service alone if that is newer. fresh is true if the service was read now.
func (l *serviceReconciliation) currentVIP(
	ctx context.Context,
	api *tsapi.Client,
	m *vipState,
	interval time.Duration,
) (have *tsapi.Service, fresh bool, err error) {
	if !m.due.IsZero() && !l.Now().Before(m.due) {
		have, err = l.readVIP(ctx, api, m)
		return have, true, err
	}
	all, err := api.Services(ctx, 2*interval)
	if err != nil {
		return nil, false, err
	}
	if all.Refused != nil {
		return nil, false, all.Refused
	}
	if m.at.After(all.At) {
		return m.current, false, nil
	}
	return findVIP(all.Services, m.name), false, nil
}

// findVIP returns the service with a name, or nil if there is none. The caller must not modify it.
func findVIP(all []tsapi.Service, name string) *tsapi.Service {
	if i := slices.IndexFunc(all, func(s tsapi.Service) bool { return s.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

// readVIP reads only this service. It returns nil if the service does not exist.
func (l *serviceReconciliation) readVIP(ctx context.Context, api *tsapi.Client, m *vipState) (*tsapi.Service, error) {
	at := l.Now()
	s, err := api.Service(ctx, m.name)
	switch {
	case isNotFound(err):
		m.current = nil
	case err != nil:
		return nil, err
	default:
		m.current = &s
	}
	m.at = at
	return m.current, nil
}

// writeVIP writes the service and reads the result. It schedules another read, because another
// operator may have written at the same time.
func (l *serviceReconciliation) writeVIP(ctx context.Context, api *tsapi.Client, m *vipState, s tsapi.Service) (*tsapi.Service, error) {
	m.due, m.hosts, m.awaited = l.Now().Add(jitter()), "", ""
	err := api.PutService(ctx, s)
	if failure, _ := errors.AsType[*tsapi.Error](err); failure != nil && failure.Class == tsapi.Invalid && len(s.Addrs) == 1 {
		s.Addrs = nil // the old address belongs to another service now
		err = api.PutService(ctx, s)
	}
	if err != nil {
		return nil, err
	}
	l.Log.Info("tailnet service written", "service", objectName(l.object).String(), "tailnet", m.tailnet, "vip", m.name)
	return l.readVIP(ctx, api, m)
}

// jitter is the time after which a service is read again after a write. It is random, so that two
// operators that write at the same time do not continue in step.
func jitter() time.Duration { return time.Second + rand.N(4*time.Second) }

// releaseVIP gives up the ownership of a tailnet service. gone is false while another reconcile is
// necessary.
func (l *serviceReconciliation) releaseVIP(ctx context.Context, tailnet, name string) (gone bool, err error) {
	m := l.vipState(tailnet, name)
	if !m.due.IsZero() && l.Now().Before(m.due) {
		l.requeueAt(m.due)
		return false, nil
	}
	api, err := l.apiClient(tailnet)
	if err != nil {
		return false, err
	}
	have, err := l.readVIP(ctx, api, m)
	if err != nil {
		return false, err
	}
	d := gateway.ReleaseVIP(have, l.owner())
	if d.Action == gateway.VIPDelete {
		if have, err = l.readVIP(ctx, api, m); err != nil { // read twice, because the API has no conditional deletion
			return false, err
		}
		d = gateway.ReleaseVIP(have, l.owner())
	}
	switch d.Action {
	case gateway.VIPUnchanged:
		if have == nil || m.confirmed {
			return true, nil
		}
		m.confirmed = true // an operator that read it earlier may write this owner back
	case gateway.VIPRefuse:
		return false, &duplicateOperator{d.Message}
	case gateway.VIPWrite:
		m.confirmed = true
		if err := api.PutService(ctx, d.Service); err != nil {
			return false, err
		}
	case gateway.VIPDelete:
		m.confirmed = true
		if err := api.DeleteService(ctx, name); err != nil {
			return false, err
		}
		l.Log.Info("tailnet service deleted", "service", l.object.Namespace+"/"+l.object.Name, "tailnet", tailnet, "vip", name)
	}
	m.due = l.Now().Add(jitter())
	l.requeueAt(m.due)
	return false, nil
}

// A duplicateOperator means that another operator has the same ID.
type duplicateOperator struct{ message string }

func (d *duplicateOperator) Error() string { return d.message }

// reportRefused sets the conditions if this operator may not write the tailnet service.
func (l *serviceReconciliation) reportRefused(d gateway.VIPDecision) {
	reason := v1alpha1.ReasonVIPNotOwned
	switch d.Refusal {
	case gateway.VIPConflict:
		reason = v1alpha1.ReasonVIPConflict
	case gateway.VIPDuplicate:
		reason = v1alpha1.ReasonDuplicateOperatorID
		l.warn(reason, d.Message)
		l.degraded = conditions.True(reason, d.Message)
	}
	l.programmed = conditions.False(reason, d.Message)
}

// warn emits an event when a problem begins.
func (l *serviceReconciliation) warn(reason, message string) {
	if conditions.Get(l.before.Status.Conditions, v1alpha1.ConditionDegraded).Reason != reason {
		l.events.Eventf(l.object, nil, corev1.EventTypeWarning, reason, "Sync", "%s", message)
	}
}

// reportFailure sets the conditions after an error of the tailnet's API. The existing configuration
// stays in effect.
func (l *serviceReconciliation) reportFailure(err error, what string) {
	reason, wait := failureReason(err)
	l.requeueAt(l.Now().Add(wait))
	message := conditions.Truncate(what+": "+err.Error(), maxServiceMessage)
	l.degraded = conditions.True(reason, message)
	l.warn(reason, message)
	if c := meta.FindStatusCondition(l.before.Status.Conditions, v1alpha1.ConditionProgrammed); c != nil && c.Status == "True" &&
		c.ObservedGeneration == l.object.Generation {
		l.programmed = conditions.True(c.Reason, c.Message)
		return
	}
	l.programmed = conditions.False(reason, message)
}

// failureReason returns the condition reason for an error and the time before the next try.
func failureReason(err error) (reason string, wait time.Duration) {
	if _, ok := errors.AsType[*duplicateOperator](err); ok {
		return v1alpha1.ReasonDuplicateOperatorID, refusedRequeue
	}
	if errors.Is(err, errNoClient) {
		return v1alpha1.ReasonTailnetNotReady, noClientRequeue
	}
	e, ok := errors.AsType[*tsapi.Error](err)
	if !ok {
		return v1alpha1.ReasonTailnetNotReady, refusedRequeue
	}
	reasons := map[tsapi.Class]string{tsapi.Refused: v1alpha1.ReasonInvalidCredentials, tsapi.NoToken: v1alpha1.ReasonTokenExchangeFailed,
		tsapi.Forbidden: v1alpha1.ReasonInsufficientPermissions, tsapi.Invalid: v1alpha1.ReasonFailed, tsapi.NotFound: v1alpha1.ReasonTailnetNotFound,
		tsapi.RateLimited: v1alpha1.ReasonRateLimited, tsapi.CircuitOpen: v1alpha1.ReasonCircuitOpen}
	reason = cmp.Or(reasons[e.Class], v1alpha1.ReasonAPIUnavailable)
	switch e.Class {
	case tsapi.Dropped:
		return reason, time.Second // another client already exists
	case tsapi.Unavailable, tsapi.RateLimited, tsapi.CircuitOpen:
		return reason, max(e.RetryAfter, time.Second)
	}
	return reason, refusedRequeue
}
