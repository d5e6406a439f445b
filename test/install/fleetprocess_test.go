//go:build unix

package install

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// FLEET-14: the program runs with the account, the arguments and the file of its pod. It starts to work only when the
// API server restricts it to namespaces of runners, which it verifies with a test request. It is then ready and
// serves the metrics that the alerts need.
func TestFleetProcess(t *testing.T) {
	c := installFleet(t)
	out := render(t, profileValues(t, "fleet"))
	k := clientsOf(t, c.AdminConfig())
	policies := k.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	binding, err := policies.Get(t.Context(), "tailplane-fleet", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := policies.Delete(t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	binding.ResourceVersion, binding.UID = "", ""
	us, back := fleetAccount(t, c), false
	restore := func() error {
		if back {
			return nil
		}
		back = true
		_, err := policies.Create(context.WithoutCancel(t.Context()), binding, metav1.CreateOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := restore(); err != nil { // the cleanup of installFleet removes it later
			t.Error(err)
		}
	})
	until(t, "the policy is away", func() bool {
		return us.create("{apiVersion: v1, kind: Namespace, metadata: {name: tailplane-outside}}") == nil
	})

	text, _, _ := unstructured.NestedString(rendered(t, out, "ConfigMap", "tailplane-fleet").Object, "data", "fleet.yaml")
	text = strings.Replace(text, "health: :9091", "health: 127.0.0.1:0", 1)
	p, err := testenv.StartFleet(t.Context(), filepath.Join(t.TempDir(), "fleet"), c, "tailplane-fleet", "tailplane-fleet", text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the fleet:\n%s", p.Output())
		}
		p.Kill()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := p.WaitLog(ctx, "does not restrict this account to namespaces of runners yet"); err != nil {
		t.Fatal(err)
	}
	address := regexp.MustCompile(`"health is served","address":"([^"]+)"`).FindStringSubmatch(p.Output())
	if address == nil {
		t.Fatal("its probes are nowhere")
	}
	get := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address[1]+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
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
	if status, says := get("/readyz?verbose"); status == http.StatusOK {
		t.Errorf("it is ready though it could bind itself anywhere: %s", says)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	until(t, "it is confined and ready", func() bool {
		select {
		case <-p.Done():
			t.Fatal("it ended")
		default:
		}
		status, _ := get("/readyz")
		return status == http.StatusOK
	})
	// The test request created nothing.
	if _, err := k.CoreV1().Namespaces().Get(t.Context(), "tailplane-outside", metav1.GetOptions{}); err == nil {
		t.Error("it created a namespace")
	}
	switch status, says := get("/metrics"); {
	case status != http.StatusOK:
		t.Errorf("its metrics: status = %v, want %v", status, http.StatusOK)
	case !strings.Contains(says, "tailplane_fleet_allocate_seconds_count"):
		t.Errorf("its metrics: says = %q does not contain %q", says, "tailplane_fleet_allocate_seconds_count")
	case !strings.Contains(says, "tailplane_ready 1"):
		t.Errorf("its metrics: says = %q does not contain %q", says, "tailplane_ready 1")
	}
	if err := p.Stop(time.Minute); err != nil {
		t.Error(err)
	}
}

// The fleet's alerts are those of the page. They use existing metrics and link to their documentation.
func TestFleetAlerts(t *testing.T) {
	rules := alertDocs{
		file: "fleet-alerts.yaml", least: 8, page: "fleet.md", heading: "| alert | for | meaning |\n",
		key: rule.name, rows: nameRow, runbook: "/docs/tasks/fleet.md#alerts",
	}.check(t)
	checkMetrics(t, rules, "kube_resourcequota{")
	// The alerts are off by default. When they are on, they equal the file.
	const values = `image: {repository: registry.invalid/x}
cluster: {name: prod-eu, server: "https://prod.invalid", caFromPod: true}
signin: {roles: [view]}
fleet: {enabled: true, writers: [argo]}
`
	if u := rendered(t, render(t, values), "PrometheusRule", "tailplane-fleet"); u != nil {
		t.Error("rules that were not requested")
	}
	on := render(t, values, "--set", "metrics.rules.enabled=true,metrics.serviceMonitor.enabled=true")
	groups, _, err := unstructured.NestedSlice(rendered(t, on, "PrometheusRule", "tailplane-fleet").Object, "spec", "groups")
	switch {
	case err != nil:
		t.Error(err)
	case len(groups) != 1:
		t.Errorf("len(groups) = %v, want 1", len(groups))
	case len(groups[0].(map[string]any)["rules"].([]any)) != len(rules):
		t.Errorf("got %v, want %v", len(groups[0].(map[string]any)["rules"].([]any)), len(rules))
	case rendered(t, on, "PodMonitor", "tailplane-fleet") == nil:
		t.Error(`rendered(t, on, "PodMonitor", "tailplane-fleet") is nil`)
	}
}
