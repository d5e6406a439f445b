//go:build linux

package gateway

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// A roleEnv is `tailplaned gateway` as it is installed, with a real Envoy Gateway and a tailnet's API.
type roleEnv struct {
	*kubernetesEnv
	*process
	args   []string
	tls    string // folder of the extension server's certificates
	served *ads
	tailnet
}

// A tailnet makes changes to the tailnet as another user of it.
type tailnet struct {
	api    *fakeapi.API
	client *tsapi.Client
}

const (
	wholeMetrics   = "127.0.0.1:9091"
	wholeExtension = "127.0.0.1:5005"
)

func startTailnet(t testing.TB) tailnet {
	t.Helper()
	tailnettest.Quiet()
	api, err := tailnettest.Start(t, `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:web": ["tag:k8s-operator"]}}`).API()
	if err != nil {
		t.Fatal(err)
	}
	own, set := api.Client([]string{"services"}, "tag:k8s-operator"), new(tsapi.Clients)
	t.Cleanup(func() { set.Drop("t") })
	client, err := set.Put("t", tsapi.Version{}, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: api.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: own.ID, Secret: secret.New(own.Secret)},
			UserAgent: "test", PerSecond: 1000, Burst: 1000, Now: time.Now}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tailnet{api, client}
}

// offer creates a service in the tailnet.
func (n tailnet) offer(t testing.TB, name string) {
	t.Helper()
	if err := n.client.PutService(t.Context(), tsapi.Service{Name: name, Ports: []string{"tcp:80", "tcp:8080"}, Tags: []string{"tag:web"}}); err != nil {
		t.Fatal(err)
	}
}

// startWhole starts the whole environment. The extension server starts with the certificates first.
func startWhole(t *testing.T, first certificates, p *kubernetesEnv) *roleEnv {
	t.Helper()
	w := &roleEnv{kubernetesEnv: p, tls: t.TempDir(), tailnet: startTailnet(t)}
	w.offer(t, "svc:web")
	first.serve(t, w.tls)
	settings := settingsFor(t, w.api.URL())
	own := w.api.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	objects, err := os.ReadFile("testdata/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, w.Cluster, string(objects), corp(own.ID, own.Secret, w.api.URL()))
	w.args = []string{"gateway", "--config", settings, "--kubeconfig", w.Kubeconfig, "--namespace", ourNamespace, "--metrics-addr", wholeMetrics,
		"--extension-addr", wholeExtension, "--extension-tls-dir", w.tls, "--log-level", "warn"}
	w.process = start(t, nil, "tailplaned", w.args...)
	w.startEnvoyGateway(t, xds.Address{Network: "tcp", Addr: wholeExtension})
	w.served = readADS(t, w.proxy, kubernetesXDS)
	return w
}

// settingsFor returns the path of a gateway.yaml for this Tailscale API.
func settingsFor(t testing.TB, api string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := fmt.Sprintf("tailnet: {apiBaseURLs: [%q], requestsPerSecond: 1000, burst: 1000}\nproxy: {image: \"image.invalid/tailplaned:test\"}\nclusterDomain: cluster.local\n", api)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// corp returns the tailnet that every namespace may use, and its credential.
func corp(id, secret, api string) string {
	encoded := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	return fmt.Sprintf(`apiVersion: v1
kind: Secret
metadata: {name: tailscale-oauth, namespace: %s}
data: {client_id: %s, client_secret: %s}
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleTailnet
metadata: {name: corp, annotations: {gateway.tailscale.com/default: "true"}}
spec: {oauthSecretName: tailscale-oauth, apiBaseURL: %q, allowedNamespaces: {from: All}}
`, ourNamespace, encoded(id), encoded(secret), api)
}

// again restarts the gateway after a stop.
func (w *roleEnv) again(t testing.TB) { w.process = start(t, nil, "tailplaned", w.args...) }

var sample = regexp.MustCompile(`(?m)^([a-z_]+)(\{[^}]*\})? ([0-9.e+-]+)$`)

// metric returns the sum of a metric over the series whose labels contain all words. It returns -1 when the server
// does not answer.
func (w *roleEnv) metric(name string, words ...string) float64 {
	return metric(wholeMetrics, name, words...)
}

// metric does the same for any process, by the address of its metrics.
func metric(address, name string, words ...string) float64 {
	r, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + address + "/metrics")
	if err != nil {
		return -1
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return -1
	}
	sum := 0.0
next:
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, name) {
			continue // a line of another metric
		}
		m := sample.FindStringSubmatch(line)
		if m == nil || m[1] != name {
			continue
		}
		for _, word := range words {
			if !strings.Contains(m[2], word) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(m[3], 64)
		if err != nil {
			return -1
		}
		sum += v
	}
	return sum
}

