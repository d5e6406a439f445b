// Package accept parses the Accept header of HTTP requests (RFC 9110, section 12.5.1). It is a small package because servers of
// every layer choose between formats. Each caller decides what it serves.
package accept

import (
	"iter"
	"mime"
	"slices"
	"strconv"
	"strings"
)

// A Range is one media range of an Accept header.
type Range struct {
	Media  string            // in lower case, such as "text/html", "application/*" or "*/*"
	Params map[string]string // the parameters, including q; names are in lower case
}

// Ranges yields the media ranges of Accept headers in the client's order. It skips malformed ranges. The caller may modify the
// parameters of a range.
func Ranges(headers ...string) iter.Seq[Range] {
	return func(yield func(Range) bool) {
		for _, header := range headers {
			for part := range strings.SplitSeq(header, ",") {
				media, params, err := mime.ParseMediaType(part)
				if err == nil && !yield(Range{media, params}) {
					return
				}
			}
		}
	}
}

// Quality returns the q parameter, or 1 if there is none. ok is false if q is not a number. The number may be outside of 0 to 1.
func (r Range) Quality() (q float64, ok bool) {
	text, present := r.Params["q"]
	if !present {
		return 1, true
	}
	q, err := strconv.ParseFloat(text, 64)
	return q, err == nil
}

// Includes reports whether a range of the headers has one of the media types. It ignores wildcards and parameters.
func Includes(media []string, headers ...string) bool {
	for r := range Ranges(headers...) {
		if slices.Contains(media, r.Media) {
			return true
		}
	}
	return false
}
