//go:build linux

package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// wholePolicy: relays have tag:relay and may reach services. People may reach published services.
const wholePolicy = `{
	"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:relay": ["tag:k8s-operator"], "tag:web": ["tag:k8s-operator"], "tag:svc-wiki": ["tag:k8s-operator"]},
	"grants": [
		{"src": ["tag:relay"], "dst": ["tag:web", "tag:svc-wiki"], "ip": ["*"]},
		{"src": ["autogroup:member"], "dst": ["*"], "ip": ["*"]},
	],
}`

// GTW-03, GTW-35, GTW-40: the whole system as it is run. A client sends a request through Envoy and a relay to a node
// of the tailnet. A person on the tailnet reaches a service whose relay forwards to Envoy or to a Service of the
// cluster. A killed relay loses only the requests in flight.
func TestGTW35_Whole(t *testing.T) {
	needsNamespaces(t)
	if _, err := buildcache.Lookup("envoy"); err != nil {
		if e, ok := errors.AsType[*buildcache.UnavailableError](err); ok {
			envoyVerdict = "SKIP it is not available"
			t.Skipf("SKIP envoy: %s", e.Reason)
		}
		t.Fatal(err)
	}
	p := provide(t, "whole")
	c := p.Cluster
	kubectl(t, c, "create", "namespace", "infra")
	startServiceProxy(t, c)
	tn := tailnettest.Start(t, wholePolicy)
	api, err := tn.API()
	if err != nil {
		t.Fatal(err)
	}
	web, wiki, alice := tn.Node("web-1", "", "tag:web"), tn.Node("wiki-1", "", "tag:svc-wiki"), tn.Node("alice-laptop", "alice@example.com")
	ctx := within(t)
	if err := tn.Ready(ctx, web, wiki, alice); err != nil {
		t.Fatal(err)
	}
	serveOn(t, web, "web-1")
	serveOn(t, wiki, "wiki-1")
	acceptRoutes(t, alice)

	// Our side: the gateway, and the runner for the pods that it creates.
	dir := t.TempDir()
	socket := filepath.Join(dir, "x.sock")
	settings := fmt.Sprintf("tailnet: {apiBaseURLs: [%q], requestsPerSecond: 100, burst: 100}\nenvoy: {discovery: Endpoints}\nproxy: {image: \"tailplaned:test\"}\nconsumerNamespaces: [infra]\n", api.URL())
	file := filepath.Join(dir, "gateway.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, tailnettest.ChildEnv(), "tailplaned", "gateway", "--config", file, "--kubeconfig", c.Kubeconfig, "--namespace", ourNamespace, "--metrics-addr", "127.0.0.1:9091",
		"--extension-addr", "unix://"+socket, "--leader-elect=false", "--log-level", "debug")
	pods, err := testenv.RunPods(c, t.TempDir(), testenv.PodsOptions{Namespace: ourNamespace, First: netip.MustParseAddr("10.244.1.1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pods.Stop(); err != nil {
			t.Error(err)
		}
	})

	// Their side: Envoy Gateway, and Envoy as it would be run.
	p.startEnvoyGateway(t, xds.Address{Network: "unix", Addr: socket})
	client := api.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s-operator")
	objects, err := os.ReadFile("testdata/whole.yaml")
	if err != nil {
		t.Fatal(err)
	}
	apply(t, c, strings.NewReplacer("CLIENT_ID", client.ID, "CLIENT_SECRET", client.Secret, "API_URL", api.URL(), "CONTROL_URL", tn.ControlURL(), "SUFFIX", tn.Suffix()).Replace(string(objects)))
	version := p.startEnvoy(t)
	tell(t, "Envoy %s runs under Envoy Gateway; the operator has created the relays that the objects require", version)
	last := ""
	answers := func(host, path, want string) func() bool {
		return func() bool {
			last = get(t, "", host, path)
			return strings.HasPrefix(last, want)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last answer was %q\n%s\n%s", last, kubectl(t, c, "get", "tstn,tsgw,tsrp,tssvc,tspg,pods,httproutes,gateways,endpointslices", "-A", "-o", "wide"),
				kubectl(t, c, "get", "tssvc,tspg,tsgw", "-A", "-o", "yaml"))
			if res, err := http.Get("http://127.0.0.1:19010/clusters"); err == nil {
				b, _ := io.ReadAll(res.Body)
				res.Body.Close()
				t.Logf("Envoy's clusters: %s", b)
			}
			for _, r := range pods.Running() {
				_, says, _, err := r.Ask(context.Background(), "/readyz/infra.eg-tailnets-wiki")
				t.Logf("%s reports wiki %q %v: %s", r.Pod, says, err, r.Output()[max(0, len(r.Output())-2000):])
			}
		}
	})

	kubectl(t, c, "wait", "--for=condition=Ready", "tstn/corp", "--timeout=200s")
	await(t, "a client through Envoy and a relay to a node of the tailnet", answers("web.example.com", "/hello", "200 web-1 GET web.example.com /hello from "))
	await(t, "a service that was found by its tag", answers("api.example.com", "/svc/wiki/page", "200 wiki-1 GET api.example.com /svc/wiki/page from "))
	await(t, "a rule of a policy", answers("api.example.com", "/api/x", "200 wiki-1 GET api.example.com /api/x from "))
	for _, path := range []string{"web.example.com/hello", "api.example.com/svc/wiki/page", "api.example.com/api/x"} {
		host, rest, _ := strings.Cut(path, "/")
		began := time.Now()
		tell(t, "$ curl http://%s\n    %s   (%v)", path, get(t, "", host, "/"+rest), time.Since(began).Round(time.Microsecond))
	}
	kubectl(t, c, "-n", "infra", "wait", "--for=condition=Ready", "tssvc,tsgw,tsrp", "--all", "--timeout=200s") // GTW-03
	kubectl(t, c, "-n", ourNamespace, "wait", "--for=condition=Ready", "tspg", "--all", "--timeout=200s")
	tell(t, "$ kubectl get tailscale-gateway -A\n%s", kubectl(t, c, "get", "tailscale-gateway", "-A"))

	// A relay is killed: only requests in flight are lost, here at most one.
	pods.Running()["web-proxy-group-0"].Kill()
	failed := 0
	for range 100 {
		if !strings.HasPrefix(get(t, "", "web.example.com", "/hello"), "200 ") {
			failed++
		}
	}
	tell(t, "one of the two relays of web was killed: %d of 100 requests after one another were lost", failed)
	if failed > 1 {
		t.Errorf("%d of 100 requests one after the other were lost when one of two relays was killed", failed)
	}

	// From the tailnet: to a Service of the cluster, with the caller's address, and to the Gateway.
	serveCluster(t, "10.244.0.80:8090")
	for _, name := range []string{"svc:plain", "svc:eg"} {
		var address string
		await(t, name+" has an address", func() bool {
			for _, s := range vips(ctx, t, api.URL(), client.ID, client.Secret) {
				if s.Name == name && len(s.Addrs) > 0 {
					address = s.Addrs[0]
				}
			}
			return address != ""
		})
		want := map[string]string{"svc:plain": "200 plain GET plain.example.com /there", "svc:eg": "200 web-1 GET web.example.com /there from "}[name]
		await(t, "a person on the tailnet through "+name, func() bool {
			last = fromTailnet(ctx, alice, net.JoinHostPort(address, "80"), map[string]string{"svc:plain": "plain.example.com", "svc:eg": "web.example.com"}[name])
			return strings.HasPrefix(last, want)
		})
		tell(t, "alice-laptop$ curl http://%s\n    %s", name, last)
	}
	envoyVerdict = "real " + version
	t.Run("GW-13 policies of the whole Gateway", func(t *testing.T) { guarded(t, c) })

	// Everything is deleted and leaves nothing at Tailscale.
	kubectl(t, c, "-n", "infra", "delete", "tsgw,tsrp,tssvc", "--all", "--timeout=200s")
	kubectl(t, c, "-n", ourNamespace, "delete", "tspg", "--all", "--timeout=200s")
	kubectl(t, c, "delete", "tstn", "--all", "--timeout=200s")
	for _, n := range tn.Nodes() {
		for _, tag := range n.Tags {
			if tag == "tag:relay" {
				t.Errorf("the device %s is left behind", n.Name)
			}
		}
	}
	for _, k := range validKeys(ctx, t, api.URL(), client.ID, client.Secret) {
		t.Errorf("the key %s is left behind", k)
	}
	if left := vips(ctx, t, api.URL(), client.ID, client.Secret); len(left) > 0 {
		t.Errorf("services are left behind: %+v", left)
	}
	tell(t, "everything was deleted: no device, no key and no service is left at Tailscale")
}

