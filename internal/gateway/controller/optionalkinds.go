package controller

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/internal/gateway"
)

// optionalKinds returns the kinds that a cluster may lack or get later. For example, a cluster that only
// publishes Services may have no Gateway API.
func optionalKinds() []struct {
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

// gatherGatewayAPI reads Gateways, routes and ReferenceGrants.
func (g *gatherer) gatherGatewayAPI(ctx context.Context, o *gateway.Objects) error {
	controllers, gateways := map[string]string{}, map[gateway.Name]*gatewayapi.Gateway{}
	if g.follows["GatewayClass"] {
		l, err := listCached(ctx, g, &gatewayapi.GatewayClassList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			controllers[l.Items[i].Name] = string(l.Items[i].Spec.ControllerName)
		}
	}
	if g.follows["Gateway"] {
		l, err := listCached(ctx, g, &gatewayapi.GatewayList{})
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
		l, err := listCached(ctx, g, &gatewayapi.HTTPRouteList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			r := &l.Items[i]
			o.Routes = append(o.Routes, httpRouteObject(r, acceptedParents(r.Namespace, g.Controller, r.Status.Parents, gateways)))
		}
	}
	if g.follows["GRPCRoute"] {
		l, err := listCached(ctx, g, &gatewayapi.GRPCRouteList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			r := &l.Items[i]
			o.Routes = append(o.Routes, grpcRouteObject(r, acceptedParents(r.Namespace, g.Controller, r.Status.Parents, gateways)))
		}
	}
	if g.follows["ReferenceGrant"] {
		l, err := listCached(ctx, g, &gatewayapi.ReferenceGrantList{})
		if err != nil {
			return err
		}
		for i := range l.Items {
			o.Grants = append(o.Grants, grantObject(&l.Items[i]))
		}
	}
	return nil
}
