package serving

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

	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// forward sends a request to its cluster and relays the response.
func (v *visit) forward() error {
	ctx, cancel := v.deadline()
	defer cancel()
	ask := v.ask(ctx)
	if ask.Body != nil {
		if err := upstream.Replayable(ask.Request); err != nil {
			v.err = err
			v.code = observe.StatusGone
			panic(http.ErrAbortHandler) // the client did not send the whole body
		}
		// The transport may read the body after this handler has returned, which net/http forbids.
		body := &closing{ReadCloser: ask.Body}
		ask.Body = body
		defer body.Close()
	}
	answer, err := Calling(v.calling).Do(v.target.Cluster, ask)
	if err == nil && v.target.Again != nil && (ask.Body == nil || ask.GetBody != nil) {
		if next := v.target.Again(answer.Response); next != nil {
			answer.Close()
			v.target.Cluster = next
			answer, err = Calling(v.calling).Do(next, ask)
		}
	}
	if err != nil {
		return v.failure(err)
	}
	defer answer.Close()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return refusal(http.StatusInternalServerError, "InternalError", "cluster %s switched protocols, which nobody asked for", v.target.Cluster.Name)
	}
	return v.relay(answer)
}

// closing is a body that returns an error on reads after Close. Its Close does not close the client's
// connection, which net/http owns.
type closing struct {
	io.ReadCloser
	mu     sync.Mutex
	closed bool
}

func (c *closing) Read(p []byte) (int, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return 0, http.ErrBodyReadAfterClose
	}
	return c.ReadCloser.Read(p)
}

func (c *closing) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

// relay sends the cluster's response to the client.
func (v *visit) relay(a *upstream.Answer) error {
	if v.target.Heard != nil {
		v.target.Heard(a.Response)
	}
	h := v.w.Header()
	warnings := h["Warning"]
	inbound(h, a.Header, a.Request.URL, v.target.Cluster.Name)
	h["Warning"] = append(slices.Clip(h["Warning"]), warnings...)
	if len(h["Warning"]) == 0 {
		delete(h, "Warning")
	}
	if v.upgrade != "" {
		h.Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	}
	v.code = a.StatusCode
	v.w.WriteHeader(a.StatusCode)
	v.opened(a.StatusCode)
	flush := func() error { return nil }
	if v.streams() || a.ContentLength < 0 {
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
			if v.streams() && v.ended() {
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
func (v *visit) switchProtocols() error {
	ctx, cancel := v.deadline()
	defer cancel()
	ask := v.ask(ctx)
	ask.Way, ask.Body = upstream.Upgrade, nil
	ask.Header["Connection"], ask.Header["Upgrade"] = []string{"Upgrade"}, []string{v.upgrade}
	answer, err := Calling(v.calling).Do(v.target.Cluster, ask)
	if err != nil {
		v.w.Header().Set("Connection", "close")
		return v.failure(err)
	}
	defer answer.Close()
	if answer.StatusCode != http.StatusSwitchingProtocols {
		return v.relay(answer)
	}
	there, ok := answer.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(answer.Header.Get("Upgrade"), v.upgrade) {
		v.w.Header().Set("Connection", "close")
		return refusal(http.StatusInternalServerError, "InternalError", "cluster %s switched to another protocol than was asked for", v.target.Cluster.Name)
	}
	v.upgrades.Add(1)
	defer v.upgrades.Done()
	conn, buffered, err := http.NewResponseController(v.w).Hijack()
	if err != nil {
		return err
	}
	defer conn.Close()
	here := unframed(conn)
	v.code = answer.StatusCode
	v.opened(v.code)
	h := http.Header{}
	inbound(h, answer.Header, answer.Request.URL, v.target.Cluster.Name)
	delete(h, "Content-Type")
	h["Connection"], h["Upgrade"] = []string{"Upgrade"}, answer.Header["Upgrade"]
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	if _, err := here.Write(head.Bytes()); err != nil {
		v.err = err
		return nil
	}
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	if _, err := there.Write(early); err != nil {
		v.err = err
		return nil
	}
	release := v.cutOff(here, there)
	defer release()
	v.copyBoth(here, there)
	return nil
}

// unframed returns the connection below the strict framing layer, which supports only HTTP.
func unframed(c net.Conn) net.Conn {
	for {
		inner, ok := c.(interface{ NetConn() net.Conn })
		if _, is := c.(*tls.Conn); is || !ok {
			return c
		}
		c = inner.NetConn()
	}
}

// cutOff closes both ends when the server must stop.
func (v *visit) cutOff(ends ...io.Closer) (release func()) {
	done := make(chan struct{})
	go func() {
		select {
		case <-done:
		case <-v.cut.Done():
			for _, e := range ends {
				e.Close()
			}
		}
	}()
	return func() { close(done) }
}

// copyBoth copies in both directions until both sides have ended. If one side ends its stream, the end is
// forwarded and the other side may continue. An error closes both.
func (v *visit) copyBoth(here net.Conn, there io.ReadWriteCloser) {
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
	go carry(here, there)
	go carry(there, here)
	first := <-ends
	if first.err != nil {
		here.Close()
		there.Close()
	}
	second := <-ends
	v.bytes = first.n + second.n
}