// tell prints the output of `make demo-gateway`.
func tell(t testing.TB, format string, args ...any) {
	t.Helper()
	for line := range strings.Lines(strings.TrimRight(fmt.Sprintf(format, args...), "\n")) {
		fmt.Fprintf(t.Output(), "| %s\n", strings.TrimRight(line, "\n"))
	}
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// serveOn answers on a node's port 80 with the request and its caller.
func serveOn(t testing.TB, node *tsnet.Server, name string) {
	t.Helper()
	ln, err := node.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %s from %s%s", name, r.Method, r.Host, r.URL.RequestURI(), r.RemoteAddr, claimed(r.Header))
	})}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Close() })
}

// serveCluster acts as a pod behind the Service "plain".
func serveCluster(t testing.TB, at string) {
	t.Helper()
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "plain %s %s %s%s", r.Method, r.Host, r.URL.RequestURI(), claimed(r.Header))
	})}
	go func() { _ = s.Serve(ln) }()
	t.Cleanup(func() { s.Close() })
}

func acceptRoutes(t testing.TB, node *tsnet.Server) {
	t.Helper()
	lc, err := node.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lc.EditPrefs(within(t), &ipn.MaskedPrefs{RouteAllSet: true, Prefs: ipn.Prefs{RouteAll: true}}); err != nil {
		t.Fatal(err)
	}
}

