package serving

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/socket"
)

// Switch is the response writer of a client that requested a WebSocket. A handler may also answer it with a
// plain response, after which the connection is closed.
type Switch interface {
	http.ResponseWriter
	// Switch accepts the WebSocket with the current headers. The context ends when the client disconnects or
	// the server must stop. The server closes the Messages.
	Switch() (Messages, context.Context, error)
}

// Messages sends messages to the client of a WebSocket.
type Messages interface {
	// Send queues a message until the next Flush, at the latest.
	Send(payload []byte, text bool) error
	Flush() error
}

// serveSocket answers a watch with messages, which the target's Serve sends.
func (v *visit) serveSocket() error {
	v.w.Header().Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	if v.req.Verb != "watch" || !strings.EqualFold(v.upgrade, "websocket") {
		return badRequest("what several clusters serve together can be upgraded for a watch only, to websocket")
	}
	if err := socket.Check(v.out.Header); err != nil {
		v.w.Header().Set("Sec-WebSocket-Version", socket.Version)
		return badRequest("the request is no handshake of a WebSocket: %v", err)
	}
	s := &switching{noted: noted{v.w, v}, asked: v.out.Header}
	out := v.out.WithContext(v.r.Context())
	out.Header = out.Header.Clone()
	for name := range out.Header {
		if strings.HasPrefix(strings.ToLower(name), "sec-websocket-") {
			delete(out.Header, name) // requests to clusters are plain streams
		}
	}
	defer s.end()
	return v.target.Serve(s, out, v.calling)
}

// switching implements Switch.
type switching struct {
	noted
	asked http.Header
	conn  *socket.Conn // nil: it got a plain response
	ended []func()
}

// Switch implements [Switch].
func (s *switching) Switch() (Messages, context.Context, error) {
	v := s.v
	conn, buffered, err := http.NewResponseController(v.w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	v.upgrades.Add(1)
	here := unframed(conn)
	s.ended = append(s.ended, v.upgrades.Done, func() { here.Close() }, v.cutOff(here))
	v.code = http.StatusSwitchingProtocols
	v.opened(v.code)
	h := v.w.Header().Clone()
	for _, name := range []string{"Content-Type", "Content-Length", "Cache-Control"} {
		h.Del(name) // they describe a body, and there is none
	}
	socket.Accept(h, s.asked)
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	s.conn = socket.New(here, io.MultiReader(bytes.NewReader(early), here))
	here.Write(head.Bytes())                         // if the write fails, the listener below ends too
	ctx, cancel := context.WithCancel(v.r.Context()) // it does not end with a hijacked connection
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		s.conn.Listen() // how the client disconnects does not matter
	}()
	s.ended = append(s.ended, func() { s.conn.Close(); <-left })
	return s.conn, ctx, nil
}

// end releases the connection, in reverse order.
func (s *switching) end() {
	for i := len(s.ended) - 1; i >= 0; i-- {
		s.ended[i]()
	}
	if s.conn != nil {
		s.v.bytes = s.conn.Sent()
	}
}
