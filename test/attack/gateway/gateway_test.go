package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// GW-01. A tenant's route names the service of another tenant, or a tenant's tailnet service names another tenant's
// Service, without a grant of that tenant. Neither connection works. With the grant it works, and without it again it
// does not.
//
// Guard: gateway.builder.granted, queried by builder.resolveBackend and by the decision on ingress services.
func TestGW01_NoGrant(t *testing.T) {
	w := start(t)
	w.apply(t, `apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: billing, namespace: bank}
spec: {tailnetRef: {name: corp}, target: {serviceName: "svc:billing"}, ports: [{name: http, port: 80}], clusterService: {create: false}}
---
apiVersion: v1
kind: Service
metadata: {name: vault, namespace: bank}
spec: {ports: [{port: 8200}]}
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: leak, namespace: shop}
spec: {type: ingress, tailnetRef: {name: corp}, vipService: {name: "svc:leak", tags: ["tag:web"]}, ports: [{port: 80, targetPort: 8200}], backendRef: {kind: Service, name: vault, namespace: bank}}
`)
	const foreign, own = `{group: gateway.tailscale.com, kind: TailscaleService, name: billing, namespace: bank, port: 80}`, `{group: gateway.tailscale.com, kind: TailscaleService, name: wiki, port: 80}`
	w.route(t, "shop", "crossing", foreign)
	w.route(t, "shop", "mixing", foreign+", "+own)
	w.route(t, "bank", "same", `{group: gateway.tailscale.com, kind: TailscaleService, name: billing, port: 80}`)
	w.route(t, "shop", "own", own)
	t.Cleanup(func() {
		w.remove(t, "ReferenceGrant bank/let", "HTTPRoute shop/crossing", "HTTPRoute shop/mixing", "HTTPRoute bank/same", "HTTPRoute shop/own", "TailscaleService shop/leak", "TailscaleService bank/billing", "Service bank/vault")
	})
	mixed := func() []string {
		return added(w.ask(t, question(xdsHost(t, "mixing.example.com", xdsRoute(t, "shop", "mixing", "/")))))
	}
	const relays = "billing-proxy-group." + gatewayNamespace + ".svc.cluster.local"
	attacktest.Eventually(t, attacktest.Long, "a permitted route leads there", func() bool {
		return w.sole(t, "bank", "same") == relays && w.sole(t, "shop", "own") != "" && slices.Contains(mixed(), "tailscale-cluster-shop_wiki_80")
	})
	if at := w.sole(t, "shop", "crossing"); at != "" {
		t.Errorf("without a grant the route leads to %s", at)
	}
	if slices.Contains(mixed(), "tailscale-cluster-bank_billing_80") {
		t.Error("without a grant a share of a route leads there")
	}
	w.says(t, "TailscaleService shop/leak", "ResolvedRefs", "False/RefNotPermitted")
	if _, err := w.corp.hand.Service(t.Context(), "svc:leak"); classOf(err) != tsapi.NotFound {
		t.Errorf("without a grant it is on the tailnet: %v", err)
	}
	w.apply(t, `apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: let, namespace: bank}
spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}, {group: gateway.tailscale.com, kind: TailscaleService, namespace: shop}],
  to: [{group: gateway.tailscale.com, kind: TailscaleService, name: billing}, {group: "", kind: Service, name: vault}]}
`)
	attacktest.Eventually(t, attacktest.Long, "with a grant the route leads there", func() bool {
		return w.sole(t, "shop", "crossing") == relays && slices.Contains(mixed(), "tailscale-cluster-bank_billing_80")
	})
	w.says(t, "TailscaleService shop/leak", "ResolvedRefs", "True/ResolvedRefs")
	attacktest.Eventually(t, attacktest.Long, "with a grant it is on the tailnet", func() bool { _, err := w.corp.hand.Service(t.Context(), "svc:leak"); return err == nil })
	w.remove(t, "ReferenceGrant bank/let")
	took := attacktest.Eventually(t, attacktest.Long, "without the grant the route is removed", func() bool {
		return w.sole(t, "shop", "crossing") == "" && !slices.Contains(mixed(), "tailscale-cluster-bank_billing_80") && w.sole(t, "shop", "own") != ""
	})
	t.Logf("no cluster any more %v after the grant was taken back", took.Round(time.Millisecond))
	w.remove(t, "TailscaleService shop/leak")
	w.gone(t, "TailscaleService shop/leak")
}

