package controller

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// listCached reads a kind from the cache. The caller must not modify the objects.
func listCached[L client.ObjectList](ctx context.Context, g *gatherer, l L, where ...client.ListOption) (L, error) {
	return l, g.cache.List(ctx, l, append(where, client.UnsafeDisableDeepCopy)...)
}

// gather reads all inputs of a decision. It returns when everything is known.
func (g *gatherer) gather(ctx context.Context) (gateway.Objects, error) {
	o := gateway.Objects{
		Namespace:       g.Namespace,
		ClusterDomain:   g.ClusterDomain,
		Controller:      g.Controller,
		ProxyNamespaces: g.ProxyNamespaces,
		Addresses:       g.Addresses,
		Namespaces:      map[string]map[string]string{},
		KubeServices:    map[gateway.Name]bool{},
	}
	always := map[string]client.Object{
		"TailscaleTailnet":     &v1alpha1.TailscaleTailnet{},
		"TailscaleProxyGroup":  &v1alpha1.TailscaleProxyGroup{},
		"TailscaleService":     &v1alpha1.TailscaleService{},
		"TailscaleGateway":     &v1alpha1.TailscaleGateway{},
		"TailscaleRoutePolicy": &v1alpha1.TailscaleRoutePolicy{},
		"Namespace":            partialMetadata("Namespace"),
		"Service":              partialMetadata("Service"),
	}
	if g.Addresses {
		always["EndpointSlice"] = &discoveryv1.EndpointSlice{}
	}
	for _, kind := range slices.Sorted(maps.Keys(always)) {
		if err := g.watchKind(ctx, kind, always[kind]); err != nil {
			return o, err
		}
	}
	if err := g.watchOptionalKinds(ctx); err != nil {
		return o, err
	}
	select {
	case <-g.changed: // the objects are read below
	default:
	}
	if err := errors.Join(g.gatherTailplane(ctx, &o), g.gatherGatewayAPI(ctx, &o), g.gatherCore(ctx, &o)); err != nil {
		return o, err
	}
	return o, g.gatherReferences(ctx, &o)
}

// gatherTailplane reads Tailplane's own kinds.
func (g *gatherer) gatherTailplane(ctx context.Context, o *gateway.Objects) error {
	tailnets, err := listCached(ctx, g, &v1alpha1.TailscaleTailnetList{})
	groups, err2 := listCached(ctx, g, &v1alpha1.TailscaleProxyGroupList{})
	services, err3 := listCached(ctx, g, &v1alpha1.TailscaleServiceList{})
	attachments, err4 := listCached(ctx, g, &v1alpha1.TailscaleGatewayList{})
	policies, err5 := listCached(ctx, g, &v1alpha1.TailscaleRoutePolicyList{})
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return err
	}
	o.Tailnets, o.Groups, o.Services = pointers(tailnets.Items), pointers(groups.Items), pointers(services.Items)
	o.Attachments, o.Policies = pointers(attachments.Items), pointers(policies.Items)
	o.Ports = make(map[gateway.Name]gateway.PortTable, len(o.Groups))
	for _, group := range o.Groups {
		o.Ports[objectName(group)] = portTable(group.Status.Ports)
	}
	return nil
}

// portTable converts the port table in a group's status.
func portTable(ports []v1alpha1.MappedPort) (t gateway.PortTable) {
	for _, p := range ports {
		t.Ports = append(
			t.Ports,
			gateway.TablePort{
				PortKey:   gateway.PortKey{Service: p.Service, Protocol: string(p.Protocol), TargetPort: uint16(p.TargetPort)},
				MatchPort: uint16(p.MatchPort),
			},
		)
	}
	return t
}

