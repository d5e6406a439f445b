//go:build unix

package install

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

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
	b, err := os.ReadFile(chart + "/files/fleet-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Groups []struct {
			Name  string
			Rules []rule
		}
	}
	switch err := yaml.UnmarshalStrict(b, &f); {
	case err != nil:
		t.Fatal(err)
	case len(f.Groups) != 1:
		t.Fatalf("len(f.Groups) = %v, want 1", len(f.Groups))
	case len(f.Groups[0].Rules) < 8:
		t.Fatalf("len(f.Groups[0].Rules) = %v, want at least 8", len(f.Groups[0].Rules))
	}
	text, _ := page(t, "fleet.md")
	_, table, found := strings.Cut(text, "## Alerts\n")
	if !found {
		t.Fatal("the page has no alerts")
	}
	ours := metricSources(t)
	for _, r := range f.Groups[0].Rules {
		row := ""
		for line := range strings.Lines(table) {
			if strings.Contains(line, "`"+r.Alert+"`") {
				row = line
			}
		}
		if columns := strings.Split(row, "|"); len(columns) < 4 || strings.TrimSpace(columns[2]) != r.For {
			t.Errorf("%s, for %q, is not an alert of the page: %s", r.Alert, r.For, row)
		}
		names := metricName.FindAllString(r.Expr, -1)
		if len(names) == 0 && !strings.Contains(r.Expr, "kube_resourcequota{") {
			t.Errorf("%s uses no metric of Tailplane", r.Expr)
		}
		for _, n := range names {
			if !strings.Contains(ours, `"`+n+`"`) {
				t.Errorf("%s: the metric %s does not exist", r.Alert, n)
			}
		}
		switch {
		case r.Annotations["summary"] == "":
			t.Errorf(`r.Annotations["summary"] is empty; %s, %v, %v`, r.Alert, r.Labels, r.Annotations)
		case r.Annotations["description"] == "":
			t.Errorf(`r.Annotations["description"] is empty; %s, %v, %v`, r.Alert, r.Labels, r.Annotations)
		case !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/tasks/fleet.md#alerts"):
			t.Errorf(`r.Annotations["runbook_url"] = %q does not end with %q; %s`,
				r.Annotations["runbook_url"], "/docs/tasks/fleet.md#alerts", r.Alert)
		case r.Labels["severity"] == "":
			t.Errorf(`r.Labels["severity"] is empty; %s, %v, %v`, r.Alert, r.Labels, r.Annotations)
		}
	}
	for _, line := range strings.Split(table, "\n") {
		if m := regexp.MustCompile("^\\| `(Tailplane\\w+)` ").FindStringSubmatch(line); m != nil && !strings.Contains(string(b), "alert: "+m[1]+"\n") {
			t.Errorf("the page names the alert %s, which is not among the rules", m[1])
		}
	}
	// The alerts are off by default. When they are on, they equal the file.
	const values = "image: {repository: registry.invalid/x}\ncluster: {name: prod-eu, server: \"https://prod.invalid\", caFromPod: true}\nsignin: {roles: [view]}\nfleet: {enabled: true, writers: [argo]}\n"
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
	case len(groups[0].(map[string]any)["rules"].([]any)) != len(f.Groups[0].Rules):
		t.Errorf("got %v, want %v", len(groups[0].(map[string]any)["rules"].([]any)), len(f.Groups[0].Rules))
	case rendered(t, on, "PodMonitor", "tailplane-fleet") == nil:
		t.Error(`rendered(t, on, "PodMonitor", "tailplane-fleet") is nil`)
	}
}

// metricSources returns the source files that declare the metrics of the servers.
func metricSources(t *testing.T) (sources string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "internal/server/health/*metrics.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources += string(b)
	}
	return sources
}
