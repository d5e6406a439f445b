package apiproxy_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const chartDir = "../../charts/tailplane/files/"

// alertRule is an alert of the chart.
type alertRule struct {
	Alert, Expr, For string
	Labels           map[string]string
	Annotations      map[string]string
}

func alerts(t *testing.T) []alertRule {
	t.Helper()
	b, err := os.ReadFile(chartDir + "adapter-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Groups []struct {
			Name  string
			Rules []alertRule
		}
	}
	d := yaml.NewDecoder(strings.NewReader(string(b)))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil || len(f.Groups) != 1 {
		t.Fatal(f, err)
	}
	return f.Groups[0].Rules
}

// panels returns the queries of the dashboard by panel title.
func panels(t *testing.T) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(chartDir + "adapter-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID    string
		Panels []struct {
			ID                 int
			Title, Description string
			Targets            []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	all, ids := map[string][]string{}, map[int]bool{}
	for _, p := range d.Panels {
		switch {
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
	return all
}

var (
	seriesSelector = regexp.MustCompile(`\b((?:mca|process)_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher        = regexp.MustCompile(`(\w+)(=~|=)"([^"]*)"`)
	grouping       = regexp.MustCompile(`\bby \(([^)]*)\)`)
)

// TestAlertsAndDashboardUseExistingMetrics checks that every metric, label and label value in alerts and the
// dashboard exists.
func TestAlertsAndDashboardUseExistingMetrics(t *testing.T) {
	o := recordAllMetrics(t)
	families, err := o.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	labels := map[string]map[string][]string{} // label values by metric and label
	for _, f := range families {
		of := map[string][]string{}
		for _, one := range f.GetMetric() {
			for _, l := range one.GetLabel() {
				of[l.GetName()] = append(of[l.GetName()], l.GetValue())
			}
		}
		labels[f.GetName()] = of
		if f.GetType().String() == "HISTOGRAM" {
			of["le"] = nil
		}
	}
	added := []string{"namespace", "pod", "container"} // added by the scraper
	requested := map[string]bool{}
	check := func(where, expr string) {
		for _, pair := range [][2]string{{"(", ")"}, {"{", "}"}, {"[", "]"}} {
			if strings.Count(expr, pair[0]) != strings.Count(expr, pair[1]) {
				t.Errorf("%s: a bracket is missing: %s", where, expr)
			}
		}
		var of []map[string][]string
		for _, m := range seriesSelector.FindAllStringSubmatch(expr, -1) {
			name := strings.TrimSuffix(m[1], "_bucket")
			there, ok := labels[name]
			if !ok {
				t.Errorf("%s queries %s, which does not exist", where, name)
				continue
			}
			requested[name] = true
			of = append(of, there)
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				if slices.Contains(added, l[1]) {
					continue
				}
				if values, ok := there[l[1]]; !ok || l[2] == "=" && !slices.Contains(values, l[3]) {
					t.Errorf("%s queries %s of %s, which never occurs", where, l[0], name)
				}
			}
		}
		if len(of) == 0 {
			t.Errorf("%s queries none of the adapter's metrics: %s", where, expr)
		}
		for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
			for by := range strings.SplitSeq(g[1], ",") {
				by = strings.TrimSpace(by)
				for _, there := range of {
					if _, ok := there[by]; !ok && !slices.Contains(added, by) {
						t.Errorf("%s groups by %s, which does not exist: %s", where, by, expr)
					}
				}
			}
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, r := range alerts(t) {
		check(r.Alert, r.Expr)
		switch {
		case seen[r.Alert]:
			t.Errorf("seen[r.Alert] is true; %+v", r)
		case !strings.HasPrefix(r.Alert, "Mca"):
			t.Errorf("r.Alert = %q does not start with %q", r.Alert, "Mca")
		case !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]):
			t.Errorf(`[]string{"critical", "warning"} = %v does not contain %q`, []string{"critical", "warning"}, r.Labels["severity"])
		case r.Annotations["summary"] == "":
			t.Errorf(`r.Annotations["summary"] is empty; %+v`, r)
		case !strings.HasSuffix(r.Annotations["runbook_url"], "/docs/reference/adapter-metrics.md#alerts"):
			t.Errorf(`r.Annotations["runbook_url"] = %q does not end with %q`,
				r.Annotations["runbook_url"], "/docs/reference/adapter-metrics.md#alerts")
		}
		seen[r.Alert] = true
		if row := "| `" + r.Alert + "` | `" + r.Expr + "` | " + r.For + " | " + r.Annotations["summary"] + " " + r.Annotations["description"] + " |\n"; !strings.Contains(string(text), row) {
			t.Errorf("the page has no row %s", row)
		}
	}
	if rows := strings.Count(string(text), "\n| `Mca"); rows != len(seen) || !strings.Contains(string(text), "\n## Alerts\n") {
		t.Errorf("the page has %d alerts, the rules have %d", rows, len(seen))
	}
	for title, exprs := range panels(t) {
		for _, e := range exprs {
			check(title, e)
		}
	}
	for name := range labels {
		if strings.HasPrefix(name, "mca_") && !requested[name] {
			t.Errorf("neither an alert nor the dashboard shows %s", name)
		}
	}
}
