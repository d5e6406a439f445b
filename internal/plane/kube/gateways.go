package kube

import (
	"sync"
	"time"

	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/plane"
)

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

func newGatewayJoin(b *plane.Store) *gatewayJoin {
	return &gatewayJoin{store: b, known: map[string]gatewayFields{}}
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

// sink keeps what Gateways say of the joined objects.
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
		x := plane.Listener{Name: string(l.Name), Protocol: string(l.Protocol), Port: int(l.Port)}
		if l.Hostname != nil {
			x.Hostname = string(*l.Hostname)
		}
		is.listeners = append(is.listeners, x)
	}
	return is
}
