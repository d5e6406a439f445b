package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Namespaces of the gateway's tests. The tenants shop and bank may use the tailnet corp; the tenant thief may use
// none.
const (
	gatewayNamespace = "tailscale-gateway-system"
	relayNamespace   = "relays"
	gatewayAccount   = "system:serviceaccount:" + gatewayNamespace + ":tailplane-gateway"
)

const gatewayPolicy = `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:web": ["tag:k8s-operator"], "tag:relay": ["tag:k8s-operator"]},
	"grants": [{"src": ["tag:k8s-operator"], "dst": ["tag:web"], "ip": ["*"]}]}`

const gatewayAudit = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: ["` + gatewayAccount + `"]}
- level: None
`

// gatewayObjects are the objects that every gateway test starts with: a Gateway with an attached tailnet, one route
// and one service.
const gatewayObjects = `apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {net: corp}}
---
apiVersion: v1
kind: Namespace
metadata: {name: bank, labels: {net: corp}}
---
apiVersion: v1
kind: Namespace
metadata: {name: thief}
---
apiVersion: v1
kind: Namespace
metadata: {name: relays, labels: {net: any}}
---
apiVersion: v1
kind: Namespace
metadata: {name: fleeting, labels: {net: any}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: eg, namespace: shop}
spec: {gatewayClassName: eg, listeners: [{name: http, protocol: HTTP, port: 80, allowedRoutes: {namespaces: {from: All}}}]}
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleGateway
metadata: {name: eg-tailnets, namespace: shop}
spec:
  targetRef: {group: gateway.networking.k8s.io, kind: Gateway, name: eg}
  tailnets: [{tailnetRef: {name: corp}, routeGeneration: {egress: {}}}]
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: wiki, namespace: shop}
spec: {tailnetRef: {name: corp}, target: {serviceName: "svc:wiki"}, ports: [{name: http, port: 80}], clusterService: {create: false}}
`

// gatewayValues are the chart values from which the test renders the account's rights.
const gatewayValues = `{image: {repository: registry.invalid/team/tailplaned, tag: v1.0.0}, cluster: {name: east, server: "https://east.invalid", caFromPod: true}, signin: {roles: [view]},
gateway: {enabled: true, proxyNamespaces: [relays, fleeting], consumerNamespaces: [shop, fleeting]}}`

// A tailnetAPI is the fake API of a tailnet. Tests also use it to make changes as a third party.
type tailnetAPI struct {
	*fakeapi.API
	net  *tailnettest.Net
	hand *tsapi.Client
	own  fakeapi.OAuthClient // the operator's client
}

// An env runs the gateway between a real API server and the APIs of two tailnets. Tests call its extension server as
// Envoy Gateway does.
type env struct {
	cluster   *kubetest.Cluster
	admin     client.Client
	dir       string
	asked     string // the API server's audit log of the gateway's requests
	corp, dev *tailnetAPI
	*testenv.Gateway
	options testenv.GatewayOptions
	eg      extension.EnvoyGatewayExtensionClient
	conn    *grpc.ClientConn
	drop    tsapi.Clients
}

// shared is the environment of all tests. Each test leaves it unchanged.
var shared = testenv.Shared(newGatewayEnv, (*env).close)

func start(t *testing.T) *env {
	t.Helper()
	w, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(w.Output(), "\n")
			t.Logf("the end of the gateway's log:\n%s", strings.Join(lines[max(0, len(lines)-40):], "\n"))
		}
	})
	return w
}

func newGatewayEnv(ctx context.Context) (_ *env, err error) {
	w := &env{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if w.dir, err = os.MkdirTemp("", "gw"); err != nil {
		return nil, err
	}
	w.asked = filepath.Join(w.dir, "kube-audit.jsonl")
	policy := filepath.Join(w.dir, "kube-audit.yaml")
	if err := os.WriteFile(policy, []byte(gatewayAudit), 0o600); err != nil {
		return nil, err
	}
	if w.cluster, err = kubetest.Run(ctx, kubetest.Options{Name: "gateway", Args: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + w.asked, "--audit-log-mode=blocking-strict"}}); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), gatewayv1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	if w.admin, err = client.New(w.cluster.AdminConfig(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	rights, err := gatewayRights(ctx, gatewayNamespace)
	if err != nil {
		return nil, err
	}
	if err := applyGatewayKinds(ctx, w.cluster); err != nil {
		return nil, err
	}
	if err := w.cluster.Apply(ctx, rights...); err != nil {
		return nil, err
	}
	for _, to := range []**tailnetAPI{&w.corp, &w.dev} {
		if *to, err = w.tailnet(filepath.Join(w.dir, fmt.Sprintf("net%p", to))); err != nil {
			return nil, err
		}
	}
	// A device, so that the gateway can learn the tailnet's domain.
	if err := w.corp.net.Ready(ctx, w.corp.net.Node("web-1", "", "tag:web")); err != nil {
		return nil, err
	}
	if err := w.corp.hand.PutService(ctx, tsapi.Service{Name: "svc:web", Ports: []string{"tcp:80"}, Tags: []string{"tag:web"}}); err != nil {
		return nil, err
	}
	settings := filepath.Join(w.dir, "gateway.yaml")
	text := fmt.Sprintf("operatorID: tp-attacked\ntailnet: {apiBaseURLs: [%q, %q], requestsPerSecond: 1000, burst: 1000}\nproxy: {image: \"image.invalid/tailplaned:test\"}\nclusterDomain: cluster.local\n"+
		"proxyNamespaces: [relays, fleeting]\nconsumerNamespaces: [shop, fleeting]\n", w.corp.URL(), w.dev.URL())
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		return nil, err
	}
	// An address for this process alone, so that several suites can run at the same time.
	w.options = testenv.GatewayOptions{Namespace: gatewayNamespace, Account: "tailplane-gateway", IP: fmt.Sprintf("127.81.%d.%d", os.Getpid()>>8&255, os.Getpid()&255|1), Settings: settings,
		TLSDir: filepath.Join(w.dir, "tls"), Args: []string{"--extension-certificates", "--leader-elect=false"}}
	if err := os.MkdirAll(w.options.TLSDir, 0o700); err != nil {
		return nil, err
	}
	objects := gatewayObjects
	for name, a := range map[string]*tailnetAPI{"corp": w.corp, "dev": w.dev} {
		objects += fmt.Sprintf(`---
