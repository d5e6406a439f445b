package proxy

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// startWithoutCertificates starts two clusters with access proxies in a tailnet that issues no certificates.
func startWithoutCertificates(t *testing.T) (east, west *testenv.Env) {
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
	for _, at := range []struct {
		name    string
		cluster *kubetest.Cluster
		env     **testenv.Env
	}{{"east", cluster, &east}, {"west", nil, &west}} {
		env, err := testenv.Start(ctx, filepath.Join(dir, at.name), testenv.Options{ClusterName: at.name, Hostname: "tka-" + at.name, Beside: east, Cluster: at.cluster,
			Policy:   strings.ReplaceAll(policy, "autogroup:admin", "alice@example.com"), // which Headscale does not know
			Tailnet:  tailnettest.Options{Headscale: true, Emails: map[string]string{"alice": "alice@example.com", "bob": "bob@example.com"}},
			Settings: map[string]string{"api.limits": testenv.NoLimits, "access.modes": "[proxy, token]"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := env.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := env.StartProxy(ctx); err != nil {
			t.Fatal(err)
		}
		*at.env = env
	}
	return east, west
}

// certificatePerson returns a person who has signed in to a cluster, and writes the kubeconfig to the file NAME.kubeconfig.
func certificatePerson(t *testing.T, r *testenv.Env, host, user, proxy string) *testenv.Person {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := r.Person(ctx, host, user)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Net.WaitPeer(ctx, p.Node, proxy); err != nil {
		t.Fatal(err)
	}
	return p
}

// authoritiesIn returns the number of authorities in a kubeconfig.
func authoritiesIn(t *testing.T, path string) (n int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`certificate-authority-data: (\S+)`).FindSubmatch(text)
	if found == nil {
		return 0
	}
	rest, err := base64.StdEncoding.DecodeString(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		n++
	}
	return n
}

// PRX-11: a tailnet that issues no certificates, such as one of Headscale. The access server issues the proxy's certificate, tka writes the
// authority into the kubeconfig, and a renewal breaks neither open streams nor kubeconfigs that know the next authority.
func TestPRX11_WithoutCertificates(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP -short: this test needs two clusters")
	}
	east, west := startWithoutCertificates(t)
	runApp(t, east)
	alice := certificatePerson(t, east, "alice-laptop", "alice", "east-api")
	run(t, alice, 0, "tka", "login", "--role", "view")
	writeConfig := func(name string) string {
		path := filepath.Join(alice.Home, name+".kubeconfig")
		run(t, alice, 0, "tka", "kubeconfig", "--yes", "--out", path)
		return path
	}
	if n := authoritiesIn(t, alice.Kubeconfig()); n != 1 {
		t.Fatalf("the kubeconfig has %d authorities, want 1", n)
	}
	run(t, alice, 0, "kubectl", "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	if got := run(t, alice, 0, "kubectl", "get", "pods"); !strings.Contains(got.Stdout, "app") {
		t.Errorf("get pods: %s", got.Both)
	}
	run(t, alice, 0, "tka", "login", "--role", "edit")
	if got := run(t, alice, 0, "kubectl", "--context", "tka-east-edit", "exec", "app", "--", "echo", "hello"); !strings.Contains(got.Stdout, "hello") {
		t.Errorf("exec: %s", got.Both)
	}
	if got := run(t, alice, 0, "tka", "doctor"); !strings.Contains(got.Stdout, "Its certificate is private") {
		t.Errorf("doctor: %s", got.Both)
	}
	if got := run(t, alice, 0, "tka", "status", "-o", "json"); !strings.Contains(got.Stdout, `"certificate": "private"`) {
		t.Errorf("status: %s", got.Both)
	}
	if files := withCredentials(t, alice.Home); len(files) > 0 {
		t.Errorf("these files hold a credential: %v", files)
	}
	t.Run("two clusters", func(t *testing.T) { trustsNoOtherCluster(t, east, west, alice) })
	t.Run("rights", func(t *testing.T) { certificateRights(t, east) })

	old := writeConfig("old")
	watch := begin(t, alice, "old", nil, "get", "configmaps", "-w")
	until(t, watch.String, func() bool { return strings.Contains(watch.String(), "kube-root-ca.crt") })
	stage := renewal(t, east)
	stage(time.Now()) // the next authority is announced
	both := ""
	until(t, func() string { return east.Access.Output() }, func() bool { both = writeConfig("both"); return authoritiesIn(t, both) == 2 })
	run(t, alice, 0, "kubectl", "--kubeconfig", old, "get", "pods")
	run(t, alice, 0, "kubectl", "--kubeconfig", both, "get", "pods")

	stage(time.Now().Add(-61 * 24 * time.Hour)) // long enough
	until(t, func() string { return east.Proxy.Output() }, func() bool {
		return strings.Count(east.Proxy.Output(), "the access proxy has a certificate") == 2
	})
	if err := east.Cluster.Apply(t.Context(), []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: after-renewal, namespace: default}\n")); err != nil {
		t.Fatal(err)
	}
	until(t, watch.String, func() bool { return strings.Contains(watch.String(), "after-renewal") })
	if got := run(t, alice, 1, "kubectl", "--kubeconfig", old, "get", "pods"); !strings.Contains(got.Stderr, "certificate") {
		t.Errorf("a kubeconfig that never had the new authority: %s", got.Both)
	}
	run(t, alice, 0, "kubectl", "--kubeconfig", both, "get", "pods")
	if got := run(t, alice, 1, "tka", "doctor"); !strings.Contains(got.Stdout, "another certificate authority than the access server reports") {
		t.Errorf("doctor about the old kubeconfig: %s", got.Both)
	}
	run(t, alice, 0, "tka", "login", "--role", "view")
	run(t, alice, 0, "kubectl", "get", "pods")
}

