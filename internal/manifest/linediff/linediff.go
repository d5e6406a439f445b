// Package linediff shows what changed in a text, line by line. It keeps the law
// that what somebody is asked to accept can be seen before.
package linediff

import (
	"fmt"
	"iter"
	"slices"
	"strings"
)

// around is how many lines a diff shows around what changed; furthest bounds the
// work, beyond which everything is shown as changed.
const (
	around   = 3
	furthest = 4000
)

// Unified is a unified diff of a text, or "" if nothing changed.
func Unified(name string, old, updated []byte) string {
	if string(old) == string(updated) {
		return ""
	}
	a, b := lines(string(old)), lines(string(updated))
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", name, name)
	for steps := range hunks(shortest(a, b)) {
		hunk(&out, steps)
	}
	return out.String()
}

// hunks are the parts of a diff that have changes in them, with what is around.
func hunks(steps []step) iter.Seq[[]step] {
	return func(yield func([]step) bool) {
		for i := 0; i < len(steps); {
			if steps[i].op == ' ' {
				i++
				continue
			}
			from, to, last := max(0, i-around), i, i
			for ; to < len(steps) && to-last <= 2*around+1; to++ {
				if steps[to].op != ' ' {
					last = to
				}
			}
			to = min(len(steps), last+1+around)
			if !yield(steps[from:to]) {
				return
			}
			i = to
		}
	}
}

// lines splits text after each line's end.
func lines(text string) []string {
	l := strings.SplitAfter(text, "\n")
	if l[len(l)-1] == "" {
		l = l[:len(l)-1]
	}
	return l
}

// A line of a diff, with where it is in both texts, from 0.
type step struct {
	op   byte // ' ', '-' or '+'
	text string
	a, b int
}

// hunk writes one with its numbers.
func hunk(out *strings.Builder, steps []step) {
	removed, added := count(steps)
	fmt.Fprintf(out, "@@ -%d,%d +%d,%d @@\n", start(steps[0].a, removed), removed, start(steps[0].b, added), added)
	write(out, steps)
}

// count is how many lines of the old and of the new text steps have.
func count(steps []step) (removed, added int) {
	for _, s := range steps {
		if s.op != '+' {
			removed++
		}
		if s.op != '-' {
			added++
		}
	}
	return removed, added
}

// start is the number of a hunk's first line; one without lines begins after the
// line before it.
func start(at, n int) int {
	if n == 0 {
		return at
	}
	return at + 1
}

// write writes lines with what became of them.
func write(out *strings.Builder, steps []step) {
	for _, s := range steps {
		out.WriteByte(s.op)
		out.WriteString(s.text)
		if !strings.HasSuffix(s.text, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// shortest is a shortest way from a to b (Myers).
func shortest(a, b []string) []step {
	limit := min(len(a)+len(b), furthest)
	var traces [][]int // of each distance: how far each diagonal came
	v := []int{0, 0, 0}
	for d := 0; d <= limit; d++ {
		next := make([]int, 2*d+3) // diagonals -d-1..d+1
		at := func(k int) int { return v[k+len(v)/2] }
		for k := -d; k <= d; k += 2 {
			x := 0
			switch {
			case d == 0:
			case k == -d || k != d && at(k-1) < at(k+1):
				x = at(k + 1)
			default:
				x = at(k-1) + 1
			}
			for x < len(a) && x-k < len(b) && x-k >= 0 && a[x] == b[x-k] {
				x++
			}
			next[k+d+1] = x
			if x >= len(a) && x-k >= len(b) {
				return back(append(traces, v), a, b, d)
			}
		}
		traces = append(traces, v)
		v = next
	}
	var all []step
	for i, l := range a {
		all = append(all, step{'-', l, i, 0})
	}
	for i, l := range b {
		all = append(all, step{'+', l, len(a), i})
	}
	return all
}

// back follows the traces from the end to the beginning.
func back(traces [][]int, a, b []string, d int) (all []step) {
	x, y := len(a), len(b)
	for ; d > 0; d-- {
		v := traces[d]
		at := func(k int) int { return v[k+len(v)/2] }
		k := x - y
		down := k == -d || k != d && at(k-1) < at(k+1)
		px := 0
		if down {
			px = at(k + 1)
		} else {
			px = at(k-1) + 1
		}
		for x > px {
			x, y = x-1, y-1
			all = append(all, step{' ', a[x], x, y})
		}
		if down {
			y--
			all = append(all, step{'+', b[y], x, y})
		} else {
			x--
			all = append(all, step{'-', a[x], x, y})
		}
	}
	for x > 0 {
		x, y = x-1, y-1
		all = append(all, step{' ', a[x], x, y})
	}
	slices.Reverse(all)
	return all
}
