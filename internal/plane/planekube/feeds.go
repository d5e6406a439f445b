package planekube

import (
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/gossip/gossipkube"
	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
)

// NewClient returns a client for the kinds that the plane shows. It does no API discovery; a request for a kind that is not installed
// fails.
func NewClient(config *rest.Config) (client.WithWatch, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, gatewayv1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme, gatewayapi.Install} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	routes := schema.GroupVersion{Group: gatewayapi.GroupVersion.Group, Version: gatewayapi.GroupVersion.Version}
	ours := gatewayv1alpha1.GroupVersion.WithKind
	return client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: kube.Mapper([]schema.GroupVersionKind{
		v1alpha1.GroupVersion.WithKind("TkaSignin"), arc.Kind(arc.RunnerKind), ours("TailscaleGateway"), ours("TailscaleRoutePolicy"), ours("TailscaleService"), ours("TailscaleProxyGroup"),
		routes.WithKind("HTTPRoute"), routes.WithKind("Gateway"), corev1.SchemeGroupVersion.WithKind("ConfigMap"), corev1.SchemeGroupVersion.WithKind("Pod"), corev1.SchemeGroupVersion.WithKind("Event"), coordinationv1.SchemeGroupVersion.WithKind("Lease"),
	}, []schema.GroupVersionKind{ours("TailscaleTailnet"), v1alpha1.GroupVersion.WithKind("RunnerEnrollment"), v1alpha1.GroupVersion.WithKind("RunnerPool"),
		v1alpha1.GroupVersion.WithKind("RunnerForge"), v1alpha1.GroupVersion.WithKind("RunnerHold")})})
}

// Trying returns c, or in a dry run a client whose writes change nothing.
func Trying(c client.Client, dryRun bool) client.Client {
	if dryRun {
		return client.NewDryRunClient(c)
	}
	return c
}

