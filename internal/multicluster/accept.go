package multicluster

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// acceptedFormat is an encoding that a client accepts, and its media type.
type acceptedFormat struct {
	codec.Format
	mediaType string
}

// parseAccept returns the mergeable media types of Accept headers in order of preference. A missing header and a
// wildcard mean JSON.
func parseAccept(accept []string) []acceptedFormat {
	type weighted struct {
		acceptedFormat
		weight float64
	}
	var all []weighted
	reported := false
	for _, header := range accept {
		for clause := range strings.SplitSeq(header, ",") {
			media, params, err := mime.ParseMediaType(clause)
			if err != nil {
				continue
			}
			reported = true
			weight := 1.0
			if q, ok := params["q"]; ok {
				if weight, err = strconv.ParseFloat(q, 64); err != nil || weight <= 0 {
					continue
				}
				delete(params, "q")
			}
			if media == "*/*" || media == "application/*" {
				media = "application/json"
			}
			delete(params, "profile") // a merged response does not depend on it
			name := mime.FormatMediaType(media, params)
			if f, ok := codec.ParseFormat(name); ok {
				all = append(all, weighted{acceptedFormat{f, name}, weight})
			}
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
