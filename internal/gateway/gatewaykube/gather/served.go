package gather

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/internal/gateway"
)

// served returns the kinds that a cluster may lack or get later. For example, a cluster that only
// publishes Services may have no Gateway API.
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

// followServed watches the kinds that the API server serves by now.
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

// again sets the maximum time until the next reconcile.
func (g *Gatherer) again(d time.Duration) {
	if g.wake == 0 || d < g.wake {
		g.wake = d
	}
}

// gatewayAPI reads Gateways, routes and ReferenceGrants.
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
