package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	// discoveryManager is the field manager for the discovery results in the status of a
	// TailscaleGateway. Another controller owns the other fields.
	discoveryManager = v1alpha1.FieldManager + "-discovery"

	discoveryInterval  = time.Minute // for a TailscaleGateway without an interval
	maxDiscoveredPorts = 32          // maximum in a TailscaleService
)

// A discoveryReconciler maintains one TailscaleService for each service in the tailnets of a
// TailscaleGateway. After a restart, these objects are the known services.
type discoveryReconciler struct {
	*Runner
	client.Client

	mu    sync.Mutex
	known map[discoveryKey]discoveryState
}

type discoveryKey struct {
	gateway types.NamespacedName
	uid     types.UID
	tailnet string
}

// discoveryState is the state of one tailnet for one TailscaleGateway.
type discoveryState struct {
	known      gateway.KnownServices
	counted    time.Time // time of the last read that was counted
	generation int64     // generation of the TailscaleGateway at that time
	omitted    []string  // messages about services that were left out
}

// Add registers the controller with the manager's leader.
func (d *discoveryReconciler) Add(mgr manager.Manager) error {
	specChanged := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return builder.ControllerManagedBy(mgr).
		Named("discovery").
		For(&v1alpha1.TailscaleGateway{}, specChanged).
		Watches(&v1alpha1.TailscaleService{}, handler.EnqueueRequestsFromMapFunc(d.gatewaysInNamespace), specChanged).
		Watches(&v1alpha1.TailscaleTailnet{}, handler.EnqueueRequestsFromMapFunc(d.attachedTo), changed(func(was, is *v1alpha1.TailscaleTailnet) bool {
			return was.Generation != is.Generation || isReady(was) != isReady(is)
		})).
		WithOptions(reconcileOptions(tailnetWorkers)).
		Complete(d)
}

// attachedTo returns the TailscaleGateways that a tailnet is attached to.
func (d *discoveryReconciler) attachedTo(ctx context.Context, o client.Object) []reconcile.Request {
	return d.listGateways(ctx, client.MatchingFields{byTailnet: o.GetName()})
}

// gatewaysInNamespace returns the TailscaleGateways in the namespace of an object.
func (d *discoveryReconciler) gatewaysInNamespace(ctx context.Context, o client.Object) []reconcile.Request {
	return d.listGateways(ctx, client.InNamespace(o.GetNamespace()))
}

func (d *discoveryReconciler) listGateways(ctx context.Context, where client.ListOption) (out []reconcile.Request) {
	var list v1alpha1.TailscaleGatewayList
	if err := d.List(ctx, &list, where, client.UnsafeDisableDeepCopy); err != nil {
		d.Log.Error("list gateways in the cache", "err", err)
	}
	for _, g := range pointers(list.Items) {
		out = append(out, requests(objectName(g))...)
	}
	return out
}

// Reconcile reconciles the discovered services of one TailscaleGateway.
func (d *discoveryReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	g := &v1alpha1.TailscaleGateway{}
	err := d.Get(ctx, req.NamespacedName, g)
	if apierrors.IsNotFound(err) || err == nil && g.DeletionTimestamp != nil {
		d.forget(req.NamespacedName, "", nil) // garbage collection deletes its services
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("get the gateway %s: %w", req, err)
	}
	wake, err := d.reconcileGateway(ctx, g)
	return d.reconciled("discovery for "+req.String(), wake, err)
}

// forget removes the state of a TailscaleGateway. If uid is set, it keeps the state of the object
// with this uid for the tailnets in keep.
func (d *discoveryReconciler) forget(gateway types.NamespacedName, uid types.UID, keep []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.known, func(k discoveryKey, _ discoveryState) bool {
		return k.gateway == gateway && (k.uid != uid || !slices.Contains(keep, k.tailnet))
	})
}

