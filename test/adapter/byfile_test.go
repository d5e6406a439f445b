package adapter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// byFile are manifests as people write them.
var byFile = map[string]string{
	"plain":         `{containers: [{name: application, image: app}]}`,
	"automount":     `{automountServiceAccountToken: true, containers: [{name: application, image: app}]}`,
	"no automount":  `{automountServiceAccountToken: false, containers: [{name: application, image: app}]}`,
	"quiet account": `{serviceAccountName: quiet, containers: [{name: application, image: app}]}`,
	"init containers": `{initContainers: [{name: first, image: app, env: [{name: A, value: b}]}, {name: beside, image: app, restartPolicy: Always}],
	  containers: [{name: application, image: app}, {name: second, image: app}]}`,
	"guaranteed": `{containers: [{name: application, image: app, resources: {limits: {cpu: "1", memory: 128Mi}}}]}`,
	"rich": `{terminationGracePeriodSeconds: 7, tolerations: [{key: k, operator: Exists}], volumes: [{name: data, emptyDir: {}}],
	  securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}},
	  containers: [{name: application, image: app, env: [{name: HOST, value: "$(KUBERNETES_SERVICE_HOST)"}], ports: [{containerPort: 8080}],
	    volumeMounts: [{name: data, mountPath: /data}], livenessProbe: {httpGet: {port: 8080}}}]}`,
}

// annotated are the options of a pod in addition to the adapter.
const annotated = `{mca.tailplane.dev/config: routes, mca.tailplane.dev/credentials: "east,west", mca.tailplane.dev/token-audiences: "west=https://west.example",
  mca.tailplane.dev/metrics: "true", mca.tailplane.dev/port: "7443"}`

// injectFile runs `mca inject` on a manifest.
func injectFile(t *testing.T, manifest string) string {
	t.Helper()
	bin, err := buildcache.Lookup("mca")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, "inject", "--image", testenv.SidecarImage, "--kube-version", "1.37")
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.Output()
	if err != nil {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, e.Stderr)
		}
		t.Fatal(err)
	}
	if !bytes.Contains(out, []byte(testenv.SidecarImage)) {
		t.Fatalf("nothing was injected:\n%s", out)
	}
	return string(out)
}

