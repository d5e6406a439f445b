package testenv

import "fmt"

// Budget prints a row of `make budgets`: what was measured of something, and its bound, which is the most that there may be or
// the least that will do. It reports; it fails nothing.
func Budget(name string, measured, bound float64, most bool, unit string) {
	verdict := "ok"
	if measured > bound == most {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %.3f%s %.3f%s %s\n", name, measured, unit, bound, unit, verdict)
}
