package plane

import "github.com/rogpeppe/go-internal/diff"

// unifiedDiff returns the unified diff of a file, or "" if nothing changed. A nil text means that the file does not exist. There is no further
// limit: a file has at most maxFile bytes, and the work grows as n log n.
func unifiedDiff(path string, old, updated []byte) string {
	from, to := "a/"+path, "b/"+path
	if old == nil {
		from = "/dev/null"
	}
	if updated == nil {
		to = "/dev/null"
	}
	return string(diff.Diff(from, old, to, updated))
}
