// Package accessproxy_test compares the access proxy with a bare reverse proxy and with the API server proxy of
// Tailscale's operator.
package accessproxy_test

import (
	"context"
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/testkit/testenv"
)

const policy = `{
  "tagOwners": {"tag:tailplane": ["autogroup:admin"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["alice@example.com"], "dst": ["tag:tailplane"], "app": {
      "tailplane.dev/cap/access": [{"role": "view", "period": "8h"}],
      "tailscale.com/cap/kubernetes": [{"impersonate": {"groups": ["viewers"]}}]}},
  ],
}`

const (
	object     = "/api/v1/namespaces/default/configmaps/settings"       // 1.4 kB
	list       = "/api/v1/namespaces/bulk/configmaps?resourceVersion=0" // 1 MB
	ticker     = "/api/v1/namespaces/default/configmaps?watch=1&fieldSelector=metadata.name%3Dticker"
	silent     = "/api/v1/namespaces/silent/configmaps?watch=1&timeoutSeconds=3600" // has no events
	objectSize = 1400
	listSize   = 1 << 20
)

// BenchmarkAccessProxy (PRX-16) compares four ways of one person to the API server: directly, through a bare
// httputil.ReverseProxy, through the API server proxy of Tailscale's operator, and through ours. The proxies are
// processes and nodes of the same tailnet, and take turns in one run. Directly means without the tailnet.
//
// The budget: median and CPU time of a request at most those of the bare proxy, and 0.8 of them for lists of 1 MB; at
// least twice the requests per second of Tailscale's proxy with 8 and 64 clients; 10,000 idle watches in at most 400 MB
// with HTTP/2, and in 800 MB with HTTP/1.1. ROUNDS is the number of turns of each path, WATCHES that of the idle
// watches; the figures are then for 10,000.
func BenchmarkAccessProxy(b *testing.B) {
	rounds, watches := setting(b, "ROUNDS", 12), setting(b, "WATCHES", 2000)
	r, paths, k := start(b)
	part := func(name string, measure func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() { // the numbers come from many turns, not from this loop
			}
			measure(b)
		})
	}
	for _, w := range []workload{
		{name: "get h1, 1 client", url: object, clients: 1, each: 100},
		{name: "get h1, 8 clients", url: object, clients: 8, each: 400},
		{name: "get h1, 64 clients", url: object, clients: 64, each: 640},
		{name: "get h2, 8 clients", url: object, clients: 8, each: 400, http2: true},
		{name: "list 1 MB h1, 1 client", url: list, clients: 1, each: 10},
		{name: "list 1 MB h2, 4 clients", url: list, clients: 4, each: 16, http2: true},
		{name: "new connection and get", url: object, clients: 1, each: 30, once: true},
	} {
		part(w.name, func(b *testing.B) { w.judge(w.measure(b, rounds, paths)) })
	}
	part("event of a watch", func(b *testing.B) {
		s := map[string]*sample{}
		for _, p := range paths {
			s[p.name] = &sample{}
		}
		for range rounds {
			for _, p := range paths {
				s[p.name].took = append(s[p.name].took, p.watchDelays(b, ticker, 10, func(i int) error { return tick(b.Context(), k, i) })...)
			}
		}
		for _, p := range paths {
			fmt.Printf("    %-23s %-9s p50 %8.2f ms\n", "event of a watch", p.name, s[p.name].p50())
		}
		ratio("event of a watch, p50 of bare", s[ours].p50(), s[bareProxy].p50(), 1, true)
	})
	for _, http2 := range []bool{true, false} {
		name := "idle watches h1"
		if http2 {
			name = "idle watches h2"
		}
		part(name, func(b *testing.B) { idleWatches(b, r, paths[3], watches, http2) })
	}
}

// ours is the name of the path through the access proxy.
const ours = "ours"

func ratio(name string, of, to, bound float64, most bool) {
	testenv.Budget("accessproxy: "+name, of/to, bound, most, "")
}

// judge compares the samples of a workload with the budget.
func (w *workload) judge(s map[string]*sample) {
	bound := 1.0
	if w.url == list {
		bound = 0.8
	}
	ratio(w.name+", p50 of bare", s[ours].p50(), s[bareProxy].p50(), bound, true)
	ratio(w.name+", cpu of bare", s[ours].cpuEach(), s[bareProxy].cpuEach(), bound, true)
	if w.clients >= 8 && !w.http2 {
		ratio(w.name+", rate of Tailscale's", s[ours].rate(), s[tailscaleProxy].rate(), 2, false)
	}
}

// idleWatches measures the memory of n idle watches with 100 of them on each HTTP/2 connection of the client, or one on
// each HTTP/1.1 connection. It restarts the proxy, so that the garbage of other workloads does not count.
func idleWatches(b *testing.B, r *testenv.Env, proxy *path, n int, http2 bool) {
	b.Helper()
	name, bound, each := "h1", 800.0, n
	if http2 {
		name, bound, each = "h2", 400, 100
	}
	if err := r.Proxy.Stop(time.Minute); err != nil {
		b.Fatal(err)
	}
	if err := r.StartProxy(b.Context()); err != nil {
		b.Fatal(err)
	}
	proxy.pid = r.Proxy.PID()
	if _, err := proxy.get(b.Context(), proxy.client(b, false), object); err != nil {
		b.Fatal(err)
	}
	before := memory(b, proxy.pid)
	var ends []func()
	for done := 0; done < n; done += each {
		ends = append(ends, proxy.idle(b, proxy.client(b, http2), silent, min(each, n-done)))
	}
	after := memory(b, proxy.pid)
	for _, end := range ends {
		end()
	}
	testenv.Budget("accessproxy: 10,000 idle watches, "+name, (after-before)*10_000/float64(n)+before, bound, true, "MB")
	fmt.Printf("    %d watches: %.1f MB before, %.1f MB after\n", n, before, after)
}

