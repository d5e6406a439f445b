// Package httptransport is a strict HTTP transport for the API of one host. Client libraries of
// external services use it, so that no call of a library can break these rules:
//
//   - A request must go to the configured scheme, host, port and base path. Otherwise it is
//     refused before anything is sent. The credential is added only after that check.
//   - Redirects are errors. With [Config.FollowReads], a read follows at most three redirects on
//     the same host.
//   - An answer is read completely, within a size and a time limit. A partial answer is an error.
//   - A success must be JSON with a JSON content type. A read must have a body.
//   - No request is sent twice.
//   - No error contains a query, a header or a body.
//
// The package uses the standard library only.
package httptransport

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The limits of a Config that names none.
const (
	DefaultTimeout = 30 * time.Second
	DefaultMaxBody = 16 << 20

	maxRedirects = 3
)

// Config describes a Transport. Only Base is required.
type Config struct {
	// Base is the root of the API. Requests must go to its scheme, host and port, and
	// below its path.
	Base *url.URL
	// CABundle holds certificate authorities in PEM form, which are trusted in addition to those of
	// the system.
	CABundle []byte
	// Authorize adds the credential to a request. It is called for each request that is sent, after
	// the check of its address. Nil means no credential.
	Authorize func(*http.Request) error
	// Observe is called with the status and the headers of each answer, including answers that
	// become an error. If no answer came, it is called with 0 and nil.
	Observe func(status int, header http.Header)
	// FollowReads follows redirects of GET and HEAD on the same host. APIs use them for renamed
	// objects.
	FollowReads bool
	// AllowText accepts successes of any content type and reads without a body.
	AllowText     bool
	MaxBody       int64         // bytes of an answer; 0: DefaultMaxBody
	Timeout       time.Duration // of one request with its answer; 0: DefaultTimeout
	MaxConcurrent int           // requests at the same time; more wait; 0: no limit
	// RoundTripper sends the requests. Nil means a separate transport with time limits.
	RoundTripper http.RoundTripper
}

// A Transport is an [http.RoundTripper] that enforces the rules of this package. It is safe for
// concurrent use.
type Transport struct {
	config Config
	slots  chan struct{} // nil: no limit
}

// New returns a transport. It connects to nothing.
func New(c Config) (*Transport, error) {
	if c.Base == nil || c.Base.Host == "" || c.Base.Scheme != "https" && c.Base.Scheme != "http" {
		return nil, errors.New("a strict transport needs the http or https URL of its host")
	}
	if p := c.Base.EscapedPath(); p != "" && !strings.HasPrefix(p, "/") { // as [url.URL.JoinPath] leaves it
		return nil, errors.New("the path of a strict transport must begin with a slash")
	}
	c.MaxBody, c.Timeout = cmp.Or(c.MaxBody, DefaultMaxBody), cmp.Or(c.Timeout, DefaultTimeout)
	if c.RoundTripper == nil {
		var err error
		if c.RoundTripper, err = wire(c); err != nil {
			return nil, err
		}
	}
	t := &Transport{config: c}
	if c.MaxConcurrent > 0 {
		t.slots = make(chan struct{}, c.MaxConcurrent)
	}
	return t, nil
}

