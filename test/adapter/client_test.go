package adapter

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// direct returns the configuration of the same application without an adapter: the same ServiceAccount, directly at
// the API server.
func direct(t testing.TB, c *kubetest.Cluster, a *testenv.Adapter) *rest.Config {
	t.Helper()
	token, err := os.ReadFile(filepath.Join(a.Account, "token"))
	if err != nil {
		t.Fatal(err)
	}
	return c.TokenConfig(string(token))
}

func httpClient(t testing.TB, c *rest.Config) *http.Client {
	t.Helper()
	hc, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return hc
}

// ADP-01: answers through the adapter equal answers without it, byte for byte, in each encoding. Only Mca-Cluster and
// headers that identify one request may differ.
func TestBytesAreTheSame(t *testing.T) {
	c, a := shared(t)
	ns := c.Namespace(t)
	k, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 { // enough for an answer in several chunks, with gzip
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c-%03d", i), Labels: map[string]string{"n": fmt.Sprint(i % 7)}}, Data: map[string]string{"text": strings.Repeat("x", i*10)}}
		if _, err := k.CoreV1().ConfigMaps(ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	configs := map[string]*rest.Config{"direct": direct(t, c, a), "adapter": config(t, a)}
	clients := map[string]*http.Client{}
	for name, conf := range configs {
		conf.DisableCompression = true // otherwise net/http would decompress
		clients[name] = httpClient(t, conf)
	}
	type result struct {
		status int
		header http.Header
		body   []byte
	}
	ask := func(name, method, path string, body string, header http.Header) result {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, configs[name].Host+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range header {
			r.Header[k] = v
		}
		res, err := clients[name].Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, own := range []string{"Audit-Id", "Date", "Mca-Cluster"} {
			res.Header.Del(own)
		}
		return result{res.StatusCode, res.Header, b}
	}
	base := "/api/v1/namespaces/" + ns
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
	for _, tt := range []struct{ method, path, body, kind string }{
		{"GET", base + "/configmaps/c-001", "", ""},
		{"GET", base + "/configmaps?limit=100", "", ""},
		{"GET", base + "/configmaps?labelSelector=n%20in%20%281%2C2%29&resourceVersion=0", "", ""},
		{"GET", base + "/configmaps?fieldSelector=metadata.name%3Dc-002", "", ""},
		{"GET", "/api/v1/nodes", "", ""},
		{"HEAD", base + "/configmaps/c-001", "", ""},
		{"GET", base + "/configmaps/none", "", ""},
		{"GET", base + "/nothings", "", ""},
		{"GET", base + "/configmaps?resourceVersion=x", "", ""},
		{"GET", base + "/configmaps?limit=1&continue=bad", "", ""},
		{"POST", base + "/configmaps?dryRun=All", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"new"},`, "application/json"},
		{"POST", base + "/configmaps", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-001"}}`, "application/json"},
		{"PATCH", base + "/configmaps/c-001?dryRun=All", `{"data":{"a":"b"}}`, "application/merge-patch+json"},
		{"PATCH", base + "/configmaps/c-001", `{}`, "text/unknown"},
		{"DELETE", base + "/configmaps/c-001?dryRun=All", "", ""},
		{"GET", "/version", "", ""}, {"GET", "/apis", "", ""}, {"GET", "/api/v1", "", ""}, {"GET", "/healthz", "", ""}, {"GET", "/openapi/v3", "", ""}, {"GET", "/openapi/v2", "", ""}, {"GET", "/nowhere", "", ""},
	} {
		for _, accept := range []string{"", "application/json", "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json", "application/yaml", "application/cbor,application/json", table} {
			for _, encoding := range []string{"", "gzip"} {
				h := http.Header{}
				for name, v := range map[string]string{"Accept": accept, "Accept-Encoding": encoding, "Content-Type": tt.kind} {
					if v != "" {
						h.Set(name, v)
					}
				}
				// The comparison ignores values that differ in every answer. The resourceVersion of a list, or a
				// document, may have changed in between, because other clients write to the cluster.
				var want, got result
				for range 50 {
					want, got = ask("direct", tt.method, tt.path, tt.body, h), ask("adapter", tt.method, tt.path, tt.body, h)
					for _, h := range []http.Header{got.header, want.header} {
						h.Del("X-Kubernetes-Pf-Flowschema-Uid")
						h.Del("X-Kubernetes-Pf-Prioritylevel-Uid")
					}
					if got.status == want.status && bytes.Equal(got.body, want.body) && fmt.Sprint(got.header) == fmt.Sprint(want.header) {
						break
					}
				}
				what := fmt.Sprintf("%s %s as %q, %q", tt.method, tt.path, accept, encoding)
				if got.status != want.status || !bytes.Equal(got.body, want.body) {
					t.Errorf("%s: %d with %d bytes instead of %d with %d:\n%.200q\n%.200q", what, got.status, len(got.body), want.status, len(want.body), got.body, want.body)
				}
				if fmt.Sprint(got.header) != fmt.Sprint(want.header) {
					t.Errorf("%s:\n%v instead of\n%v", what, got.header, want.header)
				}
			}
		}
	}
}

// ADP-01: each verb of client-go, in JSON and in protobuf.
func TestVerbs(t *testing.T) {
	c, a := shared(t)
	for _, encoding := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(encoding, func(t *testing.T) {
			ns, conf, ctx := c.Namespace(t), config(t, a), t.Context()
			conf.ContentType = encoding
			k, err := kubernetes.NewForConfig(conf)
			if err != nil {
				t.Fatal(err)
			}
			maps := k.CoreV1().ConfigMaps(ns)
			w, err := maps.Watch(ctx, metav1.ListOptions{LabelSelector: "test=yes"})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			made, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"test": "yes"}}, Data: map[string]string{"k": "1"}}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			made.Data["k"] = "2"
			if made, err = maps.Update(ctx, made, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			for kind, patch := range map[types.PatchType]string{types.JSONPatchType: `[{"op":"add","path":"/data/json","value":"1"}]`, types.MergePatchType: `{"data":{"merge":"1"}}`,
				types.StrategicMergePatchType: `{"data":{"strategic":"1"}}`} {
				if _, err := maps.Patch(ctx, "a", kind, []byte(patch), metav1.PatchOptions{}); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
			}
			if _, err := maps.Patch(ctx, "a", types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"apply":"1"}}`), metav1.PatchOptions{FieldManager: "test"}); err != nil {
				t.Errorf("apply: %v", err)
			}
			got, err := maps.Get(ctx, "a", metav1.GetOptions{})
			if err != nil || len(got.Data) != 5 {
				t.Errorf("after all: %v, %v", got.Data, err)
			}
			if l, err := maps.List(ctx, metav1.ListOptions{LabelSelector: "test=yes"}); err != nil || len(l.Items) != 1 {
				t.Errorf("list: %v, %v", l, err)
			}
			if _, err := maps.Create(ctx, made, metav1.CreateOptions{}); err == nil {
				t.Error("created with a resourceVersion")
			}
			made.ResourceVersion = ""
			if _, err := maps.Create(ctx, made, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
				t.Errorf("created twice: %v", err)
			}
			if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
			if _, err := maps.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("after delete: %v", err)
			}
			if err := maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "test=yes"}); err != nil {
				t.Error(err)
			}
			var seen []string
			for len(seen) < 7 {
				select {
				case e, ok := <-w.ResultChan():
					if !ok {
						t.Fatalf("the watch has ended after %v", seen)
					}
					seen = append(seen, string(e.Type))
				case <-time.After(limit):
					t.Fatalf("the watch received %v", seen)
				}
			}
			if want := []string{"ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"}; !slices.Equal(seen, want) {
				t.Errorf("watched %v", seen)
			}
		})
	}
}

// ADP-03: a client that reads a token file and a CA file, as the Python client does. It uses HTTP/1.1, the name
// localhost, and a new connection for each request.
func TestSimpleClient(t *testing.T) {
	_, a := shared(t)
	ca, err := os.ReadFile(filepath.Join(a.Share, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(a.Share, "token"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	hc := &http.Client{Timeout: limit, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots}}}
	_, port, _ := strings.Cut(a.Address, ":")
	for _, host := range []string{"127.0.0.1", "localhost"} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "https://"+host+":"+port+"/api/v1/namespaces/default/pods?limit=500", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "bearer "+string(token))
		res, err := hc.Do(r)
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		switch {
		case err != nil:
			t.Errorf("%v; host = %s", err, host)
		case res.StatusCode != http.StatusOK:
			t.Errorf("res.StatusCode = %v, want %v; host = %s", res.StatusCode, http.StatusOK, host)
		case !strings.Contains(string(b), `"kind":"PodList"`):
			t.Errorf("string(b) = %q does not contain %q; host = %s", string(b), `"kind":"PodList"`, host)
		}
	}
}

// ADP-04: client-go and kubectl understand the adapter's refusals.
func TestRefusals(t *testing.T) {
	c, a := shared(t)
	ns := c.Namespace(t)
	for _, encoding := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		conf := config(t, a)
		conf.ContentType = encoding
		conf.Impersonate.UserName = "admin"
		k, err := kubernetes.NewForConfig(conf)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := k.CoreV1().Pods(ns).Get(t.Context(), "app", metav1.GetOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "mca: impersonation is refused") {
			t.Errorf("%s: impersonation: %v", encoding, err)
		} else if diff := cmp.Diff(&metav1.StatusDetails{Kind: "pods", Name: "app"}, err.(apierrors.APIStatus).Status().Details, cmpopts.IgnoreFields(metav1.StatusDetails{}, "Causes")); diff != "" {
			t.Errorf("%s: details (-want +got):\n%s", encoding, diff)
		}
		conf.Impersonate = rest.ImpersonationConfig{}
		conf.BearerTokenFile, conf.BearerToken = "", "wrong"
		if k, err = kubernetes.NewForConfig(conf); err != nil {
			t.Fatal(err)
		}
		if _, err := k.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) || !strings.Contains(err.Error(), "mca: ") {
			t.Errorf("%s: a wrong token: %v", encoding, err)
		}
	}
	if _, errs, exit := try(t, a, "-n", ns, "create", "token", "default"); exit == 0 || !strings.Contains(errs, "allowTokenRequest") {
		t.Errorf("create token: exit %d: %s", exit, errs)
	}
	// kubectl starts with discovery and shows no message of a refusal there.
	if _, errs, exit := try(t, a, "get", "pods", "--as", "admin"); exit == 0 || !strings.Contains(errs, "Forbidden") {
		t.Errorf("--as: exit %d: %s", exit, errs)
	}
}

// A cut is a server that accepts a request and closes the connection.
func cut(t *testing.T, requests *atomic.Int64) (server string, ca []byte) {
	t.Helper()
	ln, file := listenTLS(t)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		requests.Add(1)
		panic(http.ErrAbortHandler)
	})}
	t.Cleanup(func() { srv.Close() })
	go srv.Serve(ln)
	return "https://" + ln.Addr().String(), file
}

// ADP-06: a write whose connection breaks after it was sent is never sent again. The adapter does not repeat it, and
// client-go does not either, because the answer has no Retry-After. Reads may be repeated.
func TestAWriteIsSentOnce(t *testing.T) {
	var requests atomic.Int64
	server, ca := cut(t, &requests)
	a, err := testenv.StartAdapter(t.Context(), t.TempDir(), testenv.AdapterOptions{Server: server, CA: ca, Token: "token", Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	for _, encoding := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		conf := config(t, a)
		conf.ContentType = encoding
		k, err := kubernetes.NewForConfig(conf)
		if err != nil {
			t.Fatal(err)
		}
		maps := k.CoreV1().ConfigMaps("default")
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"large": strings.Repeat("x", 200<<10)}}
		for name, write := range map[string]func() error{
			"create": func() error { _, err := maps.Create(t.Context(), cm, metav1.CreateOptions{}); return err },
			"update": func() error { _, err := maps.Update(t.Context(), cm, metav1.UpdateOptions{}); return err },
			"patch": func() error {
				_, err := maps.Patch(t.Context(), "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
				return err
			},
			"delete": func() error { return maps.Delete(t.Context(), "a", metav1.DeleteOptions{}) },
		} {
			before := requests.Load()
			err := write()
			if n := requests.Load() - before; n != 1 {
				t.Errorf("%s was sent %d times", name, n)
			}
			if !apierrors.IsTimeout(err) || !strings.Contains(err.Error(), "mca: cluster home") {
				t.Errorf("%s: %v", name, err)
			}
			if seconds, ok := apierrors.SuggestsClientDelay(err); ok {
				t.Errorf("%s: Retry-After is %d s", name, seconds)
			}
		}
	}
}

// ADP-06: while the API server is down, clients get 503 with a time to retry. When it is up again they continue.
func TestTheClusterIsDown(t *testing.T) {
	c := kubetest.New(t, kubetest.Options{Name: "down", NoControllers: true})
	token, err := account(t.Context(), c, "default", "app", "cluster-admin")
	if err != nil {
		t.Fatal(err)
	}
	a, err := testenv.StartAdapter(t.Context(), t.TempDir(), testenv.AdapterOptions{Server: c.Server, CA: c.CA, Token: token, Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	conf := config(t, a)
	hc := httpClient(t, conf)
	status := func() (int, string) {
		res, err := hc.Get(conf.Host + "/api/v1/namespaces/default")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		return res.StatusCode, res.Header.Get("Retry-After")
	}
	if code, _ := status(); code != http.StatusOK {
		t.Fatalf("before: %d", code)
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "503 with Retry-After", func() bool { code, after := status(); return code == http.StatusServiceUnavailable && after == "1" })
	for range 5 { // more than the three failures after which the adapter stops trying
		if code, after := status(); code != http.StatusServiceUnavailable || after != "1" {
			t.Errorf("while it is down: %d, Retry-After %q", code, after)
		}
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cluster receives requests again", func() bool { code, _ := status(); return code == http.StatusOK })
}

// ADP-05: the adapter's container restarts under an informer, and the token and the certificate authority are
// rewritten. The informer misses nothing. No client gets an error about its token or the certificate.
func TestAnInformerGoesOn(t *testing.T) {
	c, _ := shared(t)
	ns := c.Namespace(t)
	token, err := account(t.Context(), c, ns, "app", "cluster-admin")
	if err != nil {
		t.Fatal(err)
	}
	a, err := testenv.StartAdapter(t.Context(), t.TempDir(), testenv.AdapterOptions{Server: c.Server, CA: c.CA, Token: token, Namespace: ns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	k, err := kubernetes.NewForConfig(config(t, a))
	if err != nil {
		t.Fatal(err)
	}
	f := informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace(ns))
	informer := f.Core().V1().ConfigMaps().Informer()
	var mu sync.Mutex
	var troubles []error
	deleted := 0
	if err := informer.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		mu.Lock()
		defer mu.Unlock()
		troubles = append(troubles, err)
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: func(any) { mu.Lock(); deleted++; mu.Unlock() }}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	f.Start(ctx.Done())
	defer f.Shutdown()
	defer stop()
	eventually(t, "the informer's first list", informer.HasSynced)
	n := 0
	change := func(why string) {
		t.Helper()
		n++
		name := fmt.Sprintf("c-%d", n)
		if _, err := admin.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, why+": the change is seen", func() bool { _, ok, _ := informer.GetStore().GetByKey(ns + "/" + name); return ok })
	}
	change("at first")
	fresh, err := admin.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "app", tokenRequest(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"token": []byte(fresh.Status.Token), "ca.crt": append(append([]byte(nil), c.CA...), '\n')} {
		tmp := filepath.Join(a.Account, "."+name)
		if err := errors.Join(os.WriteFile(tmp, content, 0o600), os.Rename(tmp, filepath.Join(a.Account, name))); err != nil {
			t.Fatal(err)
		}
		change("after a new " + name)
	}
	for range 2 {
		if err := a.Stop(40 * time.Second); err != nil {
			t.Fatal(err)
		}
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		change("after a restart")
	}
	mu.Lock()
	defer mu.Unlock()
	if deleted > 0 {
		t.Errorf("%d invented deletions", deleted)
	}
	for _, err := range troubles {
		// For a moment the port is closed, as for every client of a restarting server.
		if _, refused := errors.AsType[*url.Error](err); !refused && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the informer received: %v", err)
		}
		if apierrors.IsUnauthorized(err) || strings.Contains(err.Error(), "x509") {
			t.Errorf("it rejected the token or certificate: %v", err)
		}
	}
}
