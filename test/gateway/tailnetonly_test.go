//go:build linux

package gateway

import (
	"slices"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
)

// admitted returns the networks that the connection filters of all listeners admit, sorted. guarded reports whether
// there is such a filter. With a filter and no network, no client is admitted.
func (x *ads) admitted() (networks []string, guarded bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.listeners {
		for _, c := range append(slices.Clone(l.FilterChains), l.DefaultFilterChain) {
			for _, f := range c.GetFilters() {
				filter := new(rbacv3.RBAC)
				if !f.GetTypedConfig().MessageIs(filter) || f.GetTypedConfig().UnmarshalTo(filter) != nil {
					continue
				}
				guarded = true
				for _, p := range filter.GetRules().GetPolicies() {
					for _, who := range p.GetPrincipals() {
						networks = append(networks, who.GetRemoteIp().GetAddressPrefix())
					}
				}
			}
		}
	}
	slices.Sort(networks)
	return networks, guarded
}

// GTW-37: a real Envoy Gateway serves a listener with access.from: Tailnet. The listener admits the tailnet's
// addresses while the chart's NetworkPolicy exists and Envoy's Service is internal, and no client otherwise. The test
// has no cluster network, so it does not test how a NetworkPolicy filters packets.
func TestGTW37_TailnetOnly(t *testing.T) {
	needsNamespaces(t)
	p := provide(t, "private")
	w := startWhole(t, p.certificates, p)
	helm := run(t, nil, "helm", "template", "tailplane", "../../charts/tailplane", "--namespace", "tailplane-system", "--set",
		"image.repository=image.invalid/tailplaned,image.tag=v1,cluster.name=east,cluster.server=https://east.invalid,cluster.caFromPod=true,signin.roles={view},gateway.enabled=true,gateway.envoyGateway.tailnetOnly={infra/eg}",
		"--show-only", "templates/gateway.yaml")
	policy := ""
	for _, object := range strings.Split(helm, "\n---\n") {
		if strings.Contains(object, "kind: NetworkPolicy") && strings.Contains(object, "name: tailplane-infra.eg\n") {
			policy = object
		}
	}
	if policy == "" {
		t.Fatalf("the chart renders no policy for the Gateway:\n%s", helm)
	}
	serviceOf := func(kind string) string {
		return "apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: EnvoyProxy\nmetadata: {name: ep, namespace: infra}\nspec: {provider: {type: Kubernetes, kubernetes: {envoyService: {type: " + kind + "}}}}\n"
	}
	is := func(why, reason string, networks ...string) {
		t.Helper()
		await(t, why, func() bool {
			now, guarded := w.served.admitted()
			return w.reason(t, "tsrp/private", "Programmed") == reason && guarded && slices.Equal(now, networks)
		})
	}
	const exposed, programmed = "ServiceExposed", "Programmed"
	tailnet := []string{"100.64.0.0", "fd7a:115c:a1e0::"}

	apply(t, w.Cluster, serviceOf("ClusterIP"))
	kubectl(t, w.Cluster, "-n", "infra", "patch", "gateway", "eg", "--type=merge", "-p", `{"spec":{"infrastructure":{"parametersRef":{"group":"gateway.envoyproxy.io","kind":"EnvoyProxy","name":"ep"}}}}`)
	await(t, "Envoy's Service is within the cluster", func() bool {
		return kubectl(t, w.Cluster, "-n", egNamespace, "get", "service", "-l", "gateway.envoyproxy.io/owning-gateway-name=eg", "-o", "jsonpath={.items[*].spec.type}") == "ClusterIP"
	})
	apply(t, w.Cluster, `apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleRoutePolicy
metadata: {name: private, namespace: infra}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: eg}
  access: {from: Tailnet}
`)
	is("without the policy no client is admitted", exposed)
	apply(t, w.Cluster, policy)
	is("with the policy the tailnet is admitted", programmed, tailnet...)
	if !w.served.hasListenerFilter("envoy.filters.listener.proxy_protocol") {
		t.Error("the addresses of callers are not read")
	}
	apply(t, w.Cluster, `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: wider, namespace: `+egNamespace+`}
spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{from: [{namespaceSelector: {}}]}]}
`)
	is("another policy admits more, so no client is admitted", exposed)
	kubectl(t, w.Cluster, "-n", egNamespace, "delete", "networkpolicy", "wider")
	is("it is deleted", programmed, tailnet...)
	apply(t, w.Cluster, serviceOf("LoadBalancer"))
	is("Envoy's Service leaves the cluster", exposed)
}
