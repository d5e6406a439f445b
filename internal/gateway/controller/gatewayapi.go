package controller

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/internal/gateway"
)

func valueOr[T ~string](p *T, otherwise string) string {
	if p == nil {
		return otherwise
	}
	return string(*p)
}

// gatewayObject converts the relevant part of a Gateway. controllers maps class names to
// controllerNames.
func gatewayObject(g *gatewayapi.Gateway, controllers map[string]string) gateway.GatewayObject {
	o := gateway.GatewayObject{Name: objectName(g), Controller: controllers[string(g.Spec.GatewayClassName)]}
	for _, l := range g.Spec.Listeners {
		terminates := l.TLS == nil || l.TLS.Mode == nil || *l.TLS.Mode == gatewayapi.TLSModeTerminate
		o.Listeners = append(o.Listeners, gateway.ListenerObject{
			Name: string(l.Name), Hostname: valueOr(l.Hostname, ""),
			HTTP: l.Protocol == gatewayapi.HTTPProtocolType || l.Protocol == gatewayapi.HTTPSProtocolType && terminates,
		})
	}
	return o
}

// acceptedParents returns the Gateways that accepted a route according to the given controller.
func acceptedParents(namespace, controller string, parents []gatewayapi.RouteParentStatus, gateways map[gateway.Name]*gatewayapi.Gateway) (out []gateway.ParentObject) {
	for _, p := range parents {
		ref := p.ParentRef
		if string(p.ControllerName) != controller || !meta.IsStatusConditionTrue(p.Conditions, string(gatewayapi.RouteConditionAccepted)) ||
			valueOr(ref.Group, gatewayapi.GroupName) != gatewayapi.GroupName || valueOr(ref.Kind, "Gateway") != "Gateway" {
			continue
		}
		name := gateway.Name{Namespace: valueOr(ref.Namespace, namespace), Name: string(ref.Name)}
		if ref.Port == nil || ref.SectionName != nil {
			out = append(out, gateway.ParentObject{Gateway: name, Section: valueOr(ref.SectionName, "")})
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
		one := gateway.RuleObject{Name: valueOr(rule.Name, "")}
		one.Answered = slices.ContainsFunc(rule.Filters, func(f gatewayapi.HTTPRouteFilter) bool {
			return f.Type == gatewayapi.HTTPRouteFilterRequestRedirect
		})
		for _, m := range rule.Matches {
			path := gateway.RoutePath("", "/")
			if m.Path != nil {
				value := "/"
				if m.Path.Value != nil {
					value = *m.Path.Value
				}
				path = gateway.RoutePath(valueOr(m.Path.Type, ""), value)
			}
			one.Paths = append(one.Paths, path)
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
		one := gateway.RuleObject{Name: valueOr(rule.Name, "")}
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
	case m.Type != nil && *m.Type != gatewayapi.GRPCMethodMatchExact:
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
	o := gateway.BackendObject{Group: valueOr(b.Group, ""), Kind: valueOr(b.Kind, "Service"), Name: gateway.Name{Namespace: valueOr(b.Namespace, namespace), Name: string(b.Name)}, Weight: 1}
	if b.Port != nil {
		o.Port = uint16(*b.Port)
	}
	if b.Weight != nil {
		o.Weight = uint32(max(*b.Weight, 0))
	}
	return o
}

func grantObject(g *gatewayapi.ReferenceGrant) gateway.GrantObject {
	o := gateway.GrantObject{Namespace: g.Namespace}
	for _, f := range g.Spec.From {
		o.From = append(o.From, gateway.GrantFrom{Group: string(f.Group), Kind: string(f.Kind), Namespace: string(f.Namespace)})
	}
	for _, t := range g.Spec.To {
		o.To = append(o.To, gateway.GrantTo{Group: string(t.Group), Kind: string(t.Kind), Name: valueOr(t.Name, "")})
	}
	return o
}
