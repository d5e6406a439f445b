package output

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest returns the most similar name among names, or "" if none is near.
func Suggest(name string, names []string) string {
	best, shortest := "", max(2, len(name)/3)+1
	for _, n := range names {
		if d := editDistance(name, n); d < shortest {
			best, shortest = n, d
		}
	}
	if best == "" && len(name) > 2 {
		if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) }); i >= 0 {
			return names[i]
		}
	}
	return best
}

// DidYouMean returns the end of a message that suggests the most similar name, such as `; did you mean "x"?`, or "" if none is near. format is
// that of the name.
func DidYouMean(format, name string, names []string) string {
	suggestion := Suggest(name, names)
	if suggestion == "" {
		return ""
	}
	return "; did you mean " + fmt.Sprintf(format, suggestion) + "?"
}

// editDistance returns the edit distance: the bytes to change, insert or delete between a and b.
func editDistance(a, b string) int {
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
