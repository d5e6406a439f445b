package gather

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/portmap"
)

// AddToScheme registers the kinds that are gathered.
func AddToScheme(s *runtime.Scheme) error {
	return errors.Join(v1alpha1.AddToScheme(s), gatewayapi.Install(s), corev1.AddToScheme(s), discoveryv1.AddToScheme(s), networkingv1.AddToScheme(s), metav1.AddMetaToScheme(s))
}

// Kinds are the kinds that are gathered, for kube.Mapper.
func Kinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	for _, k := range []string{"TailscaleProxyGroup", "TailscaleService", "TailscaleGateway", "TailscaleRoutePolicy"} {
		namespaced = append(namespaced, v1alpha1.GroupVersion.WithKind(k))
	}
	for _, k := range []string{"Gateway", "HTTPRoute", "GRPCRoute", "ReferenceGrant"} {
		namespaced = append(namespaced, gatewayapi.SchemeGroupVersion.WithKind(k))
	}
	namespaced = append(namespaced, corev1.SchemeGroupVersion.WithKind("Service"), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"))
	clusterWide = []schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("TailscaleTailnet"), gatewayapi.SchemeGroupVersion.WithKind("GatewayClass"),
		corev1.SchemeGroupVersion.WithKind("Namespace")}
	return namespaced, clusterWide
}

// CacheOptions say in which namespaces kinds are cached that the operator may not
// read everywhere. groups are the namespaces of groups.
func CacheOptions(groups []string, envoy string) map[client.Object]cache.ByObject {
	in := func(namespaces ...string) cache.ByObject {
		o := cache.ByObject{Namespaces: map[string]cache.Config{}}
		for _, ns := range namespaces {
			o.Namespaces[ns] = cache.Config{}
		}
		return o
	}
	return map[client.Object]cache.ByObject{
		&networkingv1.NetworkPolicy{}: in(append(slices.Clone(groups), envoy)...),
		&discoveryv1.EndpointSlice{}:  in(groups...),
	}
}

func metadata(kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
}

// list reads a kind from its cache. What comes back is the cache's own: nobody changes it.
func list[L client.ObjectList](ctx context.Context, g *Gatherer, l L, where ...client.ListOption) (L, error) {
	return l, g.cache.List(ctx, l, append(where, client.UnsafeDisableDeepCopy)...)
}

// pointers are those to the members of a list.
func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// gather reads everything that the decision needs. It returns when all of it is known.
func (g *Gatherer) gather(ctx context.Context) (gateway.Objects, error) {
	o := gateway.Objects{Namespace: g.Namespace, ClusterDomain: g.ClusterDomain, Controller: g.Controller, ProxyNamespaces: g.ProxyNamespaces,
		AllowContainerboot: g.AllowContainerboot, Addresses: g.Addresses, Namespaces: map[string]map[string]string{}, KubeServices: map[gateway.Name]bool{}}
	always := map[string]client.Object{"TailscaleTailnet": &v1alpha1.TailscaleTailnet{}, "TailscaleProxyGroup": &v1alpha1.TailscaleProxyGroup{},
		"TailscaleService": &v1alpha1.TailscaleService{}, "TailscaleGateway": &v1alpha1.TailscaleGateway{}, "TailscaleRoutePolicy": &v1alpha1.TailscaleRoutePolicy{},
		"Namespace": metadata("Namespace"), "Service": metadata("Service")}
	if g.Addresses {
		always["EndpointSlice"] = &discoveryv1.EndpointSlice{}
	}
	for _, kind := range slices.Sorted(maps.Keys(always)) {
		if err := g.follow(ctx, kind, always[kind]); err != nil {
			return o, err
		}
	}
	if err := g.followServed(ctx); err != nil {
		return o, err
	}
	select {
	case <-g.changed: // is read below
	default:
	}
	if err := errors.Join(g.ours(ctx, &o), g.gatewayAPI(ctx, &o), g.core(ctx, &o)); err != nil {
		return o, err
	}
	return o, g.unwatched(ctx, &o)
}