func (d *discoveryReconciler) reconcileGateway(ctx context.Context, g *v1alpha1.TailscaleGateway) (time.Time, error) {
	var beside v1alpha1.TailscaleServiceList
	if err := d.List(ctx, &beside, client.InNamespace(g.Namespace)); err != nil {
		return time.Time{}, fmt.Errorf("list services: %w", err)
	}
	found := &discoveryReconciliation{discoveryReconciler: d, gateway: g, services: beside.Items}
	enabled := slices.DeleteFunc(slices.Clone(g.Spec.Tailnets), func(t v1alpha1.AttachedTailnet) bool {
		return !ptr.Deref(t.ServiceDiscovery.Enabled, true)
	})
	var on []string
	for _, spec := range enabled {
		on = append(on, spec.TailnetRef.Name)
	}
	d.forget(client.ObjectKeyFromObject(g), g.UID, on)
	errs := []error{found.deleteDetached(ctx, on)}
	var statuses []v1alpha1.AttachedTailnetStatus
	var first nextTime
	for _, spec := range enabled {
		status, next, err := found.reconcileTailnet(ctx, spec)
		errs, statuses = append(errs, err), append(statuses, status)
		first.requeueAt(next)
	}
	errs = append(errs, d.report(ctx, g, statuses))
	return first.wake, errors.Join(errs...)
}

// A discoveryReconciliation is the working data for one TailscaleGateway and the services in its namespace.
type discoveryReconciliation struct {
	*discoveryReconciler
	gateway  *v1alpha1.TailscaleGateway
	services []v1alpha1.TailscaleService
}

// own returns the services that discovery created for this TailscaleGateway.
func (f *discoveryReconciliation) own() iter.Seq[*v1alpha1.TailscaleService] {
	return func(yield func(*v1alpha1.TailscaleService) bool) {
		for i := range f.services {
			if s := &f.services[i]; s.Labels[v1alpha1.DiscoveredLabel] == "true" && metav1.IsControlledBy(s, f.gateway) && !yield(s) {
				return
			}
		}
	}
}

// deleteDetached deletes the services of tailnets that are no longer in the spec. The user requested this,
// so it applies immediately.
func (f *discoveryReconciliation) deleteDetached(ctx context.Context, keep []string) error {
	var errs []error
	for s := range f.own() {
		if !slices.Contains(keep, s.Labels[v1alpha1.TailnetLabel]) {
			errs = append(errs, kube.Delete(ctx, f, s))
		}
	}
	return errors.Join(errs...)
}

// reconcileTailnet reads one tailnet if the interval is over, and updates its known services.
func (f *discoveryReconciliation) reconcileTailnet(
	ctx context.Context,
	spec v1alpha1.AttachedTailnet,
) (v1alpha1.AttachedTailnetStatus, time.Time, error) {
	name := spec.TailnetRef.Name
	key := discoveryKey{client.ObjectKeyFromObject(f.gateway), f.gateway.UID, name}
	f.mu.Lock()
	r, ok := f.known[key]
	f.mu.Unlock()
	if !ok {
		r.known = gateway.NewKnownServices(f.storedServices(name))
	}
	interval := cmp.Or(spec.ServiceDiscovery.SyncInterval.Duration, discoveryInterval)
	maxAge := interval - time.Second // slightly less than the interval, because the next reconcile uses another clock
	if ok && r.generation != f.gateway.Generation {
		maxAge = 0 // the spec changed: read again, so that no read counts twice
	}
	list, omitted, at, failed := f.readServices(ctx, spec, r.known, maxAge)
	now := f.Now()
	next := nextTime{now.Add(interval)}
	if failed != nil {
		r.known = r.known.Update(nil, true, now)
		switch e, _ := errors.AsType[*tsapi.Error](failed); {
		case e == nil:
		case e.Class == tsapi.Dropped:
			next.wake = now.Add(time.Second) // another client already exists
		case e.RetryAfter > 0:
			next.requeueAt(now.Add(e.RetryAfter))
		}
	} else if at.After(r.counted) {
		r.known = r.known.Update(list, false, now)
		r.counted, r.generation, r.omitted = now, f.gateway.Generation, omitted
	} else {
		next.requeueAt(at.Add(interval))
	}
	f.mu.Lock()
	f.known[key] = r
	f.mu.Unlock()
	messages, err := f.apply(ctx, spec, r.known)
	messages = append(messages, r.omitted...)
	if failed != nil {
		messages = append([]string{failed.Error()}, messages...)
	}
	status := v1alpha1.AttachedTailnetStatus{Name: name, DiscoveredServices: int32(len(r.known.Services())), Stale: r.known.Stale,
		LastSyncTime: statusTime(r.known.Synced), Message: conditions.Truncate(strings.Join(messages, "; "), maxMessage)}
	return status, next.wake, err
}