// fromTailnet sends a request from a node of the tailnet.
func fromTailnet(ctx context.Context, node *tsnet.Server, address, host string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/there", nil)
	if err != nil {
		return err.Error()
	}
	req.Host = host
	tr := &http.Transport{DisableKeepAlives: true, DialContext: node.Dial}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, b)
}

// askAPI sends a request to Tailscale's API as the client would.
func askAPI(ctx context.Context, t testing.TB, url, id, secret, path string, into any) {
	t.Helper()
	ask := func(method, path, body string, header http.Header, into any) {
		req, err := http.NewRequestWithContext(ctx, method, url+"/api/v2"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatal(err)
		}
	}
	var token struct {
		Text string `json:"access_token"`
	}
	ask(http.MethodPost, "/oauth/token", "grant_type=client_credentials&client_id="+id+"&client_secret="+secret, http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, &token)
	ask(http.MethodGet, path, "", http.Header{"Authorization": {"Bearer " + token.Text}}, into)
}

type vipService struct {
	Name        string
	Addrs       []string
	Ports       []string
	Annotations map[string]string
}

// vips returns the services of the tailnet.
func vips(ctx context.Context, t testing.TB, url, id, secret string) []vipService {
	t.Helper()
	var list struct{ VIPServices []vipService }
	askAPI(ctx, t, url, id, secret, "/tailnet/-/vip-services", &list)
	return list.VIPServices
}

// validKeys returns the ids of the keys with which a node could still log in.
func validKeys(ctx context.Context, t testing.TB, url, id, secret string) (ids []string) {
	t.Helper()
	var list struct{ Keys []struct{ ID string } }
	askAPI(ctx, t, url, id, secret, "/tailnet/-/keys?all=true", &list)
	for _, k := range list.Keys {
		var key struct {
			KeyType string
			Invalid bool
		}
		askAPI(ctx, t, url, id, secret, "/tailnet/-/keys/"+k.ID, &key)
		if key.KeyType == "auth" && !key.Invalid {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

// startEnvoy runs Envoy with exactly the arguments of the Deployment that Envoy Gateway created, and makes it the
// endpoint of its Service. It returns Envoy's version.
func (p *kubernetesEnv) startEnvoy(t testing.TB) string {
	t.Helper()
	c := p.Cluster
	resolve(t, map[string][]string{"envoy-gateway." + egNamespace + ".svc.cluster.local.": {"127.0.0.1"}, "envoy-gateway." + egNamespace + ".svc.": {"127.0.0.1"}})
	type deployment struct {
		Metadata struct{ Name string }
		Spec     struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Name string
						Args []string
					}
				}
			}
		}
	}
	var args []string
	var name string
	await(t, "the Deployment of Envoy", func() bool {
		var list struct{ Items []deployment }
		out := kubectl(t, c, "-n", egNamespace, "get", "deployment", "-l", "gateway.envoyproxy.io/owning-gateway-name=eg", "-o", "json")
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatal(err)
		}
		for _, d := range list.Items {
			for _, container := range d.Spec.Template.Spec.Containers {
				if container.Name == "envoy" {
					name, args = d.Metadata.Name, container.Args
				}
			}
		}
		return args != nil
	})
	sds := t.TempDir()
	// The paths and ports that would otherwise collide with Envoy Gateway's own.
	move := strings.NewReplacer("/certs/", p.proxy+"/", "/sds/", sds+"/", "port_value: 19000", "port_value: 19010", "port_value: 19001", "port_value: 19011",
		"$(ENVOY_POD_NAME)", "envoy-0", "$(ENVOY_POD_NAMESPACE)", egNamespace, "$(ENVOY_SERVICE_ZONE)", "")
	for i, a := range args {
		args[i] = move.Replace(a)
	}
	var files struct{ Data map[string]string }
	out := kubectl(t, c, "-n", egNamespace, "get", "configmap", name, "-o", "json")
	if err := json.Unmarshal([]byte(out), &files); err != nil {
		t.Fatal(err)
	}
	for file, text := range files.Data {
		if err := os.WriteFile(filepath.Join(sds, file), []byte(move.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start(t, nil, "envoy", args...)
	apply(t, c, fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: envoy, namespace: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: http-8888, port: 8888, protocol: TCP}]
endpoints: [{addresses: [10.244.0.2], conditions: {ready: true}}]
`, egNamespace, name))
	_, version, _ := strings.Cut(run(t, nil, "envoy", "--version"), "version: ")
	if parts := strings.Split(version, "/"); len(parts) > 1 {
		return parts[1]
	}
	return "of an unknown version"
}