// gatherCore reads Kubernetes' built-in kinds.
func (g *gatherer) gatherCore(ctx context.Context, o *gateway.Objects) error {
	namespaces, err := listCached(ctx, g, partialList("NamespaceList"))
	services, err2 := listCached(ctx, g, partialList("ServiceList"))
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	for _, n := range pointers(namespaces.Items) {
		o.Namespaces[n.Name] = n.Labels
	}
	for _, s := range pointers(services.Items) {
		o.KubeServices[objectName(s)] = true
	}
	o.Unreadable = map[string]bool{}
	for _, namespace := range g.unreadableNamespaces() {
		o.Unreadable[namespace] = true
	}
	if !g.Addresses {
		return nil
	}
	slicesOf, err := listCached(
		ctx,
		g,
		&discoveryv1.EndpointSliceList{},
		client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.EndpointsManager},
	)
	if err != nil {
		return err
	}
	behind := map[string][]netip.Addr{} // by name of the Service in front of the relays, which contains a hash of namespace and name
	for _, s := range pointers(slicesOf.Items) {
		for _, e := range s.Endpoints {
			if !isReadyEndpoint(e) {
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
		name := objectName(s)
		if all := behind[gateway.GroupServiceName(name)]; len(all) > 0 {
			slices.SortFunc(all, netip.Addr.Compare)
			o.Relays[name] = slices.Compact(all)
		}
	}
	return nil
}

// An optionalKind is a kind that a cluster may lack or get later. For example, a cluster that only
// publishes Services may have no Gateway API.
type optionalKind struct {
	kind   string
	object client.Object
	list   client.ObjectList
}

func optionalKinds() []optionalKind {
	return []optionalKind{
		{"GatewayClass", &gatewayapi.GatewayClass{}, &gatewayapi.GatewayClassList{}},
		{"Gateway", &gatewayapi.Gateway{}, &gatewayapi.GatewayList{}},
		{"HTTPRoute", &gatewayapi.HTTPRoute{}, &gatewayapi.HTTPRouteList{}},
		{"GRPCRoute", &gatewayapi.GRPCRoute{}, &gatewayapi.GRPCRouteList{}},
		{"ReferenceGrant", &gatewayapi.ReferenceGrant{}, &gatewayapi.ReferenceGrantList{}},
	}
}

// watchOptionalKinds watches the kinds that the API server serves by now.
func (g *gatherer) watchOptionalKinds(ctx context.Context) error {
	missing := false
	check := time.Since(g.optionalKindsChecked) >= optionalKindsInterval
	for _, k := range optionalKinds() {
		if g.follows[k.kind] {
			continue
		}
		missing = true
		if !check {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, referenceTimeout)
		err := g.direct.List(limited, k.list, client.Limit(1))
		cancel()
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find the kind %s of the Gateway API: %w", k.kind, err)
		}
		if err := g.watchKind(ctx, k.kind, k.object); err != nil {
			return err
		}
	}
	if check {
		g.optionalKindsChecked = time.Now()
	}
	if missing {
		g.requeueAfter(optionalKindsInterval)
	}
	return nil
}

// requeueAfter sets the maximum time until the next reconcile.
func (g *gatherer) requeueAfter(d time.Duration) {
	if g.wake == 0 || d < g.wake {
		g.wake = d
	}
}

// listOptional is like listCached. The list is empty while the API server does not serve the kind.
func listOptional[L client.ObjectList](ctx context.Context, g *gatherer, kind string, l L) (L, error) {
	if !g.follows[kind] {
		return l, nil
	}
	return listCached(ctx, g, l)
}

// gatherGatewayAPI reads Gateways, routes and ReferenceGrants.
func (g *gatherer) gatherGatewayAPI(ctx context.Context, o *gateway.Objects) error {
	classes, err := listOptional(ctx, g, "GatewayClass", &gatewayapi.GatewayClassList{})
	all, err2 := listOptional(ctx, g, "Gateway", &gatewayapi.GatewayList{})
	httpRoutes, err3 := listOptional(ctx, g, "HTTPRoute", &gatewayapi.HTTPRouteList{})
	grpcRoutes, err4 := listOptional(ctx, g, "GRPCRoute", &gatewayapi.GRPCRouteList{})
	grants, err5 := listOptional(ctx, g, "ReferenceGrant", &gatewayapi.ReferenceGrantList{})
	if err := errors.Join(err, err2, err3, err4, err5); err != nil {
		return err
	}
	controllers, gateways := map[string]string{}, map[gateway.Name]*gatewayapi.Gateway{}
	for _, c := range pointers(classes.Items) {
		controllers[c.Name] = string(c.Spec.ControllerName)
	}
	for _, one := range pointers(all.Items) {
		gateways[objectName(one)] = one
		o.Gateways = append(o.Gateways, gatewayObject(one, controllers))
	}
	for _, r := range pointers(httpRoutes.Items) {
		o.Routes = append(o.Routes, httpRouteObject(r, acceptedParents(r.Namespace, g.Controller, r.Status.Parents, gateways)))
	}
	for _, r := range pointers(grpcRoutes.Items) {
		o.Routes = append(o.Routes, grpcRouteObject(r, acceptedParents(r.Namespace, g.Controller, r.Status.Parents, gateways)))
	}
	for _, r := range pointers(grants.Items) {
		o.Grants = append(o.Grants, grantObject(r))
	}
	return nil
}