var errNotPermitted = errors.New("there is no such tailnet for this namespace")

// readServices reads the current services of a tailnet. at is the time of the older of the two requests.
func (f *discoveryReconciliation) readServices(
	ctx context.Context,
	spec v1alpha1.AttachedTailnet,
	known gateway.KnownServices,
	maxAge time.Duration,
) (list []gateway.DiscoveredService, omitted []string, at time.Time, err error) {
	name := spec.TailnetRef.Name
	t, err := find[v1alpha1.TailscaleTailnet](ctx, f, client.ObjectKey{Name: name})
	permitted := false
	if t != nil {
		permitted, err = f.permitted(ctx, t, f.gateway.Namespace)
	}
	api, version, ok := f.Clients.Get(name)
	switch {
	case err != nil:
		return nil, nil, at, err
	case !permitted || t.DeletionTimestamp != nil:
		return nil, nil, at, errNotPermitted
	case !isReady(t):
		return nil, nil, at, errors.New("the tailnet is not ready") // the watch triggers a reconcile when it becomes ready
	case !ok || version.UID != string(t.UID):
		return nil, nil, at, &tsapi.Error{Op: tsapi.ListDevices, Class: tsapi.Dropped} // the client is being created after a restart
	}
	var services tsapi.Services
	var devices []tsapi.Device
	if exactTags(spec.ServiceDiscovery.Tags) {
		if devices, at, err = api.Tagged(ctx, maxAge, spec.ServiceDiscovery.Tags...); err == nil {
			services, err = api.Services(ctx, maxAge)
		}
		if services.At.Before(at) {
			at = services.At
		}
	} else {
		var both *tsapi.Lists
		if both, err = api.Lists(ctx, maxAge); err == nil {
			devices, at = both.Devices, both.At
			services = tsapi.Services{Services: both.Services, Refused: both.ServicesRefused}
		}
	}
	if err != nil {
		return nil, nil, at, err
	}
	list, omitted = gateway.SelectServices(spec.ServiceDiscovery, services.Services, devices)
	if services.Refused != nil {
		omitted = append(omitted, "services of the tailnet cannot be listed: "+services.Refused.Error())
		for _, was := range known.Services() { // services that cannot be listed count as present
			if was.VIP && !slices.ContainsFunc(list, func(f gateway.DiscoveredService) bool { return f.Service == was.Service }) {
				list = append(list, was)
			}
		}
	}
	return list, omitted, at, nil
}

// exactTags reports whether the API can filter devices by these tags. It supports exact tags but no
// patterns.
func exactTags(tags []string) bool {
	return len(tags) > 0 && !slices.ContainsFunc(tags, func(tag string) bool { return strings.Contains(tag, "*") })
}

// permitted reports whether a namespace may use a tailnet.
func (d *discoveryReconciler) permitted(ctx context.Context, t *v1alpha1.TailscaleTailnet, namespace string) (bool, error) {
	var ns corev1.Namespace
	if t.Spec.AllowedNamespaces.From == v1alpha1.NamespacesSelector {
		if err := d.Get(ctx, client.ObjectKey{Name: namespace}, &ns); client.IgnoreNotFound(err) != nil {
			return false, err
		}
	}
	return gateway.Selects(t.Spec.AllowedNamespaces, d.Namespace, namespace, ns.Labels, ns.Name != ""), nil
}

