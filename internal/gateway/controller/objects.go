package controller

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// addGatheredTypes registers the gathered kinds.
func addGatheredTypes(s *runtime.Scheme) error {
	return errors.Join(v1alpha1.AddToScheme(s), gatewayapi.Install(s), corev1.AddToScheme(s), discoveryv1.AddToScheme(s), networkingv1.AddToScheme(s), metav1.AddMetaToScheme(s))
}

// gatewayAPIVersion returns the group and version of the Gateway API that is used.
func gatewayAPIVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: gatewayapi.GroupVersion.Group, Version: gatewayapi.GroupVersion.Version}
}

// gatheredKinds returns the gathered kinds for kube.Mapper.
func gatheredKinds() (namespaced, clusterWide []schema.GroupVersionKind) {
	for _, k := range []string{"TailscaleProxyGroup", "TailscaleService", "TailscaleGateway", "TailscaleRoutePolicy"} {
		namespaced = append(namespaced, v1alpha1.GroupVersion.WithKind(k))
	}
	for _, k := range []string{"Gateway", "HTTPRoute", "GRPCRoute", "ReferenceGrant"} {
		namespaced = append(namespaced, gatewayAPIVersion().WithKind(k))
	}
	namespaced = append(namespaced, corev1.SchemeGroupVersion.WithKind("Service"), corev1.SchemeGroupVersion.WithKind("ConfigMap"),
		discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), networkingv1.SchemeGroupVersion.WithKind("NetworkPolicy"))
	clusterWide = []schema.GroupVersionKind{v1alpha1.GroupVersion.WithKind("TailscaleTailnet"), gatewayAPIVersion().WithKind("GatewayClass"),
		corev1.SchemeGroupVersion.WithKind("Namespace")}
	return namespaced, clusterWide
}

// gatheredCacheOptions limits the caches of kinds that the operator may not read in all namespaces. groups
// are the namespaces of groups.
func gatheredCacheOptions(groups []string, envoy string) map[client.Object]cache.ByObject {
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

func partialMetadata(kind string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind}}
}

// listCached reads a kind from the cache. The caller must not modify the objects.
func listCached[L client.ObjectList](ctx context.Context, g *gatherer, l L, where ...client.ListOption) (L, error) {
	return l, g.cache.List(ctx, l, append(where, client.UnsafeDisableDeepCopy)...)
}

// pointers returns pointers to the elements of a list.
func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}
	return out
}

// gather reads all inputs of a decision. It returns when everything is known.
func (g *gatherer) gather(ctx context.Context) (gateway.Objects, error) {
	o := gateway.Objects{Namespace: g.Namespace, ClusterDomain: g.ClusterDomain, Controller: g.Controller, ProxyNamespaces: g.ProxyNamespaces,
		Addresses: g.Addresses, Namespaces: map[string]map[string]string{}, KubeServices: map[gateway.Name]bool{}}
	always := map[string]client.Object{"TailscaleTailnet": &v1alpha1.TailscaleTailnet{}, "TailscaleProxyGroup": &v1alpha1.TailscaleProxyGroup{},
		"TailscaleService": &v1alpha1.TailscaleService{}, "TailscaleGateway": &v1alpha1.TailscaleGateway{}, "TailscaleRoutePolicy": &v1alpha1.TailscaleRoutePolicy{},
		"Namespace": partialMetadata("Namespace"), "Service": partialMetadata("Service")}
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
		o.Ports[gateway.Name{Namespace: group.Namespace, Name: group.Name}] = portTable(group.Status.Ports)
	}
	return nil
}

// portTable converts the port table in a group's status.
func portTable(ports []v1alpha1.MappedPort) (t gateway.PortTable) {
	for _, p := range ports {
		t.Ports = append(t.Ports, gateway.TablePort{PortKey: gateway.PortKey{Service: p.Service, Protocol: string(p.Protocol), TargetPort: uint16(p.TargetPort)}, MatchPort: uint16(p.MatchPort)})
	}
	return t
}

// gatherCore reads Kubernetes' built-in kinds.
func (g *gatherer) gatherCore(ctx context.Context, o *gateway.Objects) error {
	namespaces, services := &metav1.PartialObjectMetadataList{}, &metav1.PartialObjectMetadataList{}
	namespaces.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	services.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ServiceList"))
	_, err := listCached(ctx, g, namespaces)
	_, err2 := listCached(ctx, g, services)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	for i := range namespaces.Items {
		o.Namespaces[namespaces.Items[i].Name] = namespaces.Items[i].Labels
	}
	for i := range services.Items {
		o.KubeServices[gateway.Name{Namespace: services.Items[i].Namespace, Name: services.Items[i].Name}] = true
	}
	if g.UnreadableNamespaces != nil {
		o.Unreadable = map[string]bool{}
		for _, namespace := range g.UnreadableNamespaces() {
			o.Unreadable[namespace] = true
		}
	}
	if !g.Addresses {
		return nil
	}
	slicesOf, err := listCached(ctx, g, &discoveryv1.EndpointSliceList{}, client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.EndpointsManager})
	if err != nil {
		return err
	}
	behind := map[string][]netip.Addr{} // by name of the Service in front of the relays, which contains a hash of namespace and name
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
