package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"tailscale.com/ipn"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const service = "svc:east-api"

// startReplicas starts a cluster with two access proxies that host one service of the tailnet, and returns how many certificates
// were issued for the service's name. All tailnets of the tests have the same authority, and another one has a node of that name.
func startReplicas(t *testing.T) (r *testenv.Env, replicas map[tailcfg.StableNodeID]*testenv.Process, issued int) {
	t.Helper()
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cluster, err := kubetest.Run(ctx, kubetest.Options{Name: "east", FakeNode: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Close(); err != nil {
			t.Error(err)
		}
	})
	grants := strings.ReplaceAll(policy, `"dst": ["tag:tailplane"]`, `"dst": ["tag:tailplane", "`+service+`"]`)
	if r, err = testenv.Start(ctx, dir, testenv.Options{Policy: grants, Cluster: cluster,
		Settings: map[string]string{"api.limits": testenv.NoLimits, "access.modes": "[proxy, token]", "proxy.service": service}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	before := r.Net.Issued("east-api." + r.Net.Suffix())
	replicas = map[tailcfg.StableNodeID]*testenv.Process{}
	for _, host := range []string{"east-api-0", "east-api-1"} {
		p, err := r.ProxyReplica(ctx, host)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(time.Minute); err != nil {
				t.Error(err)
			}
		})
		var id tailcfg.StableNodeID
		until(t, p.Output, func() bool {
			nodes := r.Net.Nodes()
			i := slices.IndexFunc(nodes, func(n *tailcfg.Node) bool { return n.Hostinfo.Hostname() == host })
			if i >= 0 {
				id = nodes[i].StableID
			}
			return i >= 0
		})
		if !r.Net.ApproveService(id, service) {
			t.Fatalf("%s cannot host %s", host, service)
		}
		if err := p.WaitLog(ctx, `"the access proxy is serving"`); err != nil {
			t.Fatal(err)
		}
		replicas[id] = p
	}
	return r, replicas, r.Net.Issued("east-api."+r.Net.Suffix()) - before
}

// PRX-10: two replicas host one service, and the one that has its address is killed under 100 watches and 20 commands. New requests go
// on within 5 s, and each watch goes on by the client's own list. The replicas share one certificate.
func TestPRX10_ReplicaKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: this test needs a cluster")
	}
	r, replicas, issued := startReplicas(t)
	if issued != 1 {
		t.Errorf("%d certificates were issued for the service, want 1 for both replicas", issued)
	}
	runApp(t, r)
	alice, err := r.Person(t.Context(), "alice-laptop", "alice@example.com")
	if err != nil {
		t.Fatal(err)
	}
	acceptRoutes(t, alice)
	run(t, alice, 0, "tka", "login", "--role", "edit", "--session", "work")
	run(t, alice, 0, "kubectl", "--context", "tka-east-work", "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	run(t, alice, 0, "tka", "kubeconfig", "--session", "work", "--out", filepath.Join(alice.Home, "work.kubeconfig"))

	config := &rest.Config{Host: r.ProxyServer() + "/s/work", BearerToken: "session.work", TLSClientConfig: rest.TLSClientConfig{CAData: r.RootsPEM}, Dial: alice.Node.Dial, QPS: -1}
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	seen := map[string]int{} // number of watches that have seen a ConfigMap
	for range 100 {
		f := informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace("default"))
		informer := f.Core().V1().ConfigMaps().Informer()
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
			mu.Lock()
			defer mu.Unlock()
			seen[o.(*corev1.ConfigMap).Name]++
		}}); err != nil {
			t.Fatal(err)
		}
		f.Start(t.Context().Done())
	}
	count := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return seen[name]
	}
	until(t, func() string { return "the watches have not begun" }, func() bool { return count("kube-root-ca.crt") == 100 })
	var execs []*command
	for range 20 {
		execs = append(execs, begin(t, alice, "work", nil, "exec", "-i", "app", "--", "cat"))
	}
	primary := r.Net.ServiceHost(service)
	until(t, func() string {
		return fmt.Sprintf("%d streams; a command: %s", r.StreamsOf(replicas[primary]), execs[0])
	},
		func() bool { return r.StreamsOf(replicas[primary]) >= 120 })

	began := time.Now()
	replicas[primary].Kill()
	fresh := alice.HTTP()
	fresh.Timeout = 5 * time.Second
	fresh.Transport.(*http.Transport).DisableKeepAlives = true
	until(t, func() string { return "no new request is answered" }, func() bool { return get(t, fresh, r.ProxyServer()+"/s/work/version") == http.StatusOK })
	took := time.Since(began)
	t.Logf("a new request was answered %v after the kill", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("a new request was answered after %v, want at most 5s", took)
	}
	if moved := r.Net.ServiceHost(service); moved == primary {
		t.Errorf("the service stays at %s", moved)
	}
	if err := r.Cluster.Apply(t.Context(), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: after-kill, namespace: default}\n")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); count("after-kill") < 100; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 100 watches go on", count("after-kill"))
		}
	}
	t.Logf("all watches had gone on %v after the kill", time.Since(began).Round(time.Millisecond))
	for i, c := range execs {
		select {
		case <-c.ended:
		case <-time.After(2 * time.Minute):
			t.Errorf("command %d continues: %s", i, c)
			continue
		}
		if _, failed := errors.AsType[*exec.ExitError](c.err); !failed {
			t.Errorf("command %d: %v, want a code that is not 0", i, c.err)
		}
	}
	if _, err := k.CoreV1().Pods("default").Get(t.Context(), "app", metav1.GetOptions{}); err != nil {
		t.Errorf("a request of the client whose watches went on: %v", err)
	}
}

// get returns the status of a request through the proxy, or 0 without an answer.
func get(t *testing.T, c *http.Client, url string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer session.work")
	res, err := c.Do(req)
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	return res.StatusCode
}

// acceptRoutes lets a person's device reach services, as `tailscale up --accept-routes` does. Devices with a screen do so by default.
func acceptRoutes(t *testing.T, p *testenv.Person) {
	t.Helper()
	lc, err := p.Node.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lc.EditPrefs(t.Context(), &ipn.MaskedPrefs{RouteAllSet: true, Prefs: ipn.Prefs{RouteAll: true}}); err != nil {
		t.Fatal(err)
	}
}
