package forge

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"sync"
)

const mostKept = 8 << 20 // bytes of pages; beyond, all are forgotten

// pages are the last answers to reads that have an ETag: a page that has not changed
// is not sent again, and at GitHub does not count.
type pages struct {
	mu   sync.Mutex
	of   map[string]page
	size int
}

type page struct {
	header http.Header
	body   []byte
}

// roundTrip sends a request, with the ETag of the answer of before if there is one. An
// answer that has not changed is that of before, with new headers: the next page of
// GitLab is in a header, of which the tag says nothing, so that the page that was the
// last may no longer be that.
func (p *pages) roundTrip(rt http.RoundTripper, r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		return rt.RoundTrip(r)
	}
	address := r.URL.String()
	known, keeps := p.get(address)
	if keeps {
		r.Header.Set("If-None-Match", known.header.Get("ETag"))
	}
	response, err := rt.RoundTrip(r)
	switch {
	case err != nil:
	case response.StatusCode == http.StatusNotModified && keeps:
		header := known.header.Clone()
		maps.Copy(header, response.Header)
		response.StatusCode, response.Status, response.Header = http.StatusOK, "200 OK", header
		response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(known.body)), int64(len(known.body))
	case response.StatusCode == http.StatusOK:
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		response.Body = io.NopCloser(bytes.NewReader(body))
		p.put(address, page{response.Header, body})
	}
	return response, err
}

func (p *pages) get(address string) (page, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.of[address]
	return known, ok
}

func (p *pages) put(address string, a page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.of[address]; ok {
		p.size -= len(old.body)
		delete(p.of, address)
	}
	if a.header.Get("ETag") == "" || len(a.body) > mostKept {
		return
	}
	if p.size+len(a.body) > mostKept || p.of == nil {
		p.of, p.size = map[string]page{}, 0
	}
	p.of[address], p.size = a, p.size+len(a.body)
}
