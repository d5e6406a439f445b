package planemetrics

import (
	"context"
	"time"
)

// A Query asks a Prometheus for the values of an expression over a grid of times.
// It is a function and no client, because this package describes operations to
// programs that link no client of a Prometheus. Callers may run it concurrently.
type Query func(ctx context.Context, expr string, g Grid) ([]Found, error)

// A Grid is the times of a series: N of them, Step apart, the first at From.
type Grid struct {
	From time.Time
	Step time.Duration
	N    int
}

// NewGrid returns the grid of a window that ends now, on whole steps: two callers
// within one step get the same grid.
func NewGrid(w Window, now time.Time) Grid {
	n := int(w.For/w.Step) + 1
	return Grid{now.UTC().Truncate(w.Step).Add(-time.Duration(n-1) * w.Step), w.Step, n}
}

// ends is when NewGrid returns another grid.
func (g Grid) ends() time.Time { return g.From.Add(time.Duration(g.N) * g.Step) }

func (g Grid) times() []time.Time {
	all := make([]time.Time, g.N)
	for i := range all {
		all[i] = g.From.Add(time.Duration(i) * g.Step)
	}
	return all
}

// Found is one series of an answer: its labels, and a value for each time of the
// grid, nil where there is none.
type Found struct {
	Labels map[string]string
	Values []*float64
}
