package plane

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// metricsWindow is a time range up to now, with its step.
type metricsWindow struct {
	Name     string
	For      time.Duration
	Step     time.Duration
	RateOver string // range of a rate: some steps, and at least four scrapes of a minute
}

// metricsWindows holds all windows.
var metricsWindows = []metricsWindow{{"1h", time.Hour, 30 * time.Second, "5m"}, {"6h", 6 * time.Hour, 2 * time.Minute, "5m"}, {"24h", 24 * time.Hour, 5 * time.Minute, "10m"}, {"7d", 7 * 24 * time.Hour, 30 * time.Minute, "1h"}}

// seriesQuery is a query for one series, or for several that differ in one label.
type seriesQuery struct {
	Name string
	Unit string // jobs, runners, 1/s, s
	Expr string
	By   string // the label that differs; "": one series
}

// quotePromQL returns a label value quoted for PromQL.
func quotePromQL(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// matchOneOf returns a quoted pattern that matches exactly one of the values, followed by the pattern behind.
func matchOneOf(values []string, behind string) string {
	quoted := make([]string, len(values))
	for i, v := range values {
		quoted[i] = regexp.QuoteMeta(v)
	}
	return quotePromQL("(" + strings.Join(quoted, "|") + ")" + behind)
}

// workloadsOfKind returns the names and namespaces of the pools' workloads of the given kinds.
func workloadsOfKind(pools []Pool, kinds ...string) (names, namespaces []string) {
	for _, p := range pools {
		if c := p.Controller; c.Name == "" || c.Namespace == "" || !slices.Contains(kinds, c.Kind) {
			continue
		}
		names, namespaces = append(names, p.Controller.Name), append(namespaces, p.Controller.Namespace)
	}
	slices.Sort(names)
	slices.Sort(namespaces)
	return slices.Compact(names), slices.Compact(namespaces)
}

// seriesQueries returns the queries about some pools in a window.
func seriesQueries(pools []Pool, w metricsWindow) (all []seriesQuery) {
	if names, namespaces := workloadsOfKind(pools, "AutoscalingRunnerSet"); len(names) > 0 {
		// Without honor_labels a scrape renames the listener's own labels to exported_*.
		name, namespace := matchOneOf(names, ""), matchOneOf(namespaces, "")
		either := func(f func(prefix string) string) string { return f("") + " or " + f("exported_") }
		at := func(metric, prefix string) string {
			return fmt.Sprintf("%s{name=~%s,%snamespace=~%s}", metric, name, prefix, namespace)
		}
		sum := func(metric string) string {
			return "sum(" + either(func(prefix string) string { return at(metric, prefix) }) + ")"
		}
		rate := func(by, metric string) string {
			return "sum" + by + "(" + either(func(prefix string) string { return fmt.Sprintf("rate(%s[%s])", at(metric, prefix), w.RateOver) }) + ")"
		}
		slow := func(q, metric string) string {
			return "histogram_quantile(" + q + ", " + rate(" by (le) ", metric+"_bucket") + ")"
		}
		all = append(all, seriesQuery{"running", "jobs", sum("gha_running_jobs"), ""}, seriesQuery{"waiting", "jobs", "clamp_min(" + sum("gha_assigned_jobs") + " - " + sum("gha_running_jobs") + ", 0)", ""},
			seriesQuery{"idle", "runners", sum("gha_idle_runners"), ""}, seriesQuery{"busy", "runners", sum("gha_busy_runners"), ""}, seriesQuery{"max", "runners", sum("gha_max_runners"), ""},
			seriesQuery{"completed", "1/s", rate(" by (job_result) ", "gha_completed_jobs_total"), "job_result"},
			seriesQuery{"startup_p50", "s", slow("0.5", "gha_job_startup_duration_seconds"), ""}, seriesQuery{"startup_p95", "s", slow("0.95", "gha_job_startup_duration_seconds"), ""})
	}
	if names, namespaces := workloadsOfKind(pools, "Deployment"); len(names) > 0 {
		// A manager's metrics have the labels of its pod, whose name begins with the workload name.
		in := fmt.Sprintf("{pod=~%s,namespace=~%s}", matchOneOf(names, "-[a-z0-9]+-[a-z0-9]+"), matchOneOf(namespaces, ""))
		rate := func(by, metric string) string {
			return fmt.Sprintf("sum%s(rate(%s%s[%s]))", by, metric, in, w.RateOver)
		}
		all = append(all, seriesQuery{"gitlab_running", "jobs", "sum(gitlab_runner_jobs" + in + ")", ""}, seriesQuery{"gitlab_limit", "jobs", "sum(gitlab_runner_concurrent" + in + ")", ""},
			seriesQuery{"gitlab_begun", "1/s", rate("", "gitlab_runner_jobs_total"), ""}, seriesQuery{"gitlab_failed", "1/s", rate(" by (failure_reason) ", "gitlab_runner_failed_jobs_total"), "failure_reason"},
			seriesQuery{"gitlab_duration_p95", "s", "histogram_quantile(0.95, " + rate(" by (le) ", "gitlab_runner_job_duration_seconds_bucket") + ")", ""})
	}
	return all
}

// MetricsQuery queries a Prometheus for an expression over a grid of times. It is a function and not a client type, because programs that only
// describe the operations must not link a Prometheus client. It must be safe for concurrent use.
type MetricsQuery func(ctx context.Context, expr string, g MetricsGrid) ([]QueryResult, error)

// MetricsGrid holds the times of a series: N times, Step apart, the first at From.
type MetricsGrid struct {
	From time.Time
	Step time.Duration
	N    int
}

// NewMetricsGrid returns the grid of a window that ends now, rounded down to whole steps. Two callers within one step get the same grid.
func NewMetricsGrid(w metricsWindow, now time.Time) MetricsGrid {
	n := int(w.For/w.Step) + 1
	return MetricsGrid{now.UTC().Truncate(w.Step).Add(-time.Duration(n-1) * w.Step), w.Step, n}
}

// ends returns when NewMetricsGrid would return another grid.
func (g MetricsGrid) ends() time.Time { return g.From.Add(time.Duration(g.N) * g.Step) }

func (g MetricsGrid) times() []time.Time {
	all := make([]time.Time, g.N)
	for i := range all {
		all[i] = g.From.Add(time.Duration(i) * g.Step)
	}
	return all
}

// QueryResult is one series of a query result: its labels, and a value for each time of the grid, nil where there is none.
type QueryResult struct {
	Labels map[string]string
	Values []*float64
}
