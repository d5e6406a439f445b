package adapter

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// real starts two clusters with all their controllers. The tests about several clusters share them. They end with
// this process, like the cluster of kubetest.Start.
var real = sync.OnceValues(func() (map[string]*member, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	all := map[string]*member{}
	for _, name := range []string{"east", "west"} {
		c, err := kubetest.Run(ctx, kubetest.Options{Name: name})
		if err != nil {
			return nil, err
		}
		m := &member{Cluster: c}
		if m.kube, err = kubernetes.NewForConfig(c.AdminConfig()); err != nil {
			return nil, err
		}
		if _, err := m.kube.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		if _, err := m.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "app"},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "app"}}}, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		made, err := m.kube.CoreV1().ServiceAccounts("default").CreateToken(ctx, "app",
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(7200))}}, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		m.token = made.Status.Token
		all[name] = m
	}
	return all, nil
})

type member struct {
	*kubetest.Cluster
	kube  *kubernetes.Clientset
	token string
}

// A recordingProxy is a proxy before a real API server. It records requests, and a test can replace its answers.
type recordingProxy struct {
	*recordingCluster
	gate *pausableListener

	mu    sync.Mutex
	plays func(http.ResponseWriter, *http.Request) bool // returns true if it has answered
}

// play sets the handler that answers instead of the API server. nil restores the API server.
func (f *recordingProxy) play(p func(http.ResponseWriter, *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plays = p
}

// A pausableListener is a listener that can be closed temporarily. It then ends its connections and rejects new ones.
type pausableListener struct {
	net.Listener
	mu   sync.Mutex
	shut bool
	open []net.Conn
}

func (g *pausableListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		g.mu.Lock()
		shut := g.shut
		if !shut {
			g.open = append(g.open, c)
		}
		g.mu.Unlock()
		if !shut {
			return c, nil
		}
		c.Close()
	}
}

// cut ends all connections. With shut it also ends every later connection at once.
func (g *pausableListener) cut(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	for _, c := range g.open {
		c.Close()
	}
	g.open = nil
}

// newFront starts a front before an API server.
func newFront(t *testing.T, m *member) *recordingProxy {
	t.Helper()
	to, err := url.Parse(m.Server)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(m.CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, DisableCompression: true}
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	ca, key, file := authority(t)
	f := &recordingProxy{recordingCluster: &recordingCluster{CA: file}}
	f.listenGated(t, &tls.Config{Certificates: []tls.Certificate{leafOf(t, ca, key, "127.0.0.1", time.Now().Add(time.Hour))}}, func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		plays := f.plays
		f.mu.Unlock()
		if plays == nil || !plays(w, r) {
			proxy.ServeHTTP(w, r)
		}
	})
	t.Cleanup(transport.CloseIdleConnections)
	return f
}

// listenGated is origin.listen with a shutter in front.
func (f *recordingProxy) listenGated(t *testing.T, conf *tls.Config, serve http.HandlerFunc) {
	f.recordingCluster.listen(t, conf, serve)
	// The existing listener is closed and replaced by one behind the shutter, at another address.
	f.recordingCluster.Server.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.gate = &pausableListener{Listener: ln}
	next := httptest.NewUnstartedServer(f.recordingCluster.Server.Config.Handler)
	next.Listener.Close()
	next.Listener = counted{f.gate, f.recordingCluster}
	next.EnableHTTP2, next.TLS = true, conf
	next.Config.ErrorLog = log.New(io.Discard, "", 0)
	next.StartTLS()
	f.recordingCluster.Server = next
	t.Cleanup(func() { f.gate.cut(true); next.CloseClientConnections(); next.Close() })
}

// An env is an adapter with two real clusters, each behind a front. The home cluster is the first of them behind
// another front, so that the test can tell requests to the home cluster apart.
type env struct {
	*podUnderAttack
	home, east, west *recordingProxy
	real             map[string]*member
	namespace        string // in both clusters
	options          testenv.AdapterOptions
}

// herdConfig routes ConfigMaps and Pods of the namespace to east and west, the namespace "only-east" to east, and the
// rest to the home cluster. A test can replace %MORE%.
const herdConfig = `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 1
home: here
clusters:
- {name: here, slot: 0, inCluster: true}
- {name: east, slot: 1, allowLoopback: true, credentials: {secret: east}}
- {name: west, slot: 2, allowLoopback: true, credentials: {secret: west}}
rules:
- {name: only-east, match: {namespaces: [only-east]}, target: {cluster: east}}
- name: several
  match: {apiGroups: [""], resources: [configmaps, pods], namespaces: [$NAMESPACE]}
  target:
    spread:
      members: [east, west]
      place: [{labels: "tier in (gold)", cluster: west}, {labels: "tier in (iron)", cluster: east}]
      strategy: hash
`