func wire(c Config) (*http.Transport, error) {
	t := &http.Transport{ // the default transport of the process has no time limits
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout:    10 * time.Second,
		ResponseHeaderTimeout:  c.Timeout,
		MaxResponseHeaderBytes: 256 << 10,
		MaxIdleConns:           4,
		IdleConnTimeout:        90 * time.Second,
		ForceAttemptHTTP2:      true,
	}
	if len(c.CABundle) > 0 {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(c.CABundle) {
			return nil, errors.New("the CA bundle has no certificate in it")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return t, nil
}

// With returns a copy of t with another credential and another observer. The copy shares the
// connections and limits of t.
func (t *Transport) With(authorize func(*http.Request) error, observe func(status int, header http.Header)) *Transport {
	view := *t
	view.config.Authorize, view.config.Observe = authorize, observe
	return &view
}

// Client returns a client for a library. The errors of an [http.Client] begin with the complete URL
// of the request, so callers must pass them through [Scrub].
func (t *Transport) Client() *http.Client { return ClientOf(t) }

// ClientOf returns a client that sends with rt and follows no redirect itself.
func ClientOf(rt http.RoundTripper) *http.Client {
	return &http.Client{Transport: rt, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// RoundTrip implements [http.RoundTripper]. The body of the response is in memory. The error is an
// [*Error].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	if err := t.pinned(r); err != nil {
		return nil, err
	}
	if t.slots != nil {
		select {
		case t.slots <- struct{}{}:
			defer func() { <-t.slots }()
		case <-r.Context().Done():
			return nil, &Error{Message: "no free slot before the end of the context", cause: context.Cause(r.Context())}
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), t.config.Timeout)
	defer cancel()
	next := r.Clone(ctx)
	for hop := 0; ; hop++ {
		response, err := t.once(next)
		if err != nil {
			return nil, err
		}
		if response.StatusCode/100 != 3 || response.StatusCode == http.StatusNotModified {
			response.Request = r
			return response, nil
		}
		if next, err = t.redirected(r.Clone(ctx), next, response, hop); err != nil {
			return nil, err
		}
	}
}

// pinned checks that a request goes to the host of the configuration, below its path.
func (t *Transport) pinned(r *http.Request) *Error {
	refuse := func(why string) *Error { return &Error{Message: "the request was not sent: " + why} }
	if r.URL == nil || r.URL.Opaque != "" || r.URL.User != nil {
		return refuse("its URL has parts that are not allowed")
	}
	if !sameOrigin(r.URL, t.config.Base) || r.Host != "" && !sameHost(t.config.Base.Scheme, r.Host, t.config.Base.Host) {
		return refuse("it leads to a different host")
	}
	base := strings.TrimRight(t.config.Base.EscapedPath(), "/")
	if path := r.URL.EscapedPath(); path != base && !strings.HasPrefix(path, base+"/") {
		return refuse("it leads outside the API's path")
	}
	for part := range strings.SplitSeq(r.URL.Path, "/") { // unescaped, so it also finds "%2e%2E%2f"
		if part == "." || part == ".." {
			return refuse("its path has .. elements")
		}
	}
	return nil
}

func sameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && sameHost(a.Scheme, a.Host, b.Host)
}

// sameHost compares hosts with their ports. The default port of the scheme may be missing.
func sameHost(scheme, a, b string) bool {
	port := map[string]string{"https": ":443", "http": ":80"}[scheme]
	return strings.EqualFold(strings.TrimSuffix(a, port), strings.TrimSuffix(b, port))
}

// redirected returns the request for the target of a redirect.
func (t *Transport) redirected(next, last *http.Request, response *http.Response, hop int) (*http.Request, error) {
	refuse := func(why string) (*http.Request, error) {
		return nil, &Error{Status: response.StatusCode, Header: response.Header, Message: why}
	}
	location := response.Header.Get("Location")
	to, err := last.URL.Parse(location)
	switch {
	case err != nil || location == "":
		return refuse("a redirect without a valid location")
	case !sameOrigin(to, t.config.Base) || to.User != nil:
		return refuse("a redirect to a different host, which is not followed")
	case !t.config.FollowReads:
		return refuse("a redirect, which is not followed")
	case next.Method != http.MethodGet && next.Method != http.MethodHead, next.Body != nil && next.Body != http.NoBody:
		return refuse("a redirect of a request that is not a read, which is not followed")
	case hop == maxRedirects:
		return refuse("too many redirects")
	}
	next.URL, next.Host = to, ""
	if t.pinned(next) != nil {
		return refuse("a redirect outside the API's path, which is not followed")
	}
	return next, nil
}

// once sends one request and reads the answer completely.
func (t *Transport) once(r *http.Request) (*http.Response, error) {
	r.Header = maps.Clone(r.Header)
	if r.Header == nil {
		r.Header = http.Header{}
	}
	// With this header, net/http does not decompress answers, so their size could not be limited.
	r.Header.Del("Accept-Encoding")
	if t.config.Authorize != nil {
		if err := t.config.Authorize(r); err != nil {
			return nil, &Error{Message: "the request was not sent: it could not be authorised", cause: contextError(err)}
		}
	}
	observe := t.config.Observe
	if observe == nil {
		observe = func(int, http.Header) {}
	}
	response, err := t.config.RoundTripper.RoundTrip(r)
	if err != nil {
		observe(0, nil)
		return nil, broken(r.Context(), err)
	}
	defer response.Body.Close()
	observe(response.StatusCode, response.Header)
	fail := func(e *Error) (*http.Response, error) {
		e.Status, e.Header = response.StatusCode, response.Header
		return nil, e
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, t.config.MaxBody+1))
	switch {
	case err != nil && errors.Is(err, io.ErrUnexpectedEOF):
		return fail(&Error{Message: "the answer ended early"})
	case err != nil:
		return fail(broken(r.Context(), err))
	case int64(len(body)) > t.config.MaxBody:
		return fail(&Error{Message: fmt.Sprintf("the answer is longer than %d bytes", t.config.MaxBody)})
	}
	if why := t.wrong(r, response, body); why != "" {
		return fail(&Error{Message: why})
	}
	response.Body, response.ContentLength, response.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
	return response, nil
}

// wrong says why an answer is not valid for an API. Refusals may have any body, which the caller
// must check.
func (t *Transport) wrong(r *http.Request, response *http.Response, body []byte) string {
	if e := response.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return "the answer has an encoding that was not requested"
	}
	if response.StatusCode == http.StatusPartialContent {
		return "the answer is only a part"
	}
	if response.StatusCode/100 != 2 || r.Method == http.MethodHead || t.config.AllowText {
		return ""
	}
	if len(bytes.TrimSpace(body)) == 0 {
		if r.Method == http.MethodGet {
			return "the answer is empty" // an empty answer must not become an empty list
		}
		return ""
	}
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case err == nil && kind == "text/html":
		return "the answer is a web page, so it is not from the API"
	case err != nil || kind != "application/json" && !strings.HasSuffix(kind, "+json"):
		return "the answer is not of a JSON type"
	case !json.Valid(body):
		return "the answer is not JSON"
	}
	return ""
}