// reason returns the reason of an object's condition.
func (w *roleEnv) reason(t testing.TB, object, condition string) string {
	t.Helper()
	return reason(t, w.Cluster, object, condition)
}

// reason does the same in any cluster.
func reason(t testing.TB, c *kubetest.Cluster, object, condition string) string {
	t.Helper()
	return kubectl(t, c, "-n", "infra", "get", object, "-o", `jsonpath={.status.conditions[?(@.type=="`+condition+`")].reason}`)
}

// accepted waits until Envoy Gateway has processed the current version of a route. The next step is translation.
func (w *roleEnv) accepted(t testing.TB, route string) {
	t.Helper()
	await(t, "Envoy Gateway accepts the route "+route, func() bool {
		is, seen, _ := strings.Cut(kubectl(t, w.Cluster, "-n", "infra", "get", "httproute", route, "-o", `jsonpath={.metadata.generation}={.status.parents[0].conditions[?(@.type=="Accepted")].observedGeneration}`), "=")
		return is == seen
	})
}

func plainRoute(name, host string) string {
	return fmt.Sprintf(`apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %s, namespace: infra}
spec:
  parentRefs: [{name: eg}]
  hostnames: [%q]
  rules:
  - matches: [{path: {type: PathPrefix, value: /%s}}]
    backendRefs: [{name: plain, port: 80}]
`, name, host, name)
}

// GTW-32, GTW-33: the gateway as it is installed, with a real Envoy Gateway. Changes of specs, of discovered services
// and of ports reach xDS. Changes of status do not, and the controllers do not overwrite each other repeatedly. A
// server with a wrong certificate, a hanging server and a stopped server change nothing, and the system recovers from
// all.
func TestGTW32_WholeGateway(t *testing.T) {
	needsNamespaces(t)
	p := provide(t, "whole")
	wrong := certify(t)
	w := startWhole(t, wrong, p)

	// The server has a certificate of a foreign authority. Envoy Gateway gets to the point of the call and makes
	// none.
	await(t, "the server is open", func() bool { return w.metric("tailplane_ready") == 1 })
	w.accepted(t, "shop")
	if n := w.metric("tailplane_gateway_hook_calls_total"); n != 0 {
		t.Errorf("%v calls of a server with a wrong certificate", n)
	}
	if w.served.route("tailscale-svc-web") != nil {
		t.Error("a Tailplane route appeared without a server")
	}
	w.certificates.serve(t, w.tls)
	began := time.Now()
	await(t, "everything", func() bool {
		return w.served.route("tailscale-svc-web") != nil && w.served.cluster("tailscale-cluster-web") != nil && w.served.route("tailscale-rule-infra_api_0_0") != nil
	})
	t.Logf("with the right certificate everything was served after %v", time.Since(began).Round(time.Millisecond))
	await(t, "the gateway is ready", func() bool { return w.reason(t, "tsgw/eg-tailnets", "Ready") == "Ready" })

	t.Run("changes", w.changes)
	t.Run("statuses", w.statuses)
	t.Run("GTW34_Security", w.security)
	t.Run("failures", w.failures)
}

