package planemetrics

import (
	"context"
	"time"
)

// Query queries a Prometheus for an expression over a grid of times. It is a function and not a client type, because programs that only
// describe the operations must not link a Prometheus client. It must be safe for concurrent use.
type Query func(ctx context.Context, expr string, g Grid) ([]Found, error)

// Grid holds the times of a series: N times, Step apart, the first at From.
type Grid struct {
	From time.Time
	Step time.Duration
	N    int
}

// NewGrid returns the grid of a window that ends now, rounded down to whole steps. Two callers within one step get the same grid.
func NewGrid(w Window, now time.Time) Grid {
	n := int(w.For/w.Step) + 1
	return Grid{now.UTC().Truncate(w.Step).Add(-time.Duration(n-1) * w.Step), w.Step, n}
}

// ends returns when NewGrid would return another grid.
func (g Grid) ends() time.Time { return g.From.Add(time.Duration(g.N) * g.Step) }

func (g Grid) times() []time.Time {
	all := make([]time.Time, g.N)
	for i := range all {
		all[i] = g.From.Add(time.Duration(i) * g.Step)
	}
	return all
}

// Found is one series of a query result: its labels, and a value for each time of the grid, nil where there is none.
type Found struct {
	Labels map[string]string
	Values []*float64
}
