//go:build linux

package install

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const (
	oldSidecar = "registry.invalid/team/mca@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	newSidecar = "registry.invalid/team/mca@sha256:1111111111111111111111111111111111111111111111111111111111111111"
)

// A role is the chart's role inject in a cluster, with its webhook as a process on this machine. The process uses the
// installed account, arguments and file, and the API server uses another address. Everything else is as in a pod.
type role struct {
	*kubetest.Cluster
	kube    *kubernetes.Clientset
	webhook *testenv.Webhook
	dir     string
}

// ADP-31: helm installs the role, and the installed role works. It is upgraded while pods with the previous adapter
// run. These pods keep working, are reported as outdated, and the new webhook injects their successors. Uninstalling
// leaves nothing that could block pods.
func TestInjectRole(t *testing.T) {
	c := kubetest.New(t, kubetest.Options{Name: "prod-eu"})
	r := &role{Cluster: c, kube: clientsOf(t, c.AdminConfig()), dir: t.TempDir()}
	node, err := testenv.StartNode(t.Context(), c, t.TempDir(), testenv.NodeOptions{Images: map[string]string{"registry.invalid/team/mca": "mca", "testbed.invalid/podclient": "podclient"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(node.Log); t.Failed() {
			t.Logf("the node (%v):\n%s", err, b)
		}
	})
	if !node.Isolated {
		t.Skipf("SKIP separate pods: %s", node.Reason) // the application connects to 127.0.0.1:6443
	}
	values := filepath.Join(r.dir, "values.yaml")
	if err := os.WriteFile(values, []byte(profileValues(t, "inject")), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, c, "kubectl create namespace tailplane-system")
	must(t, c, "kubectl label namespace tailplane-system pod-security.kubernetes.io/enforce=restricted")
	helm(t, c, "upgrade", "--install", "tailplane-crds", crds)
	helm(t, c, "upgrade", "--install", "tailplane", chart, "--values", values, "--set", "inject.sidecar.port=6443")
	r.start(t)
	apps := r.apps(t)

	pod := func(name string) string {
		return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[2]s, labels: {mca.tailplane.dev/inject: "true"}}
spec:
  containers:
  - name: app
    image: testbed.invalid/podclient
    args: [-namespace, %[2]s, -name, %[1]s]
    ports: [{name: health, containerPort: 8080}]
    readinessProbe: {periodSeconds: 1, httpGet: {path: /readyz, port: health}}
`, name, apps)
	}
	r.make(t, pod("before"))
	before := r.ready(t, apps, "before", oldSidecar)

	// From N to N+1, with another adapter and more replicas.
	next := t.TempDir()
	if out, err := runHelm(t, "package", chart, "--version", "0.2.0", "--app-version", "0.2.0", "--destination", next); err != nil {
		t.Fatal(err, out)
	}
	r.stop(t)
	helm(t, c, "upgrade", "tailplane", filepath.Join(next, "tailplane-0.2.0.tgz"), "--values", values,
		"--set", "inject.sidecar.port=6443,inject.replicas=3,inject.sidecar.image.digest="+strings.TrimPrefix(newSidecar, "registry.invalid/team/mca@"))
	if n := must(t, c, "kubectl -n tailplane-system get deployment tailplane-inject -o jsonpath={.spec.replicas}"); n != "3" {
		t.Errorf("%s replicas after the upgrade", n)
	}
	r.start(t)

	// The old pod is unchanged, and its application keeps working through its adapter.
	now := r.ready(t, apps, "before", oldSidecar)
	switch a, b := before.Spec, now.Spec; {
	case !reflect.DeepEqual(a, b):
		t.Errorf("the upgrade has touched a pod that runs: a = %v, want %v", a, b)
	case now.UID != before.UID:
		t.Errorf("the upgrade has touched a pod that runs: now.UID = %q, want %q", now.UID, before.UID)
	case now.Status.InitContainerStatuses[0].RestartCount+now.Status.ContainerStatuses[0].RestartCount > 0:
		t.Errorf("the upgrade has touched a pod that runs: got %v, want at most 0",
			now.Status.InitContainerStatuses[0].RestartCount+now.Status.ContainerStatuses[0].RestartCount)
	}
	renewed := func() time.Time {
		l, err := r.kube.CoordinationV1().Leases(apps).Get(t.Context(), "before", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return l.Spec.RenewTime.Time
	}
	at := renewed()
	until(t, "the old pod's application renews its lease", func() bool { return renewed().After(at) })
	patched, err := r.kube.CoreV1().Pods(apps).Patch(t.Context(), "before", types.StrategicMergePatchType,
		[]byte(`{"spec":{"ephemeralContainers":[{"name":"debug","image":"registry.invalid/tools","targetContainerName":"app"}]}}`), metav1.PatchOptions{}, "ephemeralcontainers")
	if err != nil {
		t.Fatalf("the new webhook, with a pod of the old one: %v", err)
	}
	switch debug := patched.Spec.EphemeralContainers[0]; {
	case len(debug.Env) != 8:
		t.Errorf("a container that came later: len(debug.Env) = %d, want 8", len(debug.Env))
	case len(debug.VolumeMounts) != 1:
		t.Errorf("a container that came later: len(debug.VolumeMounts) = %d, want 1", len(debug.VolumeMounts))
	case debug.VolumeMounts[0].Name != "mca-access":
		t.Errorf("a container that came later: its volume is %q, want mca-access", debug.VolumeMounts[0].Name)
	}
	if out := r.outdated(t); !slices.Equal(out, []string{apps + "/before"}) {
		t.Errorf("of another day: %v", out)
	}

	// A new pod gets the new adapter, and so does a pod that is recreated from the old pod's manifest.
	r.make(t, pod("after"))
	r.ready(t, apps, "after", newSidecar)
	again := before.DeepCopy()
	again.ObjectMeta = metav1.ObjectMeta{Name: "again", Namespace: apps, Labels: before.Labels, Annotations: before.Annotations}
	again.Spec.NodeName, again.Spec.Containers[0].Args = "", []string{"-namespace", apps, "-name", "again"}
	if _, err := r.kube.CoreV1().Pods(apps).Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.ready(t, apps, "again", newSidecar)

	// Rollback: the previous webhook injects its own version.
	r.stop(t)
	helm(t, c, "rollback", "tailplane")
	r.start(t)
	r.make(t, pod("back"))
	r.ready(t, apps, "back", oldSidecar)

	// The API server no longer calls the webhook, and running pods stay.
	r.webhook.Kill()
	helm(t, c, "uninstall", "tailplane", "--wait")
	if left := must(t, c, "kubectl get mutatingwebhookconfigurations,validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings,"+
		"clusterroles,clusterrolebindings -A -l app.kubernetes.io/component=inject -o name"); left != "" {
		t.Errorf("left: %s", left)
	}
	if left := must(t, c, "kubectl -n tailplane-system get deployments,services,serviceaccounts,secrets,configmaps,leases,roles,rolebindings,networkpolicies,poddisruptionbudgets -l app.kubernetes.io/component=inject -o name"); left != "" {
		t.Errorf("left: %s", left)
	}
	at = renewed()
	until(t, "the oldest pod continues", func() bool { return renewed().After(at) })
	r.make(t, strings.Replace(pod("bare"), "spec:", "spec:\n  nodeName: nowhere", 1))
	if bare, err := r.kube.CoreV1().Pods(apps).Get(t.Context(), "bare", metav1.GetOptions{}); err != nil || len(bare.Spec.InitContainers) > 0 {
		t.Errorf("without a webhook: %v", err)
	}
}

// start runs the installed webhook and returns when it injects.
func (r *role) start(t *testing.T) {
	t.Helper()
	deployment, err := r.kube.AppsV1().Deployments(systems).Get(t.Context(), "tailplane-inject", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm, err := r.kube.CoreV1().ConfigMaps(systems).Get(t.Context(), deployment.Spec.Template.Spec.Volumes[0].ConfigMap.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	sidecar := filepath.Join(r.dir, "sidecar.yaml")
	if err := os.WriteFile(sidecar, []byte(cm.Data["sidecar.yaml"]), 0o600); err != nil {
		t.Fatal(err)
	}
	args := deployment.Spec.Template.Spec.Containers[0].Args
	if args[0] != "inject" {
		t.Fatalf("the pod runs %v", args)
	}
	args = slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return strings.HasPrefix(a, "--name=") })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if r.webhook, err = testenv.StartWebhook(ctx, filepath.Join(t.TempDir(), "webhook"), r.Cluster, "127.0.0.1:0", append(args, "--sidecar="+sidecar)...); err != nil {
		t.Fatal(err)
	}
	w := r.webhook
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the webhook:\n%s", w.Output())
		}
		w.Kill()
	})
	r.aim(t, func(path string) []any {
		return []any{map[string]any{"op": "remove", "path": path + "/service"}, map[string]any{"op": "add", "path": path + "/url", "value": "https://" + w.Address}}
	})
	until(t, "the webhook injects", func() bool {
		made, err := r.kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "try", Labels: map[string]string{"mca.tailplane.dev/inject": "true"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && len(made.Spec.InitContainers) == 1
	})
}

// stop ends the webhook and restores its configuration as helm created it.
func (r *role) stop(t *testing.T) {
	t.Helper()
	if err := r.webhook.End(); err != nil {
		t.Error(err)
	}
	r.aim(t, func(path string) []any {
		return []any{map[string]any{"op": "remove", "path": path + "/url"},
			map[string]any{"op": "add", "path": path + "/service", "value": map[string]any{"name": "tailplane-inject", "namespace": systems, "port": 443}}}
	})
}

// aim changes the address of the webhook and keeps the trusted certificate authority.
func (r *role) aim(t *testing.T, change func(path string) []any) {
	t.Helper()
	registration := r.kube.AdmissionregistrationV1()
	for i, path := range []string{"/mutate", "/mutate", "/validate-config"} {
		var patch []any
		for _, op := range change(fmt.Sprintf("/webhooks/%d/clientConfig", i%2)) {
			op := op.(map[string]any)
			switch v := op["value"].(type) {
			case string:
				op["value"] = v + path
			case map[string]any:
				v["path"] = path
			}
			patch = append(patch, op)
		}
		b, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		if i < 2 {
			_, err = registration.MutatingWebhookConfigurations().Patch(t.Context(), "tailplane-inject", types.JSONPatchType, b, metav1.PatchOptions{})
		} else {
			_, err = registration.ValidatingWebhookConfigurations().Patch(t.Context(), "tailplane-inject", types.JSONPatchType, b, metav1.PatchOptions{})
		}
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
	}
}

// apps creates a namespace whose pods have the rights of the application.
func (r *role) apps(t *testing.T) string {
	t.Helper()
	ns := r.Namespace(t)
	if _, err := r.kube.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "app"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "default"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return ns
}

func (r *role) make(t *testing.T, manifest string) {
	t.Helper()
	var p corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(manifest), &p); err != nil {
		t.Fatal(err)
	}
	if _, err := r.kube.CoreV1().Pods(p.Namespace).Create(t.Context(), &p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// ready waits until a pod is ready, and fails if its adapter has another image.
func (r *role) ready(t *testing.T, ns, name, image string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	until(t, name+" is ready", func() bool {
		var err error
		if pod, err = r.kube.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		})
	})
	switch i := pod.Spec.InitContainers; {
	case len(i) != 1:
		t.Errorf("%s has the adapter: len(i) = %v, want 1", name, len(i))
	case i[0].Name != "mca":
		t.Errorf("%s has the adapter: i[0].Name = %q, want %q", name, i[0].Name, "mca")
	case i[0].Image != image:
		t.Errorf("%s has the adapter: i[0].Image = %q, want %q", name, i[0].Image, image)
	}
	return pod
}

// outdated returns the pods that `tailplaned inject status` lists.
func (r *role) outdated(t *testing.T) (pods []string) {
	t.Helper()
	bin, err := buildcache.Lookup("tailplaned")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, "inject", "status", "-o", "json", "--kubeconfig", r.Kubeconfig, "--sidecar", filepath.Join(r.dir, "sidecar.yaml")).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var d struct {
		Outdated []struct{ Namespace, Name string }
	}
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	for _, o := range d.Outdated {
		pods = append(pods, o.Namespace+"/"+o.Name)
	}
	return pods
}

// until polls until ok is true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within two minutes: %s", what)
		}
	}
}
