package planekube

import (
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/plane"
)

// attachedResource is the resource of TailscaleGateways. attachedSource is the name of its source.
const (
	attachedResource = "tailscalegateways"
	attachedSource   = "kubernetes:" + attachedResource
)

// gateways joins TailscaleGateways with their Gateways. Each kind may be readable without the other.
type gateways struct {
	board *plane.Board

	mu    sync.Mutex // locked while either kind is written to the plane's store, to keep the order
	known map[string]gateway
}

// gateway holds the shown fields of a Gateway.
type gateway struct {
	class     string
	listeners []plane.Listener
}

func newGateways(b *plane.Board) *gateways {
	return &gateways{board: b, known: map[string]gateway{}}
}

// attached converts a TailscaleGateway and adds its Gateway's fields. Callers must hold mu.
func (g *gateways) attached(o *gatewayv1alpha1.TailscaleGateway, now time.Time) plane.Object {
	return g.join(gatewayOf(o, now))
}

func (g *gateways) join(o plane.Gateway) plane.Gateway {
	o.Class, o.Listeners = nil, nil
	if is, ok := g.known[o.Target]; ok {
		o.Class, o.Listeners = &is.class, is.listeners
	}
	return o
}

// put, remove and replace implement [companion], for Gateways. Callers must hold mu.
func (g *gateways) put(o client.Object) {
	if is, ok := o.(*gatewayapi.Gateway); ok {
		g.known[id(o)] = shown(is)
		g.again(func(target string) bool { return target == id(o) })
	}
}

func (g *gateways) remove(o client.Object) {
	delete(g.known, id(o))
	g.again(func(target string) bool { return target == id(o) })
}

func (g *gateways) replace(all []client.Object) {
	g.known = map[string]gateway{}
	for _, o := range all {
		if is, ok := o.(*gatewayapi.Gateway); ok {
			g.known[id(o)] = shown(is)
		}
	}
	g.again(func(string) bool { return true })
}

// again updates the TailscaleGateways whose target matches.
func (g *gateways) again(which func(target string) bool) {
	for _, o := range g.board.List(plane.KindGateway).Objects {
		if is, ok := o.(plane.Gateway); ok && which(is.Target) {
			g.board.Put(plane.KindGateway, attachedSource, g.join(is))
		}
	}
}

func shown(o *gatewayapi.Gateway) gateway {
	is := gateway{class: string(o.Spec.GatewayClassName), listeners: []plane.Listener{}}
	for _, l := range o.Spec.Listeners {
		x := plane.Listener{Name: string(l.Name), Protocol: string(l.Protocol), Port: int(l.Port)}
		if l.Hostname != nil {
			x.Hostname = string(*l.Hostname)
		}
		is.listeners = append(is.listeners, x)
	}
	return is
}
