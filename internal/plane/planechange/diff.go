package planechange

import "github.com/rogpeppe/go-internal/diff"

// unified returns the unified diff of a file, or "" if nothing changed. A text that is
// nil means that there is no file. A read file has maxFile bytes at most, and the work
// grows as n log n, so nothing more bounds it.
func unified(path string, old, updated []byte) string {
	from, to := "a/"+path, "b/"+path
	if old == nil {
		from = "/dev/null"
	}
	if updated == nil {
		to = "/dev/null"
	}
	return string(diff.Diff(from, old, to, updated))
}
