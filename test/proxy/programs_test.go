package proxy

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/proxytest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// metricsAddress is the address of the aggregated API's endpoint. The test's egress maps it to loopback.
const metricsAddress = "10.99.0.1"

// metricsAPI is the registration of an aggregated API, and the right to read it and to debug pods.
const metricsAPI = `apiVersion: v1
kind: Service
metadata: {name: metrics, namespace: kube-system}
spec: {clusterIP: None, ports: [{name: https, port: 443, targetPort: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: metrics-1, namespace: kube-system, labels: {kubernetes.io/service-name: metrics}}
addressType: IPv4
ports: [{name: https, port: 443, protocol: TCP}]
endpoints: [{addresses: ["` + metricsAddress + `"], conditions: {ready: true}}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec: {group: metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 100, versionPriority: 100, insecureSkipTLSVerify: true, service: {name: metrics, namespace: kube-system, port: 443}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: metrics-and-debug, labels: {rbac.authorization.k8s.io/aggregate-to-edit: "true"}}
rules:
- {apiGroups: [metrics.k8s.io], resources: [pods], verbs: [get, list]}
- {apiGroups: [""], resources: [pods/ephemeralcontainers], verbs: [patch]}
`

// serveMetrics registers an aggregated API of the cluster that knows the usage of the pod app, and returns who has called it.
func serveMetrics(t *testing.T, r *testenv.Env) (users chan string) {
	t.Helper()
	pair, _ := proxytest.Certificate(t, time.Now().Add(time.Hour), "metrics.kube-system.svc")
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	users = make(chan string, 100)
	const base = "/apis/metrics.k8s.io/v1beta1"
	mux := http.NewServeMux()
	answer := func(path, body string) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, q *http.Request) {
			if path != base {
				users <- q.Header.Get("X-Remote-User")
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, body)
		})
	}
	answer(base, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1","resources":[{"name":"pods","singularName":"","namespaced":true,"kind":"PodMetrics","verbs":["get","list"]}]}`)
	answer(base+"/namespaces/default/pods", `{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","metadata":{},"items":[{"metadata":{"name":"app","namespace":"default"},"timestamp":"2026-01-01T00:00:00Z","window":"30s","containers":[{"name":"app","usage":{"cpu":"7m","memory":"21Mi"}}]}]}`)
	srv := &http.Server{Handler: mux}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
	system.egress.Map(metricsAddress, ln.Addr().String())
	if err := r.Cluster.Apply(t.Context(), []byte(metricsAPI)); err != nil {
		t.Fatal(err)
	}
	admin := kubernetes.NewForConfigOrDie(r.Cluster.AdminConfig()).RESTClient()
	t.Cleanup(func() {
		if err := admin.Delete().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io").Do(context.Background()).Error(); err != nil {
			t.Error(err)
		}
	})
	until(t, func() string { return "the aggregated API is not available" }, func() bool {
		return admin.Get().AbsPath(base).Do(t.Context()).Error() == nil
	})
	return users
}

