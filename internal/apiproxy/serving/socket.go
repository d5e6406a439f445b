package serving

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/socket"
)

// A Switch is the writer of a client that asked for a WebSocket. It may be
// answered as any other, and then is closed.
type Switch interface {
	http.ResponseWriter
	// Switch answers with what is in the header that it is one. The context ends
	// when the client leaves, or must. What it returns is closed by the server.
	Switch() (Messages, context.Context, error)
}

// Messages go to the client of a WebSocket.
type Messages interface {
	// Send sends a message, in time for the next Flush.
	Send(payload []byte, text bool) error
	Flush() error
}

// serveSocket answers a watch as messages, which its Serve sends.
func (v *visit) serveSocket() error {
	v.w.Header().Set("Connection", "close") // what the client sends behind it is not read (PX-06)
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
			delete(out.Header, name) // the clusters are asked for streams
		}
	}
	defer s.end()
	return v.target.Serve(s, out, v.calling)
}

// switching is a Switch.
type switching struct {
	noted
	asked http.Header
	conn  *socket.Conn // nil: it was answered as any other
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
		h.Del(name) // of a body, which there is none
	}
	socket.Accept(h, s.asked)
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	early, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	s.conn = socket.New(here, io.MultiReader(bytes.NewReader(early), here))
	here.Write(head.Bytes())                         // who is not there to read it is not there to be listened to
	ctx, cancel := context.WithCancel(v.r.Context()) // which does not end with a connection that was taken over
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		s.conn.Listen() // how a client leaves is its own affair
	}()
	s.ended = append(s.ended, func() { s.conn.Close(); <-left })
	return s.conn, ctx, nil
}

// end lets go of the connection, in the reverse order.
func (s *switching) end() {
	for i := len(s.ended) - 1; i >= 0; i-- {
		s.ended[i]()
	}
	if s.conn != nil {
		s.v.bytes = s.conn.Sent()
	}
}