apiVersion: v1
kind: Secret
metadata: {name: %[1]s, namespace: %[2]s}
stringData: {client_id: %[3]q, client_secret: %[4]q}
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleTailnet
metadata: {name: %[1]s}
spec: {oauthSecretName: %[1]s, apiBaseURL: %[5]q, controlURL: %[6]q, allowedNamespaces: {from: Selector, selector: {matchExpressions: [{key: net, operator: In, values: [%[1]s, any]}]}}}
`, name, gatewayNamespace, a.own.ID, a.own.Secret, a.URL(), a.net.ControlURL())
	}
	if err := w.cluster.Apply(ctx, []byte(objects)); err != nil {
		return nil, err
	}
	if w.Gateway, err = testenv.StartGateway(ctx, filepath.Join(w.dir, "gateway"), w.cluster, w.options); err != nil {
		return nil, err
	}
	return w, w.connect(ctx)
}

// applyGatewayKinds installs the CRDs of the gateway and of the Gateway API.
func applyGatewayKinds(ctx context.Context, c *kubetest.Cluster) error {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		return fmt.Errorf("the module of the Gateway API: %w", err)
	}
	var docs [][]byte
	files, err := filepath.Glob("../../../deploy/crds/gateway.tailscale.com_*.yaml")
	if err != nil {
		return err
	}
	for _, kind := range []string{"gatewayclasses", "gateways", "httproutes", "grpcroutes", "referencegrants"} {
		files = append(files, filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard", "gateway.networking.k8s.io_"+kind+".yaml"))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		docs = append(docs, b)
	}
	return c.Apply(ctx, docs...)
}

// gatewayRights returns the namespaces, accounts and rights of the gateway, as the chart renders them.
func gatewayRights(ctx context.Context, namespace string) (docs [][]byte, err error) {
	helm, err := buildcache.Lookup("helm")
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, helm, "template", "tailplane", "../../../charts/tailplane", "--namespace", testenv.SystemNamespace, "--set", "gateway.namespace="+namespace, "--values", "-")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(gatewayValues), &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w: %s", err, &stderr)
	}
	for _, ns := range []string{namespace, relayNamespace, "fleeting", "envoy-gateway-system", testenv.SystemNamespace, testenv.SigninNamespace, "shop"} {
		docs = append(docs, fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", ns))
	}
	for doc := range bytes.SplitSeq(out, []byte("\n---")) {
		for _, kind := range []string{"ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} {
			if bytes.Contains(doc, []byte("\nkind: "+kind+"\n")) && bytes.Contains(doc, []byte("tailplane-gateway")) {
				docs = append(docs, doc)
			}
		}
	}
	if len(docs) < 10 {
		return nil, fmt.Errorf("the chart renders only %d objects for the gateway's account", len(docs))
	}
	return docs, nil
}

// tailnet starts a tailnet with its API.
func (w *env) tailnet(dir string) (*tailnetAPI, error) {
	n, err := tailnettest.Run(dir, tailnettest.Options{Policy: gatewayPolicy})
	if err != nil {
		return nil, err
	}
	a := &tailnetAPI{net: n}
	if a.API, err = n.API(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	a.own = a.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	other := a.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator", "tag:web")
	a.hand, err = w.drop.Put(dir, tsapi.Version{}, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: a.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: other.ID, Secret: secret.New(other.Secret)},
			UserAgent: "a stranger's hand", PerSecond: 1000, Burst: 1000, Now: time.Now}, nil
	})
	return a, err
}

// connect waits for the certificates, copies them to the mount as a kubelet would, and waits until the extension
// server answers.
func (w *env) connect(ctx context.Context) error {
	secrets := map[string]*corev1.Secret{}
	for _, name := range []string{"server", "ca", "client"} {
		s := &corev1.Secret{}
		for {
			err := w.admin.Get(ctx, client.ObjectKey{Namespace: gatewayNamespace, Name: "tailplane-extension-" + name}, s)
			if err == nil && len(s.Data["tls.crt"]) > 0 {
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-w.Done():
				return fmt.Errorf("the gateway ended: %s", w.Output())
			case <-ctx.Done():
				return fmt.Errorf("no certificates: %w, %w", ctx.Err(), err)
			}
		}
		secrets[name] = s
	}
	for file, b := range secrets["server"].Data {
		if err := os.WriteFile(filepath.Join(w.options.TLSDir, file), b, 0o600); err != nil {
			return err
		}
	}
	pair, err := tls.X509KeyPair(secrets["client"].Data["tls.crt"], secrets["client"].Data["tls.key"])
	if err != nil {
		return err
	}
	w.conn, err = w.dial(w.Extension, secrets["ca"].Data["tls.crt"], pair)
	if err != nil {
		return err
	}
	w.eg = extension.NewEnvoyGatewayExtensionClient(w.conn)
	_, err = w.eg.PostClusterModify(ctx, &extension.PostClusterModifyRequest{Cluster: &clusterv3.Cluster{Name: "x"}}, grpc.WaitForReady(true))
	return err
}

// dial connects as Envoy Gateway does, with the given client certificates or without one.
func (w *env) dial(at string, authority []byte, own ...tls.Certificate) (*grpc.ClientConn, error) {
	c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "tailscale-extension-server." + gatewayNamespace, Certificates: own}
	c.RootCAs.AppendCertsFromPEM(authority)
	return grpc.NewClient(at, grpc.WithTransportCredentials(credentials.NewTLS(c)), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
}

func (w *env) close() (err error) {
	if w.conn != nil {
		err = w.conn.Close()
	}
	if w.Gateway != nil {
		err = errors.Join(err, w.Stop(time.Minute))
	}
	for _, a := range []*tailnetAPI{w.corp, w.dev} {
		if a != nil {
			err = errors.Join(err, a.net.Close())
		}
	}
	if w.cluster != nil {
		err = errors.Join(err, w.cluster.Close())
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

// apply applies objects, which must be valid.
func (w *env) apply(t *testing.T, docs ...string) {
	t.Helper()
	for _, d := range docs {
		if err := w.cluster.Apply(t.Context(), []byte(d)); err != nil {
			t.Fatal(err)
		}
	}
}

// of returns an empty object of one of the gateway's kinds, for "kind namespace/name".
func (w *env) of(what string) *unstructured.Unstructured {
	kind, name, _ := strings.Cut(what, " ")
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(gatewayv1alpha1.GroupVersion.String())
	switch kind {
	case "HTTPRoute", "Gateway":
		u.SetAPIVersion("gateway.networking.k8s.io/v1")
	case "ReferenceGrant":
		u.SetAPIVersion("gateway.networking.k8s.io/v1beta1")
	case "Namespace", "Secret", "ConfigMap", "Service":
		u.SetAPIVersion("v1")
	}
	u.SetKind(kind)
	u.SetName(name)
	if ns, own, ok := strings.Cut(name, "/"); ok {
		u.SetNamespace(ns)
		u.SetName(own)
	}
	return u
}

// get reads an object. It returns nil if the object does not exist.
func (w *env) get(t *testing.T, what string) *unstructured.Unstructured {
	t.Helper()
	u := w.of(what)
	err := w.admin.Get(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(u), u)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// remove deletes objects. A cleanup of a test may call it.
func (w *env) remove(t *testing.T, objects ...string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, what := range objects {
		if err := w.admin.Delete(ctx, w.of(what)); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
}

// gone waits until objects are deleted, including their finalizers.
func (w *env) gone(t *testing.T, objects ...string) {
	t.Helper()
	for _, what := range objects {
		attacktest.Eventually(t, attacktest.Long, what+" is deleted", func() bool { return w.get(t, what) == nil })
	}
}

// patch changes an object.
func (w *env) patch(t *testing.T, what, change string) {
	t.Helper()
	if err := w.admin.Patch(t.Context(), w.of(what), client.RawPatch("application/merge-patch+json", []byte(change))); err != nil {
		t.Fatal(err)
	}
}

// condition returns a condition of an object for its current generation, as "False/Reason", with its message. It
// returns "" if there is none.
func (w *env) condition(t *testing.T, what, kind string) (is, message string) {
	t.Helper()
	u := w.get(t, what)
	if u == nil {
		return "", ""
	}
	all, _, err := unstructured.NestedSlice(u.Object, "status", "conditions")
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		c := one.(map[string]any)
		if c["type"] == kind && c["observedGeneration"] == u.GetGeneration() {
			return fmt.Sprintf("%v/%v", c["status"], c["reason"]), fmt.Sprint(c["message"])
		}
	}
	return "", ""
}

// says waits until a condition has the wanted value, and returns its message.
func (w *env) says(t *testing.T, what, kind, want string) (message string) {
	t.Helper()
	is := ""
	defer func() {
		if t.Failed() && is != want {
			t.Logf("%s: %s is %s, %s", what, kind, is, message)
		}
	}()
	attacktest.Eventually(t, attacktest.Long, fmt.Sprintf("%s has %s %s", what, kind, want), func() bool {
		is, message = w.condition(t, what, kind)
		return is == want
	})
	return message
}

// route creates an HTTPRoute of the Gateway shop/eg. The test, in the place of Envoy Gateway, has accepted it.
func (w *env) route(t *testing.T, namespace, name, backends string) {
	t.Helper()
	w.apply(t, fmt.Sprintf(`apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: %s, namespace: %s}