// storedServices returns the services of a tailnet that exist as objects.
func (f *discoveryReconciliation) storedServices(tailnet string) (list []gateway.DiscoveredService) {
	for s := range f.own() {
		if s.Labels[v1alpha1.TailnetLabel] != tailnet || s.DeletionTimestamp != nil || s.Spec.Target == nil {
			continue
		}
		one := gateway.DiscoveredService{Service: s.Labels[v1alpha1.ServiceLabel], VIP: s.Spec.Target.ServiceName != ""}
		if text := s.Annotations[v1alpha1.ServiceTagsAnnotation]; text != "" {
			one.Tags = strings.Split(text, ",")
		}
		for _, p := range s.Spec.Ports {
			one.Ports = append(one.Ports, uint16(p.Port))
		}
		list = append(list, one)
	}
	return list
}

// apply creates, updates and deletes the objects of a tailnet according to its known services.
func (f *discoveryReconciliation) apply(
	ctx context.Context,
	spec v1alpha1.AttachedTailnet,
	known gateway.KnownServices,
) (messages []string, err error) {
	tailnet := spec.TailnetRef.Name
	var errs []error
	desired := map[string]bool{}
	for _, one := range known.Services() {
		if f.hasUserObject(tailnet, one.Service) {
			continue // an object that a user created for the same target has priority
		}
		desired[one.Service] = true
		if message, err := f.ensureService(ctx, spec, one); err != nil {
			errs = append(errs, err)
		} else if message != "" {
			messages = append(messages, message)
		}
	}
	for s := range f.own() {
		if s.Labels[v1alpha1.TailnetLabel] == tailnet && !desired[s.Labels[v1alpha1.ServiceLabel]] && s.DeletionTimestamp == nil {
			errs = append(errs, kube.Delete(ctx, f, s))
			f.Log.Info("discovered service deleted", "tailnet", tailnet, "service", s.Labels[v1alpha1.ServiceLabel])
		}
	}
	return messages, errors.Join(errs...)
}

// hasUserObject reports whether a user created an object for this service of the tailnet.
func (f *discoveryReconciliation) hasUserObject(tailnet, service string) bool {
	return slices.ContainsFunc(f.services, func(s v1alpha1.TailscaleService) bool {
		t := s.Spec.Target
		return s.Labels[v1alpha1.DiscoveredLabel] != "true" && t != nil && s.Spec.TailnetRef != nil && s.Spec.TailnetRef.Name == tailnet &&
			s.DeletionTimestamp == nil &&
			(strings.TrimPrefix(t.ServiceName, "svc:") == service || slices.Equal(t.Tags, []string{"tag:svc-" + service}))
	})
}

// ensureService creates or updates the object of one service. message is the reason if this is not possible.
func (f *discoveryReconciliation) ensureService(
	ctx context.Context,
	spec v1alpha1.AttachedTailnet,
	one gateway.DiscoveredService,
) (message string, err error) {
	tailnet := spec.TailnetRef.Name
	var have *v1alpha1.TailscaleService
	for s := range f.own() {
		if s.Labels[v1alpha1.TailnetLabel] == tailnet && s.Labels[v1alpha1.ServiceLabel] == one.Service {
			have = s // keep its name
		}
	}
	if have != nil {
		want := have.DeepCopy()
		f.setDiscovered(want, spec, one)
		if have.DeletionTimestamp != nil || deepEqual(have, want) {
			return "", nil
		}
		return "", wrapError(f.Update(ctx, want), "update the service %s", want.Name)
	}
	for _, other := range []bool{false, true} {
		name := gateway.DiscoveredName(f.gateway.Name, one.Service, tailnet, other)
		if slices.ContainsFunc(f.services, func(s v1alpha1.TailscaleService) bool { return s.Name == name }) {
			continue
		}
		s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: f.gateway.Namespace, Name: name}}
		f.setDiscovered(s, spec, one)
		if err := f.Create(ctx, s); err != nil {
			return "", fmt.Errorf("create the service %s: %w", name, err)
		}
		f.services = append(f.services, *s)
		f.Log.Info("discovered service created", "tailnet", tailnet, "service", one.Service)
		return "", nil
	}
	return fmt.Sprintf("svc:%s is skipped: other owners already have TailscaleServices with the names that it would get", one.Service), nil
}