// newEnv starts an adapter. change, if not nil, changes its configuration.
func newEnv(t *testing.T, change func(config string) string) *env {
	t.Helper()
	clusters, err := real()
	if err != nil {
		t.Fatal(err)
	}
	h := &env{real: clusters, east: newFront(t, clusters["east"]), west: newFront(t, clusters["west"]), home: newFront(t, clusters["east"])}
	h.namespace = clusters["east"].Namespace(t)
	for _, m := range clusters {
		for _, ns := range []string{h.namespace, "only-east"} {
			if _, err := m.kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := clusters["west"].kube.CoreV1().Namespaces().Delete(ctx, h.namespace, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	config := strings.ReplaceAll(herdConfig, "$NAMESPACE", h.namespace)
	if change != nil {
		config = change(config)
	}
	h.options = testenv.AdapterOptions{Server: h.home.URL, CA: h.home.CA, Token: clusters["east"].token, Namespace: h.namespace, Config: config, Secrets: map[string]map[string]string{
		"east": {"server": h.east.URL, "ca.crt": string(h.east.CA), "token": clusters["east"].token},
		"west": {"server": h.west.URL, "ca.crt": string(h.west.CA), "token": clusters["west"].token},
	}}
	h.podUnderAttack = h.adapter(t)
	return h
}

// adapter starts another adapter with the same options and an empty cache.
func (h *env) adapter(t *testing.T) *podUnderAttack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a, err := testenv.StartAdapter(ctx, t.TempDir(), h.options)
	if err != nil {
		t.Fatal(err)
	}
	p := &podUnderAttack{Adapter: a}
	t.Cleanup(func() {
		if t.Failed() {
			lines := strings.Split(p.Output(), "\n")
			t.Logf("the adapter's last lines:\n%s", strings.Join(lines[max(0, len(lines)-15):], "\n"))
		}
		if err := p.Adapter.Close(); err != nil {
			t.Error(err)
		}
	})
	p.read(t)
	return p
}

// config returns the client configuration with which an application reaches an adapter.
func (p *podUnderAttack) config(t *testing.T) *rest.Config {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	c.QPS = -1
	return c
}

func (p *podUnderAttack) kube(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	k, err := kubernetes.NewForConfig(p.config(t))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// do sends a request once, without retries, and returns its answer.
func (p *podUnderAttack) do(t *testing.T, method, path, body string, pairs ...string) (int, http.Header, string) {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	res, err := p.client(t, true).Do(p.request(t, method, path, in, pairs...))
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %s: %v", method, path, res.Status, err)
	}
	return res.StatusCode, res.Header, string(b)
}

// in returns which of the clusters store the ConfigMap. It queries the clusters directly.
func (h *env) in(t *testing.T, namespace, name string) string {
	t.Helper()
	var found []string
	for _, cluster := range []string{"east", "west"} {
		switch _, err := h.real[cluster].kube.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{}); {
		case err == nil:
			found = append(found, cluster)
		case !apierrors.IsNotFound(err):
			t.Fatal(err)
		}
	}
	return strings.Join(found, " ")
}

// make creates a ConfigMap directly in a cluster, without the adapter.
func (h *env) make(t *testing.T, cluster, name string) *corev1.ConfigMap {
	t.Helper()
	cm, err := h.real[cluster].kube.CoreV1().ConfigMaps(h.namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"of": cluster}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm
}

// asked returns the requests that a front received after the first n, without discovery and health checks.
func (f *recordingProxy) asked(n int) (lines []string) {
	for _, a := range f.arrived()[n:] {
		if strings.HasPrefix(a.URI, "/api/v1/namespaces/") {
			lines = append(lines, a.Method+" "+a.URI)
		}
	}
	return lines
}

// unasked runs f and fails if one of the fronts receives a request.
func unasked(t *testing.T, what string, fronts []*recordingProxy, f func()) {
	t.Helper()
	before := make([]int, len(fronts))
	for i, front := range fronts {
		before[i] = len(front.arrived())
	}
	f()
	for i, front := range fronts {
		if lines := front.asked(before[i]); len(lines) > 0 {
			t.Errorf("%s: a cluster received %q", what, lines)
		}
	}
}

// configMapInformer reads the ConfigMaps of a namespace, and records each deletion that it receives.
type configMapInformer struct {
	listersv1.ConfigMapNamespaceLister
	stop func() // also called at the end of the test

	mu   sync.Mutex
	gone []string
}

// startInformer starts an informer for the namespace of h.
func (h *env) startInformer(t *testing.T, client kubernetes.Interface) *configMapInformer {
	t.Helper()
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(h.namespace))
	maps := factory.Core().V1().ConfigMaps()
	i := &configMapInformer{ConfigMapNamespaceLister: maps.Lister().ConfigMaps(h.namespace)}
	if _, err := maps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: i.recordDeletion}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	i.stop = sync.OnceFunc(func() { cancel(); factory.Shutdown() })
	t.Cleanup(i.stop)
	factory.Start(ctx.Done())
	return i
}

func (i *configMapInformer) recordDeletion(o any) {
	if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = d.Obj
	}
	if cm, ok := o.(*corev1.ConfigMap); ok {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.gone = append(i.gone, cm.Name)
	}
}

// deleted returns the names of the deletions so far.
func (i *configMapInformer) deleted() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.gone)
}
