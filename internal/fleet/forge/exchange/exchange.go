// Package exchange carries requests to one host, and brings back answers that are
// whole. It keeps law 8: what is shown to that host is shown to no other; and law 7:
// half an answer is none.
package exchange

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/forge/secret"
)

const (
	attemptTime   = 30 * time.Second // of one request, its answer read
	mostBody      = 16 << 20         // of an answer: a page of 100 runners has about 100 kB
	mostIdle      = 4                // connections
	mostRedirects = 3
	mostKept      = 8 << 20 // bytes of pages; beyond, all are forgotten
)

// ParseURL checks where a credential may be sent: to an https URL, or by plain http
// to this machine. A path is kept, without the slash at its end.
func ParseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, fmt.Errorf("%q is not a URL", secret.Clean(text))
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "": // an escaped slash
		return nil, fmt.Errorf("%q must have a scheme, a host and a path only", secret.Clean(text))
	case u.Scheme == "http":
		if ip, err := netip.ParseAddr(u.Hostname()); (err != nil || !ip.IsLoopback()) && u.Hostname() != "localhost" {
			return nil, fmt.Errorf("%q would carry a credential in the clear; https, please", secret.Clean(text))
		}
	case u.Scheme != "https":
		return nil, fmt.Errorf("%q is not an https URL", secret.Clean(text))
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

// A Host is where requests go: to one API, and nowhere else.
type Host struct {
	base      *url.URL
	transport http.RoundTripper
	pages     pages
}

// A Request is asked once. Path is below the API, with its query; what is variable in
// it is escaped.
type Request struct {
	Method, Path string
	Header       http.Header
	Body         []byte // nil: none
}

// An Answer is what came, whole.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// New returns a host that is trusted by the system's certificates and by those of
// bundle, in PEM form.
func New(base *url.URL, bundle []byte) (*Host, error) {
	t := &http.Transport{ // the process's default one has no time-outs
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  attemptTime,
		MaxResponseHeaderBytes: 256 << 10,
		MaxIdleConns:           mostIdle,
		IdleConnTimeout:        90 * time.Second,
		ForceAttemptHTTP2:      true,
	}
	if len(bundle) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(bundle) {
			return nil, errors.New("the CA bundle has no certificate in it")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &Host{base: base, transport: t}, nil
}

// Ask asks, and follows redirects of reads on the same host, which is how a forge
// tells that a thing was renamed. Heard is told the status and the headers of all that
// comes on the way, and 0 if nothing does. An error comes with the answer that it is
// about, if there is one.
func (h *Host) Ask(ctx context.Context, r Request, heard func(status int, header http.Header)) (*Answer, error) {
	to := h.base.String() + r.Path
	for hop := 0; ; hop++ {
		a, err := h.once(ctx, r, to, heard)
		if err != nil || a.Status/100 != 3 || a.Status == http.StatusNotModified {
			return a, err
		}
		at, err := url.Parse(to)
		if err == nil {
			at, err = at.Parse(a.Header.Get("Location"))
		}
		switch {
		case err != nil || a.Header.Get("Location") == "":
			return a, errors.New("a redirect to nowhere")
		case at.Scheme != h.base.Scheme || at.Host != h.base.Host || at.User != nil:
			return a, errors.New("a redirect to another host, which is not followed")
		case r.Method != http.MethodGet:
			return a, errors.New("a redirect of what is not a read, which is not followed")
		case hop == mostRedirects:
			return a, errors.New("too many redirects")
		}
		to = at.String()
	}
}

func (h *Host) once(ctx context.Context, r Request, to string, heard func(int, http.Header)) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, to, bytes.NewReader(r.Body))
	if err != nil {
		return nil, errors.New("the question has no URL")
	}
	maps.Copy(req.Header, r.Header)
	known, keeps := h.pages.get(r.Method, to)
	if keeps {
		req.Header.Set("If-None-Match", known.Header.Get("ETag"))
	}
	res, err := h.transport.RoundTrip(req)
	if err != nil {
		heard(0, nil)
		return nil, err
	}
	defer res.Body.Close()
	heard(res.StatusCode, res.Header)
	a := &Answer{Status: res.StatusCode, Header: res.Header}
	if a.Body, err = io.ReadAll(io.LimitReader(res.Body, mostBody+1)); err != nil {
		return a, err
	}
	if len(a.Body) > mostBody {
		return a, fmt.Errorf("the answer is longer than %d MB", mostBody>>20)
	}
	if a.Status == http.StatusNotModified && keeps {
		// The body is what it was. GitLab's next page is in a header, which is not part
		// of the tag: the page that was the last may not be any more.
		header := known.Header.Clone()
		maps.Copy(header, a.Header)
		return &Answer{Status: known.Status, Header: header, Body: known.Body}, nil
	}
	h.pages.put(r.Method, to, a)
	return a, nil
}

// pages are the last answers to reads that have an ETag: a page that has not changed
// is not sent again, and at GitHub does not count.
type pages struct {
	mu   sync.Mutex
	of   map[string]*Answer
	size int
}

func (p *pages) get(method, url string) (*Answer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.of[url]
	return known, ok && method == http.MethodGet
}

func (p *pages) put(method, url string, a *Answer) {
	if method != http.MethodGet || a.Status != http.StatusOK {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.of[url]; ok {
		p.size -= len(old.Body)
		delete(p.of, url)
	}
	if a.Header.Get("ETag") == "" || len(a.Body) > mostKept {
		return
	}
	if p.size+len(a.Body) > mostKept || p.of == nil {
		p.of, p.size = map[string]*Answer{}, 0
	}
	p.of[url], p.size = a, p.size+len(a.Body)
}
