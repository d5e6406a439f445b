// Package spelling finds what somebody meant to type. It keeps the rule that a
// mistake is an error that names the nearest right word, and never a guess that
// is acted upon.
package spelling

import (
	"slices"
	"strings"
)

// Nearest is the name among names that was most likely meant, "" if none is near.
func Nearest(name string, names []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, n := range names {
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	if best == "" && len(name) > 2 {
		if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) }); i >= 0 {
			return names[i]
		}
	}
	return best
}

// distance counts the letters to change, insert or drop between a and b.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
