//go:build unix

package install

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// rule is an alert of a rule file of the chart.
type rule struct {
	Alert, Expr, For string
	Labels           map[string]string
	Annotations      map[string]string
}

func (r rule) name() string { return r.Alert }

func (r rule) expression() string { return r.Expr }

// alertDocs are a rule file of the chart and the table of a page that documents its alerts.
type alertDocs struct {
	file  string // in files/ of the chart
	least int    // smallest number of alerts

	page    string
	heading string            // the beginning of the table
	key     func(rule) string // the text that identifies the alert's row
	rows    *regexp.Regexp    // matches a row, with its key as the first group
	runbook string            // the end of each runbook URL
}

// readAlerts reads a rule file of the chart. It has one group with at least so many alerts.
func readAlerts(t *testing.T, file string, least int) []rule {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(chart, "files", file))
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
		t.Fatalf("%s: len(f.Groups) = %v, want 1", file, len(f.Groups))
	case len(f.Groups[0].Rules) < least:
		t.Fatalf("%s: len(f.Groups[0].Rules) = %v, want at least %d", file, len(f.Groups[0].Rules), least)
	}
	return f.Groups[0].Rules
}

// check checks that the alerts of the file are those of the page, each with its duration. Each one describes the
// problem and links to its documentation.
func (d alertDocs) check(t *testing.T) []rule {
	t.Helper()
	rules := readAlerts(t, d.file, d.least)
	text, _ := page(t, d.page)
	_, table, found := strings.Cut(text, d.heading)
	if !found {
		t.Fatalf("%s has no alerts", d.page)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	seen := map[string]bool{}
	for _, r := range rules {
		if seen[r.Alert] || !strings.HasPrefix(r.Alert, "Tailplane") {
			t.Errorf("the alert %s is there twice, or is not called after us", r.Alert)
		}
		seen[r.Alert] = true
		d.checkRow(t, table, r)
		d.checkAnnotations(t, r)
	}
	for _, m := range d.rows.FindAllStringSubmatch(table, -1) {
		if !slices.ContainsFunc(rules, func(r rule) bool { return d.key(r) == m[1] }) {
			t.Errorf("%s names the alert %s, which is not among the rules", d.page, m[1])
		}
	}
	return rules
}

// checkRow checks the table's row of an alert.
func (d alertDocs) checkRow(t *testing.T, table string, r rule) {
	t.Helper()
	row := ""
	for line := range strings.Lines(table) {
		if strings.Contains(line, "`"+d.key(r)+"`") {
			row = line
		}
	}
	if columns := strings.Split(row, "|"); len(columns) < 4 || strings.TrimSpace(columns[2]) != r.For {
		t.Errorf("%s: %s for %q is not an alert of %s: %s", r.Alert, r.Expr, r.For, d.page, row)
	}
}

// checkAnnotations checks the texts of an alert, and that its documentation exists.
func (d alertDocs) checkAnnotations(t *testing.T, r rule) {
	t.Helper()
	url := r.Annotations["runbook_url"]
	switch {
	case len(r.Annotations["summary"]) < 20:
		t.Errorf(`len(r.Annotations["summary"]) = %v, want at least 20; %s`, len(r.Annotations["summary"]), r.Alert)
	case len(r.Annotations["description"]) < 10:
		t.Errorf(`len(r.Annotations["description"]) = %v, want at least 10; %s`, len(r.Annotations["description"]), r.Alert)
	case !strings.HasSuffix(url, d.runbook):
		t.Errorf(`r.Annotations["runbook_url"] = %q does not end with %q; %s`, url, d.runbook, r.Alert)
	case r.Labels["severity"] == "":
		t.Errorf(`r.Labels["severity"] is empty; %s, %v, %v`, r.Alert, r.Labels, r.Annotations)
	}
	path, anchor, found := strings.Cut(url, "#")
	if !found || anchor == "" {
		t.Errorf("%s: %s has no anchor", r.Alert, url)
		return
	}
	_, path, _ = strings.Cut(path, "/blob/main/")
	heading := "## " + strings.ToUpper(anchor[:1]) + anchor[1:] + "\n"
	if b, err := os.ReadFile(filepath.Join(root, path)); err != nil || !strings.Contains(string(b), heading) {
		t.Errorf("%s: nothing is at %s: %v", r.Alert, url, err)
	}
}

// checkMetrics checks that the alerts use metrics of the servers, and only existing ones. An expression that contains
// foreign needs none.
func checkMetrics(t *testing.T, rules []rule, foreign string) {
	t.Helper()
	sources := metricSources(t)
	for _, r := range rules {
		names := metricName.FindAllString(r.Expr, -1)
		if len(names) == 0 && (foreign == "" || !strings.Contains(r.Expr, foreign)) {
			t.Errorf("%s uses no metric of Tailplane", r.Expr)
		}
		for _, n := range names {
			if !strings.Contains(sources, `"`+n+`"`) {
				t.Errorf("%s: the metric %s does not exist", r.Alert, n)
			}
		}
	}
}

// nameRow matches a row of a table of alerts that begins with the alert's name.
var nameRow = regexp.MustCompile("(?m)^\\| `(Tailplane\\w+)` ")

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