// gatherReferences reads the objects that are not watched, as far as other objects refer to them.
func (g *gatherer) gatherReferences(ctx context.Context, o *gateway.Objects) error {
	if slices.ContainsFunc(o.Policies, func(p *v1alpha1.TailscaleRoutePolicy) bool {
		return p.Spec.Access != nil && p.Spec.Access.From == v1alpha1.AccessTailnet
	}) {
		if err := g.gatherPrivate(ctx, o); err != nil {
			return err
		}
	}
	o.Roots = map[gateway.Name]string{}
	for _, s := range o.Services {
		tls := s.Spec.UpstreamTLS
		if tls == nil || tls.CABundleRef == nil {
			continue
		}
		g.requeueAfter(referencesInterval)
		name := gateway.Name{Namespace: cmp.Or(tls.CABundleRef.Namespace, s.Namespace), Name: tls.CABundleRef.Name}
		if _, read := o.Roots[name]; read {
			continue
		}
		text, err := g.rootCertificates(ctx, name)
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

// rootCertificates reads the certificates of a ConfigMap; it returns "" if there are none. If the read fails,
// the last known certificates stay.
func (g *gatherer) rootCertificates(ctx context.Context, name gateway.Name) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, referenceTimeout)
	defer cancel()
	var c corev1.ConfigMap
	err := g.direct.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, &c)
	switch last := g.roots[name]; {
	case err == nil:
		return c.Data["ca.crt"], nil
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return "", nil // a ConfigMap that the operator may not read counts as missing
	case last != "":
		return last, nil
	}
	return "", fmt.Errorf("read the certificates in the ConfigMap %s: %w", name, err)
}

// gatherPrivate determines which Gateways only relays can reach. A Gateway counts as reachable by others
// unless the opposite is proven.
func (g *gatherer) gatherPrivate(ctx context.Context, o *gateway.Objects) error {
	if err := g.watchKind(ctx, "NetworkPolicy", &networkingv1.NetworkPolicy{}); err != nil {
		return err
	}
	policies, err := listCached(ctx, g, &networkingv1.NetworkPolicyList{}, client.InNamespace(g.EnvoyNamespace))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, referenceTimeout)
	defer cancel()
	var services corev1.ServiceList // the watch shows new Services immediately; a change of their type is found within a minute
	if err := g.direct.List(ctx, &services, client.InNamespace(g.EnvoyNamespace), client.HasLabels{owningName, owningNamespace}); err != nil {
		return fmt.Errorf("list Envoy's Services in %s: %w", g.EnvoyNamespace, err)
	}
	g.requeueAfter(referencesInterval)
	relays := append([]string{g.Namespace}, g.ProxyNamespaces...)
	for i := range o.Gateways {
		o.Gateways[i].Private = isPrivate(o.Gateways[i].Name, services.Items, policies.Items, relays)
	}
	return nil
}

// gatewayObject converts the relevant part of a Gateway. controllers maps class names to
// controllerNames.
func gatewayObject(g *gatewayapi.Gateway, controllers map[string]string) gateway.GatewayObject {
	o := gateway.GatewayObject{Name: objectName(g), Controller: controllers[string(g.Spec.GatewayClassName)]}
	for _, l := range g.Spec.Listeners {
		terminates := l.TLS == nil || ptr.Deref(l.TLS.Mode, gatewayapi.TLSModeTerminate) == gatewayapi.TLSModeTerminate
		o.Listeners = append(o.Listeners, gateway.ListenerObject{
			Name: string(l.Name), Hostname: string(ptr.Deref(l.Hostname, "")),
			HTTP: l.Protocol == gatewayapi.HTTPProtocolType || l.Protocol == gatewayapi.HTTPSProtocolType && terminates,
		})
	}
	return o
}

// acceptedParents returns the Gateways that accepted a route according to the given controller.
func acceptedParents(
	namespace, controller string,
	parents []gatewayapi.RouteParentStatus,
	gateways map[gateway.Name]*gatewayapi.Gateway,
) (out []gateway.ParentObject) {
	for _, p := range parents {
		ref := p.ParentRef
		if string(p.ControllerName) != controller || !meta.IsStatusConditionTrue(p.Conditions, string(gatewayapi.RouteConditionAccepted)) ||
			ptr.Deref(ref.Group, gatewayapi.GroupName) != gatewayapi.GroupName || ptr.Deref(ref.Kind, "Gateway") != "Gateway" {
			continue
		}
		name := gateway.Name{Namespace: string(ptr.Deref(ref.Namespace, gatewayapi.Namespace(namespace))), Name: string(ref.Name)}
		if ref.Port == nil || ref.SectionName != nil {
			out = append(out, gateway.ParentObject{Gateway: name, Section: string(ptr.Deref(ref.SectionName, ""))})
			continue
		}
		if g := gateways[name]; g != nil { // the listeners with this port, each by name
			for _, l := range g.Spec.Listeners {
				if l.Port == *ref.Port {
					out = append(out, gateway.ParentObject{Gateway: name, Section: string(l.Name)})
				}
			}
		}
	}
	return out
}

