package upstream

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

// NewGet returns a GET request for an escaped URL path.
func NewGet(ctx context.Context, path string, query url.Values, header http.Header) (*http.Request, error) {
	u, err := url.Parse(path)
	if err != nil {
		return nil, err
	}
	u.RawQuery = query.Encode()
	return (&http.Request{Method: http.MethodGet, URL: u, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(ctx), nil
}

// Get sends a GET request of the adapter itself. The caller must close the response body.
func (c *Cluster) Get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	r, err := NewGet(ctx, path, nil, header)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(Ask{Request: r, Read: true})
	if err != nil {
		return nil, err
	}
	res := *answer.Response
	res.Body = answer.Whole()
	return &res, nil
}

// Whole returns the response as a body whose Close closes the response.
func (a *Answer) Whole() io.ReadCloser { return bodyOf{a} }

// bodyOf closes a response together with its body.
type bodyOf struct{ *Answer }

// Read implements [io.Reader].
func (b bodyOf) Read(p []byte) (int, error) { return b.Body.Read(p) }