// changes measures how long changes take.
func (w *roleEnv) changes(t *testing.T) {
	began := time.Now()
	kubectl(t, w.Cluster, "-n", "infra", "patch", "tsgw", "eg-tailnets", "--type=json", "-p", `[{"op":"add","path":"/spec/tailnets/0/routeGeneration/egress/pathPrefix","value":"/net/{service}"}]`)
	await(t, "another path", func() bool {
		return w.served.route("tailscale-svc-web").GetMatch().GetPathSeparatedPrefix() == "/net/web"
	})
	t.Logf("a change of a spec was served after %v", time.Since(began).Round(time.Millisecond))

	began = time.Now()
	kubectl(t, w.Cluster, "-n", "infra", "patch", "tsrp", "api", "--type=merge", "-p", `{"spec":{"routeRules":[{"match":{"path":"/api/*"},"backend":{"serviceName":"svc:web","port":9090}}]}}`)
	await(t, "the cluster of another port", func() bool { return w.served.cluster("tailscale-cluster-web_9090") != nil })
	t.Logf("an unused port was served after %v", time.Since(began).Round(time.Millisecond))

	w.offer(t, "svc:wiki")
	kubectl(t, w.Cluster, "-n", "infra", "patch", "tsgw", "eg-tailnets", "--type=json", "-p", `[{"op":"add","path":"/spec/tailnets/0/serviceDiscovery/syncInterval","value":"61s"}]`)
	await(t, "the service is found", func() bool {
		return strings.Contains(kubectl(t, w.Cluster, "-n", "infra", "get", "tssvc", "-o", "name"), "eg-tailnets-wiki")
	})
	began = time.Now()
	await(t, "the route of the discovered service", func() bool {
		return w.served.route("tailscale-svc-wiki") != nil && w.served.cluster("tailscale-cluster-wiki") != nil
	})
	t.Logf("the discovered service was served after %v more", time.Since(began).Round(time.Millisecond))
}

// calls waits until Envoy Gateway has been idle for a while, and returns the number of its calls.
func (w *roleEnv) calls(t testing.TB) float64 {
	t.Helper()
	return quiet(t, "Envoy Gateway is quiet", func() float64 { return w.metric("tailplane_gateway_hook_calls_total") })
}

// quiet waits until a number has been unchanged for a while, and returns it. A negative number means that the value
// is not known yet.
func quiet(t testing.TB, what string, number func() float64) float64 {
	t.Helper()
	last, since := -1.0, time.Now()
	await(t, what, func() bool {
		if n := number(); n != last {
			last, since = n, time.Now()
		}
		return last >= 0 && time.Since(since) > 3*time.Second
	})
	return last
}

