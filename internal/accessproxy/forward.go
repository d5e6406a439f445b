package accessproxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// forward sends the request with a token of the caller's sign-in, and relays the response.
func (x *exchange) forward() error {
	ctx, cancel := x.limit()
	defer cancel()
	// The transport may read the body after the handler has returned, unless it is closed.
	defer x.r.Body.Close()
	if err := x.startRecording(ctx); err != nil {
		return err
	}
	defer x.endRecording()
	text, err := x.proxy.tokens.get(ctx, x.signin)
	if err != nil {
		return err
	}
	res, err := x.send(ctx, text)
	if err != nil {
		return err
	}
	if res.StatusCode == http.StatusUnauthorized {
		if res, err = x.afterUnauthorized(ctx, res, text); err != nil {
			return err
		}
	}
	defer res.Body.Close()
	if x.isStream() {
		if err := x.identifyAgain(); err != nil {
			return err
		}
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		return x.switchProtocols(res)
	}
	return x.relay(res, cancel)
}

// send sends the request once.
func (x *exchange) send(ctx context.Context, text secret.Text) (*http.Response, error) {
	p := x.proxy
	u := *p.Upstream.address
	u.Path, u.RawPath, u.RawQuery = x.request.Path, x.path, x.r.URL.RawQuery
	if u.EscapedPath() != x.path { // net/url would escape the path in another way
		u.Path, u.RawPath, u.Opaque = "", "", x.path
	}
	body := &clientBody{ReadCloser: x.r.Body}
	out := (&http.Request{Method: x.r.Method, URL: &u, Header: x.header(), Host: p.Upstream.address.Host, ContentLength: x.r.ContentLength, Body: body}).WithContext(ctx)
	if x.upgrade != "" || x.r.ContentLength == 0 {
		out.Body, out.ContentLength = nil, 0
	}
	out.Header["Authorization"] = []string{"Bearer " + text.Reveal()}
	res, err := p.Upstream.roundTrip(x, out)
	switch {
	case err == nil:
		return res, nil
	case x.r.Context().Err() != nil: // the client has left
		panic(http.ErrAbortHandler)
	case body.failed.Load():
		return nil, problem.New(problem.BadRequest, "The body of the request is not complete.").WithCause(err)
	case ctx.Err() != nil:
		return nil, problem.New(problem.Unavailable, "The API server gave no answer in time. It may have executed the request.").WithCause(err)
	}
	unavailable := problem.New(problem.Unavailable, "The proxy has no connection to the API server.", "Try again in a moment.").WithCause(err)
	if x.isRepeatable() {
		unavailable = unavailable.WithRetryAfter(time.Second)
	}
	return nil, unavailable
}

// A clientBody is the body of a client's request. It knows whether the client failed to send it.
type clientBody struct {
	io.ReadCloser
	failed atomic.Bool
}

// Read implements [io.Reader].
func (b *clientBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, http.ErrBodyReadAfterClose) {
		b.failed.Store(true)
	}
	return n, err
}

// isRepeatable reports whether a client may send the request again without a change of its meaning.
func (x *exchange) isRepeatable() bool {
	return x.upgrade == "" && (x.r.Method == http.MethodGet || x.r.Method == http.MethodHead)
}