// GW-02. An object of another team does not exist for a tenant: the message is the same as for a missing object. The
// gateway sends a credential only to listed APIs and follows no redirect. It does not read a Secret of another
// namespace.
//
// Guard: gateway.builder.tailnetFor and the decision on groups; controller.tailnetReconciler.credential (namespaces, base URLs);
// tailnets, which follows no redirect.
func TestGW02_ForeignObjects(t *testing.T) {
	w := start(t)
	from := attacktest.FileSize(t, w.asked)
	minted := w.corp.count("POST /tailnet/{tailnet}/keys")
	service := func(name, spec string) string {
		return fmt.Sprintf("---\napiVersion: gateway.tailscale.com/v1alpha1\nkind: TailscaleService\nmetadata: {name: %s, namespace: thief}\nspec: {%s, target: {serviceName: \"svc:web\"}, ports: [{name: http, port: 80}]}\n", name, spec)
	}
	w.apply(t, service("forbidden", "tailnetRef: {name: corp}")+service("missing", "tailnetRef: {name: nobody}")+
		strings.ReplaceAll(service("group", "proxyGroupRef: {name: private, namespace: relays}")+service("nogroup", "proxyGroupRef: {name: nobody, namespace: relays}")+
			service("corpgroup", "tailnetRef: {name: corp}, proxyGroupRef: {name: private, namespace: relays}")+service("corpnogroup", "tailnetRef: {name: corp}, proxyGroupRef: {name: nobody, namespace: relays}"), "namespace: thief", "namespace: bank")+`---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleProxyGroup
metadata: {name: private, namespace: relays}
spec: {type: egress, replicas: 0, tailnetRef: {name: corp}}
`)
	names := []string{"TailscaleService thief/forbidden", "TailscaleService thief/missing", "TailscaleService bank/group", "TailscaleService bank/nogroup", "TailscaleService bank/corpgroup", "TailscaleService bank/corpnogroup"}
	t.Cleanup(func() {
		w.remove(t, append(names, "TailscaleProxyGroup relays/private")...)
		w.gone(t, "TailscaleProxyGroup relays/private")
	})
	words := map[string]string{}
	for i, name := range names {
		said := [][2]string{{"Accepted", "False/TailnetNotPermitted"}, {"Accepted", "False/TailnetNotSpecified"}, {"ResolvedRefs", "False/RefNotPermitted"}}[i/2]
		words[name] = w.says(t, name, said[0], said[1])
	}
	switch {
	case words[names[0]] != words[names[1]]:
		t.Errorf("the status reveals existing objects: words[names[0]] = %q, want %q", words[names[0]], words[names[1]])
	case words[names[2]] != words[names[3]]:
		t.Errorf("the status reveals existing objects: words[names[2]] = %q, want %q", words[names[2]], words[names[3]])
	case words[names[4]] != words[names[5]]:
		t.Errorf("the status reveals existing objects: words[names[4]] = %q, want %q", words[names[4]], words[names[5]])
	}
	for _, group := range []string{"forbidden", "missing", "group", "nogroup"} {
		if w.get(t, "TailscaleProxyGroup "+gatewayNamespace+"/"+group+"-proxy-group") != nil {
			t.Errorf("relays were created for %s", group)
		}
	}
	if n := w.corp.count("POST /tailnet/{tailnet}/keys") - minted; n != 0 {
		t.Errorf("%d keys were created", n)
	}
	// Control: the same request from a namespace that is allowed to make it.
	w.apply(t, strings.ReplaceAll(service("forbidden", "tailnetRef: {name: corp}"), "namespace: thief", "namespace: bank"))
	t.Cleanup(func() { w.remove(t, "TailscaleService bank/forbidden") })
	w.says(t, "TailscaleService bank/forbidden", "Accepted", "True/Accepted")

	// Tenants cannot create tailnets: only an administrator may name hosts and Secrets.
	if _, _, code := kubetest.Kubectl(t.Context(), w.cluster.Kubeconfig, "auth", "can-i", "create", "tailscaletailnets", "--as=mallory", "--as-group=system:authenticated"); code == 0 {
		t.Error("an unprivileged account may create tailnets")
	}

	// The hosts to which a credential may go, and the Secrets from which it may come.
	visited := make(chan string, 100)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { visited <- r.Method + " " + r.URL.Path }))
	defer elsewhere.Close()
	tailnet := func(name, spec string) string {
		return fmt.Sprintf("---\napiVersion: gateway.tailscale.com/v1alpha1\nkind: TailscaleTailnet\nmetadata: {name: %s}\nspec: {%s}\n", name, spec)
	}
	tailnetsOf := []string{"TailscaleTailnet elsewhere", "TailscaleTailnet there", "TailscaleTailnet nowhere", "TailscaleTailnet moved"}
	t.Cleanup(func() { w.remove(t, tailnetsOf...); w.gone(t, tailnetsOf...) })
	w.apply(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: loot, namespace: bank}\nstringData: {client_id: %q, client_secret: %q}\n", w.dev.own.ID, w.dev.own.Secret))
	t.Cleanup(func() { w.remove(t, "Secret bank/loot") })
	w.apply(t, tailnet("elsewhere", fmt.Sprintf("oauthSecretName: dev, apiBaseURL: %q", elsewhere.URL))+
		tailnet("there", fmt.Sprintf("oauthSecretName: loot, oauthSecretNamespace: bank, apiBaseURL: %q", w.dev.URL()))+
		tailnet("nowhere", fmt.Sprintf("oauthSecretName: other, oauthSecretNamespace: bank, apiBaseURL: %q", w.dev.URL())))
	w.says(t, tailnetsOf[0], "Authenticated", "False/APIBaseURLNotAllowed")
	there, nowhere := w.says(t, tailnetsOf[1], "Authenticated", "False/SecretNamespaceNotAllowed"), w.says(t, tailnetsOf[2], "Authenticated", "False/SecretNamespaceNotAllowed")
	if there != nowhere {
		t.Errorf("it reveals whether a Secret exists: %q, %q", there, nowhere)
	}
	for _, r := range w.requests(t, from) {
		if r.ObjectRef.Resource == "secrets" && !slices.Contains([]string{gatewayNamespace, relayNamespace, "fleeting"}, r.ObjectRef.Namespace) {
			t.Errorf("the gateway requested a Secret of %s, which its settings do not list: %s", r.ObjectRef.Namespace, r)
		}
	}
	remove := w.dev.Fault(fakeapi.Fault{Route: "POST /oauth/token", Status: http.StatusTemporaryRedirect, Header: http.Header{"Location": {elsewhere.URL + "/api/v2/oauth/token"}}})
	w.apply(t, tailnet("moved", fmt.Sprintf("oauthSecretName: dev, apiBaseURL: %q", w.dev.URL())))
	attacktest.Eventually(t, attacktest.Long, "the redirect was met", func() bool {
		is, _ := w.condition(t, tailnetsOf[3], "Ready")
		return strings.HasPrefix(is, "False/")
	})
	remove()
	select {
	case what := <-visited:
		t.Errorf("a foreign host got a request: %s", what)
	default:
	}
	w.patch(t, tailnetsOf[3], `{"metadata":{"annotations":{"test/again":"1"}}}`)
	w.says(t, tailnetsOf[3], "Ready", "True/Ready")
}