func (w *roleEnv) statuses(t *testing.T) {
	before := w.calls(t)
	for i := range 20 {
		kubectl(t, w.Cluster, "-n", "infra", "patch", "tssvc", "eg-tailnets-web", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status":{"egress":{"externalName":"n%d"}}}`, i))
		kubectl(t, w.Cluster, "-n", "infra", "patch", "tsrp", "api", "--subresource=status", "--type=merge", "-p", `{"status":{"conditions":null,"rules":null,"observedGeneration":null}}`)
	}
	both := func() bool {
		return w.reason(t, "tsrp/api", "Ready") == "Ready" && kubectl(t, w.Cluster, "-n", "infra", "get", "tsrp", "api", "-o", "jsonpath={.status.ancestors[0].controllerName}") != ""
	}
	await(t, "both parts of the policy's status", both)
	if after := w.calls(t); after != before {
		t.Errorf("%v calls because of changes of statuses", after-before)
	}
	n := w.metric("tailplane_gateway_status_restores_total")
	if n < 1 || n > 40 {
		t.Errorf("%v statuses restored", n)
	}
	// A new generation makes Envoy Gateway write its part of the status over the gateway's part.
	kubectl(t, w.Cluster, "-n", "infra", "patch", "tsrp", "api", "--type=merge", "-p", `{"spec":{"routeRules":[{"match":{"path":"/api2/*"},"backend":{"serviceName":"svc:web","port":9090}}]}}`)
	await(t, "both parts of the policy's status, of the new generation", func() bool {
		generation := kubectl(t, w.Cluster, "-n", "infra", "get", "tsrp", "api", "-o", "jsonpath={.metadata.generation}")
		return both() && kubectl(t, w.Cluster, "-n", "infra", "get", "tsrp", "api", "-o", "jsonpath={.status.observedGeneration}") == generation &&
			kubectl(t, w.Cluster, "-n", "infra", "get", "tsrp", "api", "-o", "jsonpath={.status.ancestors[0].conditions[0].observedGeneration}") == generation
	})
	w.calls(t)
	version := kubectl(t, w.Cluster, "-n", "infra", "get", "tsrp", "api", "-o", "jsonpath={.metadata.resourceVersion}")
	w.calls(t)
	if now := kubectl(t, w.Cluster, "-n", "infra", "get", "tsrp", "api", "-o", "jsonpath={.metadata.resourceVersion}"); now != version {
		t.Errorf("the policy is written repeatedly: %s, then %s", version, now)
	}
}

func (w *roleEnv) failures(t *testing.T) {
	// A hanging server: Envoy Gateway waits, and Envoy keeps its configuration.
	if err := w.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	apply(t, w.Cluster, plainRoute("hanging", "shop.example.com"))
	w.accepted(t, "hanging")
	there := func(name string) bool {
		return w.served.route("httproute/infra/"+name+"/rule/0/match/0/shop_example_com") != nil
	}
	if there("hanging") || w.served.route("tailscale-svc-web") == nil {
		t.Error("Envoy Gateway continued without the extension server")
	}
	if err := w.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	await(t, "what waited", func() bool { return there("hanging") && w.served.route("tailscale-svc-web") != nil })

	// A server that stops and restarts: it answers only after all its caches are complete.
	w.stop()
	apply(t, w.Cluster, plainRoute("away", "shop.example.com"))
	w.accepted(t, "away")
	if there("away") || w.served.route("tailscale-svc-web") == nil {
		t.Error("Envoy Gateway continued without the extension server")
	}
	w.again(t)
	await(t, "the changes that waited for the server", func() bool {
		return there("away") && w.served.route("tailscale-svc-web") != nil && w.metric("tailplane_gateway_hook_calls_total") > 0
	})
	await(t, "the gateway is ready again", func() bool { return w.reason(t, "tsgw/eg-tailnets", "Ready") == "Ready" })
}

// security tests GTW-34: policies that protect a Gateway also protect our routes. Without such a policy there is no
// route.
func (w *roleEnv) security(t *testing.T) {
	const keys = `{"keys":[{"kty":"oct","kid":"k","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0","alg":"HS256"}]}`
	policy := func(name, kind, target string) string {
		return fmt.Sprintf(`apiVersion: gateway.envoyproxy.io/v1alpha1
kind: SecurityPolicy
metadata: {name: %s, namespace: infra}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: %s, name: %s}]
  jwt: {providers: [{name: %s, localJWKS: {type: Inline, inline: '%s'}}]}
`, name, kind, target, name, keys)
	}
	guarded := func(route string) bool {
		for name := range w.served.route(route).GetTypedPerFilterConfig() {
			if strings.HasPrefix(name, "envoy.filters.http.jwt_authn") {
				return true
			}
		}
		return false
	}
	apply(t, w.Cluster, plainRoute("docs", "shop.example.com"))
	await(t, "a second route of the host", func() bool {
		return w.served.route("httproute/infra/docs/rule/0/match/0/shop_example_com") != nil
	})
	if guarded("tailscale-svc-web") {
		t.Fatal("protected by no policy")
	}
	apply(t, w.Cluster, policy("all", "Gateway", "eg"))
	await(t, "the Gateway's policy on the routes that were added", func() bool {
		return guarded("tailscale-svc-web") && guarded("tailscale-svc-wiki") && guarded("tailscale-rule-infra_api_0_0")
	})
	apply(t, w.Cluster, policy("one", "HTTPRoute", "docs"))
	await(t, "no routes where the policies differ", func() bool {
		return w.reason(t, "tsgw/eg-tailnets", "Programmed") == "SecurityAmbiguous" && w.served.route("tailscale-svc-web") == nil
	})
	kubectl(t, w.Cluster, "-n", "infra", "delete", "securitypolicy", "one") // the Gateway's policy applies there again
	await(t, "the routes again", func() bool {
		return w.reason(t, "tsgw/eg-tailnets", "Ready") == "Ready" && guarded("tailscale-svc-web")
	})
}
