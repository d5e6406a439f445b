package inject

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// An env is a cluster whose pods the real webhook program injects.
type env struct {
	*kubetest.Cluster
	kube  *kubernetes.Clientset
	front net.Listener // the address to which the API server sends webhook requests

	mu   sync.Mutex
	list []string // the replicas, which it forwards to as a Service does
	turn int
}

// newEnv starts a cluster with the webhook's manifests and no replica yet.
func newEnv(t *testing.T) *env {
	t.Helper()
	c := kubetest.New(t, kubetest.Options{Name: "inject"})
	e, err := envOf(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.front.Close() })
	return e
}

func envOf(ctx context.Context, c *kubetest.Cluster) (*env, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &env{Cluster: c, kube: kubernetes.NewForConfigOrDie(c.AdminConfig()), front: ln}
	manifests, err := testenv.WebhookManifests(ln.Addr().String())
	if err == nil {
		err = c.Apply(ctx, manifests...)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	go p.lead()
	return p, nil
}

// lead forwards connections to one of the replicas on the list.
func (p *env) lead() {
	for {
		c, err := p.front.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			p.mu.Lock()
			p.turn++
			to := ""
			if len(p.list) > 0 {
				to = p.list[p.turn%len(p.list)]
			}
			p.mu.Unlock()
			d, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			defer d.Close()
			go func() {
				io.Copy(d, c)
				d.(*net.TCPConn).CloseWrite()
			}()
			io.Copy(c, d)
		}()
	}
}

func (p *env) set(list ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.list = list
}

// webhook starts a replica and waits until it is ready.
func (p *env) webhook(t *testing.T, args ...string) *testenv.Webhook {
	t.Helper()
	w, err := testenv.StartWebhook(t.Context(), filepath.Join(t.TempDir(), "webhook"), p.Cluster, "127.0.0.1:0", args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Kill)
	waitReady(t, w)
	return w
}