// GW-07. No spelling of an address or a name leads outside the tailnet. The schema or the decision refuses each
// target, and the gateway creates nothing for it.
//
// Guard: the rules of api/gateway/v1alpha1, gateway.builder.validateTarget. The relay's netmap limits the addresses that a
// relay dials (TestGTW21_ForbiddenTargets in test/relay tests it with real nodes).
func TestGW07_TargetsOutside(t *testing.T) {
	w := start(t)
	stored := 0
	for i, target := range []string{
		"ip: 127.0.0.1", `ip: "::1"`, "ip: 0.0.0.0", "ip: 169.254.169.254", `ip: "fd00:ec2::254"`, "ip: 10.96.0.1", "ip: 192.168.0.1", "ip: 100.128.0.1", "ip: 100.63.255.255",
		"ip: 100.100.100.100", `ip: "fd7a:115c:a1e0::53"`, `ip: "::ffff:100.64.0.1"`, `ip: "100.64.0.1%lo"`, "ip: 0x64.0x40.0.1", "ip: 0144.0100.0.1", `ip: "1681915905"`, "ip: 100.64.1", `ip: "100.64.0.1:80"`,
		"fqdn: localhost", "fqdn: db.localhost", "fqdn: kubernetes.default.svc.cluster.local", "fqdn: vault.bank.svc", "fqdn: metadata.google.internal", "fqdn: 127.0.0.1.nip.io", "fqdn: web.tail2.ts.net",
		"fqdn: a.web." + w.corp.net.Suffix(), "fqdn: " + w.corp.net.Suffix(), "fqdn: web." + w.corp.net.Suffix() + ".", "fqdn: web" + w.corp.net.Suffix(), "fqdn: web." + w.corp.net.Suffix() + ".example.com",
		`serviceName: "svc:../web"`, `serviceName: "svc:web.default"`, `serviceName: "127.0.0.1"`, `tags: ["tag:web\nx"]`,
	} {
		name := fmt.Sprintf("TailscaleService shop/out-%d", i)
		err := w.cluster.Apply(t.Context(), fmt.Appendf(nil, "apiVersion: gateway.tailscale.com/v1alpha1\nkind: TailscaleService\nmetadata: {name: out-%d, namespace: shop}\nspec: {tailnetRef: {name: corp}, target: {%s}, ports: [{port: 80}]}\n", i, target))
		if apierrors.IsInvalid(err) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		stored++
		t.Cleanup(func() { w.remove(t, name) })
		w.says(t, name, "Accepted", "False/TargetForbidden")
		if w.get(t, fmt.Sprintf("TailscaleProxyGroup %s/out-%d-proxy-group", gatewayNamespace, i)) != nil {
			t.Errorf("%s: relays were created for it", target)
		}
	}
	if stored < 4 {
		t.Errorf("the schema accepted only %d: the decision is not tested", stored)
	}
	// Control: an address and a name of the tailnet.
	for i, target := range []string{"ip: 100.64.0.77", `ip: "fd7a:115c:a1e0::77"`, "fqdn: billing." + w.corp.net.Suffix()} {
		name := fmt.Sprintf("in-%d", i)
		w.apply(t, fmt.Sprintf("apiVersion: gateway.tailscale.com/v1alpha1\nkind: TailscaleService\nmetadata: {name: %s, namespace: shop}\nspec: {tailnetRef: {name: corp}, proxyGroupRef: {name: web-proxy-group, namespace: %s}, target: {%s}, ports: [{port: 80}]}\n", name, gatewayNamespace, target))
		t.Cleanup(func() { w.remove(t, "TailscaleService shop/"+name) })
		w.says(t, "TailscaleService shop/"+name, "Accepted", "True/Accepted")
	}
}

