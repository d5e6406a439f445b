//go:build unix

package install

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// alerts returns the alerts of the sign-in servers.
func alerts(t *testing.T) []rule {
	t.Helper()
	return readAlerts(t, "alerts.yaml", 10)
}

// panelExprs returns the queries of the dashboard by panel title.
func panelExprs(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(chart + "/files/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID    string
		Panels []struct {
			ID                 int
			Title, Description string
			Targets            []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	all, ids := map[string][]string{}, map[int]bool{}
	for _, p := range d.Panels {
		switch {
		case p.Title == "":
			t.Errorf("panel: p.Title is empty; %d, %q", p.ID, p.Title)
		case p.Description == "":
			t.Errorf("panel: p.Description is empty; %d, %q", p.ID, p.Title)
		case len(p.Targets) == 0:
			t.Errorf("panel: len(p.Targets) = %v", len(p.Targets))
		case all[p.Title] != nil:
			t.Errorf("panel: all[p.Title] = %v, want nil", all[p.Title])
		case ids[p.ID]:
			t.Errorf("panel: ids[p.ID] is true; %d, %q", p.ID, p.Title)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			all[p.Title] = append(all[p.Title], q.Expr)
		}
	}
	if d.UID == "" || len(all) < 10 {
		t.Fatalf("the dashboard %q has %d panels", d.UID, len(all))
	}
	return all
}

var (
	metricName = regexp.MustCompile(`\b(?:tailplane|controller_runtime|workqueue|process|go)_[a-z_]+\b`)
	selector   = regexp.MustCompile(`\{(\w+)="([^"]*)"\}`)
)

// monitored returns the metrics that alerts and dashboard use, by the names of their metric families.
func monitored(t *testing.T) (names []string) {
	t.Helper()
	add := func(expr string) {
		found := metricName.FindAllString(expr, -1)
		if len(found) == 0 {
			t.Errorf("%s uses no metric of Tailplane", expr)
		}
		for _, n := range found {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				n = strings.TrimSuffix(n, part)
			}
			names = append(names, n)
		}
		if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") {
			t.Errorf("%s: a bracket is missing", expr)
		}
	}
	for _, r := range alerts(t) {
		add(r.Expr)
	}
	for _, exprs := range panelExprs(t) {
		for _, e := range exprs {
			add(e)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// The alerts are those of the page. They use existing refusal codes.
func TestAlertsAreThePages(t *testing.T) {
	rules := alertDocs{
		file: "alerts.yaml", least: 10, page: "operate.md", heading: "| alert when | for |",
		key: rule.expression, rows: regexp.MustCompile("`([^`]*tailplane_[^`]*(?:==|<|>)[^`]*)`"),
	}.check(t)
	codes := map[string]bool{}
	for _, c := range problem.Codes() {
		codes[string(c)] = true
	}
	severities := []string{"critical", "warning", "info"}
	for _, r := range rules {
		if !slices.Contains(severities, r.Labels["severity"]) {
			t.Errorf("severities = %v does not contain %q; %s", severities, r.Labels["severity"], r.Alert)
		}
		for _, m := range selector.FindAllStringSubmatch(r.Expr, -1) {
			if m[1] == "reason" && !codes[m[2]] {
				t.Errorf("%s: the code %s does not exist", r.Alert, m[2])
			}
		}
	}
}

// Monitoring is off by default. When it is on, the objects equal the files.
func TestMonitoringIsOptIn(t *testing.T) {
	split := profileValues(t, "split")
	if by := sources(render(t, split)); by["monitoring.yaml"] != "" {
		t.Errorf("without being requested: %.300s", by["monitoring.yaml"])
	}
	found := 0
	const enabled = "metrics.rules.enabled=true,metrics.rules.labels.release=main,metrics.dashboard.enabled=true"
	for _, u := range objects(t, render(t, split, "--set", enabled)) {
		switch u.GetKind() + "/" + u.GetName() {
		case "PrometheusRule/tailplane":
			found++
			b, err := json.Marshal(u.Object["spec"])
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(b), `"alert":`); n != len(alerts(t)) || u.GetLabels()["release"] != "main" {
				t.Errorf("%d alerts, labels %v", n, u.GetLabels())
			}
		case "ConfigMap/tailplane-dashboard":
			found++
			b, err := os.ReadFile(chart + "/files/dashboard.json")
			if err != nil {
				t.Fatal(err)
			}
			data, _ := u.Object["data"].(map[string]any)
			got, _ := data["tailplane.json"].(string)
			if strings.TrimSpace(got) != strings.TrimSpace(string(b)) || u.GetLabels()["grafana_dashboard"] != "1" {
				t.Errorf("the dashboard is not the file, or has the labels %v", u.GetLabels())
			}
		}
	}
	if found != 2 {
		t.Errorf("%d of 2 objects", found)
	}
}

// checkHelmTest runs the command of the `helm test` pod with the addresses of this machine. The pod itself cannot run
// here.
func checkHelmTest(t *testing.T, r *testenv.Env, as *testenv.Person, hooks string) {
	var args []string
	for _, u := range objects(t, hooks) {
		if u.GetKind() != "Pod" {
			t.Errorf("helm test makes a %s", u.GetKind())
			continue
		}
		if u.GetAnnotations()["helm.sh/hook"] != "test" {
			t.Errorf("annotations %v", u.GetAnnotations())
		}
		var pod struct {
			Spec struct{ Containers []struct{ Args []string } }
		}
		b, err := json.Marshal(u.Object)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &pod); err != nil {
			t.Fatal(err)
		}
		args = pod.Spec.Containers[0].Args
	}
	address := regexp.MustCompile(`"health is served","address":"([^"]+)"`)
	here := func(p *testenv.Process) string {
		t.Helper()
		all := address.FindAllStringSubmatch(p.Output(), -1)
		if len(all) == 0 {
			t.Fatalf("no health listener: %.2000s", p.Output())
		}
		return all[len(all)-1][1]
	}
	asked := strings.NewReplacer(
		"tailplane-access."+systems+".svc:8080", here(r.Access),
		"tailplane-operator."+systems+".svc:8080", here(r.Operator),
	).Replace(strings.Join(args, " "))
	if strings.Contains(asked, ".svc") || strings.Count(asked, "http://127.0.0.1:") != 2 {
		t.Fatalf("it asks %v", args)
	}
	says := run(t, as, 0, "tailplaned "+asked)
	for _, want := range []string{"[+]tailnet ok", "[+]signins ok", "[+]operator ok"} {
		if !strings.Contains(says, want) {
			t.Errorf("it does not contain %s:\n%s", want, says)
		}
	}
	says = run(t, as, 1, "tailplaned ready --timeout 2s http://"+here(r.Access)+"/readyz http://127.0.0.1:9/readyz")
	if !strings.Contains(says, "127.0.0.1:9/readyz is not ready") {
		t.Errorf("of one that is not there: %s", says)
	}
	if says := run(t, as, 1, "tailplaned ready --timeout 10s http://"+here(r.Access)+"/nothing"); !strings.Contains(says, "404") {
		t.Errorf("of what is not served: %s", says)
	}
	for _, bad := range []string{"", "file:///etc/passwd", "https://x", "http://a:b@x/", "x"} {
		run(t, as, 2, "tailplaned ready "+bad)
	}
}