func httpRouteObject(r *gatewayapi.HTTPRoute, parents []gateway.ParentObject) gateway.RouteObject {
	o := gateway.RouteObject{Kind: "HTTPRoute", Name: objectName(r), Parents: parents, Hostnames: hostnames(r.Spec.Hostnames)}
	for _, rule := range r.Spec.Rules {
		one := gateway.RuleObject{Name: string(ptr.Deref(rule.Name, ""))}
		one.Answered = slices.ContainsFunc(rule.Filters, func(f gatewayapi.HTTPRouteFilter) bool {
			return f.Type == gatewayapi.HTTPRouteFilterRequestRedirect
		})
		for _, m := range rule.Matches {
			path := ptr.Deref(m.Path, gatewayapi.HTTPPathMatch{})
			one.Paths = append(one.Paths, gateway.RoutePath(string(ptr.Deref(path.Type, "")), ptr.Deref(path.Value, "/")))
		}
		for _, b := range rule.BackendRefs {
			one.Backends = append(one.Backends, backendObject(r.Namespace, b.BackendRef))
		}
		o.Rules = append(o.Rules, one)
	}
	return o
}

func grpcRouteObject(r *gatewayapi.GRPCRoute, parents []gateway.ParentObject) gateway.RouteObject {
	o := gateway.RouteObject{Kind: "GRPCRoute", Name: objectName(r), Parents: parents, Hostnames: hostnames(r.Spec.Hostnames)}
	for _, rule := range r.Spec.Rules {
		one := gateway.RuleObject{Name: string(ptr.Deref(rule.Name, ""))}
		for _, m := range rule.Matches {
			one.Paths = append(one.Paths, methodPath(m.Method))
		}
		for _, b := range rule.BackendRefs {
			one.Backends = append(one.Backends, backendObject(r.Namespace, b.BackendRef))
		}
		o.Rules = append(o.Rules, one)
	}
	return o
}

// methodPath returns the path that Envoy Gateway matches for a method. For a method without a
// service, Envoy Gateway matches a header and any path.
func methodPath(m *gatewayapi.GRPCMethodMatch) gateway.Path {
	switch {
	case m == nil || m.Service == nil && m.Method == nil:
		return gateway.RoutePath("PathPrefix", "/")
	case ptr.Deref(m.Type, gatewayapi.GRPCMethodMatchExact) != gatewayapi.GRPCMethodMatchExact:
		return gateway.RoutePath("RegularExpression", "")
	case m.Service == nil:
		return gateway.RoutePath("PathPrefix", "/")
	case m.Method == nil:
		return gateway.RoutePath("PathPrefix", "/"+*m.Service)
	}
	return gateway.RoutePath("Exact", "/"+*m.Service+"/"+*m.Method)
}

func hostnames(list []gatewayapi.Hostname) (out []string) {
	for _, h := range list {
		out = append(out, string(h))
	}
	return out
}

func backendObject(namespace string, b gatewayapi.BackendRef) gateway.BackendObject {
	return gateway.BackendObject{
		Group: string(ptr.Deref(b.Group, "")), Kind: string(ptr.Deref(b.Kind, "Service")),
		Name: gateway.Name{Namespace: string(ptr.Deref(b.Namespace, gatewayapi.Namespace(namespace))), Name: string(b.Name)},
		Port: uint16(ptr.Deref(b.Port, 0)), Weight: uint32(max(ptr.Deref(b.Weight, 1), 0)),
	}
}

func grantObject(g *gatewayapi.ReferenceGrant) gateway.GrantObject {
	o := gateway.GrantObject{Namespace: g.Namespace}
	for _, f := range g.Spec.From {
		o.From = append(o.From, gateway.GrantFrom{Group: string(f.Group), Kind: string(f.Kind), Namespace: string(f.Namespace)})
	}
	for _, t := range g.Spec.To {
		o.To = append(o.To, gateway.GrantTo{Group: string(t.Group), Kind: string(t.Kind), Name: string(ptr.Deref(t.Name, ""))})
	}
	return o
}
