package services

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
	"github.com/tailplane/tailplane/internal/gateway/vip"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	defaultInterval = 5 * time.Minute // between two reads of a tailnet without an interval
	hostsNap        = 5 * time.Second // while relays are not hosts yet; doubled each time
	refusedNap      = 5 * time.Minute // after a refusal; a change of the object triggers an earlier reconcile
	noClientNap     = 2 * time.Second // after a start, the client appears without a change of any object
)

// A vipMemory is the state of a tailnet service that the object does not contain. If it is lost,
// the service is read again.
type vipMemory struct {
	uid           types.UID // of the object
	tailnet, name string
	at            time.Time    // last read of this service alone; zero means none
	have          *vip.Service // result of that read; nil if the service did not exist
	due           time.Time    // next read after a write; zero means none
	settled       bool         // for a deletion: the service was read again after the write
	hosts         string       // key of the relays if all are approved hosts
	await         string       // key of the relays and the state that is awaited while they are not
	asked         int          // number of unsuccessful queries since then for that reason
	ask           time.Time    // time of the next query
}

func (l *look) memory(tailnet, name string) *vipMemory {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := client.ObjectKeyFromObject(l.object)
	m := l.vips[key]
	if m == nil || m.uid != l.object.UID || m.tailnet != tailnet || m.name != name {
		m = &vipMemory{uid: l.object.UID, tailnet: tailnet, name: name}
		l.vips[key] = m
	}
	return m // reconciles of one object never run concurrently
}

// me returns the owner entry of this object for other operators.
func (l *look) me() vip.Owner {
	return vip.Owner{OperatorID: l.OperatorID, Instance: l.Instance,
		Resource: vip.Resource{Kind: "TailscaleService", Namespace: l.object.Namespace, Name: l.object.Name, UID: string(l.object.UID)}}
}

// ingress maintains the tailnet service and its hosts. The group's ConfigMap contains the mapping
// from relays to the backend.
func (l *look) ingress(ctx context.Context) error {
	l.degraded = &verdict{reason: v1alpha1.ReasonAsExpected}
	if !l.usable() {
		return nil // the tailnet service and its addresses stay, but no relay carries it
	}
	var t v1alpha1.TailscaleTailnet
	if err := l.client.Get(ctx, types.NamespacedName{Name: l.said.Tailnet}, &t); err != nil {
		return fmt.Errorf("look at the tailnet %s: %w", l.said.Tailnet, err)
	}
	wish := l.wish(&t)
	if old := l.object.Status.VIP; old != nil && old.Name != "" && (old.Name != wish.Name || old.Tailnet != t.Name || len(wish.Ports) == 0) {
		gone, err := l.leaveVIP(ctx, old.Tailnet, old.Name)
		if err != nil {
			l.failing(err, "the former service "+old.Name+" of the tailnet "+old.Tailnet)
			return nil
		}
		if !gone {
			l.programmed = verdict{reason: v1alpha1.ReasonPending, message: "the former service " + old.Name + " of the tailnet " + old.Tailnet + " is being taken away"}
			return nil
		}
		l.object.Status.VIP = nil
		if err := l.report(ctx); err != nil {
			return err
		}
	}
	l.programmed = verdict{ok: true, reason: v1alpha1.ReasonProgrammed}
	if len(wish.Ports) > 0 {
		if err := l.keepVIP(ctx, &t, wish); err != nil {
			return err
		}
	} else if err := l.hold(ctx, false); err != nil { // UDP uses the relays' own addresses
		return err
	}
	relays, err := l.relays(ctx, l.said.Group)
	if err != nil {
		return err
	}
	carrying, ports := 0, cmp.Or(len(wish.Ports), len(l.object.Spec.Ports)) // a tailnet service carries only TCP
	for _, r := range relays {
		if r.exposes(gateway.ServiceKey(name(l.object)), ports) {
			carrying++
		}
	}
	if err := l.hosts(ctx, &t, carrying, len(wish.Ports) > 0); err != nil {
		return err
	}
	if why := uncertified(relays, gateway.ServiceKey(name(l.object))); why != "" && l.ready.ok {
		l.ready = verdict{reason: v1alpha1.ReasonNoCertificate, message: fmt.Sprintf("relays refuse TLS, because no relay has a certificate: %q", why)}
	}
	return nil
}

