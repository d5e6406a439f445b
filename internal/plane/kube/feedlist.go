package kube

import (
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/gossip/controller"
	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
)

// newClient returns a client for the kinds that the plane shows. It does no API discovery; a request for a kind that is not installed
// fails.
func newClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, gatewayv1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, gatewayapi.Install} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	routes := schema.GroupVersion{Group: gatewayapi.GroupVersion.Group, Version: gatewayapi.GroupVersion.Version}
	own := gatewayv1alpha1.GroupVersion.WithKind
	return client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: kube.Mapper([]schema.GroupVersionKind{
		v1alpha1.GroupVersion.WithKind("TkaSignin"), arc.Kind(arc.RunnerKind), own("TailscaleGateway"), own("TailscaleRoutePolicy"), own("TailscaleService"), own("TailscaleProxyGroup"),
		routes.WithKind("HTTPRoute"), routes.WithKind("Gateway"), corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Event"), coordinationv1.SchemeGroupVersion.WithKind("Lease"),
	}, []schema.GroupVersionKind{own("TailscaleTailnet"), v1alpha1.GroupVersion.WithKind("RunnerEnrollment"), v1alpha1.GroupVersion.WithKind("RunnerPool"),
		v1alpha1.GroupVersion.WithKind("RunnerForge"), v1alpha1.GroupVersion.WithKind("RunnerHold")})})
}

// Connection is the plane's access to the API server. Its methods return the readers and writers of the plane's services.
type Connection struct {
	client client.WithWatch
	pods   corev1client.PodsGetter
	now    func() time.Time
}

// Connect returns a connection without client-side limits. It sends no request yet.
func Connect(config *rest.Config, now func() time.Time) (*Connection, error) {
	if config == nil || now == nil {
		return nil, errors.New("the plane's connection needs a client configuration and a clock")
	}
	config = kube.Unthrottled(config)
	c, err := newClient(config)
	if err != nil {
		return nil, err
	}
	pods, err := corev1client.NewForConfig(config)
	return &Connection{c, pods, now}, err
}

// dryRunClient returns c, or in a dry run a client whose writes change nothing.
func dryRunClient(c client.Client, dryRun bool) client.Client {
	if dryRun {
		return client.NewDryRunClient(c)
	}
	return c
}