// trustsNoOtherCluster uses the authority of each cluster with the proxy of the other.
func trustsNoOtherCluster(t *testing.T, east, west *testenv.Env, alice *testenv.Person) {
	other := certificatePerson(t, west, "west-laptop", "alice", "west-api")
	run(t, other, 0, "tka", "login", "--role", "view")
	run(t, other, 0, "kubectl", "get", "namespaces")
	configs := map[string]*testenv.Person{east.ProxyServer(): alice, west.ProxyServer(): other}
	for server, p := range configs {
		text, err := os.ReadFile(p.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		for foreign, caller := range configs {
			path := filepath.Join(caller.Home, "foreign.kubeconfig")
			if err := os.WriteFile(path, bytes.ReplaceAll(text, []byte(server), []byte(foreign)), 0o600); err != nil {
				t.Fatal(err)
			}
			want := 1
			if foreign == server {
				want = 0
			}
			got := run(t, caller, want, "kubectl", "--kubeconfig", path, "get", "namespaces")
			if want == 1 && !strings.Contains(got.Stderr, "x509") {
				t.Errorf("%s with the authority of %s: %s", foreign, server, got.Both)
			}
		}
	}
}

// certificateRights checks who may read and write the Secret of the certificates.
func certificateRights(t *testing.T, r *testenv.Env) {
	for account, want := range map[string]string{"tailplane-access": "get update", "tailplane-proxy": "get", "tailplane-operator": ""} {
		path, err := r.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, account, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
		k, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		secrets := k.CoreV1().Secrets(testenv.SystemNamespace)
		var may []string
		_, get := secrets.Get(t.Context(), "tailplane-proxy-tls", metav1.GetOptions{})
		_, update := secrets.Update(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tailplane-proxy-tls", ResourceVersion: "1"}}, metav1.UpdateOptions{})
		for verb, err := range map[string]error{"get": get, "update": update} {
			if !apierrors.IsForbidden(err) {
				may = append(may, verb)
			}
		}
		if len(may) == 2 {
			may = []string{"get update"}
		}
		if got := strings.Join(may, " "); got != want {
			t.Errorf("%s may %q, want %q", account, got, want)
		}
	}
}

// renewal returns a function that continues the rotation of the proxy's certificate as if its next authority had been announced at a time.
func renewal(t *testing.T, r *testenv.Env) func(published time.Time) {
	t.Helper()
	k, err := kubernetes.NewForConfig(r.Cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(r.ProxyServer(), "https://")
	host, _, _ := strings.Cut(name, ".")
	rotation := kube.Rotation{Name: "tailplane " + host, Constrained: true, Lifetime: 365 * 24 * time.Hour,
		Leaves: []kube.Leaf{{Certificate: corev1.TLSCertKey, Key: corev1.TLSPrivateKeyKey, Usage: x509.ExtKeyUsageServerAuth, Names: []string{name}}}}
	next, err := rotation.Issue(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return func(published time.Time) {
		t.Helper()
		secrets := k.CoreV1().Secrets(testenv.SystemNamespace)
		s, err := secrets.Get(t.Context(), "tailplane-proxy-tls", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Data[host+".tls.crt"]) == 0 {
			t.Fatal(errors.New("the access server has issued no certificate"))
		}
		for key, value := range next {
			s.Data[host+".next-"+key] = value
		}
		s.Data[host+".published"] = fmt.Append(nil, published.UTC().Format(time.RFC3339Nano))
		if _, err := secrets.Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}