// ours reads the operator's own kinds.
func (g *Gatherer) ours(ctx context.Context, o *gateway.Objects) error {
	tailnets, err := list(ctx, g, &v1alpha1.TailscaleTailnetList{})
	groups, err2 := list(ctx, g, &v1alpha1.TailscaleProxyGroupList{})
	services, err3 := list(ctx, g, &v1alpha1.TailscaleServiceList{})
	attachments, err4 := list(ctx, g, &v1alpha1.TailscaleGatewayList{})
	policies, err5 := list(ctx, g, &v1alpha1.TailscaleRoutePolicyList{})
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return err
	}
	o.Tailnets, o.Groups, o.Services = pointers(tailnets.Items), pointers(groups.Items), pointers(services.Items)
	o.Attachments, o.Policies = pointers(attachments.Items), pointers(policies.Items)
	o.Ports = make(map[gateway.Name]portmap.Table, len(o.Groups))
	for _, group := range o.Groups {
		o.Ports[gateway.Name{Namespace: group.Namespace, Name: group.Name}] = table(group.Status.Ports)
	}
	return nil
}

// table is the table of ports that a group's status holds.
func table(ports []v1alpha1.MappedPort) (t portmap.Table) {
	for _, p := range ports {
		t.Ports = append(t.Ports, portmap.Port{Key: portmap.Key{Service: p.Service, Protocol: string(p.Protocol), TargetPort: uint16(p.TargetPort)}, MatchPort: uint16(p.MatchPort)})
	}
	return t
}

// served are kinds that a cluster may be without, or get later: a team that only
// publishes Services has no Gateway API.
func served() []struct {
	kind   string
	object client.Object
	list   client.ObjectList
} {
	return []struct {
		kind   string
		object client.Object
		list   client.ObjectList
	}{
		{"GatewayClass", &gatewayapi.GatewayClass{}, &gatewayapi.GatewayClassList{}},
		{"Gateway", &gatewayapi.Gateway{}, &gatewayapi.GatewayList{}},
		{"HTTPRoute", &gatewayapi.HTTPRoute{}, &gatewayapi.HTTPRouteList{}},
		{"GRPCRoute", &gatewayapi.GRPCRoute{}, &gatewayapi.GRPCRouteList{}},
		{"ReferenceGrant", &gatewayapi.ReferenceGrant{}, &gatewayapi.ReferenceGrantList{}},
	}
}

// followServed follows those of the kinds that the API server has by now.
func (g *Gatherer) followServed(ctx context.Context) error {
	missing := false
	ask := time.Since(g.looked) >= look
	for _, k := range served() {
		if g.follows[k.kind] {
			continue
		}
		missing = true
		if !ask {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, readTime)
		err := g.direct.List(limited, k.list, client.Limit(1))
		cancel()
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("is there the kind %s of the Gateway API? %w", k.kind, err)
		}
		if err := g.follow(ctx, k.kind, k.object); err != nil {
			return err
		}
	}
	if ask {
		g.looked = time.Now()
	}
	if missing {
		g.again(look)
	}
	return nil
}

// again makes the next look come no later than after d.
func (g *Gatherer) again(d time.Duration) {
	if g.wake == 0 || d < g.wake {
		g.wake = d
	}
}