// ADP-28: a manifest is injected by file and applied where the webhook does not apply. The resulting pod equals the
// pod that the webhook creates from the original manifest. The same is true for the template of a workload. Where the
// webhook does apply, it changes nothing.
func TestInjectedByFileAndByWebhook(t *testing.T) {
	c, _ := shared(t)
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	webhook(t, c, admin)
	watched, hidden := c.Namespace(t), c.Namespace(t)
	patch := []byte(`{"metadata":{"labels":{"mca.tailplane.dev/inject":"false"}}}`)
	if _, err := admin.CoreV1().Namespaces().Patch(t.Context(), hidden, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{watched, hidden} {
		quiet := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "quiet"}, AutomountServiceAccountToken: new(false)}
		if _, err := admin.CoreV1().ServiceAccounts(ns).Create(t.Context(), quiet, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	apply := func(ns, manifest string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "manifest.yaml")
		write(t, file, manifest)
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		if out, errs, exit := kubetest.Kubectl(ctx, c.Kubeconfig, "-n", ns, "apply", "-f", file); exit != 0 {
			t.Fatalf("kubectl apply: exit %d: %s%s\n%s", exit, out, errs, manifest)
		}
	}
	// The selectors of namespaces and the webhook's certificate take effect a moment later.
	eventually(t, "the webhook answers, and not for the hidden namespace", func() bool {
		const plain = "{metadata: {generateName: p-, labels: {mca.tailplane.dev/inject: \"true\"}}, spec: {containers: [{name: application, image: app}]}}"
		var pod corev1.Pod
		if err := yaml.UnmarshalStrict([]byte(plain), &pod); err != nil {
			t.Fatal(err)
		}
		made, err := admin.CoreV1().Pods(watched).Create(t.Context(), &pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil || len(made.Spec.InitContainers) == 0 {
			return false
		}
		made, err = admin.CoreV1().Pods(hidden).Create(t.Context(), &pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && len(made.Spec.InitContainers) == 0
	})
	get := func(ns, name string) *corev1.Pod {
		t.Helper()
		pod, err := admin.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod
	}
	var manifests []string
	names := map[string]string{} // the pods' names and what they contain
	for why, spec := range byFile {
		for with, annotations := range map[string]string{"": "{}", ", with annotations": annotated} {
			name := fmt.Sprint("pod-", len(names))
			names[name] = why + with
			manifests = append(manifests, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, labels: {app: web, mca.tailplane.dev/inject: \"true\"}, annotations: %s}\nspec: %s\n", name, annotations, spec))
		}
	}
	manifest := strings.Join(manifests, "---\n")
	injected := injectFile(t, manifest)
	apply(watched, manifest)
	apply(hidden, injected)
	apply(watched, strings.ReplaceAll(injected, "name: pod-", "name: twice-pod-")) // injected by both
	for name, why := range names {
		want := get(watched, name)
		same(t, why+", by file", want, get(hidden, name))
		same(t, why+", by file, and seen by the webhook", want, get(watched, "twice-"+name))
	}
	t.Run("a workload", func(t *testing.T) {
		manifest := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec:\n  selector: {matchLabels: {app: deployed}}\n  template:\n" +
			"    metadata: {labels: {app: deployed, mca.tailplane.dev/inject: \"true\"}, annotations: " + strings.ReplaceAll(annotated, "\n", "") + "}\n    spec: " + byFile["init containers"] + "\n"
		apply(watched, manifest)
		apply(hidden, injectFile(t, manifest))
		var pods []*corev1.Pod
		for _, ns := range []string{watched, hidden} {
			eventually(t, "the Deployment's pod in "+ns, func() bool {
				l, err := admin.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=deployed"})
				if err != nil {
					t.Fatal(err)
				}
				if len(l.Items) == 0 {
					return false
				}
				pods = append(pods, &l.Items[0])
				return true
			})
		}
		same(t, "by file", pods[0], pods[1])
	})
}

// same fails if two pods differ in more than their identity.
func same(t *testing.T, why string, want, got *corev1.Pod) {
	t.Helper()
	text := func(p *corev1.Pod) string {
		p = p.DeepCopy()
		p.Spec.NodeName = ""
		delete(p.Annotations, corev1.LastAppliedConfigAnnotation)
		delete(p.Labels, "pod-template-hash")
		b, err := json.MarshalIndent(map[string]any{"spec": p.Spec, "labels": p.Labels, "annotations": p.Annotations, "class": p.Status.QOSClass}, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if len(want.Spec.InitContainers) == 0 || want.Spec.InitContainers[0].Name != "mca" {
		t.Errorf("%s: the webhook has not injected it", why)
	}
	if w, g := strings.Split(text(want), "\n"), strings.Split(text(got), "\n"); !reflect.DeepEqual(w, g) {
		for i := range min(len(w), len(g)) {
			if w[i] != g[i] {
				t.Errorf("%s: from line %d on\n%s\ninstead of\n%s", why, i, strings.Join(g[i:min(len(g), i+6)], "\n"), strings.Join(w[i:min(len(w), i+6)], "\n"))
				return
			}
		}
		t.Errorf("%s: %d lines instead of %d", why, len(g), len(w))
	}
}

// webhook installs the webhook into a shared cluster until the test ends.
func webhook(t *testing.T, c *kubetest.Cluster, admin *kubernetes.Clientset, args ...string) *testenv.Webhook {
	t.Helper()
	ln, address := reserve(t)
	manifests, err := testenv.WebhookManifests(address)
	if err == nil {
		err = c.Apply(t.Context(), manifests...)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		registration := admin.AdmissionregistrationV1()
		for _, err := range []error{
			registration.MutatingWebhookConfigurations().Delete(ctx, "tailplane-inject", metav1.DeleteOptions{}),
			registration.ValidatingWebhookConfigurations().Delete(ctx, "tailplane-inject", metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ln.Close()
	w, err := testenv.StartWebhook(ctx, filepath.Join(t.TempDir(), "webhook"), c, address, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the webhook:\n%s", w.Output())
		}
		if err := w.End(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// reserve returns an unused address.
func reserve(t *testing.T) (net.Listener, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln, ln.Addr().String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
