package plane

import (
	"context"
	"time"
)

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
