package install

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

// The gateway's alerts are those of the page. They use existing metrics and link to their documentation.
func TestGatewayAlerts(t *testing.T) {
	rules := alertDocs{
		file: "gateway-alerts.yaml", least: 5, page: "gateway.md", heading: "| alert | for | meaning |\n",
		key: rule.name, rows: nameRow, runbook: "/docs/tasks/gateway.md#alerts",
	}.check(t)
	checkMetrics(t, rules, "")
}

// GTW-37: the API server accepts the patch for Envoy Gateway's own Deployment. The started program uses a socket that
// both containers can access.
func TestExtensionSidecar(t *testing.T) {
	c := place(t)
	dir := t.TempDir()
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	checkout, err := filepath.Rel(dir, here)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"kustomization.yaml": "resources: [envoy-gateway.yaml]\ncomponents: [" + checkout + "/deploy/extension-sidecar]\nimages: [{name: registry.invalid/tailplaned, newName: registry.example/tailplaned, newTag: v1}]\n",
		"envoy-gateway.yaml": `apiVersion: apps/v1
kind: Deployment
metadata: {name: envoy-gateway, namespace: envoy-gateway-system}
spec:
  selector: {matchLabels: {control-plane: envoy-gateway}}
  template:
    metadata: {labels: {control-plane: envoy-gateway}}
    spec:
      serviceAccountName: envoy-gateway
      containers:
      - {name: envoy-gateway, image: docker.example/gateway, volumeMounts: [{name: certs, mountPath: /certs}]}
      volumes:
      - {name: certs, emptyDir: {}}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, errs, exit := kubectl(t, c, "kustomize", dir)
	if exit != 0 {
		t.Fatal(errs)
	}
	if err := c.Apply(t.Context(), []byte(out)); err != nil {
		t.Fatal(err)
	}
	u := rendered(t, out, "Deployment", "envoy-gateway")
	spec, _, _ := unstructured.NestedMap(u.Object, "spec", "template", "spec")
	var pod corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod); err != nil {
		t.Fatal(err)
	}
	if len(pod.Containers) != 2 || len(pod.Volumes) != 3 {
		t.Fatalf("%d containers, %d volumes", len(pod.Containers), len(pod.Volumes))
	}
	socket := func(name string) string {
		for _, container := range pod.Containers {
			for _, m := range container.VolumeMounts {
				if container.Name == name && m.Name == "tailplane-socket" {
					return m.MountPath
				}
			}
		}
		return ""
	}
	if a, b := socket("envoy-gateway"), socket("tailplane-extension"); a != "/var/run/tailplane" || a != b {
		t.Errorf("the socket is in %q and in %q", a, b)
	}
	config := rendered(t, out, "ConfigMap", pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil })].ConfigMap.Name)
	if config == nil || config.GetNamespace() != "envoy-gateway-system" {
		t.Fatal("its settings are not where it is")
	}
	text, _, _ := unstructured.NestedString(config.Object, "data", "gateway.yaml")
	for _, container := range pod.Containers {
		if container.Name == "tailplane-extension" {
			if container.Image != "registry.example/tailplaned:v1" {
				t.Errorf("it runs %s", container.Image)
			}
			understood(t, container.Args, text)
		}
	}
}

// understood fails if the program refuses the arguments of a pod with its mounted file.
func understood(t *testing.T, args []string, file string) {
	t.Helper()
	bin, err := buildcache.Lookup("tailplaned")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	args = slices.Clone(args)
	for i, a := range args {
		if strings.HasPrefix(a, "--config=") {
			args[i] = "--config=" + path
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, append(args, "--check")...)
	cmd.Env = []string{} // no variable of this machine
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("tailplaned %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// The API server accepts the page's manifests, and the chart accepts its values. The reasons in its explanation of
// failures are reasons of conditions.
func TestGatewayPage(t *testing.T) {
	c := place(t)
	if err := c.Apply(t.Context(), stubs("HTTPRoute.gateway.networking.k8s.io"), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: monitoring}")); err != nil {
		t.Fatal(err)
	}
	text, blocks := page(t, "gateway.md")
	for _, name := range []string{"tailnet.yaml", "egress.yaml", "attach.yaml", "ingress.yaml", "only.yaml"} {
		block, ok := blocks[name]
		if !ok {
			t.Errorf("no block %s", name)
			continue
		}
		if err := c.Apply(t.Context(), []byte(block)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, u := range objects(t, block) {
			if u.GetKind() == "HTTPRoute" {
				as[gatewayapi.HTTPRoute](t, u)
			}
		}
	}
	if out := render(t, profileValues(t, "split")+"\n"+blocks["values.yaml"]); rendered(t, out, "Deployment", "tailplane-gateway") == nil {
		t.Error("the page's values install no gateway")
	}
	names, err := os.ReadFile(root + "/api/gateway/v1alpha1/names.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(text, "| reason | of | meaning |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	reasons := 0
	for row := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(row, "|"), "|")
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(first, -1) {
			if reasons++; !strings.Contains(string(names), `= "`+m[1]+`"`) {
				t.Errorf("no condition has the reason %s", m[1])
			}
		}
	}
	if reasons < 15 {
		t.Errorf("%d reasons are explained", reasons)
	}
	values := readSchema(t)
	for _, m := range regexp.MustCompile("`((?:gateway|metrics)\\.[A-Za-z.]+)`").FindAllStringSubmatch(text, -1) {
		s := values
		for name := range strings.SplitSeq(m[1], ".") {
			next, ok := s.Properties[name]
			if !ok && s.Properties != nil && !strings.HasPrefix(m[1], "gateway.tailscale") {
				t.Errorf("no value %s", m[1])
				break
			}
			s = next
		}
	}
	for _, m := range regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`).FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(root, "docs/tasks", m[1])); err != nil {
			t.Error(err)
		}
	}
}
