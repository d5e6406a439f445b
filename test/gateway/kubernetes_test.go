//go:build linux

package gateway

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

const (
	egNamespace   = "envoy-gateway-system"
	ourNamespace  = "tailscale-gateway-system"
	kubernetesXDS = "infra/eg"
)

// kubectl runs kubectl, which must succeed.
func kubectl(t testing.TB, c *kubetest.Cluster, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, errs, code := kubetest.Kubectl(ctx, c.Kubeconfig, args...)
	if code != 0 {
		t.Fatalf("kubectl %s: exit %d: %s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// definitions returns the CRD files of the Gateway API and of Envoy Gateway, from Envoy Gateway's module.
func definitions(t testing.TB) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/gateway").Output()
	if err != nil {
		t.Fatal("the module of Envoy Gateway:", err)
	}
	folder := filepath.Join(strings.TrimSpace(string(out)), "charts", "gateway-helm", "charts", "crds", "crds")
	files, err := filepath.Glob(filepath.Join(folder, "generated", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no definitions in %s: %v", folder, err)
	}
	ours, err := filepath.Glob("../../deploy/crds/gateway.tailscale.com_*.yaml")
	if err != nil || len(ours) == 0 {
		t.Fatalf("no Tailplane definitions: %v", err)
	}
	return append(append(files, filepath.Join(folder, "gatewayapi-crds.yaml")), ours...)
}

// writeSecret writes the files of a Secret to a folder.
func writeSecret(t testing.TB, c *kubetest.Cluster, name, folder string) {
	t.Helper()
	for _, file := range []string{"ca.crt", "tls.crt", "tls.key"} {
		text := kubectl(t, c, "-n", egNamespace, "get", "secret", name, "-o", "jsonpath={.data."+strings.ReplaceAll(file, ".", `\.`)+"}")
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, file), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// certificates authenticate the extension server and Envoy Gateway to each other, as the files of three Secrets.
// stranger is a certificate of the same authority for another client.
type certificates struct{ server, authority, client, stranger map[string][]byte }

// certify creates the certificates, with a new certificate authority.
func certify(t testing.TB) certificates {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "extension"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	block := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	authority := block("CERTIFICATE", der)
	issue := func(leaf *x509.Certificate) map[string][]byte {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		leaf.SerialNumber, leaf.NotAfter, leaf.KeyUsage = big.NewInt(2), root.NotAfter, x509.KeyUsageDigitalSignature
		leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, &k.PublicKey, key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(k)
		if err != nil {
			t.Fatal(err)
		}
		return map[string][]byte{"tls.crt": block("CERTIFICATE", der), "tls.key": block("PRIVATE KEY", private)}
	}
	c := certificates{server: issue(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}), client: issue(&x509.Certificate{DNSNames: []string{xds.ClientName}}),
		stranger: issue(&x509.Certificate{DNSNames: []string{"mallory"}}), authority: map[string][]byte{"tls.crt": authority}}
	c.server["ca.crt"] = authority
	return c
}

// serve writes the server's certificates to its folder. It replaces each file in one step.
func (c certificates) serve(t testing.TB, folder string) {
	t.Helper()
	for name, b := range c.server {
		hidden := filepath.Join(folder, "."+name)
		if err := os.WriteFile(hidden, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(hidden, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// place writes Envoy Gateway's certificates to the cluster.
func (c certificates) place(t testing.TB, cluster *kubetest.Cluster) {
	t.Helper()
	object := func(name, kind string, data map[string][]byte) string {
		text := fmt.Sprintf("---\napiVersion: v1\nkind: Secret\ntype: %s\nmetadata: {name: %s, namespace: %s}\ndata:\n", kind, name, ourNamespace)
		for k, v := range data {
			text += fmt.Sprintf("  %s: %s\n", k, base64.StdEncoding.EncodeToString(v))
		}
		return text
	}
	apply(t, cluster, fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", ourNamespace)+
		object("tailplane-extension-ca", "Opaque", c.authority)+object("tailplane-extension-client", "kubernetes.io/tls", c.client))
}

// A kubernetesEnv is a cluster for Envoy Gateway with the Kubernetes provider.
type kubernetesEnv struct {
	*kubetest.Cluster
	env   []string
	proxy string // folder of a proxy's certificates
	certificates
}

// defined starts a cluster with the CRDs of the Gateway API, of Envoy Gateway, and of Tailplane.
func defined(t testing.TB, name string) *kubetest.Cluster {
	t.Helper()
	c := kubetest.New(t, kubetest.Options{Name: name})
	for _, f := range definitions(t) {
		kubectl(t, c, "apply", "--server-side", "-f", f)
	}
	kubectl(t, c, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	return c
}

func provide(t testing.TB, name string) *kubernetesEnv {
	t.Helper()
	c := defined(t, name)
	kubectl(t, c, "create", "namespace", egNamespace)
	p := &kubernetesEnv{Cluster: c, env: []string{"KUBECONFIG=" + c.Kubeconfig, "ENVOY_GATEWAY_NAMESPACE=" + egNamespace}, proxy: t.TempDir(), certificates: certify(t)}
	run(t, p.env, "envoy-gateway", "certgen", "--disable-topology-injector")
	writeSecret(t, c, "envoy-gateway", "/certs") // the path is fixed in Envoy Gateway
	writeSecret(t, c, "envoy", p.proxy)
	p.place(t, c)
	return p
}

// startEnvoyGateway starts Envoy Gateway with the configuration that our program prints for a server at this address.
func (p *kubernetesEnv) startEnvoyGateway(t testing.TB, at xds.Address) *process {
	t.Helper()
	return p.startConfigured(t, p.configured(t, at, false))
}

// configured returns the configuration that our program prints for a server at this address. It adds the options of a
// single process: no leader election and no webhook.
func (p *kubernetesEnv) configured(t testing.TB, at xds.Address, lean bool) string {
	t.Helper()
	config, err := xds.Config(xds.ConfigOptions{Provider: xds.Kubernetes, Server: at, MaxMessage: 64 << 20, Namespace: ourNamespace, Lean: lean})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(config), "provider: {type: Kubernetes}", "provider: {type: Kubernetes, kubernetes: {leaderElection: {disable: true}, proxyTopologyInjector: {disabled: true}}}", 1)
}

func (p *kubernetesEnv) startConfigured(t testing.TB, config string) *process {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy-gateway.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return start(t, p.env, "envoy-gateway", "server", "-c", file)
}

func apply(t testing.TB, c *kubetest.Cluster, documents ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, d := range documents {
		if err := c.Apply(ctx, []byte(d)); err != nil {
			t.Fatal(err)
		}
	}
}

// plainGateway is a Gateway infra/eg, and a Service for its routes.
const plainGateway = `apiVersion: v1
kind: Namespace
metadata: {name: infra}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: eg, namespace: infra}
spec:
  gatewayClassName: eg
  listeners: [{name: http, protocol: HTTP, port: 80, allowedRoutes: {namespaces: {from: Same}}}]
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: infra}
spec: {ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: plain, namespace: infra, labels: {kubernetes.io/service-name: plain}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.0.80], conditions: {ready: true}}]
`

// GTW-31, GTW-32, TB-09: Envoy Gateway with the Kubernetes provider runs on a real API server with the printed
// configuration. It calls our server over mutual TLS on every hook. Its configuration contains our routes, clusters,
// weights and rules. A changed revision triggers a new translation; changes of status and annotations do not.
func TestGTW31_KubernetesProvider(t *testing.T) {
	needsNamespaces(t)
	p, own := provide(t, "gateway"), t.TempDir()
	c := p.Cluster
	p.serve(t, own)
	tls, err := (&xds.Certificates{Dir: own}).Config()
	if err != nil {
		t.Fatal(err)
	}
	x := runExtension(t, xds.Address{Network: "tcp", Addr: "127.0.0.1:5005"}, tls)
	p.startEnvoyGateway(t, x.at)
	objects, err := os.ReadFile("testdata/kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, c, string(objects), revisionPolicy("00000000000000a1"))

	key := func(route string) gateway.RuleKey {
		return gateway.RuleKey{Kind: "HTTPRoute", Route: gateway.Name{Namespace: "infra", Name: route}}
	}
	named := func(service string) gateway.Cluster {
		return gateway.Cluster{Name: "tailscale-cluster-" + service, StatName: "tailscale-cluster-" + service, Host: service + ".relays.svc.cluster.local", Port: 10000,
			HealthPort: 9002, HealthPath: "/readyz/" + service, Protocol: gateway.HTTP1}
	}
	sole := named("billing")
	sole.Name = key("sole").ClusterName()
	snapshot := func(revision string, routes ...string) *gateway.Snapshot {
		g := &gateway.Gateway{Name: eg, Revision: revision, Clusters: []gateway.Cluster{named("api"), named("infra_billing_80")},
			Listeners: []gateway.Listener{{ProxyProtocol: true}},
			Rules: []gateway.Rule{
				{Key: key("mixed"), Mixed: []gateway.WeightedCluster{{Cluster: "tailscale-cluster-infra_billing_80", Weight: 20}}, OwnWeight: 80},
				{Key: key("policied"), Paths: []gateway.PathRule{{Name: "tailscale-rule-infra_api_0", Path: gateway.Path{Kind: gateway.PathPrefix, Text: "/api"}, Cluster: "tailscale-cluster-api"}},
					Policies: []gateway.PolicyStamp{{Name: gateway.Name{Namespace: "infra", Name: "api"}, Generation: 1}}},
				{Key: key("sole"), Sole: &sole},
			}}
		for _, name := range routes {
			g.Routes = append(g.Routes, gateway.Route{Name: "tailscale-svc-" + name, Hosts: []string{"*"}, Prefix: "/svc/" + name, Cluster: "tailscale-cluster-" + name})
			g.Clusters = append(g.Clusters, named(name))
		}
		return &gateway.Snapshot{Gateways: map[gateway.Name]*gateway.Gateway{eg: g}}
	}
	x.Publish(snapshot("00000000000000a1", "web"))

	served := readADS(t, p.proxy, kubernetesXDS)
	await(t, "routes, clusters, weights and rules in the served configuration", func() bool {
		mixed := served.route("httproute/infra/mixed/rule/0/match/0/mixed_example_com")
		return served.route("tailscale-svc-web") != nil && served.cluster("tailscale-cluster-web") != nil && served.route("tailscale-rule-infra_api_0_0") != nil &&
			len(mixed.GetRoute().GetWeightedClusters().GetClusters()) == 2 && served.cluster(key("sole").ClusterName()).GetClusterType().GetName() == "envoy.cluster.dns" &&
			served.cluster("tailscale-cluster-infra_billing_80") != nil && served.cluster("tailscale-cluster-api") != nil
	})
	for _, w := range served.route("httproute/infra/mixed/rule/0/match/0/mixed_example_com").GetRoute().GetWeightedClusters().GetClusters() {
		want := map[string]uint32{key("mixed").ClusterName(): 80, "tailscale-cluster-infra_billing_80": 20}[w.GetName()]
		if w.GetWeight().GetValue() != want {
			t.Errorf("%s has %d, want %d", w.GetName(), w.GetWeight().GetValue(), want)
		}
	}
	if served.route("httproute/infra/policied/rule/0/match/0/policied_example_com").GetMetadata().GetFilterMetadata()["gateway.tailscale.com"] == nil {
		t.Error("the policy is not recorded on its route")
	}
	calls := x.called()
	for _, h := range []xds.Hook{xds.RouteHook, xds.VirtualHostHook, xds.ListenerHook, xds.ClusterHook, xds.TranslationHook} {
		if calls[h] == 0 {
			t.Errorf("the hook %s was never called: %v", h, calls)
		}
	}
	if !served.hasListenerFilter("envoy.filters.listener.proxy_protocol") {
		t.Error("no listener reads PROXY headers")
	}

	// Envoy Gateway ignores changes of status and annotations. The proof is that the next call is the one for the new
	// revision, which the test sets afterwards.
	before := len(x.translations())
	for i := range 5 {
		kubectl(t, c, "-n", "infra", "annotate", "--overwrite", "tailscaleroutepolicy", "eg-tailnets-revision", fmt.Sprintf("gateway.tailscale.com/translated=%d", i))
		kubectl(t, c, "-n", "infra", "patch", "tailscaleservice", "billing", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status":{"egress":{"service":"n%d"}}}`, i))
	}
	x.Publish(snapshot("00000000000000b2", "web", "wiki"))
	began := time.Now()
	apply(t, c, revisionPolicy("00000000000000b2"))
	await(t, "the new route", func() bool {
		return served.route("tailscale-svc-wiki") != nil && served.cluster("tailscale-cluster-wiki") != nil
	})
	t.Logf("a new revision was served after %v", time.Since(began).Round(time.Millisecond))
	if after := x.translations(); len(after) == before || after[before].Requested != "00000000000000b2" {
		t.Errorf("translated without need: %+v", after[before:])
	}
}