// wish returns the desired state of the tailnet service.
func (l *look) wish(t *v1alpha1.TailscaleTailnet) vip.Wish {
	spec := l.object.Spec.VIPService
	if spec == nil {
		spec = &v1alpha1.VIPService{}
	}
	w := vip.Wish{Name: spec.Name, Tags: spec.Tags, Comment: spec.Comment, Adopt: spec.Adopt}
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

// keepVIP brings the tailnet service to the desired state and sets its status.
func (l *look) keepVIP(ctx context.Context, t *v1alpha1.TailscaleTailnet, wish vip.Wish) error {
	api, err := l.api(t.Name)
	if err != nil {
		l.failing(err, wish.Name)
		return nil
	}
	m := l.memory(t.Name, wish.Name)
	interval := cmp.Or(t.Spec.SyncInterval.Duration, defaultInterval)
	l.again(l.Now().Add(interval))
	have, fresh, err := l.have(ctx, api, m, interval)
	if err != nil {
		l.failing(err, wish.Name)
		return nil
	}
	d := vip.Keep(have, wish, l.me())
	if d.Deed == vip.Write && !fresh {
		if have, err = l.read(ctx, api, m); err != nil {
			l.failing(err, wish.Name)
			return nil
		}
		d = vip.Keep(have, wish, l.me())
	}
	switch d.Deed {
	case vip.Refuse:
		l.refused(d)
		return nil
	case vip.Write:
		if err := l.own(ctx, t.Name, wish.Name); err != nil {
			return err
		}
		if have, err = l.write(ctx, api, m, d.Service); err != nil {
			l.failing(err, wish.Name)
			return nil
		}
		if have == nil {
			l.again(l.Now()) // another party deleted it in the meantime
			return nil
		}
	case vip.Rest:
		if err := l.own(ctx, t.Name, wish.Name); err != nil {
			return err
		}
		if fresh {
			m.due = time.Time{}
		}
	}
	if !m.due.IsZero() {
		l.again(m.due)
	}
	st := l.object.Status.VIP
	st.Addresses, st.Owners = nil, int32(d.Owners)
	for _, a := range have.Addrs[:min(len(have.Addrs), 4)] {
		st.Addresses = append(st.Addresses, a.String())
	}
	st.DNSName = ""
	if i := t.Status.TailnetInfo; i != nil && i.Name != "" {
		st.DNSName = strings.TrimPrefix(wish.Name, "svc:") + "." + i.Name
	}
	return nil
}

// own records in the object, before a write, that the object owns the tailnet service.
func (l *look) own(ctx context.Context, tailnet, name string) error {
	if err := l.hold(ctx, true); err != nil {
		return err
	}
	if st := l.object.Status.VIP; st != nil && st.Name == name && st.Tailnet == tailnet {
		return nil
	}
	l.object.Status.VIP = &v1alpha1.VIPStatus{Name: name, Tailnet: tailnet}
	return l.report(ctx)
}

var errNoClient = errors.New("the tailnet is not ready")

func (l *look) api(tailnet string) (*tsapi.Client, error) {
	api, _, ok := l.Clients.Get(tailnet)
	if !ok {
		return nil, errNoClient
	}
	return api, nil
}

// have returns the service as it was last read. This is the shared list of all services, or a read
// of this service alone if that is newer. fresh is true if the service was read now.
func (l *look) have(ctx context.Context, api *tsapi.Client, m *vipMemory, interval time.Duration) (have *vip.Service, fresh bool, err error) {
	if !m.due.IsZero() && !l.Now().Before(m.due) {
		have, err = l.read(ctx, api, m)
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
		return m.have, false, nil
	}
	for _, s := range all.Services {
		if s.Name == m.name {
			return new(vip.Service(s)), false, nil
		}
	}
	return nil, false, nil
}

// read reads only this service. It returns nil if the service does not exist.
func (l *look) read(ctx context.Context, api *tsapi.Client, m *vipMemory) (*vip.Service, error) {
	at := l.Now()
	s, err := api.Service(ctx, m.name)
	switch failure, _ := errors.AsType[*tsapi.Error](err); {
	case failure != nil && failure.Class == tsapi.NotFound && !failure.AtToken:
		m.have = nil
	case err != nil:
		return nil, err
	default:
		m.have = new(vip.Service(s))
	}
	m.at = at
	return m.have, nil
}

// write writes the service and reads the result. It schedules another read, because another
// operator may have written at the same time.
func (l *look) write(ctx context.Context, api *tsapi.Client, m *vipMemory, s vip.Service) (*vip.Service, error) {
	m.due, m.hosts, m.await = l.Now().Add(jitter()), "", ""
	err := api.PutService(ctx, tsapi.Service(s))
	if failure, _ := errors.AsType[*tsapi.Error](err); failure != nil && failure.Class == tsapi.Invalid && len(s.Addrs) == 1 {
		s.Addrs = nil // the old address belongs to another service now
		err = api.PutService(ctx, tsapi.Service(s))
	}
	if err != nil {
		return nil, err
	}
	l.Log.Info("a service of a tailnet was written", "service", name(l.object).String(), "tailnet", m.tailnet, "vip", m.name)
	return l.read(ctx, api, m)
}

// jitter is the time after which a service is read again after a write. It is random, so that two
// operators that write at the same time do not continue in step.
func jitter() time.Duration { return time.Second + rand.N(4*time.Second) }

// leaveVIP gives up the ownership of a tailnet service. gone is false while another reconcile is
// necessary.
func (l *look) leaveVIP(ctx context.Context, tailnet, name string) (gone bool, err error) {
	m := l.memory(tailnet, name)
	if !m.due.IsZero() && l.Now().Before(m.due) {
		l.again(m.due)
		return false, nil
	}
	api, err := l.api(tailnet)
	if err != nil {
		return false, err
	}
	have, err := l.read(ctx, api, m)
	if err != nil {
		return false, err
	}
	d := vip.Leave(have, l.me())
	if d.Deed == vip.Delete {
		if have, err = l.read(ctx, api, m); err != nil { // read twice, because the API has no conditional deletion
			return false, err
		}
		d = vip.Leave(have, l.me())
	}
	switch d.Deed {
	case vip.Rest:
		if have == nil || m.settled {
			return true, nil
		}
		m.settled = true // an operator that read it earlier may write this owner back
	case vip.Refuse:
		return false, &duplicate{d.Message}
	case vip.Write:
		m.settled = true
		if err := api.PutService(ctx, tsapi.Service(d.Service)); err != nil {
			return false, err
		}
	case vip.Delete:
		m.settled = true
		if err := api.DeleteService(ctx, name); err != nil {
			return false, err
		}
		l.Log.Info("a service of a tailnet was deleted", "service", l.object.Namespace+"/"+l.object.Name, "tailnet", tailnet, "vip", name)
	}
	m.due = l.Now().Add(jitter())
	l.again(m.due)
	return false, nil
}

// A duplicate means that another operator has the same ID.
type duplicate struct{ message string }

func (d *duplicate) Error() string { return d.message }

// refused sets the conditions if this operator may not write the tailnet service.
func (l *look) refused(d vip.Decision) {
	reason := v1alpha1.ReasonVIPNotOwned
	switch d.Why {
	case vip.Conflict:
		reason = v1alpha1.ReasonVIPConflict
	case vip.Duplicate:
		reason = v1alpha1.ReasonDuplicateOperatorID
		l.warn(reason, d.Message)
		l.degraded = &verdict{true, reason, d.Message}
	}
	l.programmed = verdict{reason: reason, message: d.Message}
}

// warn emits an event when a problem begins.
func (l *look) warn(reason, message string) {
	if c := meta.FindStatusCondition(l.before.Status.Conditions, v1alpha1.ConditionDegraded); c == nil || c.Reason != reason {
		l.events.Eventf(l.object, nil, corev1.EventTypeWarning, reason, "Sync", "%s", message)
	}
}

// failing sets the conditions after an error of the tailnet's API. The existing configuration
// stays in effect.
func (l *look) failing(err error, what string) {
	reason, wait := trouble(err)
	l.again(l.Now().Add(wait))
	message := short(what + ": " + err.Error())
	l.degraded = &verdict{true, reason, message}
	l.warn(reason, message)
	if c := meta.FindStatusCondition(l.before.Status.Conditions, v1alpha1.ConditionProgrammed); c != nil && c.Status == "True" && c.ObservedGeneration == l.object.Generation {
		l.programmed = verdict{true, c.Reason, c.Message}
		return
	}
	l.programmed = verdict{reason: reason, message: message}
}

// trouble returns the condition reason for an error and the time before the next try.
func trouble(err error) (reason string, wait time.Duration) {
	if _, ok := errors.AsType[*duplicate](err); ok {
		return v1alpha1.ReasonDuplicateOperatorID, refusedNap
	}
	if errors.Is(err, errNoClient) {
		return v1alpha1.ReasonTailnetNotReady, noClientNap
	}
	e, ok := errors.AsType[*tsapi.Error](err)
	if !ok {
		return v1alpha1.ReasonTailnetNotReady, refusedNap
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
	return reason, refusedNap
}

// hosts approves the group's relays as hosts of the service and counts them.
func (l *look) hosts(ctx context.Context, t *v1alpha1.TailscaleTailnet, carrying int, exposed bool) error {
	if carrying == 0 {
		l.ready = verdict{reason: v1alpha1.ReasonNoReadyEndpoints, message: "no relay carries the service: none is ready, or the backend has no endpoint"}
	}
	st := l.object.Status.VIP
	if !exposed || st == nil || len(st.Addresses) == 0 || !l.programmed.ok {
		return nil
	}
	g, err := l.group(ctx)
	if err != nil {
		return err
	}
	devices := devicesOf(g)
	if len(devices) == 0 {
		st.Hosts = nil
		return nil
	}
	m := l.memory(t.Name, st.Name)
	if key := strings.Join(devices, " "); m.hosts != key || st.Hosts == nil {
		done, err := l.approve(ctx, t.Name, st, devices)
		if err != nil {
			reason, wait := trouble(err)
			l.again(l.Now().Add(wait))
			l.degraded = &verdict{true, reason, short(err.Error())}
			l.warn(reason, l.degraded.message)
		} else if done {
			m.hosts, m.await = key, ""
		} else {
			if await := fmt.Sprint(key, carrying); m.await != await {
				m.await, m.asked, m.ask = await, 0, time.Time{}
			}
			if now := l.Now(); !now.Before(m.ask) { // a reconcile for another reason must not increase the wait
				m.ask = now.Add(min(hostsNap<<min(m.asked, 8), refusedNap)) // an administrator may have to approve
				m.asked++
			}
			l.again(m.ask)
		}
	}
	if carrying > 0 && (st.Hosts == nil || st.Hosts.Approved == 0) {
		l.ready = verdict{reason: v1alpha1.ReasonAwaitingApproval, message: "the tailnet has approved no relay as a host of " + st.Name}
	}
	return nil
}

// devicesOf returns the stable IDs of a group's relays.
func devicesOf(g *v1alpha1.TailscaleProxyGroup) (ids []string) {
	if g == nil {
		return nil
	}
	for _, d := range g.Status.Devices {
		if d.NodeID != "" && d.Ordinal < replicas(g) {
			ids = append(ids, d.NodeID)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// approve approves the relays that need approval. done is true when all relays of the group are
// hosts.
func (l *look) approve(ctx context.Context, tailnet string, st *v1alpha1.VIPStatus, devices []string) (done bool, err error) {
	api, err := l.api(tailnet)
	if err != nil {
		return false, err
	}
	all, err := api.Hosts(ctx, st.Name)
	if err != nil {
		return false, err
	}
	auto := l.object.Spec.VIPService.AutoApprove
	count := v1alpha1.VIPHosts{}
	for _, h := range all {
		if !slices.Contains(devices, h.Device) {
			continue // belongs to another operator or is unknown
		}
		if !h.Approved && (auto == nil || *auto) {
			if err := api.ApproveHost(ctx, st.Name, h.Device); err != nil {
				return false, err
			}
			h.Approved = true
		}
		if h.Configured {
			count.Configured++
		}
		if h.Approved {
			count.Approved++
		}
	}
	st.Hosts = &count
	return int(count.Approved) == len(devices) && int(count.Configured) == len(devices), nil
}