func waitReady(t *testing.T, w *testenv.Webhook) {
	t.Helper()
	attacktest.Eventually(t, attacktest.Long, "a replica to be ready", func() bool {
		res, err := http.Get("http://" + w.Probes + "/readyz")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// shared is a cluster with one replica, for tests that leave both unchanged. Each test uses its own namespaces.
var shared struct {
	once    sync.Once
	env     *env
	webhook *testenv.Webhook
	err     error
}

// start returns the shared cluster and its replica, once the replica answers.
func start(t *testing.T) (*env, *testenv.Webhook) {
	t.Helper()
	shared.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), attacktest.Long)
		defer cancel()
		shared.env, shared.webhook, shared.err = startShared(ctx)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	p, w := shared.env, shared.webhook
	waitReady(t, w)
	ns := p.Namespace(t)
	attacktest.Eventually(t, attacktest.Long, "the API server to be answered", func() bool {
		_, err := p.pod(ns, asks)
		return err == nil
	})
	return p, w
}

func startShared(ctx context.Context) (*env, *testenv.Webhook, error) {
	c, err := kubetest.Run(ctx, kubetest.Options{Name: "inject"})
	if err != nil {
		return nil, nil, err
	}
	testenv.AtEnd(c.Close)
	p, err := envOf(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	testenv.AtEnd(p.front.Close)
	dir, err := os.MkdirTemp("", "inject")
	if err != nil {
		return nil, nil, err
	}
	testenv.AtEnd(func() error { return os.RemoveAll(dir) })
	w, err := testenv.StartWebhook(ctx, filepath.Join(dir, "webhook"), c, "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	testenv.AtEnd(func() error { w.Kill(); return nil })
	p.set(w.Address)
	return p, w, nil
}

const asks = `{metadata: {labels: {mca.tailplane.dev/inject: "true"}}, spec: {containers: [{name: application, image: app}]}}`

func (p *env) pod(ns, text string) (*corev1.Pod, error) {
	var pod corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &pod); err != nil {
		return nil, err
	}
	if pod.Name == "" {
		pod.GenerateName = "p-"
	}
	ctx, cancel := context.WithTimeout(context.Background(), attacktest.Long)
	defer cancel()
	return p.kube.CoreV1().Pods(ns).Create(ctx, &pod, metav1.CreateOptions{})
}

// stored returns the number of pods in a namespace.
func (p *env) stored(t *testing.T, ns string) int {
	t.Helper()
	l, err := p.kube.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return len(l.Items)
}

// adapted reports whether the adapter is the first container.
func adapted(pod *corev1.Pod) bool {
	i := pod.Spec.InitContainers
	return len(i) > 0 && i[0].Name == "mca" && i[0].Image == testenv.SidecarImage && i[0].RestartPolicy != nil && *i[0].RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// withoutRealToken returns an error that names a container, if a container other than the adapter mounts the pod's
// real credential or the adapter does not.
func withoutRealToken(pod *corev1.Pod) error {
	real := map[string]bool{"mca-state": true}
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				real[v.Name] = real[v.Name] || s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == ""
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		mounted := false
		for _, m := range c.VolumeMounts {
			mounted = mounted || real[m.Name]
		}
		if mounted != (c.Name == "mca") {
			return fmt.Errorf("container %s mounts the real credential: %v", c.Name, mounted)
		}
	}
	return nil
}

// IN-01. The webhook is down, slow, or replaced by a server with another certificate.
// Guard: the selectors of the MutatingWebhookConfiguration (pods that did not opt in are not sent), failurePolicy
// Fail.
func TestIN01_WebhookAway(t *testing.T) {
	p := newEnv(t)
	ns := p.Namespace(t)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	stranger := httptest.NewTLSServer(http.NotFoundHandler())
	defer stranger.Close()

	for why, list := range map[string][]string{"down": nil, "slow": {silent.Addr().String()}, "another's certificate": {stranger.Listener.Addr().String()}} {
		p.set(list...)
		before := p.stored(t, ns)
		if pod, err := p.pod(ns, asks); err == nil || p.stored(t, ns) != before {
			t.Errorf("%s: a pod that asks was let in: %v", why, adapted(pod))
		}
		for what, at := range map[string]string{"that does not ask": ns, "of kube-system": "kube-system", "of our own": testenv.SystemNamespace} {
			text := asks
			if at == ns {
				text = strings.Replace(asks, `mca.tailplane.dev/inject: "true"`, "", 1)
			}
			text = strings.Replace(text, "spec: {", "spec: {automountServiceAccountToken: false, ", 1)
			if at == "kube-system" { // the account does not exist there without more controllers
				attacktest.Eventually(t, attacktest.Long, "an account in kube-system", func() bool {
					_, err := p.kube.CoreV1().ServiceAccounts(at).Get(t.Context(), "default", metav1.GetOptions{})
					return err == nil
				})
			}
			if _, err := p.pod(at, text); err != nil {
				t.Errorf("%s: a pod %s was held up: %v", why, what, err)
			}
		}
	}
	p.set(p.webhook(t).Address)
	attacktest.Eventually(t, attacktest.Long, "the webhook is back without help", func() bool {
		pod, err := p.pod(ns, asks)
		return err == nil && adapted(pod)
	})
}

// IN-02. A pod is injected again: by the API server, by file and then by the webhook, over an older adapter.
// Guard: inject.Pod does not change its own result, and replaces the result of an older version.
func TestIN02_InjectedTwice(t *testing.T) {
	p, _ := start(t)
	ns := p.Namespace(t)
	first, err := p.pod(ns, asks)
	if err != nil || !adapted(first) {
		t.Fatal(err)
	}
	again := func(pod *corev1.Pod, change func(*corev1.Pod)) *corev1.Pod {
		t.Helper()
		c := pod.DeepCopy()
		c.ObjectMeta = metav1.ObjectMeta{GenerateName: "p-", Labels: pod.Labels, Annotations: pod.Annotations}
		change(c)
		got, err := p.kube.CoreV1().Pods(ns).Create(t.Context(), c, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := again(first, func(*corev1.Pod) {}); !reflect.DeepEqual(got.Spec, first.Spec) || !reflect.DeepEqual(got.Annotations, first.Annotations) {
		t.Errorf("injected again:\n%+v\n%+v", first.Spec, got.Spec)
	}
	older := again(first, func(c *corev1.Pod) {
		c.Annotations = map[string]string{inject.Status: `{"version":"v0.1.0","hash":"sha256:00"}`}
		c.Spec.InitContainers[0].Image, c.Spec.InitContainers[0].Args = "registry.invalid/mca:v0.1.0", []string{"proxy", "--old"}
	})
	if !reflect.DeepEqual(older.Spec, first.Spec) || older.Annotations[inject.Status] != first.Annotations[inject.Status] {
		t.Errorf("an older adapter became\n%+v", older.Spec)
	}

	// By file, and then also by the webhook.
	o := inject.Options{Sidecar: inject.DefaultSidecar(), Version: "v1", Kubernetes: inject.KubeVersion{Major: 1, Minor: 37}}
	o.Sidecar.Image = testenv.SidecarImage
	source := inject.Source{Name: "pod.yaml", Text: []byte("apiVersion: v1\nkind: Pod\n" + "metadata: {labels: {mca.tailplane.dev/inject: \"true\"}}\nspec:\n  containers:\n  - name: application\n    image: app\n")}
	out, _, err := inject.Files([]inject.Source{source}, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	byFile, err := p.pod(ns, string(out[0].Text))
	if err != nil || !reflect.DeepEqual(byFile.Spec, first.Spec) {
		t.Errorf("by file: %v\n%s", err, out[0].Text)
	}
}

// IN-03. A pod already uses names that injection needs: names, ports, variables, the credentials' path.
// Guard: inject.Pod refuses with the reason, and the API server stores nothing.
func TestIN03_NamesTaken(t *testing.T) {
	p, _ := start(t)
	ns := p.Namespace(t)
	for code, change := range map[string][2]string{
		"name_taken":             {"containers: [{", "containers: [{name: mca, image: theirs}, {"},
		"variable_taken":         {"image: app", "image: app, env: [{name: KUBERNETES_SERVICE_HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}]"},
		"credentials_path_taken": {"spec: {containers: [{", "spec: {volumes: [{name: x, emptyDir: {}}], containers: [{volumeMounts: [{name: x, mountPath: /var/run/secrets/kubernetes.io/serviceaccount}], "},
		"port_taken":             {"image: app", "image: app, ports: [{containerPort: 6443}]"},
	} {
		_, err := p.pod(ns, strings.Replace(asks, change[0], change[1], 1))
		switch {
		case !apierrors.IsForbidden(err):
			t.Errorf("apierrors.IsForbidden(err) is false; code = %s, %v", code, err)
		case !strings.Contains(err.Error(), "("+code+")"):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), "("+code+")")
		case p.stored(t, ns) != 0:
			t.Errorf("p.stored(t, ns) != 0; code = %s, %v", code, err)
		}
	}
	// A volume with the product's name that the product did not create.
	if _, err := p.pod(ns, strings.Replace(asks, "spec: {", "spec: {volumes: [{name: mca-state, hostPath: {path: /}}], ", 1)); !apierrors.IsForbidden(err) {
		t.Errorf("a volume: %v", err)
	}
	switch pod, err := p.pod(ns, strings.Replace(asks, "image: app", `image: app, env: [{name: KUBERNETES_SERVICE_HOST, value: 127.0.0.1}]`, 1)); {
	case err != nil:
		t.Errorf("the very value that is needed: %v", err)
	case !adapted(pod):
		t.Errorf("the very value that is needed: adapted(pod) is false; %v", err)
	case len(pod.Spec.Containers[0].Env) != 8:
		t.Errorf("the very value that is needed: len(pod.Spec.Containers[0].Env) = %v, want 8", len(pod.Spec.Containers[0].Env))
	}
}

// IN-04. Ways in which a container other than the adapter could read the real credential.
// Guard: wayToTheRealToken, and the explicit volume, which is the first one.
func TestIN04_RealToken(t *testing.T) {
	p, _ := start(t)
	ns := p.Namespace(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "quiet"}, AutomountServiceAccountToken: new(false)}
	if _, err := p.kube.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, account := range []string{"default", "quiet"} {
		for _, automount := range []string{"", "automountServiceAccountToken: true, ", "automountServiceAccountToken: false, "} {
			text := strings.Replace(asks, "spec: {", "spec: {serviceAccountName: "+account+", "+automount+"initContainers: [{name: first, image: app}, {name: second, image: app, restartPolicy: Always}], ", 1)
			pod, err := p.pod(ns, text)
			if err == nil && !adapted(pod) {
				err = errors.New("without the adapter")
			}
			if err == nil {
				err = withoutRealToken(pod)
			}
			switch {
			case err != nil:
				t.Errorf("%v; account = %s; automount = %s", err, account, automount)
			case len(pod.Spec.InitContainers) != 3:
				t.Errorf("got %v, want 3; account = %s; automount = %s", len(pod.Spec.InitContainers), account, automount)
			case strings.HasPrefix(pod.Spec.Volumes[1].Name, "kube-api-access-"):
				t.Errorf("pod.Spec.Volumes[1].Name = %q starts with %q; account = %s; automount = %s",
					pod.Spec.Volumes[1].Name, "kube-api-access-", account, automount)
			}
		}
	}
	before := p.stored(t, ns)
	token := "volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: token}}]}}], "
	for why, text := range map[string]string{
		"a token of its own":      strings.Replace(strings.Replace(asks, "spec: {", "spec: {"+token, 1), "image: app", "image: app, volumeMounts: [{name: t, mountPath: /t}]", 1),
		"in an init container":    strings.Replace(asks, "spec: {", "spec: {"+token+"initContainers: [{name: i, image: app, volumeMounts: [{name: t, mountPath: /t}]}], ", 1),
		"the volume that will be": strings.Replace(asks, "image: app", "image: app, volumeMounts: [{name: kube-api-access-sa, mountPath: /t}]", 1),
		"shared processes":        strings.Replace(asks, "spec: {", "spec: {shareProcessNamespace: true, ", 1),
	} {
		if _, err := p.pod(ns, text); !apierrors.IsForbidden(err) || p.stored(t, ns) != before {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// IN-05. Changes by other webhooks and tools to a pod, and manifests of every kind.
// Guard: a JSON patch of the adapter's parts only; Files rewrites only the lines that change.
func TestIN05_NothingElseChanges(t *testing.T) {
	p, _ := start(t)
	ns := p.Namespace(t)
	const rich = `{metadata: {labels: {mca.tailplane.dev/inject: "%s"}, annotations: {a: b}}, spec: {terminationGracePeriodSeconds: 7, hostAliases: [{ip: 127.0.0.2, hostnames: [x]}],
	  tolerations: [{key: k, operator: Exists}], volumes: [{name: data, emptyDir: {sizeLimit: 1Gi}}], containers: [{name: application, image: app, env: [{name: A, value: "$(KUBERNETES_SERVICE_HOST)"}],
	  volumeMounts: [{name: data, mountPath: /data, subPath: s}], lifecycle: {preStop: {sleep: {seconds: 1}}}}]}}`
	plain, err := p.pod(ns, fmt.Sprintf(rich, "false"))
	if err != nil {
		t.Fatal(err)
	}
	pod, err := p.pod(ns, fmt.Sprintf(rich, "true"))
	if err != nil || !adapted(pod) {
		t.Fatal(err)
	}
	// Without the product's parts, the rest equals the original pod.
	c := &pod.Spec.Containers[0]
	pod.Spec.InitContainers, c.Env = nil, c.Env[8:]
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name != "data" })
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name != "data" })
	was := &plain.Spec.Containers[0]
	was.VolumeMounts = slices.DeleteFunc(was.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name != "data" })
	plain.Spec.Volumes = slices.DeleteFunc(plain.Spec.Volumes, func(v corev1.Volume) bool { return v.Name != "data" })
	pod.Spec.AutomountServiceAccountToken = plain.Spec.AutomountServiceAccountToken
	if !reflect.DeepEqual(pod.Spec, plain.Spec) || pod.Annotations["a"] != "b" {
		t.Errorf("\n%+v\n%+v", plain.Spec, pod.Spec)
	}

	o := inject.Options{Sidecar: inject.DefaultSidecar(), Version: "v1"}
	o.Sidecar.Image = testenv.SidecarImage
	crd := "# theirs\napiVersion: example.com/v1\nkind: CronJob\nspec:   {jobTemplate: {spec: {template: {spec: {containers: [{name: a}]}}}}}\n"
	ours := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d} # ours\nspec:\n  template:\n    spec:\n      containers:\n      - name: a\n"
	out, _, err := inject.Files([]inject.Source{{Name: "x", Text: []byte(crd + "---\n" + ours + "---\n" + crd)}}, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	switch text := string(out[0].Text); {
	case !strings.HasPrefix(text, crd+"---\n"+ours):
		t.Errorf("text = %q does not start with %q", text, crd+"---\n"+ours)
	case !strings.HasSuffix(text, "---\n"+crd):
		t.Errorf("text = %q does not end with %q", text, "---\n"+crd)
	case strings.Count(text, testenv.SidecarImage) != 1:
		t.Errorf("strings.Count(text, testenv.SidecarImage) = %v, want 1", strings.Count(text, testenv.SidecarImage))
	}
}