// setDiscovered sets the discovered data in the object. It also sets the API server's default values, so
// that the comparison with the stored object works.
func (f *discoveryReconciliation) setDiscovered(
	s *v1alpha1.TailscaleService,
	spec v1alpha1.AttachedTailnet,
	one gateway.DiscoveredService,
) {
	metav1.SetMetaDataLabel(&s.ObjectMeta, v1alpha1.ManagedLabel, "true")
	metav1.SetMetaDataLabel(&s.ObjectMeta, v1alpha1.DiscoveredLabel, "true")
	metav1.SetMetaDataLabel(&s.ObjectMeta, v1alpha1.TailnetLabel, spec.TailnetRef.Name)
	metav1.SetMetaDataLabel(&s.ObjectMeta, v1alpha1.ServiceLabel, one.Service)
	if len(one.Tags) > 0 || s.Annotations[v1alpha1.ServiceTagsAnnotation] != "" {
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, v1alpha1.ServiceTagsAnnotation, strings.Join(one.Tags, ","))
	}
	s.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(f.gateway, v1alpha1.GroupVersion.WithKind("TailscaleGateway"))}
	s.Spec.Type = v1alpha1.Egress
	s.Spec.TailnetRef = &v1alpha1.TailnetReference{Name: spec.TailnetRef.Name}
	s.Spec.Target = &v1alpha1.ServiceTarget{Tags: []string{"tag:svc-" + one.Service}}
	if one.VIP {
		s.Spec.Target = &v1alpha1.ServiceTarget{ServiceName: "svc:" + one.Service}
	}
	s.Spec.ClusterService = &v1alpha1.ClusterService{Create: new(false)}
	s.Spec.ProxyProtocol = v1alpha1.ProxyProtocolNone
	preferred := uint16(cmp.Or(ptr.Deref(spec.RouteGeneration.Egress, v1alpha1.EgressRoutes{}).Port, 80))
	ports := slices.Clone(one.Ports[:min(len(one.Ports), maxDiscoveredPorts)])
	if port := one.DefaultPort(preferred); !slices.Contains(ports, port) {
		ports = append(ports[:min(len(ports), maxDiscoveredPorts-1)], port)
	}
	s.Spec.Ports = nil
	for _, p := range ports {
		s.Spec.Ports = append(s.Spec.Ports, v1alpha1.ServicePort{Port: int32(p), Protocol: v1alpha1.TCP})
	}
}

// report writes only the discovery results of each tailnet to the status.
func (d *discoveryReconciler) report(ctx context.Context, g *v1alpha1.TailscaleGateway, statuses []v1alpha1.AttachedTailnetStatus) error {
	byName := func(a, b v1alpha1.AttachedTailnetStatus) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(statuses, byName)
	was := slices.SortedFunc(slices.Values(g.Status.Tailnets), byName)
	if deepEqual(was, statuses) || len(was)+len(statuses) == 0 {
		return nil
	}
	part := struct {
		Tailnets []v1alpha1.AttachedTailnetStatus `json:"tailnets"`
	}{append([]v1alpha1.AttachedTailnetStatus{}, statuses...)} // an empty list, not null, if there are none
	err := applyStatus(ctx, d, discoveryManager, "TailscaleGateway", g, &part, client.DisableReadYourWritesConsistency)
	return wrapError(err, "write the discovery status")
}