// feeds returns the feeds of all kinds that the plane reads.
func (w *Watch) feeds(c client.WithWatch) []*feed {
	const noGateway = "The cluster does not have this kind: Tailplane's gateway is not installed."
	const noRoutes = "The cluster does not have this kind: the Gateway API is not installed."
	const noFleet = "The cluster does not have this kind: Tailplane's fleet is not installed."
	gateways := newGateways(w.Board)
	runners := newRunners(w.Board, w.Now)
	w.runners = runners
	all := []*feed{
		{resource: "tkasignins", kind: plane.KindSignin, namespace: w.SigninNamespace, of: new(v1alpha1.TkaSignin), list: func() client.ObjectList { return new(v1alpha1.TkaSigninList) },
			absent: "The cluster does not have this kind: Tailplane's sign-in is not installed.", convert: one(signinOf)},
		{resource: "tailscaletailnets", kind: plane.KindTailnet, of: new(gatewayv1alpha1.TailscaleTailnet), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleTailnetList) },
			absent: noGateway, convert: one(tailnetOf)},
		{resource: attachedResource, kind: plane.KindGateway, of: new(gatewayv1alpha1.TailscaleGateway), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleGatewayList) },
			absent: noGateway, convert: one(gateways.attached), join: &gateways.mu},
		{resource: "gateways", kind: plane.KindGateway, of: new(gatewayapi.Gateway), list: func() client.ObjectList { return new(gatewayapi.GatewayList) },
			absent: noRoutes, join: &gateways.mu, beside: gateways},
		{resource: "tailscaleroutepolicies", kind: plane.KindRoute, of: new(gatewayv1alpha1.TailscaleRoutePolicy), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleRoutePolicyList) },
			absent: noGateway, convert: one(policyOf)},
		{resource: "tailscaleservices", kind: plane.KindRoute, of: new(gatewayv1alpha1.TailscaleService), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleServiceList) },
			absent: noGateway, convert: one(serviceOf)},
		{resource: "httproutes", kind: plane.KindRoute, of: new(gatewayapi.HTTPRoute), list: func() client.ObjectList { return new(gatewayapi.HTTPRouteList) },
			absent: noRoutes, convert: some(routesOf)},
		{resource: "tailscaleproxygroups", kind: plane.KindProxyGroup, of: new(gatewayv1alpha1.TailscaleProxyGroup), list: func() client.ObjectList { return new(gatewayv1alpha1.TailscaleProxyGroupList) },
			absent: noGateway, convert: one(proxyGroupOf)},
		{resource: "runnerenrollments", of: new(v1alpha1.RunnerEnrollment), list: func() client.ObjectList { return new(v1alpha1.RunnerEnrollmentList) },
			absent: "The cluster does not have this kind: nobody has a role as owner or member of an organisation.",
			kind:   plane.KindEnrollment, also: []plane.Kind{plane.KindPool, plane.KindDrift, plane.KindRunner}, join: &runners.mu, beside: both{&w.orgs, runners.enrollmentsKind()}},
		{resource: "runnerpools", kind: plane.KindPool, of: new(v1alpha1.RunnerPool), list: func() client.ObjectList { return new(v1alpha1.RunnerPoolList) },
			absent: noFleet, join: &runners.mu, beside: runners.poolsKind()},
		{resource: "runnerforges", kind: plane.KindForge, of: new(v1alpha1.RunnerForge), list: func() client.ObjectList { return new(v1alpha1.RunnerForgeList) },
			absent: noFleet, join: &runners.mu, beside: runners.forgesKind()},
		{resource: "runnerholds", kind: plane.KindHold, also: []plane.Kind{plane.KindPool}, of: new(v1alpha1.RunnerHold), list: func() client.ObjectList { return new(v1alpha1.RunnerHoldList) },
			absent: noFleet, join: &runners.mu, beside: runners.holdsKind()},
		{resource: "ephemeralrunners", kind: plane.KindRunner, of: unstructuredOf(arc.RunnerKind), list: unstructuredList(arc.RunnerKind),
			absent: "The cluster does not have this kind: GitHub's runner controller (ARC) is not installed.", join: &runners.mu, beside: runners.workers.runnersKind()},
		{resource: "runnerpods", kind: plane.KindRunner, labels: jobPods, of: new(corev1.Pod), list: func() client.ObjectList { return new(corev1.PodList) },
			join: &runners.mu, beside: runners.workers.podsKind()},
		{resource: "pods", kind: plane.KindAdapter, labels: inject.Label + "=true", of: new(corev1.Pod), list: func() client.ObjectList { return new(corev1.PodList) },
			convert: one(adapterOf)},
	}
	if w.Changes {
		all = append(all, &feed{resource: "changes", kind: plane.KindChange, namespace: w.SystemNamespace, labels: changeLabel + "=true", of: new(corev1.ConfigMap),
			list: func() client.ObjectList { return new(corev1.ConfigMapList) }, convert: some(changeOf)})
	}
	beat := &pulse{}
	all = append(all, &feed{resource: "fleet", also: []plane.Kind{plane.KindPool, plane.KindEnrollment, plane.KindHold, plane.KindForge, plane.KindDrift}, namespace: w.FleetNamespace, name: fleetLease, of: new(coordinationv1.Lease),
		list:   func() client.ObjectList { return new(coordinationv1.LeaseList) },
		absent: fmt.Sprintf("The Lease %s/%s is not there: Tailplane's fleet is not installed.", w.FleetNamespace, fleetLease), beside: beat, stale: beat.stale})
	all = append(all, &feed{resource: "ignoreddrift", kind: plane.KindDrift, namespace: w.SystemNamespace, name: IgnoredConfigMap, of: new(corev1.ConfigMap),
		// No ConfigMap means that nothing is ignored.
		list: func() client.ObjectList { return new(corev1.ConfigMapList) }, beside: w.Ignores, stale: w.Ignores.stale})
	published := &members{version: w.Version}
	all = append(all, &feed{resource: "members", kind: plane.KindCluster, namespace: w.SystemNamespace, name: gossipkube.MembersConfigMap, of: new(corev1.ConfigMap),
		list:    func() client.ObjectList { return new(corev1.ConfigMapList) },
		absent:  fmt.Sprintf("The ConfigMap %s/%s is not there: no access server with discovery runs here.", w.SystemNamespace, gossipkube.MembersConfigMap),
		convert: some(published.clusters), stale: published.stale})
	for _, f := range all {
		f.client, f.board, f.log, f.now, f.shown = c, w.Board, w.Log, w.Now, map[string][]string{}
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

// one returns the convert function of a kind whose objects each become one object in the plane's store.
func one[T any](convert func(o *T, now time.Time) plane.Object) func(any, time.Time) ([]plane.Object, string) {
	return some(func(o *T, now time.Time) ([]plane.Object, string) { return []plane.Object{convert(o, now)}, "" })
}

// some returns the convert function of a kind whose objects each become any number of objects.
func some[T any](convert func(o *T, now time.Time) ([]plane.Object, string)) func(any, time.Time) ([]plane.Object, string) {
	return func(o any, now time.Time) ([]plane.Object, string) {
		is, ok := o.(*T)
		if !ok {
			return nil, fmt.Sprintf("The API server has sent a %T.", o)
		}
		return convert(is, now.UTC())
	}
}
