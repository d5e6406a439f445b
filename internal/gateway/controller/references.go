package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

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
