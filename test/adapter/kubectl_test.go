package adapter

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/testenv"
)

func manifest(t testing.TB, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const settings = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {app: shop}}
data: {colour: %COLOUR%}
`

// ADP-02: kubectl works through the adapter as it does without it.
func TestKubectl(t *testing.T) {
	c, a := shared(t)
	ns := c.Namespace(t)
	blue, red := manifest(t, strings.ReplaceAll(settings, "%COLOUR%", "blue")), manifest(t, strings.ReplaceAll(settings, "%COLOUR%", "red"))
	in := func(args ...string) []string { return append([]string{"-n", ns}, args...) }

	kubectl(t, a, in("apply", "-f", blue)...)
	if out := kubectl(t, a, in("get", "configmap", "settings", "-o", "jsonpath={.data.colour}")...); out != "blue" {
		t.Errorf("colour %q", out)
	}
	if out, _, exit := try(t, a, in("diff", "-f", red)...); exit != 1 || !strings.Contains(out, "+  colour: red") {
		t.Errorf("diff: exit %d: %s", exit, out)
	}
	kubectl(t, a, in("apply", "--server-side", "--force-conflicts", "-f", red)...)
	kubectl(t, a, in("patch", "configmap", "settings", "--type=merge", "-p", `{"data":{"size":"big"}}`)...)
	kubectl(t, a, in("patch", "configmap", "settings", "--type=json", "-p", `[{"op":"add","path":"/data/shape","value":"round"}]`)...)
	kubectl(t, a, in("label", "configmap", "settings", "tier=gold")...)
	switch out := kubectl(t, a, in("get", "configmap", "settings", "-o", "yaml")...); {
	case !strings.Contains(out, "size: big"):
		t.Errorf("after three patches: out = %q does not contain %q", out, "size: big")
	case !strings.Contains(out, "shape: round"):
		t.Errorf("after three patches: out = %q does not contain %q", out, "shape: round")
	case !strings.Contains(out, "colour: red"):
		t.Errorf("after three patches: out = %q does not contain %q", out, "colour: red")
	case !strings.Contains(out, "tier: gold"):
		t.Errorf("after three patches: out = %q does not contain %q", out, "tier: gold")
	}
	if out := kubectl(t, a, in("describe", "configmap", "settings")...); !strings.Contains(out, "colour") {
		t.Errorf("describe: %s", out)
	}

	kubectl(t, a, in("create", "deployment", "web", "--image=example.com/web:1", "--replicas=2")...)
	kubectl(t, a, in("rollout", "status", "deployment/web", "--timeout=2m")...)
	kubectl(t, a, in("scale", "deployment/web", "--replicas=3")...)
	kubectl(t, a, in("wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=2m")...)
	if out := kubectl(t, a, in("get", "pods", "-o", "wide")...); strings.Count(out, "Running") != 3 {
		t.Errorf("pods: %s", out)
	}
	if out := kubectl(t, a, "get", "pods", "-A"); strings.Count(out, ns) != 3 {
		t.Errorf("in all namespaces: %s", out)
	}
	if out := kubectl(t, a, "api-resources"); !strings.Contains(out, "configmaps") || !strings.Contains(out, "deployments") {
		t.Errorf("api-resources: %s", out)
	}
	if out := kubectl(t, a, "explain", "pod.spec.containers"); !strings.Contains(out, "FIELDS") {
		t.Errorf("explain: %s", out)
	}
	if out := kubectl(t, a, in("auth", "can-i", "delete", "pods")...); strings.TrimSpace(out) != "yes" {
		t.Errorf("can-i: %s", out)
	}
	if out := kubectl(t, a, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); out != "system:serviceaccount:default:app" {
		t.Errorf("whoami: %s", out)
	}
	if _, errs, exit := try(t, a, in("top", "pods")...); exit == 0 || !strings.Contains(errs, "Metrics API not available") {
		t.Errorf("top without metrics: exit %d: %s", exit, errs)
	}
	if _, errs, exit := try(t, a, in("get", "configmap", "nothing")...); exit == 0 || !strings.Contains(errs, "NotFound") {
		t.Errorf("get of a missing object: exit %d: %s", exit, errs)
	}
	if out := kubectl(t, a, "version", "-o", "json"); !strings.Contains(out, `"serverVersion"`) {
		t.Errorf("version: %s", out)
	}
	kubectl(t, a, in("delete", "deployment", "web", "--cascade=foreground")...)
	kubectl(t, a, in("delete", "configmaps", "-l", "app=shop")...)

	kubectl(t, a, "create", "namespace", ns+"-gone")
	kubectl(t, a, "delete", "namespace", ns+"-gone", "--timeout=2m")
}

// running collects the output of a kubectl that keeps running.
type running struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(p)
}

func (r *running) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// command returns the real kubectl, configured as an application of the pod. It stops with the test.
func command(t testing.TB, a *testenv.Adapter, env []string, args ...string) *exec.Cmd {
	t.Helper()
	bin, err := buildcache.Lookup("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*limit)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append([]string{"KUBECONFIG=" + a.Kubeconfig, "KUBECACHEDIR=" + t.TempDir(), "KUBERC=off", "HOME=" + t.TempDir()}, env...)
	return cmd
}

// begin starts a kubectl that keeps running, and stops it with the test.
func begin(t testing.TB, a *testenv.Adapter, env []string, args ...string) *running {
	t.Helper()
	r := &running{}
	cmd := command(t, a, env, args...)
	cmd.Stdout, cmd.Stderr = r, r
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return r
}

// ADP-02: kubectl get -w shows each change when it happens, and keeps running.
func TestKubectlWatch(t *testing.T) {
	c, a := shared(t)
	ns := c.Namespace(t)
	w := begin(t, a, nil, "-n", ns, "get", "configmaps", "--watch", "-o", "name")
	eventually(t, "the first list", func() bool { return strings.Contains(w.String(), "kube-root-ca.crt") })
	for _, name := range []string{"first", "second"} {
		kubectl(t, a, "-n", ns, "create", "configmap", name)
		eventually(t, name+" in the watch: "+w.String(), func() bool { return strings.Contains(w.String(), "configmap/"+name) })
	}
}