spec: {parentRefs: [{name: eg, namespace: shop}], hostnames: [%s.example.com], rules: [{backendRefs: [%s]}]}
`, name, namespace, name, backends))
	w.patchStatus(t, "HTTPRoute "+namespace+"/"+name, `{"status":{"parents":[{"parentRef":{"name":"eg","namespace":"shop"},"controllerName":"gateway.envoyproxy.io/gatewayclass-controller",`+
		`"conditions":[{"type":"Accepted","status":"True","reason":"Accepted","message":"","lastTransitionTime":"2026-01-01T00:00:00Z"}]}]}}`)
}

func (w *env) patchStatus(t *testing.T, what, change string) {
	t.Helper()
	if err := w.admin.Status().Patch(t.Context(), w.of(what), client.RawPatch("application/merge-patch+json", []byte(change))); err != nil {
		t.Fatal(err)
	}
}

// requests returns the gateway's requests to the API server since an offset in its log.
func (w *env) requests(t *testing.T, from int64) (out []attacktest.KubeRequest) {
	t.Helper()
	attacktest.ReadSince(t, w.asked, from, func(line []byte) {
		var r attacktest.KubeRequest
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	})
	return out
}

// count returns the number of requests to a route of the API.
func (a *tailnetAPI) count(route string) (n int) {
	for _, r := range a.Requests() {
		if r.Route == route && (r.Client == "" || r.Client == a.own.ID) {
			n++
		}
	}
	return n
}

// noted returns the metadata that Envoy Gateway adds to the resources that it renders from an object.
func noted(t *testing.T, kind, namespace, name, section string) *corev3.Metadata {
	t.Helper()
	s, err := structpb.NewStruct(map[string]any{"resources": []any{map[string]any{"kind": kind, "namespace": namespace, "name": name, "sectionName": section}}})
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy-gateway": s}}
}

func ruleOf(namespace, route string) string {
	return gateway.RuleKey{Kind: "HTTPRoute", Route: gateway.Name{Namespace: namespace, Name: route}}.ClusterName()
}

// xdsRoute returns the xDS route that Envoy Gateway renders from an HTTPRoute.
func xdsRoute(t *testing.T, namespace, route, prefix string) *routev3.Route {
	t.Helper()
	return &routev3.Route{Name: fmt.Sprintf("httproute/%s/%s/rule/0/match/0/example_com", namespace, route), Metadata: noted(t, "HTTPRoute", namespace, route, ""),
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: prefix}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: ruleOf(namespace, route)}}}}
}

func xdsHost(t *testing.T, domain string, routes ...*routev3.Route) *routev3.VirtualHost {
	t.Helper()
	return &routev3.VirtualHost{Name: "shop/eg/http/" + domain, Domains: []string{domain}, Metadata: noted(t, "", "shop", "eg", "http"), Routes: routes}
}

// question returns a translation request for the Gateway shop/eg, with a cluster for each rule.
func question(hosts ...*routev3.VirtualHost) *extension.PostTranslateModifyRequest {
	in := &extension.PostTranslateModifyRequest{Routes: []*routev3.RouteConfiguration{{Name: "shop/eg/http", VirtualHosts: hosts}}}
	seen := map[string]bool{}
	for _, h := range hosts {
		for _, r := range h.Routes {
			if name := r.GetRoute().GetCluster(); name != "" && !seen[name] {
				seen[name] = true
				in.Clusters = append(in.Clusters, &clusterv3.Cluster{Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
					EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{ServiceName: name}})
			}
		}
	}
	return in
}

// ask sends a request for the whole Gateway, as Envoy Gateway does.
func (w *env) ask(t *testing.T, in *extension.PostTranslateModifyRequest) *extension.PostTranslateModifyResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	out, err := w.eg.PostTranslateModify(ctx, in, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// webServed reports whether the route to the service web, which always exists, is served.
func (w *env) webServed(t *testing.T) bool {
	t.Helper()
	return slices.Contains(added(w.ask(t, question(xdsHost(t, "example.com", xdsRoute(t, "shop", "plain", "/"))))), "tailscale-cluster-web")
}

// added returns the names of the gateway's clusters in an answer.
func added(out *extension.PostTranslateModifyResponse) (names []string) {
	for _, c := range out.Clusters {
		if strings.HasPrefix(c.GetName(), "tailscale-cluster-") {
			names = append(names, c.GetName())
		}
	}
	return names
}

// sole returns the gateway's cluster behind the only backend of an HTTPRoute's rule, or "" if there is none.
func (w *env) sole(t *testing.T, namespace, route string) string {
	t.Helper()
	in := &clusterv3.Cluster{Name: ruleOf(namespace, route), ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}}
	out, err := w.eg.PostClusterModify(t.Context(), &extension.PostClusterModifyRequest{Cluster: in}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, locality := range out.GetCluster().GetLoadAssignment().GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			return e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()
		}
	}
	return ""
}

// probe returns the status of a path on the gateway's probe port, or 0 without an answer.
func probe(at, path string) int {
	r, err := (&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + at + path)
	if err != nil {
		return 0
	}
	r.Body.Close()
	return r.StatusCode
}

func classOf(err error) tsapi.Class {
	if e, ok := errors.AsType[*tsapi.Error](err); ok {
		return e.Class
	}
	return ""
}

func (w *env) kubectl(t *testing.T, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), attacktest.Long)
	defer cancel()
	return kubetest.Kubectl(ctx, w.cluster.Kubeconfig, args...)
}

// metricLines returns the lines of a metric. An empty name returns all lines.
func metricLines(t *testing.T, at, name string) string {
	t.Helper()
	r, err := (&http.Client{Timeout: time.Minute}).Get("http://" + at + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, name) {
			out.WriteString(line)
		}
	}
	return out.String()
}

// secretOf returns a certificate with its private key as an xDS secret of Envoy Gateway.
func secretOf(name, key string) *tlsv3.Secret {
	inline := func(text string) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: text}}
	}
	return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline("chain"), PrivateKey: inline(key)}}}
}