// feeds returns the feeds of all kinds that the plane reads.
func (w *Watcher) feeds(c client.WithWatch) []*feed {
	const noGateway = "The cluster does not have this kind: Tailplane's gateway is not installed."
	const noRoutes = "The cluster does not have this kind: the Gateway API is not installed."
	const noFleet = "The cluster does not have this kind: Tailplane's fleet is not installed."
	gateways := &gatewayJoin{store: w.Store, known: map[string]gatewayFields{}}
	runners := newFleetJoin(w.Store, w.Now, &w.orgs)
	w.fleet = runners
	all := []*feed{
		{resource: "tkasignins", kind: plane.KindSignin, namespace: w.SigninNamespace, object: new(v1alpha1.TkaSignin), list: func() client.ObjectList { return new(v1alpha1.TkaSigninList) },
			absent: "The cluster does not have this kind: Tailplane's sign-in is not installed.", convert: convertOne(signinOf)},
		{resource: "tailscaletailnets", kind: plane.KindTailnet, object: new(gatewayv1alpha1.TailscaleTailnet), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleTailnetList) },
			absent: noGateway, convert: convertOne(tailnetOf)},
		{resource: attachedResource, kind: plane.KindGateway, object: new(gatewayv1alpha1.TailscaleGateway), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleGatewayList) },
			absent: noGateway, convert: convertOne(gateways.convert), lock: &gateways.mu},
		{resource: "gateways", kind: plane.KindGateway, object: new(gatewayapi.Gateway), list: func() client.ObjectList { return new(gatewayapi.GatewayList) },
			absent: noRoutes, lock: &gateways.mu, sink: gateways.sink()},
		{resource: "tailscaleroutepolicies", kind: plane.KindRoute, object: new(gatewayv1alpha1.TailscaleRoutePolicy), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleRoutePolicyList) },
			absent: noGateway, convert: convertOne(policyOf)},
		{resource: "tailscaleservices", kind: plane.KindRoute, object: new(gatewayv1alpha1.TailscaleService), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleServiceList) },
			absent: noGateway, convert: convertOne(serviceOf)},
		{resource: "httproutes", kind: plane.KindRoute, object: new(gatewayapi.HTTPRoute), list: func() client.ObjectList { return new(gatewayapi.HTTPRouteList) },
			absent: noRoutes, convert: convertMany(routesOf)},
		{resource: "tailscaleproxygroups", kind: plane.KindProxyGroup, object: new(gatewayv1alpha1.TailscaleProxyGroup), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleProxyGroupList) },
			absent: noGateway, convert: convertOne(proxyGroupOf)},
		{resource: "runnerenrollments", object: new(v1alpha1.RunnerEnrollment), list: func() client.ObjectList { return new(v1alpha1.RunnerEnrollmentList) },
			absent: "The cluster does not have this kind, so no person has a role as owner or member of an organisation.",
			kind:   plane.KindEnrollment, dependent: []plane.Kind{plane.KindPool, plane.KindDrift, plane.KindRunner}, lock: &runners.mu, sink: runners.enrollmentSink()},
		{resource: "runnerpools", kind: plane.KindPool, object: new(v1alpha1.RunnerPool), list: func() client.ObjectList { return new(v1alpha1.RunnerPoolList) },
			absent: noFleet, lock: &runners.mu, sink: runners.poolSink()},
		{resource: "runnerforges", kind: plane.KindForge, object: new(v1alpha1.RunnerForge), list: func() client.ObjectList { return new(v1alpha1.RunnerForgeList) },
			absent: noFleet, lock: &runners.mu, sink: runners.forgeSink()},
		{resource: "runnerholds", kind: plane.KindHold, dependent: []plane.Kind{plane.KindPool}, object: new(v1alpha1.RunnerHold), list: func() client.ObjectList { return new(v1alpha1.RunnerHoldList) },
			absent: noFleet, lock: &runners.mu, sink: runners.holdSink()},
		{resource: "ephemeralrunners", kind: plane.KindRunner, object: unstructuredOf(arc.RunnerKind), list: unstructuredList(arc.RunnerKind),
			absent: "The cluster does not have this kind: GitHub's runner controller (ARC) is not installed.", lock: &runners.mu, sink: runners.runners.runnerSink()},
		{resource: "runnerpods", kind: plane.KindRunner, labels: jobPodSelector, object: new(corev1.Pod), list: func() client.ObjectList { return new(corev1.PodList) },
			lock: &runners.mu, sink: runners.runners.podSink()},
		{resource: "pods", kind: plane.KindAdapter, labels: inject.Label + "=true", object: new(corev1.Pod), list: func() client.ObjectList { return new(corev1.PodList) },
			convert: convertOne(adapterOf)},
	}
	if w.Changes {
		all = append(all, &feed{resource: "changes", kind: plane.KindChange, namespace: w.SystemNamespace, labels: changeLabel + "=true", object: new(corev1.ConfigMap),
			list: func() client.ObjectList { return new(corev1.ConfigMapList) }, convert: convertMany(changeOf)})
	}
	beat := &fleetActivity{}
	all = append(all, &feed{resource: "fleet", dependent: []plane.Kind{plane.KindPool, plane.KindEnrollment, plane.KindHold, plane.KindForge, plane.KindDrift}, namespace: w.FleetNamespace, name: fleetLease, object: new(coordinationv1.Lease),
		list:   func() client.ObjectList { return new(coordinationv1.LeaseList) },
		absent: fmt.Sprintf("The Lease %s/%s does not exist: Tailplane's fleet is not installed.", w.FleetNamespace, fleetLease), sink: beat, stale: beat.stale})
	all = append(all, &feed{resource: "ignoreddrift", kind: plane.KindDrift, namespace: w.SystemNamespace, name: ignoresConfigMap, object: new(corev1.ConfigMap),
		// No ConfigMap means that nothing is ignored.
		list: func() client.ObjectList { return new(corev1.ConfigMapList) }, sink: w.DriftIgnores, stale: w.DriftIgnores.stale})
	published := &clusterList{version: w.Version, proxies: w.Proxies}
	all = append(all, &feed{resource: "members", kind: plane.KindCluster, namespace: w.SystemNamespace, name: controller.MembersConfigMap, object: new(corev1.ConfigMap),
		list:    func() client.ObjectList { return new(corev1.ConfigMapList) },
		absent:  fmt.Sprintf("The ConfigMap %s/%s does not exist: no access server with discovery runs here.", w.SystemNamespace, controller.MembersConfigMap),
		convert: convertMany(published.clusters), stale: published.stale})
	for _, f := range all {
		f.client, f.store, f.log, f.now, f.shown = c, w.Store, w.Log, w.Now, map[string][]string{}
	}
	return all
}

// unstructuredOf returns an empty object of an ARC kind. ARC's Go types cannot be imported.
func unstructuredOf(kind string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(arc.Kind(kind))
	return u
}

func unstructuredList(kind string) func() client.ObjectList {
	return func() client.ObjectList {
		u := &unstructured.UnstructuredList{}
		u.SetGroupVersionKind(arc.Kind(kind + "List"))
		return u
	}
}

// convertOne returns the convert function of a kind whose objects each become one object in the plane's store.
func convertOne[T any](convert func(o *T, now time.Time) plane.Object) func(any, time.Time) ([]plane.Object, string) {
	return convertMany(func(o *T, now time.Time) ([]plane.Object, string) { return []plane.Object{convert(o, now)}, "" })
}

// convertMany returns the convert function of a kind whose objects each become any number of objects.
func convertMany[T any](convert func(o *T, now time.Time) ([]plane.Object, string)) func(any, time.Time) ([]plane.Object, string) {
	return func(o any, now time.Time) ([]plane.Object, string) {
		is, ok := o.(*T)
		if !ok {
			return nil, fmt.Sprintf("The API server returned an unexpected %T.", o)
		}
		return convert(is, now.UTC())
	}
}
