package apiproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Do sends a request to a cluster and reports the result to the telemetry. It sets the audit id and, if the request is
// traced, the trace context. It is safe for concurrent use.
func (x *Exchange) Do(up *Upstream, req UpstreamRequest) (*UpstreamResponse, error) {
	call := x.Telemetry.StartCall(up.Name, req.Header)
	res, err := up.Do(req)
	if err != nil {
		reason := FailedReset
		if f, ok := errors.AsType[*UpstreamError](err); ok {
			reason = f.Reason
		}
		call.End(0, reason)
		return nil, err
	}
	call.End(res.StatusCode, "")
	return res, nil
}

// Send sends the request, or the requested upgrade, to a cluster. The caller must close the response. The error is a
// *[Refusal]. If Routed has not been called, Send calls it without a rule.
func (x *Exchange) Send(up *Upstream) (*UpstreamResponse, error) {
	if !x.routed {
		if err := x.Routed("", up.Name); err != nil {
			return nil, err
		}
	}
	ctx, body := x.limit(), x.keepBody()
	req := UpstreamRequest{Request: x.Out.WithContext(ctx), ReadOnly: x.isReadOnly(), Proxied: x.Request.Subresource == "proxy"}
	req.Body = body
	if x.result.Upgrade != "" {
		req.Transport = UpgradeTransport
		req.Header["Connection"], req.Header["Upgrade"] = []string{"Upgrade"}, []string{x.result.Upgrade}
	}
	res, err := x.Do(up, req)
	switch {
	case err != nil && x.result.Upgrade != "":
		x.W.Header().Set("Connection", "close")
		return nil, x.refusalFor(up, err)
	case err != nil:
		return nil, x.refusalFor(up, err)
	case res.StatusCode == http.StatusSwitchingProtocols && x.result.Upgrade == "":
		res.Close()
		return nil, NewRefusal(http.StatusInternalServerError,
			"cluster %s switched protocols without a request for it", up.Name)
	}
	return res, nil
}

// CanResend reports whether Send may send the request once more, to another cluster.
func (x *Exchange) CanResend() bool {
	return x.result.Upgrade == "" && (x.Out.Body == nil || x.Out.GetBody != nil)
}

// keepBody returns the body for a cluster. It keeps a small one for a retry.
func (x *Exchange) keepBody() io.ReadCloser {
	if x.Out.Body == nil {
		return nil
	}
	if err := bufferBody(x.Out); err != nil {
		x.result.Err, x.result.Code = err, StatusClientClosedRequest
		panic(http.ErrAbortHandler) // the client did not send the whole body
	}
	// The transport may read the body after the handler has returned, which net/http forbids.
	body := &closableBody{ReadCloser: x.Out.Body}
	x.atEnd(func() { body.Close() })
	return body
}

// closableBody is a body that returns an error on reads after Close. Its Close does not close the client's
// connection, which net/http owns.
type closableBody struct {
	io.ReadCloser
	mu     sync.Mutex
	closed bool
}

func (c *closableBody) Read(p []byte) (int, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return c.ReadCloser.Read(p)
}

func (c *closableBody) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

// Relay sends a cluster's response to the client. If the cluster switched protocols, it takes over the client's
// connection. It returns nil once it has written, and aborts the connection if the response is truncated.
func (x *Exchange) Relay(res *UpstreamResponse) error {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return x.switchProtocols(res)
	}
	h := x.W.Header()
	warnings := h["Warning"]
	copyResponseHeaders(h, res.Header, res.Request.URL, res.Cluster)
	h["Warning"] = append(slices.Clip(h["Warning"]), warnings...)
	if len(h["Warning"]) == 0 {
		delete(h, "Warning")
	}
	if x.result.Upgrade != "" {
		h.Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	}
	x.W.WriteHeader(res.StatusCode)
	flush := func() error { return nil }
	if x.isStream() || res.ContentLength < 0 {
		flush = http.NewResponseController(x.W).Flush
		if err := flush(); err != nil {
			x.result.Err = err
			panic(http.ErrAbortHandler)
		}
	}
	buf := x.server.buffers.Get().(*[bufferSize]byte)
	defer x.server.buffers.Put(buf)
	for b := buf[:]; ; {
		n, err := res.Body.Read(b)
		if n > 0 {
			_, werr := x.W.Write(b[:n])
			if werr == nil {
				werr = flush()
			}
			if werr != nil {
				x.result.Err = werr
				panic(http.ErrAbortHandler)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			x.result.Err = err
			if x.isStream() && x.endedByServer() {
				return nil
			}
			panic(http.ErrAbortHandler) // a truncated response must never look complete
		}
		if n == bufferSize && len(b) == bufferSize {
			// The response is large. HTTP/2 sends a window update for each read, so fewer and larger reads
			// are better.
			large := x.server.large.Get().(*[largeSize]byte)
			defer x.server.large.Put(large)
			b = large[:]
		}
	}
	for name, values := range res.Trailer {
		h[http.TrailerPrefix+name] = values
	}
	return nil
}

// switchProtocols takes over the client's connection after the cluster has switched protocols.
func (x *Exchange) switchProtocols(res *UpstreamResponse) error {
	backend, ok := res.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(res.Header.Get("Upgrade"), x.result.Upgrade) {
		x.W.Header().Set("Connection", "close")
		return NewRefusal(http.StatusInternalServerError,
			"cluster %s switched to another protocol than the requested one", res.Cluster)
	}
	x.server.upgrades.Add(1)
	defer x.server.upgrades.Done()
	h := http.Header{}
	copyResponseHeaders(h, res.Header, res.Request.URL, res.Cluster)
	delete(h, "Content-Type")
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, res.Header["Upgrade"]
	client, pending, err := x.hijack(h)
	if client == nil {
		return err
	}
	defer client.Close()
	if err == nil {
		_, err = backend.Write(pending)
	}
	if err != nil {
		x.result.Err = err
		return nil
	}
	release := x.closeOnStop(client, backend)
	defer release()
	x.copyBoth(client, backend)
	return nil
}

// hijack is [Hijack] of the client's connection. It records the status and the start of the stream.
func (x *Exchange) hijack(h http.Header) (client net.Conn, pending []byte, _ error) {
	return Hijack(x.W, h, func() {
		x.result.Code = http.StatusSwitchingProtocols
		x.streamOpened(x.result.Code)
	})
}

// closeOnStop closes both ends when the server must stop.
func (x *Exchange) closeOnStop(ends ...io.Closer) (release func() bool) {
	return context.AfterFunc(x.server.upgradesCtx, func() {
		for _, e := range ends {
			e.Close()
		}
	})
}

// copyBoth copies in both directions until both sides have ended. If one side ends its stream, the end is
// forwarded and the other side may continue. An error closes both.
func (x *Exchange) copyBoth(client net.Conn, backend io.ReadWriteCloser) {
	type end struct {
		n   int64
		err error
	}
	ends := make(chan end, 2)
	carry := func(to io.WriteCloser, from io.Reader) {
		buf := x.server.buffers.Get().(*[bufferSize]byte)
		defer x.server.buffers.Put(buf)
		n, err := CopyOneWay(to, to, from, buf[:])
		ends <- end{n, err}
	}
	go carry(client, backend)
	go carry(backend, client)
	first := <-ends
	if first.err != nil {
		client.Close()
		backend.Close()
	}
	second := <-ends
	x.result.Bytes = first.n + second.n
}
