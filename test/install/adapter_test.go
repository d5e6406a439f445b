//go:build unix

package install

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Monitoring is off by default. When it is on, the chart contains a PodMonitor that selects adapters and no other
// container, and the two files.
func TestAdapterMonitoringIsOptIn(t *testing.T) {
	split := profileValues(t, "split")
	if by := sources(render(t, split)); by["adapter-monitoring.yaml"] != "" {
		t.Errorf("without being requested: %.300s", by["adapter-monitoring.yaml"])
	}
	found := 0
	for _, u := range objects(t, render(t, split, "--set", "metrics.adapter.enabled=true,metrics.adapter.interval=45s,metrics.rules.labels.release=main,metrics.serviceMonitor.labels.release=pods")) {
		switch u.GetKind() + "/" + u.GetName() {
		case "PodMonitor/tailplane-adapter":
			found++
			endpoints, _, err := unstructured.NestedSlice(u.Object, "spec", "podMetricsEndpoints")
			switch {
			case err != nil:
				t.Fatal(err)
			case len(endpoints) != 1:
				t.Fatalf("len(endpoints) = %v, want 1", len(endpoints))
			case u.GetLabels()["release"] != "pods":
				t.Fatalf(`u.GetLabels()["release"] != "pods"; endpoints = %v, %v, %v`, endpoints, err, u.GetLabels())
			}
			if at := endpoints[0].(map[string]any); at["interval"] != "45s" || at["path"] != "/metrics" {
				t.Errorf("%v", at)
			}
			checkTargets(t, endpoints[0].(map[string]any))
		case "PrometheusRule/tailplane-adapter":
			found++
			groups, _, err := unstructured.NestedSlice(u.Object, "spec", "groups")
			switch {
			case err != nil:
				t.Error(err)
			case len(groups) != 1:
				t.Errorf("len(groups) = %v, want 1", len(groups))
			case len(groups[0].(map[string]any)["rules"].([]any)) < 5:
				t.Errorf("got %v, want at least 5", len(groups[0].(map[string]any)["rules"].([]any)))
			case u.GetLabels()["release"] != "main":
				t.Errorf(`u.GetLabels()["release"] != "main"; groups = %v, %v, %v`, groups, err, u.GetLabels())
			}
		case "ConfigMap/tailplane-adapter-dashboard":
			found++
			b, err := os.ReadFile(chart + "/files/adapter-dashboard.json")
			if err != nil {
				t.Fatal(err)
			}
			data, _, err := unstructured.NestedStringMap(u.Object, "data")
			switch {
			case err != nil:
				t.Errorf("the dashboard is not the file, or has the labels: %v", err)
			case strings.TrimSpace(data["tailplane-adapter.json"]) != strings.TrimSpace(string(b)):
				t.Errorf("the dashboard is not the file, or has the labels: got %q, want %q",
					strings.TrimSpace(data["tailplane-adapter.json"]), strings.TrimSpace(string(b)))
			case u.GetLabels()["grafana_dashboard"] != "1":
				t.Errorf(`the dashboard is not the file, or has the labels: u.GetLabels()["grafana_dashboard"] != "1"; %v, %v`,
					u.GetLabels(), err)
			}
		}
	}
	if found != 3 {
		t.Errorf("%d of 3 objects", found)
	}
}

// checkTargets relabels discovered targets as Prometheus does.
func checkTargets(t *testing.T, endpoint map[string]any) {
	t.Helper()
	const annotation, container, ip = "__meta_kubernetes_pod_annotation_mca_tailplane_dev_metrics", "__meta_kubernetes_pod_container_name", "__meta_kubernetes_pod_ip"
	for _, c := range []struct {
		why     string
		labels  map[string]string
		address string // "" means that the target is not scraped
	}{
		{"an adapter that listens", map[string]string{annotation: "true", container: "mca", ip: "10.1.2.3", "__address__": "10.1.2.3"}, "10.1.2.3:9007"},
		{"over IPv6", map[string]string{annotation: "true", container: "mca", ip: "fd00::1", "__address__": "fd00::1"}, "[fd00::1]:9007"},
		{"its application", map[string]string{annotation: "true", container: "application", ip: "10.1.2.3", "__address__": "10.1.2.3:8080"}, ""},
		{"an adapter that does not", map[string]string{container: "mca", ip: "10.1.2.3", "__address__": "10.1.2.3"}, ""},
		{"and does not report it", map[string]string{annotation: "false", container: "mca", ip: "10.1.2.3", "__address__": "10.1.2.3"}, ""},
		{"another's container of the name", map[string]string{container: "mca", ip: "10.1.2.3", "__address__": "10.1.2.3:80"}, ""},
	} {
		kept := true
		for _, r := range endpoint["relabelings"].([]any) {
			r := r.(map[string]any)
			sources := r["sourceLabels"].([]any)
			if len(sources) != 1 {
				t.Fatalf("%v", r)
			}
			value := c.labels[sources[0].(string)]
			match := regexp.MustCompile("^(?:" + r["regex"].(string) + ")$").FindStringSubmatchIndex(value)
			switch r["action"] {
			case "keep":
				kept = kept && match != nil
			case "replace":
				if match != nil {
					re := regexp.MustCompile("^(?:" + r["regex"].(string) + ")$")
					c.labels[r["targetLabel"].(string)] = string(re.ExpandString(nil, r["replacement"].(string), value, match))
				}
			default:
				t.Fatalf("%v", r)
			}
		}
		if got := c.labels["__address__"]; kept != (c.address != "") || kept && got != c.address {
			t.Errorf("%s: kept %v, at %s", c.why, kept, got)
		}
	}
}