// bothWays returns kubeconfigs of the same account: one through the proxy, and one with a token directly at the API server.
func bothWays(t *testing.T, r *testenv.Env, p *testenv.Person) map[string]string {
	t.Helper()
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: edit
clusters: [{name: edit, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: edit, user: {token: "%s"}}]
contexts: [{name: edit, context: {cluster: edit, user: edit}}]
`, r.Cluster.Server, base64.StdEncoding.EncodeToString(r.Cluster.CA), tokenOf(t, p))
	file := filepath.Join(p.Home, "direct.kubeconfig")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return map[string]string{"direct": file, "proxy": filepath.Join(p.Home, "edit.kubeconfig")}
}

// tokenOf returns a token of the session edit, which the person has asked for.
func tokenOf(t *testing.T, p *testenv.Person) string {
	t.Helper()
	run(t, p, 0, "tka", "kubeconfig", "--session", "edit", "--mode", "token")
	var credential struct{ Status struct{ Token string } }
	if err := json.Unmarshal([]byte(run(t, p, 0, "tka", "credential", "--cluster", "east", "--session", "edit").Stdout), &credential); err != nil {
		t.Fatal(err)
	}
	return credential.Status.Token
}

const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "example.com/web:1"}]}
`

// PRX-01, PRX-05: kubectl and helm print the same through the proxy as at the API server itself, for whatever people do in a day:
// reads, writes, their errors, an aggregated API, a node's pods, copies, ephemeral containers, and impersonation.
func TestPRX01_Programs(t *testing.T) {
	r := start(t)
	runApp(t, r)
	t.Cleanup(func() { // its ephemeral containers would stay
		if err := kubernetes.NewForConfigOrDie(r.Cluster.AdminConfig()).CoreV1().Pods("default").Delete(context.Background(), "app", metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
			t.Error(err)
		}
	})
	users := serveMetrics(t, r)
	alice := person(t, r, "alice-programs", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	helm, err := buildcache.Lookup("helm")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"web.yaml": web, "changed.yaml": strings.Replace(web, "replicas: 1", "replicas: 2", 1), "file.txt": "hello\n",
		"chart/Chart.yaml": "apiVersion: v2\nname: shop\nversion: 1.0.0\n", "chart/templates/web.yaml": strings.ReplaceAll(web, "name: web", "name: {{ .Release.Name }}")} {
		file := filepath.Join(alice.Home, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := map[string][]string{}
	for name, config := range bothWays(t, r, alice) {
		s := &transcript{ns: r.Cluster.Namespace(t)}
		for _, line := range strings.Split(strings.TrimSpace(programs), "\n") {
			args := strings.Fields(strings.ReplaceAll(line, "NS", s.ns))
			program := filepath.Join(alice.Bin(), args[0])
			if args[0] == "helm" {
				program = helm
			}
			out := runProgram(t, alice, program, append([]string{"--kubeconfig", config}, args[1:]...)...)
			for _, server := range []string{r.Cluster.Server, r.ProxyServer() + "/s/edit", r.ProxyServer()} {
				out = strings.ReplaceAll(out, server, "SERVER")
			}
			s.add("%s\n%s", line, out)
		}
		got[name] = s.lines
	}
	if diff := cmp.Diff(got["direct"], got["proxy"]); diff != "" {
		t.Errorf("(-direct +proxy):\n%s", diff)
	}
	for _, line := range got["proxy"] {
		name, out, _ := strings.Cut(line, "\n")
		if fails := slices.Contains(failing, name); fails == strings.HasPrefix(out, "exit 0") {
			t.Errorf("both ways, %s: %s", name, out)
		}
	}
	for range 2 {
		if user := <-users; !strings.HasPrefix(user, "system:serviceaccount:tailplane-signins:alice-example-com-") {
			t.Errorf("the aggregated API was called by %q", user)
		}
	}
}

// programs are the commands of both ways. NS is a namespace of their own.
const programs = `
kubectl version
kubectl api-resources
kubectl auth whoami -o yaml
kubectl auth can-i --list -n NS
kubectl auth can-i delete pods -n NS
kubectl auth can-i create nodes
kubectl apply -n NS -f web.yaml
kubectl wait -n NS deployment/web --for=condition=Available --timeout=30s
kubectl get -n NS deployments,services,configmaps -o wide
kubectl get -n NS deployment web -o jsonpath={.spec.template.spec.containers[*].image}
kubectl diff -n NS -f changed.yaml
kubectl apply -n NS --server-side --force-conflicts -f changed.yaml
kubectl scale -n NS deployment/web --replicas=0
kubectl explain deployment.spec.replicas
kubectl describe -n NS serviceaccount default
kubectl label -n NS deployment web a=b
kubectl annotate -n NS deployment web a=b
kubectl set image -n NS deployment/web web=example.com/web:2
kubectl rollout history -n NS deployment/web
kubectl create -n NS configmap one --from-literal=a=b
kubectl create -n NS configmap one --from-literal=a=c
kubectl get -n NS configmap none
kubectl get -n NS nothings
kubectl get nodes
kubectl get pods -A --as bob@example.com
kubectl delete -n NS configmap one
kubectl get --raw /api/v1/namespaces/NS/configmaps?limit=1
kubectl get --raw /apis/metrics.k8s.io/v1beta1/namespaces/default/pods
kubectl top pod -n default
kubectl exec app -c app -- echo hello
kubectl exec app -c app -- warn hello
kubectl exec app -c app -- exit 42
kubectl cp file.txt default/app:/NS.txt -c app
kubectl exec app -c app -- cat /NS.txt
kubectl cp default/app:/NS.txt back.txt -c app
kubectl logs app -c app --tail=1
kubectl debug app --image=example.com/debug:1 --container=debug-NS -- cat
kubectl get pod app -o jsonpath={.spec.ephemeralContainers[?(@.name=="debug-NS")].image}
kubectl debug node/fakenode --image=example.com/debug:1
helm install web chart -n NS
helm install shop chart -n NS
helm list -n NS
helm upgrade shop chart -n NS --set a=b
helm history shop -n NS
helm uninstall shop -n NS
helm uninstall none -n NS
kubectl delete -n NS -f web.yaml
`

// failing are the ones that Kubernetes refuses, or that fail by themselves.
var failing = []string{
	"kubectl diff -n NS -f changed.yaml", // there is a difference
	"kubectl auth can-i create nodes",
	"kubectl create -n NS configmap one --from-literal=a=c",
	"kubectl get -n NS configmap none", "kubectl get -n NS nothings", "kubectl get nodes", "kubectl get pods -A --as bob@example.com",
	"kubectl exec app -c app -- exit 42", "kubectl debug node/fakenode --image=example.com/debug:1",
	"helm install web chart -n NS", "helm uninstall none -n NS",
}

// runProgram runs a program as p and returns its exit code and both its outputs.
func runProgram(t *testing.T, p *testenv.Person, program string, args ...string) string {
	t.Helper()
	out, err := p.RunPath(t.Context(), program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("exit %d\n%s%s", out.Exit, out.Stdout, out.Stderr)
}

// PRX-01: `kubectl proxy` drops the session in the path of its server, so the token names it.
func TestPRX01_KubectlProxy(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-kubectl-proxy", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	c := begin(t, alice, "edit", nil, "proxy", "--port=0")
	serving := regexp.MustCompile(`Starting to serve on (127\.0\.0\.1:[0-9]+)`)
	until(t, c.String, func() bool { return serving.MatchString(c.String()) })
	local := &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{}).DialContext, DisableKeepAlives: true}, Timeout: limit}
	res, err := local.Get("http://" + serving.FindStringSubmatch(c.String())[1] + "/api/v1/namespaces/default/secrets")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || !strings.Contains(string(body), `"kind":"SecretList"`) {
		t.Errorf("secrets, which only the role edit may list: %s: %s", res.Status, body)
	}
}