// GW-12. The API server refuses a policy without a target, which would make Envoy Gateway's whole translation fail.
// Of two policies with the same target the younger reports a conflict, and the older stays in force.
//
// Guard: the rules of TailscaleRoutePolicy, gateway.builder's order of policies.
func TestGW12_Policies(t *testing.T) {
	w := start(t)
	policy := func(name, spec string) string {
		return fmt.Sprintf("apiVersion: gateway.tailscale.com/v1alpha1\nkind: TailscaleRoutePolicy\nmetadata: {name: %s, namespace: shop}\nspec: {%s}\n", name, spec)
	}
	const route, rule = "targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute, name: policed}", `routeRules: [{match: {path: "/api/*"}, backend: {serviceName: "svc:web", port: 80}}]`
	for _, spec := range []string{
		rule, "targetRef: {}, " + rule, "targetRef: {group: gateway.networking.k8s.io, kind: HTTPRoute}, " + rule, `targetRef: {group: "", kind: Service, name: x}, ` + rule,
		route,
	} {
		err := w.cluster.Apply(t.Context(), []byte(policy("bad", spec)))
		if err == nil {
			u := w.get(t, "TailscaleRoutePolicy shop/bad")
			w.remove(t, "TailscaleRoutePolicy shop/bad")
			t.Errorf("stored: %s: %v", spec, u.Object["spec"])
		}
	}
	w.route(t, "shop", "policed", "{name: plain, port: 80}")
	w.apply(t, policy("a-first", route+", "+rule))
	t.Cleanup(func() {
		w.remove(t, "TailscaleRoutePolicy shop/a-first", "TailscaleRoutePolicy shop/b-second", "HTTPRoute shop/policed")
	})
	paths := func() (out []string) {
		for _, rc := range w.ask(t, question(xdsHost(t, "policed.example.com", xdsRoute(t, "shop", "policed", "/")))).Routes {
			for _, h := range rc.VirtualHosts {
				for _, r := range h.Routes {
					if strings.HasPrefix(r.Name, "tailscale-rule-") {
						out = append(out, r.GetMatch().GetPathSeparatedPrefix())
					}
				}
			}
		}
		return out
	}
	attacktest.Eventually(t, attacktest.Long, "the first is in force", func() bool { return slices.Equal(paths(), []string{"/api"}) })
	w.apply(t, policy("b-second", route+", "+strings.ReplaceAll(rule, "/api/*", "/admin/*")))
	w.says(t, "TailscaleRoutePolicy shop/b-second", "Accepted", "False/Conflicted")
	w.says(t, "TailscaleRoutePolicy shop/a-first", "Accepted", "True/Accepted")
	if got := paths(); !slices.Equal(got, []string{"/api"}) {
		t.Errorf("in force is %v", got)
	}
	w.remove(t, "TailscaleRoutePolicy shop/a-first")
	attacktest.Eventually(t, attacktest.Long, "then the second is in force", func() bool { return slices.Equal(paths(), []string{"/admin"}) })
}