// gatewayAPI reads Gateways, routes and grants.
func (g *Gatherer) gatewayAPI(ctx context.Context, o *gateway.Objects) error {
	controllers, gateways := map[string]string{}, map[gateway.Name]*gatewayapi.Gateway{}
	if g.follows["GatewayClass"] {
		l, err := list(ctx, g, &gatewayapi.GatewayClassList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			controllers[l.Items[i].Name] = string(l.Items[i].Spec.ControllerName)
		}
	}
	if g.follows["Gateway"] {
		l, err := list(ctx, g, &gatewayapi.GatewayList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			one := &l.Items[i]
			gateways[gateway.Name{Namespace: one.Namespace, Name: one.Name}] = one
			o.Gateways = append(o.Gateways, gatewayObject(one, controllers))
		}
	}
	if g.follows["HTTPRoute"] {
		l, err := list(ctx, g, &gatewayapi.HTTPRouteList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			r := &l.Items[i]
			o.Routes = append(o.Routes, httpRoute(r, accepted(r.Namespace, g.Controller, r.Status.Parents, gateways)))
		}
	}
	if g.follows["GRPCRoute"] {
		l, err := list(ctx, g, &gatewayapi.GRPCRouteList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			r := &l.Items[i]
			o.Routes = append(o.Routes, grpcRoute(r, accepted(r.Namespace, g.Controller, r.Status.Parents, gateways)))
		}
	}
	if g.follows["ReferenceGrant"] {
		l, err := list(ctx, g, &gatewayapi.ReferenceGrantList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			o.Grants = append(o.Grants, grant(&l.Items[i]))
		}
	}
	return nil
}

// core reads Kubernetes' own kinds.
func (g *Gatherer) core(ctx context.Context, o *gateway.Objects) error {
	namespaces, services := &metav1.PartialObjectMetadataList{}, &metav1.PartialObjectMetadataList{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	services.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceList"))
	_, err := list(ctx, g, namespaces)
	_, err2 := list(ctx, g, services)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	for i := range namespaces.Items {
		o.Namespaces[namespaces.Items[i].Name] = namespaces.Items[i].Labels
	}
	for i := range services.Items {
		o.KubeServices[gateway.Name{Namespace: services.Items[i].Namespace, Name: services.Items[i].Name}] = true
	}
	if !g.Addresses {
		return nil
	}
	slicesOf, err := list(ctx, g, &discoveryv1.EndpointSliceList{}, client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.EndpointsManager})
	if err != nil {
		return err
	}
	behind := map[string][]netip.Addr{} // Services in front of relays, by name, which has a hash of all
	for i := range slicesOf.Items {
		s := &slicesOf.Items[i]
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					behind[s.Labels[discoveryv1.LabelServiceName]] = append(behind[s.Labels[discoveryv1.LabelServiceName]], a)
				}
			}
		}
	}
	o.Relays = map[gateway.Name][]netip.Addr{}
	for _, s := range o.Services {
		name := gateway.Name{Namespace: s.Namespace, Name: s.Name}
		if all := behind[gateway.GroupServiceName(name)]; len(all) > 0 {
			slices.SortFunc(all, netip.Addr.Compare)
			o.Relays[name] = slices.Compact(all)
		}
	}
	return nil
}

// unwatched reads what is read only where somebody asks for it.
func (g *Gatherer) unwatched(ctx context.Context, o *gateway.Objects) error {
	if slices.ContainsFunc(o.Policies, func(p *v1alpha1.TailscaleRoutePolicy) bool {
		return p.Spec.Access != nil && p.Spec.Access.From == v1alpha1.AccessTailnet
	}) {
		if err := g.guards(ctx, o); err != nil {
			return err
		}
	}
	o.Roots = map[gateway.Name]string{}
	for _, s := range o.Services {
		tls := s.Spec.UpstreamTLS
		if tls == nil || tls.CABundleRef == nil {
			continue
		}
		g.again(refresh)
		name := gateway.Name{Namespace: cmp.Or(tls.CABundleRef.Namespace, s.Namespace), Name: tls.CABundleRef.Name}
		if _, read := o.Roots[name]; read {
			continue
		}
		text, err := g.root(ctx, name)
		if err != nil {
			return err
		}
		if text != "" {
			o.Roots[name] = text
		}
	}
	g.roots = o.Roots
	return nil
}

// root reads the certificates of a ConfigMap; "" if there are none. While they
// cannot be read, those that were read last stay.
func (g *Gatherer) root(ctx context.Context, name gateway.Name) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var c corev1.ConfigMap
	err := g.direct.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, &c)
	switch last := g.roots[name]; {
	case err == nil:
		return c.Data["ca.crt"], nil
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "", nil // what the operator may not read is not there, for anybody
	case last != "":
		return last, nil
	}
	return "", fmt.Errorf("read the certificates in the ConfigMap %s: %w", name, err)
}

