package memberlist

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"mime"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/door"
)

var errFilter = errors.New(`it is "all", or left out`)

// prefersHTML reports whether a client wants a page rather than JSON. Who
// accepts anything, as curl does, gets JSON.
func prefersHTML(accept string) bool {
	var page, data, anything float64
	for part := range strings.SplitSeq(accept, ",") {
		kind, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		q := 1.0
		if text, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(text, 64); err != nil || !(q >= 0 && q <= 1) {
				continue
			}
		}
		switch kind {
		case "text/html":
			page = max(page, q)
		case "application/json", "application/*":
			data = max(data, q)
		case "*/*":
			anything = max(anything, q)
		}
	}
	return page > 0 && page > max(data, 0) && page >= anything
}

// csp lets the page do nothing but stand there.
const csp = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var page = template.Must(template.New("clusters").Funcs(template.FuncMap{"time": func(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format(time.RFC3339)
}}).Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Clusters</title>
<style>body{font:16px sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}</style>
<h1>Clusters</h1>
{{if .Isolated}}<p><strong>This server hears none of the others, so it cannot say how they are.</strong></p>
{{end}}<table><thead><tr><th>Name<th>State<th>API<th>Sign-in<th>Labels<th>Last seen<th>Notes</thead><tbody>
{{range .Clusters}}<tr><td>{{.Name}}<td>{{.State}}<td>{{.APIEndpoint}}<td>{{.URL}}<td>{{range $k, $v := .Labels}}{{$k}}={{$v}} {{end}}<td>{{time .LastSeen}}<td>{{if .Self}}this one {{end}}{{if not .Verified}}unverified {{end}}{{if .Conflict}}in conflict{{end}}
{{end}}</tbody></table>
{{if .Hidden}}<p>{{.Hidden}} not shown: dead or left. Add ?state=all.</p>
{{end}}</html>
`))

func (m List) page(shape door.Shape) (door.Shape, error) {
	var b bytes.Buffer
	if err := page.Execute(&b, m); err != nil {
		return shape, fmt.Errorf("memberlist page: %w", err)
	}
	shape.Header.Set("Content-Security-Policy", csp)
	shape.Header.Set("Referrer-Policy", "no-referrer")
	shape.ContentType, shape.Body = "text/html; charset=utf-8", b.Bytes()
	return shape, nil
}