// memory returns the private memory of a process in MB.
func memory(b *testing.B, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skip("SKIP memory: this machine does not report that of other processes: ", err)
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.Atoi(strings.Fields(kib)[0])
			if err != nil {
				b.Fatal(err)
			}
			return float64(n) * 1024 / 1e6
		}
	}
	b.Fatal("/proc has no RssAnon")
	return 0
}

func setting(b *testing.B, name string, otherwise int) int {
	b.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("%s is %q, which is no number above 0", name, text)
	}
	return n
}

// start starts everything, and returns the paths: direct, bare, Tailscale's and ours.
func start(b *testing.B) (*testenv.Env, []*path, *kubernetes.Clientset) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 4*time.Minute)
	defer cancel()
	r, err := testenv.Start(ctx, b.TempDir(), testenv.Options{Policy: policy})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Close(); err != nil {
			b.Error(err)
		}
	})
	if err := r.StartProxy(ctx); err != nil {
		b.Fatal(err)
	}
	config := r.Cluster.AdminConfig()
	config.QPS = -1
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	if err := fill(ctx, k); err != nil {
		b.Fatal(err)
	}
	alice, err := r.Person(ctx, "alice-laptop", "alice@example.com")
	if err != nil {
		b.Fatal(err)
	}
	if err := r.Net.WaitPeer(ctx, alice.Node, "east-api"); err != nil {
		b.Fatal(err)
	}
	if res, err := alice.Run(ctx, "tka", "login", "--role", "view"); err != nil || res.Exit != 0 {
		b.Fatalf("tka login: %v\n%s", err, res.Both)
	}
	token, err := k.CoreV1().ServiceAccounts("default").CreateToken(ctx, "viewer", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	direct := &path{name: "direct", url: r.Cluster.Server, token: token.Status.Token, roots: pool(b, r.Cluster.CA)}
	paths := append([]*path{direct}, &path{name: bareProxy, pid: startContender(b, r, alice, bareProxy, "viewer")},
		&path{name: tailscaleProxy, pid: startContender(b, r, alice, tailscaleProxy, "impersonator"), noHTTP2: true},
		&path{name: ours, pid: r.Proxy.PID()})
	for _, p := range paths[1:] {
		p.url, p.token, p.dial, p.roots = r.ServerAt(p.name), "session.default", alice.Node.Dial, r.Roots
	}
	paths[3].url = r.ProxyServer()
	for _, p := range paths {
		for url, want := range map[string]int64{object: objectSize, list: listSize} {
			n, err := p.get(ctx, p.client(b, false), url)
			if err != nil {
				b.Fatal(err)
			}
			if n < want*9/10 || n > want*11/10 {
				b.Fatalf("%s: %s has %d bytes, want about %d", p.name, url, n, want)
			}
		}
	}
	return r, paths, k
}

// fill creates the objects of the workloads and the accounts of the contenders.
func fill(ctx context.Context, k *kubernetes.Clientset) error {
	const ns = "default"
	for _, name := range []string{"bulk", "silent"} {
		if _, err := k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	configMap := func(ns, name string) error {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Data: map[string]string{"text": strings.Repeat("x", 950)}}
		_, err := k.CoreV1().ConfigMaps(ns).Create(ctx, c, metav1.CreateOptions{})
		return err
	}
	for _, name := range []string{"settings", "ticker"} {
		if err := configMap(ns, name); err != nil {
			return err
		}
	}
	for i := range listSize / objectSize {
		if err := configMap("bulk", fmt.Sprintf("item-%03d", i)); err != nil {
			return err
		}
	}
	viewer, impersonator := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "viewer"}, rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "impersonator"}
	for _, name := range []string{viewer.Name, impersonator.Name} {
		if _, err := k.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	rights := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "impersonator"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"users", "groups"}, Verbs: []string{"impersonate"}}}}
	if _, err := k.RbacV1().ClusterRoles().Create(ctx, rights, metav1.CreateOptions{}); err != nil {
		return err
	}
	for role, subjects := range map[string][]rbacv1.Subject{"view": {viewer, {Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "viewers"}}, rights.Name: {impersonator}} {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bench-" + role}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}}
		if _, err := k.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// tick writes the object of which the watches have events.
func tick(ctx context.Context, k *kubernetes.Clientset, seq int) error {
	patch := fmt.Sprintf(`{"data":{"seq":"%d %d"}}`, seq, time.Now().UnixNano())
	_, err := k.CoreV1().ConfigMaps("default").Patch(ctx, "ticker", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func pool(b *testing.B, roots []byte) *x509.CertPool {
	b.Helper()
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(roots) {
		b.Fatal("no certificate")
	}
	return p
}