// guards finds out which Gateways nobody but relays can reach. Where that cannot be
// known, others can.
func (g *Gatherer) guards(ctx context.Context, o *gateway.Objects) error {
	if err := g.follow(ctx, "NetworkPolicy", &networkingv1.NetworkPolicy{}); err != nil {
		return err
	}
	policies, err := list(ctx, g, &networkingv1.NetworkPolicyList{}, client.InNamespace(g.EnvoyNamespace))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	var services corev1.ServiceList // that there is another one, the cache of names tells; their types, a minute later
	if err := g.direct.List(ctx, &services, client.InNamespace(g.EnvoyNamespace), client.HasLabels{owningName, owningNamespace}); err != nil {
		return fmt.Errorf("read Envoy's Services in %s: %w", g.EnvoyNamespace, err)
	}
	g.again(refresh)
	relays := append([]string{g.Namespace}, g.ProxyNamespaces...)
	for i := range o.Gateways {
		o.Gateways[i].Private = private(o.Gateways[i].Name, services.Items, policies.Items, relays)
	}
	return nil
}

// matters says whether a change of an object can change a decision.
func matters(was, is any) bool {
	a, ok := was.(client.Object)
	b, ok2 := is.(client.Object)
	if !ok || !ok2 {
		return true
	}
	if a.GetUID() != b.GetUID() || a.GetGeneration() != b.GetGeneration() || (a.GetDeletionTimestamp() == nil) != (b.GetDeletionTimestamp() == nil) ||
		!maps.Equal(a.GetLabels(), b.GetLabels()) || !maps.Equal(a.GetAnnotations(), b.GetAnnotations()) && !onlyTranslated(a, b) {
		return true
	}
	switch a := a.(type) {
	case *v1alpha1.TailscaleTailnet:
		b := b.(*v1alpha1.TailscaleTailnet)
		return !apiequality.Semantic.DeepEqual(a.Status.TailnetInfo, b.Status.TailnetInfo) ||
			meta.IsStatusConditionTrue(a.Status.Conditions, v1alpha1.ConditionReady) != meta.IsStatusConditionTrue(b.Status.Conditions, v1alpha1.ConditionReady)
	case *v1alpha1.TailscaleProxyGroup:
		return !slices.Equal(a.Status.Ports, b.(*v1alpha1.TailscaleProxyGroup).Status.Ports)
	case *v1alpha1.TailscaleService:
		return groupOf(a) != groupOf(b.(*v1alpha1.TailscaleService)) || !apiequality.Semantic.DeepEqual(a.OwnerReferences, b.GetOwnerReferences())
	case *gatewayapi.HTTPRoute:
		return !apiequality.Semantic.DeepEqual(a.Status.Parents, b.(*gatewayapi.HTTPRoute).Status.Parents)
	case *gatewayapi.GRPCRoute:
		return !apiequality.Semantic.DeepEqual(a.Status.Parents, b.(*gatewayapi.GRPCRoute).Status.Parents)
	case *v1alpha1.TailscaleGateway, *v1alpha1.TailscaleRoutePolicy, *gatewayapi.Gateway, *gatewayapi.GatewayClass, *networkingv1.NetworkPolicy:
		return false // the rest is status
	case *metav1.PartialObjectMetadata:
		return a.Kind == "Service" && a.Labels[owningName] != "" // whose type is not to be seen
	}
	return true
}

// onlyTranslated says whether nothing but our own note differs.
func onlyTranslated(a, b client.Object) bool {
	x, y := maps.Clone(a.GetAnnotations()), maps.Clone(b.GetAnnotations())
	delete(x, v1alpha1.TranslatedAnnotation)
	delete(y, v1alpha1.TranslatedAnnotation)
	return maps.Equal(x, y)
}

func groupOf(s *v1alpha1.TailscaleService) string {
	if s.Status.Egress == nil {
		return ""
	}
	return s.Status.Egress.Group
}
