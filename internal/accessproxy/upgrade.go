package accessproxy

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/problem"
)

// switchProtocols takes over the client's connection after the API server has switched protocols.
func (x *exchange) switchProtocols(res *http.Response) error {
	backend, ok := res.Body.(io.ReadWriteCloser)
	if !ok || !strings.EqualFold(res.Header.Get("Upgrade"), x.upgrade) {
		return problem.New(problem.Internal, "The API server switched to another protocol than the requested one.")
	}
	x.stream = x.proxy.streams.add(x)
	defer x.proxy.streams.remove(x.stream)
	h := http.Header{}
	apiproxy.ResponseHeaders(h, res.Header, res.Request.URL)
	delete(h, "Content-Type")
	h["Connection"], h["Upgrade"], h["Audit-Id"] = []string{"Upgrade"}, res.Header["Upgrade"], []string{x.id}
	client, pending, err := x.hijack(h)
	if client == nil {
		return err
	}
	defer client.Close()
	if err != nil {
		x.err = err
		return nil
	}
	x.carry(client, pending, backend)
	return nil
}

// hijack takes over the client's connection and answers with status 101. pending are the bytes that the client has
// already sent. If client is nil, nothing has been written, and the error is the response.
func (x *exchange) hijack(h http.Header) (client net.Conn, pending []byte, _ error) {
	client, buffered, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	x.status = http.StatusSwitchingProtocols
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	pending, _ = buffered.Reader.Peek(buffered.Reader.Buffered())
	_, err = client.Write(head.Bytes())
	return client, pending, err
}

// carry copies in both directions until both sides have ended, or until the stream is cut. If one side ends its
// direction, the end is forwarded and the other side may continue.
func (x *exchange) carry(client net.Conn, pending []byte, backend io.ReadWriteCloser) {
	var both sync.WaitGroup
	closeBoth := sync.OnceFunc(func() {
		client.Close()
		backend.Close()
	})
	done := make(chan struct{})
	go func() {
		select {
		case <-done:
		case <-x.stream.ended:
			closeBoth()
		}
	}()
	var sent, received int64
	both.Go(func() { received = x.copyOneWay(client, backend, closeBoth) })
	both.Go(func() {
		sent = x.copyOneWay(backend, io.MultiReader(bytes.NewReader(pending), client), closeBoth)
	})
	both.Wait()
	close(done)
	closeBoth()
	x.bytes = sent + received
}

// copyOneWay copies until from ends, and then ends the direction. An error ends both directions.
func (x *exchange) copyOneWay(to io.Writer, from io.Reader, closeBoth func()) int64 {
	large := x.proxy.buffers.large.Get().(*[largeBuffer]byte)
	defer x.proxy.buffers.large.Put(large)
	// Without the wrappers, io.CopyBuffer would use another method with its own buffer.
	n, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{from}, large[:])
	if err == nil {
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			err = half.CloseWrite()
		} else {
			err = errors.ErrUnsupported
		}
	}
	if err != nil {
		closeBoth()
	}
	return n
}
