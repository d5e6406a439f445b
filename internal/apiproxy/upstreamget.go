package apiproxy

import (
	"context"
	"io"
	"net/http"
	"net/url"
)

// NewGetRequest returns a GET request for an escaped URL path.
func NewGetRequest(ctx context.Context, path string, query url.Values, header http.Header) (*http.Request, error) {
	u, err := url.Parse(path)
	if err != nil {
		return nil, err
	}
	u.RawQuery = query.Encode()
	return (&http.Request{Method: http.MethodGet, URL: u, Header: header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}).WithContext(
		ctx,
	), nil
}

// Get sends a GET request of the adapter itself. The caller must close the response body.
func (c *Upstream) Get(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	r, err := NewGetRequest(ctx, path, nil, header)
	if err != nil {
		return nil, err
	}
	response, err := c.Do(UpstreamRequest{Request: r, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	res := *response.Response
	res.Body = response.ClosingBody()
	return &res, nil
}

// ClosingBody returns the response as a body whose Close closes the response.
func (a *UpstreamResponse) ClosingBody() io.ReadCloser { return closingBody{a} }

// closingBody closes a response together with its body.
type closingBody struct{ *UpstreamResponse }

// Read implements [io.Reader].
func (b closingBody) Read(p []byte) (int, error) { return b.Body.Read(p) }
