package testenv

import "fmt"

// Budget prints a row of `make budgets`: a measured value and its bound. The bound is an upper limit if most is set,
// and a lower limit otherwise. Budget only reports; it does not fail the test.
func Budget(name string, measured, bound float64, most bool, unit string) {
	verdict := "ok"
	if measured > bound == most {
		verdict = "OVER"
	}
	fmt.Printf("BUDGET %s %.3f%s %.3f%s %s\n", name, measured, unit, bound, unit, verdict)
}
