package fanout

import (
	"cmp"
	"mime"
	"slices"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// form is an encoding that a client accepts, and its media type.
type form struct {
	wire.Form
	media string
}

// formsOf returns the mergeable media types of Accept headers in order of preference. A missing header and a
// wildcard mean JSON.
func formsOf(accept []string) []form {
	type weighted struct {
		form
		weight float64
	}
	var all []weighted
	said := false
	for _, header := range accept {
		for clause := range strings.SplitSeq(header, ",") {
			media, params, err := mime.ParseMediaType(clause)
			if err != nil {
				continue
			}
			said = true
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
			if f, ok := wire.ParseForm(name); ok {
				all = append(all, weighted{form{f, name}, weight})
			}
		}
	}
	if !said {
		return []form{{wire.Form{}, "application/json"}}
	}
	slices.SortStableFunc(all, func(a, b weighted) int { return cmp.Compare(b.weight, a.weight) })
	var forms []form
	for _, w := range all {
		if !slices.ContainsFunc(forms, func(f form) bool { return f.media == w.media }) {
			forms = append(forms, w.form)
		}
	}
	return forms
}