// afterUnauthorized handles a 401 of the API server. The API behind a proxy subresource may answer one of its own, which
// passes while the sign-in lives. Otherwise the sign-in may have ended, or its token may be too old.
func (x *exchange) afterUnauthorized(ctx context.Context, res *http.Response, used secret.Text) (*http.Response, error) {
	p := x.proxy
	if now, ok := p.Signins.GetCached(x.signin.Name); x.request.Subresource == "proxy" && ok && now.UID == x.signin.UID && p.refusalOf(now, p.Now()) == nil {
		return res, nil
	}
	io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10))
	res.Body.Close()
	if live, err := p.Signins.Live(ctx); err == nil && live.UIDs[x.signin.Name] != x.signin.UID {
		return nil, problem.New(problem.NotSignedIn, "The sign-in has ended.", "Run: "+loginCommand(p.Cluster, x.session))
	}
	refused := problem.New(problem.Unavailable, "The API server refuses the account of the sign-in.", "Try again in a moment.").
		WithCause(errors.New("status 401"))
	fresh, ok := p.tokens.replace(ctx, x.signin, used)
	if !ok || x.r.ContentLength != 0 || x.upgrade != "" {
		return nil, refused.WithRetryAfter(time.Second)
	}
	res, err := x.send(ctx, fresh)
	if err == nil && res.StatusCode == http.StatusUnauthorized {
		res.Body.Close()
		return nil, problem.New(problem.Unavailable, "The API behind this path refuses the account of the sign-in.").WithCause(errors.New("a second 401"))
	}
	return res, err
}

// bufferPools have the buffers of copies. Idle watches hold small ones.
type bufferPools struct{ small, large sync.Pool }

const (
	smallBuffer = 4 << 10
	largeBuffer = 128 << 10
)

func (b *bufferPools) init() {
	b.small.New = func() any { return new([smallBuffer]byte) }
	b.large.New = func() any { return new([largeBuffer]byte) }
}

// relay sends the response to the client. endRequest ends the request to the API server.
func (x *exchange) relay(res *http.Response, endRequest context.CancelFunc) error {
	h := x.w.Header()
	warnings := h["Warning"]
	apiproxy.ResponseHeaders(h, res.Header, res.Request.URL)
	if len(warnings) > 0 {
		h["Warning"] = append(warnings, res.Header["Warning"]...)
	}
	h["Audit-Id"] = []string{x.id}
	if x.upgrade != "" {
		h.Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	}
	x.status = res.StatusCode
	streams := x.isStream() && res.StatusCode/100 == 2
	if streams {
		x.stream = x.proxy.streams.add(x)
		defer x.proxy.streams.remove(x.stream)
	}
	x.w.WriteHeader(res.StatusCode)
	if streams {
		return x.relayStream(res, endRequest)
	}
	return x.relayBody(res)
}

// relayBody copies a response that has an end. It fills its buffer before it writes, because each write costs about as
// much as its first kilobytes: TLS gives the bytes of a long response in pieces of 16 kB at most.
func (x *exchange) relayBody(res *http.Response) error {
	small := x.proxy.buffers.small.Get().(*[smallBuffer]byte)
	defer x.proxy.buffers.small.Put(small)
	b := small[:]
	for filled, ended := 0, false; !ended; {
		n, err := res.Body.Read(b[filled:])
		filled, ended = filled+n, err == io.EOF
		switch {
		case err == nil && filled < len(b):
			continue
		case err == nil && len(b) == smallBuffer: // the response is long
			large := x.proxy.buffers.large.Get().(*[largeBuffer]byte)
			defer x.proxy.buffers.large.Put(large)
			copy(large[:], b)
			b = large[:]
			continue
		}
		if err := x.write(b[:filled]); err != nil {
			x.abort()
		}
		if filled = 0; err != nil && !ended {
			if x.r.Context().Err() == nil {
				x.proxy.Log.Warn("a response of the API server broke off", "audit", x.id, "err", err)
			}
			x.abort() // a truncated response must never look complete
		}
	}
	for name, values := range res.Trailer {
		x.w.Header()[http.TrailerPrefix+name] = values
	}
	return nil
}

func (x *exchange) write(b []byte) error {
	if len(b) == 0 {
		return nil // over HTTP/2, a response that must have no body (204, 304) refuses this too
	}
	n, err := x.w.Write(b)
	x.bytes += int64(n)
	if x.stream != nil {
		x.stream.bytes.Add(int64(n))
	}
	return err
}

// abort closes the connection to the client, so that it notices that the response is not complete.
func (x *exchange) abort() { panic(http.ErrAbortHandler) }
