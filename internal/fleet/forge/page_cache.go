package forge

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"sync"
)

const maxPageCache = 8 << 20 // bytes of cached pages; above it, the whole cache is cleared

// pageCache caches the last responses to reads that have an ETag. The forge does not send an unchanged
// page again, and GitHub does not count it against the rate limit.
type pageCache struct {
	mu   sync.Mutex
	of   map[string]page
	size int
}

type page struct {
	header http.Header
	body   []byte
}

// roundTrip sends a request, with the ETag of the cached response if there is one. For an unchanged
// page it returns the cached body with the new headers. It must take the new headers, because
// GitLab reports the next page in a header that the ETag does not cover. A former last page may
// have a next page now.
func (p *pageCache) roundTrip(rt http.RoundTripper, r *http.Request) (*http.Response, error) {
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
		p.set(address, page{response.Header, body})
	}
	return response, err
}

func (p *pageCache) get(address string) (page, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.of[address]
	return known, ok
}

func (p *pageCache) set(address string, a page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.of[address]; ok {
		p.size -= len(old.body)
		delete(p.of, address)
	}
	if a.header.Get("ETag") == "" || len(a.body) > maxPageCache {
		return
	}
	if p.size+len(a.body) > maxPageCache || p.of == nil {
		p.of, p.size = map[string]page{}, 0
	}
	p.of[address], p.size = a, p.size+len(a.body)
}
