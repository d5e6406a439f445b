package multicluster

import (
	"cmp"
	"mime"
	"slices"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/util/accept"
)

// acceptedFormat is an encoding that a client accepts, and its media type.
type acceptedFormat struct {
	codec.Format
	mediaType string
}

// parseAccept returns the mergeable media types of Accept headers in order of preference. A missing header and a
// wildcard mean JSON.
func parseAccept(headers []string) []acceptedFormat {
	type weighted struct {
		acceptedFormat
		weight float64
	}
	var all []weighted
	reported := false
	for r := range accept.Ranges(headers...) {
		reported = true
		weight, ok := r.Quality()
		if !ok || weight <= 0 {
			continue
		}
		if r.Media == "*/*" || r.Media == "application/*" {
			r.Media = "application/json"
		}
		delete(r.Params, "q")
		delete(r.Params, "profile") // a merged response does not depend on it
		name := mime.FormatMediaType(r.Media, r.Params)
		if f, ok := codec.ParseFormat(name); ok {
			all = append(all, weighted{acceptedFormat{f, name}, weight})
		}
	}
	if !reported {
		return []acceptedFormat{{codec.Format{}, "application/json"}}
	}
	slices.SortStableFunc(all, func(a, b weighted) int { return cmp.Compare(b.weight, a.weight) })
	var formats []acceptedFormat
	for _, w := range all {
		if !slices.ContainsFunc(formats, func(f acceptedFormat) bool { return f.mediaType == w.mediaType }) {
			formats = append(formats, w.acceptedFormat)
		}
	}
	return formats
}
