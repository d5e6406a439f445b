package apiproxy

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// forward sends a request to its cluster and relays the response.
func (v *exchange) forward() error {
	ctx, cancel := v.deadline()
	defer cancel()
	req := v.upstreamRequest(ctx)
	if req.Body != nil {
		if err := bufferBody(req.Request); err != nil {
			v.err = err
			v.code = StatusClientClosedRequest
			panic(http.ErrAbortHandler) // the client did not send the whole body
		}
		// The transport may read the body after this handler has returned, which net/http forbids.
		body := &closableBody{ReadCloser: req.Body}
		req.Body = body
		defer body.Close()
	}
	res, err := CallObserver(v.observeCall).Do(v.target.Upstream, req)
	if err == nil && v.target.Redirect != nil && (req.Body == nil || req.GetBody != nil) {
		if next := v.target.Redirect(res.Response); next != nil {
			res.Close()
			v.target.Upstream = next
			res, err = CallObserver(v.observeCall).Do(next, req)
		}
	}
	if err != nil {
		return v.refusalFor(err)
	}
	defer res.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return refusalWithReason(http.StatusInternalServerError, "InternalError", "cluster %s switched protocols without a request for it", v.target.Upstream.Name)
	}
	return v.relay(res)
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

// relay sends the cluster's response to the client.
func (v *exchange) relay(a *UpstreamResponse) error {
	if v.target.OnResponse != nil {
		v.target.OnResponse(a.Response)
	}
	h := v.w.Header()
	warnings := h["Warning"]
	copyResponseHeaders(h, a.Header, a.Request.URL, v.target.Upstream.Name)
	h["Warning"] = append(slices.Clip(h["Warning"]), warnings...)
	if len(h["Warning"]) == 0 {
		delete(h, "Warning")
	}
	if v.upgrade != "" {
		h.Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	}
	v.code = a.StatusCode
	v.w.WriteHeader(a.StatusCode)
	v.streamOpened(a.StatusCode)
	flush := func() error { return nil }
	if v.isStream() || a.ContentLength < 0 {
		flush = http.NewResponseController(v.w).Flush
		if err := flush(); err != nil {
			v.err = err
			panic(http.ErrAbortHandler)
		}
	}
	buf := v.buffers.Get().(*[bufferSize]byte)
	defer v.buffers.Put(buf)
	for b := buf[:]; ; {
		n, err := a.Body.Read(b)
		if n > 0 {
			m, werr := v.w.Write(b[:n])
			v.bytes += int64(m)
			if werr == nil {
				werr = flush()
			}
			if werr != nil {
				v.err = werr
				panic(http.ErrAbortHandler)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			v.err = err
			if v.isStream() && v.endedByServer() {
				return nil
			}
			panic(http.ErrAbortHandler) // a truncated response must never look complete
		}
		if n == bufferSize && len(b) == bufferSize {
			// The response is large. HTTP/2 sends a window update for each read, so fewer and larger reads
			// are better.
			large := v.large.Get().(*[largeSize]byte)
			defer v.large.Put(large)
			b = large[:]
		}
	}
	for name, values := range a.Trailer {
		h[http.TrailerPrefix+name] = values
	}
	return nil
}

// switchProtocols handles an upgrade. It sends the request to the cluster first. Only if the cluster answers
// 101 does it take over the client's connection.
func (v *exchange) switchProtocols() error {
	ctx, cancel := v.deadline()
	defer cancel()
	req := v.upstreamRequest(ctx)
	req.Transport, req.Body = UpgradeTransport, nil
	req.Header["Connection"], req.Header["Upgrade"] = []string{"Upgrade"}, []string{v.upgrade}
	res, err := CallObserver(v.observeCall).Do(v.target.Upstream, req)
	if err != nil {
		v.w.Header().Set("Connection", "close")
		return v.refusalFor(err)
	}
	defer res.Close()
	if res.StatusCode != http.StatusSwitchingProtocols {
		return v.relay(res)
	}
	backend, ok := res.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(res.Header.Get("Upgrade"), v.upgrade) {
		v.w.Header().Set("Connection", "close")
		return refusalWithReason(http.StatusInternalServerError, "InternalError", "cluster %s switched to another protocol than the requested one", v.target.Upstream.Name)
	}
	v.upgrades.Add(1)
	defer v.upgrades.Done()
	conn, buffered, err := http.NewResponseController(v.w).Hijack()
	if err != nil {
		return err
	}
	defer conn.Close()
	client := unwrapConn(conn)
	v.code = res.StatusCode
	v.streamOpened(v.code)
	h := http.Header{}
	copyResponseHeaders(h, res.Header, res.Request.URL, v.target.Upstream.Name)
	delete(h, "Content-Type")
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, res.Header["Upgrade"]
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	if _, err := client.Write(head.Bytes()); err != nil {
		v.err = err
		return nil
	}
	pending, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	if _, err := backend.Write(pending); err != nil {
		v.err = err
		return nil
	}
	release := v.closeOnStop(client, backend)
	defer release()
	v.copyBoth(client, backend)
	return nil
}

// unwrapConn returns the connection below the strict framing layer, which supports only HTTP.
func unwrapConn(c net.Conn) net.Conn {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if _, is := c.(*tls.Conn); is || !ok {
			return c
		}
		c = inner.NetConn()
	}
}

// closeOnStop closes both ends when the server must stop.
func (v *exchange) closeOnStop(ends ...io.Closer) (release func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-done:
		case <-v.upgradesCtx.Done():
			for _, e := range ends {
				e.Close()
			}
		}
	}()
	return func() { close(done) }
}

// copyBoth copies in both directions until both sides have ended. If one side ends its stream, the end is
// forwarded and the other side may continue. An error closes both.
func (v *exchange) copyBoth(client net.Conn, backend io.ReadWriteCloser) {
	type end struct {
		n   int64
		err error
	}
	ends := make(chan end, 2)
	carry := func(to io.Writer, from io.Reader) {
		buf := v.buffers.Get().(*[bufferSize]byte)
		defer v.buffers.Put(buf)
		// Without the wrappers, io.CopyBuffer would use another method with its own buffer.
		n, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, buf[:])
		if err == nil {
			if half, ok := to.(interface{ CloseWrite() error }); ok {
				err = half.CloseWrite()
			} else {
				err = errors.ErrUnsupported
			}
		}
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
	v.bytes = first.n + second.n
}
