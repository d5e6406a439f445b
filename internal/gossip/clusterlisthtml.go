package gossip

import (
	"errors"
	"fmt"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/util/accept"
)

var errStateFilter = errors.New(`it must be "all" or absent`)

// prefersHTML reports whether a client prefers HTML to JSON. A client that accepts anything, such as curl, gets JSON.
func prefersHTML(header string) bool {
	var page, data, anything float64
	for r := range accept.Ranges(header) {
		q, ok := r.Quality()
		if !ok || !(q >= 0 && q <= 1) {
			continue
		}
		switch r.Media {
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

// pageCSP forbids the page everything except inline styles.
const pageCSP = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func (m ClusterList) encodePage(shape httpapi.Response) (httpapi.Response, error) {
	b, err := m.page(m)
	if err != nil {
		return shape, fmt.Errorf("memberlist page: %w", err)
	}
	shape.Header.Set("Content-Security-Policy", pageCSP)
	shape.Header.Set("Referrer-Policy", "no-referrer")
	shape.ContentType, shape.Body = "text/html; charset=utf-8", b
	return shape, nil
}
