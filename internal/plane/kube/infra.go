package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/signin"
)

// objectKey returns the key of a namespaced object.
func objectKey(o client.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// orNil returns nil for the zero value, where zero means unknown.
func orNil[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// timeOrNil returns nil for an unknown time.
func timeOrNil(t *metav1.Time) *time.Time {
	if t == nil || t.IsZero() {
		return nil
	}
	return new(t.UTC())
}

// nonNil returns a list that is never nil, because null means unknown.
func nonNil[T any](all []T) []T { return append([]T{}, all...) }

func conditionsOf(all []metav1.Condition) []plane.Condition {
	out := []plane.Condition{}
	for _, c := range all {
		out = append(out, plane.Condition{Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message, Since: c.LastTransitionTime.UTC()})
	}
	return out
}

func signinOf(o *v1alpha1.TkaSignin, now time.Time) plane.Object {
	s := plane.Signin{ID: objectKey(o), Namespace: o.Namespace, Name: o.Name, Login: o.Spec.User.Login, Tailnet: o.Spec.Device.Tailnet, Device: o.Spec.Device.Name, Session: o.Spec.Session, Reason: o.Spec.Reason,
		Role: o.Status.Role, Namespaces: nonNil(o.Status.Namespaces), Created: o.CreationTimestamp.UTC(), ValidUntil: timeOrNil(o.Status.ValidUntil), Phase: string(o.Status.Phase),
		Conditions: conditionsOf(o.Status.Conditions), ObservedAt: now}
	if t := o.Spec.OIDC; t != nil {
		s.OIDC = &plane.SigninToken{Issuer: t.Issuer, Subject: t.Subject}
		for name, value := range t.Claims {
			if s.OIDC.Claims == nil {
				s.OIDC.Claims = map[string]string{}
			}
			s.OIDC.Claims[name] = string(value)
		}
	}
	for _, b := range o.Status.Bind {
		s.Bind = append(s.Bind, plane.Bind{Role: b.Role, Namespaces: b.Namespaces})
	}
	if s.Role == "" {
		s.Role, s.Namespaces = o.Spec.Role, nonNil(o.Spec.Namespaces)
		for _, b := range o.Spec.Bind {
			s.Bind = append(s.Bind, plane.Bind{Role: b.Role, Namespaces: b.Namespaces, Selector: b.NamespaceSelector})
		}
	}
	switch {
	case o.DeletionTimestamp != nil:
		s.Phase = string(signin.PhaseEnding)
	case s.Phase == "":
		s.Phase = string(signin.PhasePending)
	}
	return s
}

func tailnetOf(o *gatewayv1alpha1.TailscaleTailnet, now time.Time) plane.Object {
	t := plane.Tailnet{ID: o.Name, Name: o.Name, LastSync: timeOrNil(o.Status.LastSyncTime), Conditions: conditionsOf(o.Status.Conditions), ObservedAt: now}
	if info := o.Status.TailnetInfo; info != nil {
		t.Domain, t.Organisation = orNil(info.Name), orNil(info.Organization)
	}
	if t.LastSync != nil { // before the first sync, 0 means unknown
		t.Devices, t.Services = new(int(o.Status.DeviceCount)), new(int(o.Status.ServiceCount))
	}
	if c := meta.FindStatusCondition(o.Status.Conditions, gatewayv1alpha1.ConditionAuthenticated); c != nil {
		t.Credential.Reason = c.Reason
		if c.Status != metav1.ConditionUnknown {
			t.Credential.Valid = new(c.Status == metav1.ConditionTrue)
		}
	}
	if v := o.Status.Validation; v != nil {
		t.Credential.CheckedAt = timeOrNil(v.Time)
	}
	return t
}

// gatewayOf converts a TailscaleGateway, without the fields that come from its Gateway.
func gatewayOf(o *gatewayv1alpha1.TailscaleGateway, now time.Time) plane.Gateway {
	g := plane.Gateway{ID: objectKey(o), Namespace: o.Namespace, Name: o.Name, Target: o.Namespace + "/" + o.Spec.TargetRef.Name,
		Tailnets: []plane.GatewayTailnet{}, Services: []plane.GatewayService{}, Conditions: conditionsOf(o.Status.Conditions), ObservedAt: now}
	for _, t := range o.Status.Tailnets {
		g.Tailnets = append(g.Tailnets, plane.GatewayTailnet{Name: t.Name, Services: int(t.DiscoveredServices), LastSync: timeOrNil(t.LastSyncTime), Stale: t.Stale, Message: t.Message})
	}
	for _, s := range o.Status.Services {
		g.Services = append(g.Services, plane.GatewayService{Name: s.Name, Tailnet: s.Tailnet, Route: s.Route, Path: s.Path, Cluster: s.Cluster, State: s.State})
	}
	if r := o.Status.Revision; r != nil {
		g.Extension = plane.ExtensionRevision{Desired: orNil(r.Desired), Translated: orNil(r.Translated), At: timeOrNil(r.Time)}
		if r.Desired != "" && r.Translated != "" {
			g.Extension.Fresh = new(r.Desired == r.Translated)
		}
	}
	return g
}

func policyOf(o *gatewayv1alpha1.TailscaleRoutePolicy, now time.Time) plane.Object {
	r := plane.Route{ID: "TailscaleRoutePolicy/" + objectKey(o), Resource: "TailscaleRoutePolicy", Namespace: o.Namespace, Name: o.Name,
		Target: o.Spec.TargetRef.Kind + " " + o.Namespace + "/" + o.Spec.TargetRef.Name, Hostnames: []string{}, Rules: []plane.RouteRule{},
		Tailnet: tailnetName(o.Spec.TailnetRef), Refused: refusalsOf(o.Status.Conditions), Conditions: conditionsOf(o.Status.Conditions), ObservedAt: now}
	states := map[int]string{}
	for _, s := range o.Status.Rules {
		states[int(s.Index)] = string(s.State)
	}
	for i, rule := range o.Spec.RouteRules {
		r.Rules = append(r.Rules, plane.RouteRule{Path: rule.Match.Path, Backend: fmt.Sprintf("%s:%d", rule.Backend.ServiceName, rule.Backend.Port), State: states[i]})
	}
	return r
}

func serviceOf(o *gatewayv1alpha1.TailscaleService, now time.Time) plane.Object {
	r := plane.Route{ID: "TailscaleService/" + objectKey(o), Resource: "TailscaleService", Namespace: o.Namespace, Name: o.Name,
		Tailnet: tailnetName(o.Spec.TailnetRef), Hostnames: []string{}, Rules: []plane.RouteRule{},
		Refused: refusalsOf(o.Status.Conditions), Conditions: conditionsOf(o.Status.Conditions), ObservedAt: now}
	switch t, v := o.Spec.Target, o.Spec.VIPService; {
	case t != nil:
		r.Target = cmp.Or(t.ServiceName, t.FQDN, t.IP, strings.Join(t.Tags, ", "))
	case v != nil:
		r.Target = v.Name
	}
	if b := o.Spec.BackendRef; b != nil {
		for _, p := range o.Spec.Ports {
			r.Rules = append(r.Rules, plane.RouteRule{Path: fmt.Sprint(p.Port), Backend: cmp.Or(b.Namespace, o.Namespace) + "/" + b.Name})
		}
	}
	if e := o.Status.Egress; e != nil && e.ExternalName != "" {
		r.Hostnames = append(r.Hostnames, e.ExternalName)
	}
	if v := o.Status.VIP; v != nil && v.DNSName != "" {
		r.Hostnames = append(r.Hostnames, v.DNSName)
	}
	return r
}

// tailnetName returns the name of a tailnet, or nil if there is no reference.
func tailnetName(r *gatewayv1alpha1.TailnetReference) *string {
	if r == nil {
		return nil
	}
	return &r.Name
}

// refusalsOf returns the references that a controller reports as not resolved.
func refusalsOf(all []metav1.Condition) []plane.Refusal {
	out := []plane.Refusal{}
	if c := meta.FindStatusCondition(all, gatewayv1alpha1.ConditionResolvedRefs); c != nil && c.Status == metav1.ConditionFalse {
		out = append(out, plane.Refusal{Reason: c.Reason, Message: c.Message})
	}
	return out
}

// routesOf converts an HTTPRoute that refers to a tailnet service. It returns nil for other routes.
func routesOf(o *gatewayapi.HTTPRoute, now time.Time) ([]plane.Object, string) {
	r := plane.Route{ID: "HTTPRoute/" + objectKey(o), Resource: "HTTPRoute", Namespace: o.Namespace, Name: o.Name, Hostnames: []string{}, Rules: []plane.RouteRule{},
		Refused: []plane.Refusal{}, Conditions: []plane.Condition{}, ObservedAt: now}
	names, own := false, gatewayapi.Namespace(o.Namespace)
	for _, rule := range o.Spec.Rules {
		path := ""
		for _, m := range rule.Matches {
			if m.Path != nil && m.Path.Value != nil && path == "" {
				path = *m.Path.Value
			}
		}
		for _, b := range rule.BackendRefs {
			names = names || ptr.Deref(b.Group, "") == gatewayv1alpha1.Group
			backend := fmt.Sprintf("%s %s/%s", ptr.Deref(b.Kind, "Service"), ptr.Deref(b.Namespace, own), b.Name)
			if b.Port != nil {
				backend += fmt.Sprintf(":%d", *b.Port)
			}
			r.Rules = append(r.Rules, plane.RouteRule{Path: path, Backend: backend})
		}
	}
	if !names {
		return nil, ""
	}
	for _, h := range o.Spec.Hostnames {
		r.Hostnames = append(r.Hostnames, string(h))
	}
	var targets []string
	for _, p := range o.Spec.ParentRefs {
		targets = append(targets, fmt.Sprintf("Gateway %s/%s", ptr.Deref(p.Namespace, own), p.Name))
	}
	r.Target = strings.Join(targets, ", ")
	for _, p := range o.Status.Parents {
		r.Conditions = append(r.Conditions, conditionsOf(p.Conditions)...)
		r.Refused = append(r.Refused, refusalsOf(p.Conditions)...)
	}
	return []plane.Object{r}, ""
}

func proxyGroupOf(o *gatewayv1alpha1.TailscaleProxyGroup, now time.Time) plane.Object {
	g := plane.ProxyGroup{ID: objectKey(o), Namespace: o.Namespace, Name: o.Name, Type: string(o.Spec.Type), Wanted: int(ptr.Deref(o.Spec.Replicas, defaultReplicas)),
		Tailnet: tailnetName(o.Spec.TailnetRef), Devices: []plane.RelayDevice{}, Conditions: conditionsOf(o.Status.Conditions), ObservedAt: now}
	if o.Status.ObservedGeneration > 0 {
		g.Ready = new(int(o.Status.ReadyReplicas))
	}
	for _, d := range o.Status.Devices {
		g.Devices = append(g.Devices, plane.RelayDevice{Ordinal: int(d.Ordinal), Hostname: d.Hostname, FQDN: d.FQDN, Addresses: nonNil(d.IPs), Ready: d.Ready, Reason: d.Reason})
	}
	return g
}

// defaultReplicas is the default of a proxy group in the API server.
const defaultReplicas = 2

// adapterContainer is the container name that injection uses.
const adapterContainer = "mca"

func adapterOf(o *corev1.Pod, now time.Time) plane.Object {
	a := plane.Adapter{ID: objectKey(o), Namespace: o.Namespace, Pod: o.Name, Node: o.Spec.NodeName, ObservedAt: now}
	if version, _, ok := inject.Current(o.Annotations, inject.Options{}); ok {
		a.Version = &version
	} else {
		a.Message = "The pod requests the adapter but has none, because it was created while injection was off."
	}
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		if s.Name != adapterContainer {
			continue
		}
		a.Ready, a.Restarts = &s.Ready, new(int(s.RestartCount))
		switch w, t := s.State.Waiting, s.State.Terminated; {
		case w != nil:
			a.Message = strings.TrimSpace(w.Reason + " " + w.Message)
		case t != nil:
			a.Message = strings.TrimSpace(t.Reason + " " + t.Message)
		}
	}
	return a
}

// attachedResource is the resource of TailscaleGateways. attachedSource is the name of its source.
const (
	attachedResource = "tailscalegateways"
	attachedSource   = "kubernetes:" + attachedResource
)

// gatewayJoin joins TailscaleGateways with their Gateways. Each kind may be readable without the other.
type gatewayJoin struct {
	store *plane.Store

	mu    sync.Mutex // locked while either kind is written to the plane's store, to keep the order
	known map[string]gatewayFields
}

// gatewayFields holds the shown fields of a Gateway.
type gatewayFields struct {
	class     string
	listeners []plane.Listener
}

// convert converts a TailscaleGateway and adds its Gateway's fields. Callers must hold mu.
func (g *gatewayJoin) convert(o *gatewayv1alpha1.TailscaleGateway, now time.Time) plane.Object {
	return g.join(gatewayOf(o, now))
}

func (g *gatewayJoin) join(o plane.Gateway) plane.Gateway {
	o.Class, o.Listeners = nil, nil
	if is, ok := g.known[o.Target]; ok {
		o.Class, o.Listeners = &is.class, is.listeners
	}
	return o
}

// sink returns the sink of the feed of Gateways. Its feed calls it with mu held.
func (g *gatewayJoin) sink() objectSink {
	return kindSink[gatewayapi.Gateway, gatewayFields]{g.known, gatewayFieldsOf,
		func(key string) { g.update(func(target string) bool { return target == key }) }, func() { g.update(func(string) bool { return true }) }}
}

// update updates the TailscaleGateways whose target matches.
func (g *gatewayJoin) update(which func(target string) bool) {
	for _, o := range g.store.List(plane.KindGateway).Objects {
		if is, ok := o.(plane.Gateway); ok && which(is.Target) {
			g.store.Set(plane.KindGateway, attachedSource, g.join(is))
		}
	}
}

func gatewayFieldsOf(o *gatewayapi.Gateway) gatewayFields {
	is := gatewayFields{class: string(o.Spec.GatewayClassName), listeners: []plane.Listener{}}
	for _, l := range o.Spec.Listeners {
		is.listeners = append(is.listeners, plane.Listener{Name: string(l.Name), Protocol: string(l.Protocol), Port: int(l.Port),
			Hostname: string(ptr.Deref(l.Hostname, ""))})
	}
	return is
}