// IN-06. Pods that cannot have the adapter request it; strict namespaces.
// Guard: refusal is the default; the sidecar satisfies the restricted standard and keeps the QoS class.
func TestIN06_Impossible(t *testing.T) {
	p, _ := start(t)
	ns := p.Namespace(t)
	for code, spec := range map[string]string{"host_network": "hostNetwork: true", "windows": "os: {name: windows}"} {
		switch _, err := p.pod(ns, strings.Replace(asks, "spec: {", "spec: {"+spec+", ", 1)); {
		case !apierrors.IsForbidden(err):
			t.Errorf("apierrors.IsForbidden(err) is false; code = %s, %v", code, err)
		case !strings.Contains(err.Error(), code):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), code)
		case p.stored(t, ns) != 0:
			t.Errorf("p.stored(t, ns) != 0; code = %s, %v", code, err)
		}
	}
	old := inject.Options{Sidecar: inject.DefaultSidecar(), Version: "v1", Kubernetes: inject.KubeVersion{Major: 1, Minor: 28}}
	old.Sidecar.Image = testenv.SidecarImage
	if v := inject.Pod([]byte(`{"metadata":{"labels":{"mca.tailplane.dev/inject":"true"}},"spec":{"containers":[{"name":"a"}]}}`), old); v.Outcome != inject.Refused || v.Code != inject.ClusterTooOld {
		t.Errorf("a server without sidecars: %+v", v)
	}
	strict, err := p.kube.CoreV1().Namespaces().Get(t.Context(), p.Namespace(t), metav1.GetOptions{})
	if err == nil {
		strict.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
		_, err = p.kube.CoreV1().Namespaces().Update(t.Context(), strict, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	pod, err := p.pod(strict.Name, strings.Replace(strings.Replace(asks, "spec: {", "spec: {securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, ", 1), "image: app",
		"image: app, resources: {limits: {cpu: 1, memory: 1Gi}}, securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}", 1))
	switch {
	case err != nil:
		t.Errorf("restricted and guaranteed: %v", err)
	case !adapted(pod):
		t.Errorf("restricted and guaranteed: adapted(pod) is false; %v", err)
	case pod.Status.QOSClass != corev1.PodQOSGuaranteed:
		t.Errorf("restricted and guaranteed: pod.Status.QOSClass = %q, want %q", pod.Status.QOSClass, corev1.PodQOSGuaranteed)
	}
}

// IN-07. Any client in the cluster sends arbitrary requests to the webhook.
// Guard: Webhook.review and Review: type, size, depth, version, duplicate keys; the endpoint has access to no secret.
func TestIN07_AnythingSent(t *testing.T) {
	p, w := start(t)
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}, Timeout: attacktest.Long}
	defer hc.CloseIdleConnections()
	const good = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","object":{"metadata":{"labels":{"mca.tailplane.dev/inject":"true"}},"spec":{"containers":[{"name":"a"}]}}}}`
	send := func(method, path, kind, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "https://"+w.Address+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", kind)
		res, err := hc.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	for _, tt := range []struct {
		why, method, path, kind, body string
		status                        int
	}{
		{"GET", "GET", "/mutate", "", "", 405},
		{"another path", "POST", "/metrics", "application/json", good, 404},
		{"another type", "POST", "/mutate", "text/plain", good, 415},
		{"no request", "POST", "/mutate", "application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400},
		{"v1beta1", "POST", "/mutate", "application/json", strings.Replace(good, "k8s.io/v1", "k8s.io/v1beta1", 1), 400},
		{"another kind", "POST", "/mutate", "application/json", strings.Replace(good, "AdmissionReview", "Secret", 1), 400},
		{"too large", "POST", "/mutate", "application/json", good[:len(good)-1] + `,"x":"` + strings.Repeat("x", 3<<20) + `"}`, 413},
		{"deep", "POST", "/mutate", "application/json", good[:len(good)-1] + `,"x":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000) + "}", 400},
		{"not JSON", "POST", "/mutate", "application/json", "\x00\xff{{", 400},
	} {
		if status, body := send(tt.method, tt.path, tt.kind, tt.body); status != tt.status || strings.Contains(body, "goroutine") {
			t.Errorf("%s: %d %.200s", tt.why, status, body)
		}
	}
	// A value that looks like a path, a template or an address is refused as invalid. The webhook never reads or
	// fetches it.
	for _, value := range []string{"../../etc/passwd", "{{ .Env }}", "http://169.254.169.254/", "$(cat /etc/shadow)"} {
		body := strings.Replace(good, `"metadata":{`, fmt.Sprintf(`"metadata":{"annotations":{"mca.tailplane.dev/config":%q},`, value), 1)
		switch status, said := send("POST", "/mutate", "application/json", body); {
		case status != 200:
			t.Errorf("status = %v, want 200; value = %s", status, value)
		case !strings.Contains(said, `"allowed":false`):
			t.Errorf("said = %q does not contain %q; value = %s", said, `"allowed":false`, value)
		case strings.Contains(said, "patch"):
			t.Errorf("said = %q contains %q; value = %s", said, "patch", value)
		}
	}
	if status, said := send("POST", "/mutate", "application/json", good); status != 200 || !strings.Contains(said, "JSONPatch") {
		t.Errorf("afterwards: %d %s", status, said)
	}
	switch pod, err := p.pod(p.Namespace(t), asks); {
	case err != nil:
		t.Errorf("afterwards: %v", err)
	case !adapted(pod):
		t.Errorf("afterwards: adapted(pod) is false; %v", err)
	case strings.Contains(w.Output(), "panic"):
		t.Errorf("afterwards: w.Output() = %q contains %q", w.Output(), "panic")
	}
}

// IN-08. The certificate authority rotates and both replicas are replaced while pods are created.
// Guard: the stages of controller.rotationState.advance, --drain, and the certificate, which is reloaded without a restart.
func TestIN08_RotationUnderLoad(t *testing.T) {
	p := newEnv(t)
	// Certificates begin 5 min early, so this one is due for renewal about 10 s after its creation.
	args := []string{"--certificate-life=165s", "--publish-wait=5s", "--keep-wait=5s"}
	one, two := p.webhook(t, args...), p.webhook(t, args...)
	p.set(one.Address, two.Address)
	ns := p.Namespace(t)
	attacktest.Eventually(t, attacktest.Long, "the API server to be answered", func() bool {
		_, err := p.pod(ns, asks)
		return err == nil
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var admitted, failed atomic.Int64
	var why sync.Map
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			tick := time.NewTicker(20 * time.Millisecond) // 200 a second together, if the machine can
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Labels: map[string]string{inject.Label: "true"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}
				got, err := p.kube.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				switch {
				case ctx.Err() != nil:
					return
				case err == nil && !adapted(got):
					err = errors.New("admitted without the adapter")
				}
				if err != nil {
					why.Store(err.Error(), true)
					failed.Add(1)
				} else {
					admitted.Add(1)
				}
			}
		})
	}
	serial := func() string {
		s, err := p.kube.CoreV1().Secrets(testenv.SystemNamespace).Get(t.Context(), "tailplane-inject-tls", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return string(s.Data["tls.crt"])
	}
	first := serial()
	attacktest.Eventually(t, attacktest.Long, "a rotation", func() bool { return serial() != first })
	three := p.webhook(t, args...)
	p.set(two.Address, three.Address)
	if err := one.End(); err != nil {
		t.Error(err)
	}
	second := serial()
	attacktest.Eventually(t, attacktest.Long, "another rotation", func() bool { return serial() != second })
	p.set(three.Address)
	if err := two.End(); err != nil {
		t.Error(err)
	}
	stop()
	wg.Wait()
	t.Logf("%d admissions, %d failed", admitted.Load(), failed.Load())
	if failed.Load() > 0 || admitted.Load() < 50 {
		why.Range(func(k, _ any) bool { t.Error(k); return true })
		t.Errorf("%d admissions, %d failed", admitted.Load(), failed.Load())
	}
}
