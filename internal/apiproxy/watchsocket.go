package apiproxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
)

// WebSocketWriter is the response writer of a client that requested a WebSocket. A handler may also answer it with a
// plain response, after which the connection is closed.
type WebSocketWriter interface {
	http.ResponseWriter
	// Switch accepts the WebSocket with the current headers. The context ends when the client disconnects or
	// the server must stop. The server closes the MessageWriter.
	Switch() (MessageWriter, context.Context, error)
}

// MessageWriter sends messages to the client of a WebSocket.
type MessageWriter interface {
	// Send queues a message until the next Flush, at the latest.
	Send(payload []byte, text bool) error
	Flush() error
}

// serveSocket answers a watch with messages, which the target's Serve sends.
func (v *exchange) serveSocket() error {
	v.w.Header().Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	if v.req.Verb != "watch" || !strings.EqualFold(v.upgrade, "websocket") {
		return NewBadRequest("a request to several clusters can be upgraded only for a watch, to websocket")
	}
	if err := checkWebSocketHandshake(v.out.Header); err != nil {
		v.w.Header().Set("Sec-WebSocket-Version", webSocketVersion)
		return NewBadRequest("the request is not a WebSocket handshake: %v", err)
	}
	s := &webSocketSwitch{recordedWriter: recordedWriter{v.w, v}, request: v.out.Header}
	out := v.out.WithContext(v.r.Context())
	out.Header = out.Header.Clone()
	for name := range out.Header {
		if strings.HasPrefix(strings.ToLower(name), "sec-websocket-") {
			delete(out.Header, name) // requests to clusters are plain streams
		}
	}
	defer s.release()
	return v.target.Serve(s, out, v.observeCall)
}

// webSocketSwitch implements WebSocketWriter.
type webSocketSwitch struct {
	recordedWriter
	request  http.Header
	conn     *webSocketConn // nil: it got a plain response
	releases []func()
}

// Switch implements [WebSocketWriter].
func (s *webSocketSwitch) Switch() (MessageWriter, context.Context, error) {
	v := s.v
	conn, buffered, err := http.NewResponseController(v.w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	v.upgrades.Add(1)
	client := unwrapConn(conn)
	s.releases = append(s.releases, v.upgrades.Done, func() { client.Close() }, v.closeOnStop(client))
	v.code = http.StatusSwitchingProtocols
	v.streamOpened(v.code)
	h := v.w.Header().Clone()
	for _, name := range []string{"Content-Type", "Content-Length", "Cache-Control"} {
		h.Del(name) // they describe a body, and there is none
	}
	acceptWebSocket(h, s.request)
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	pending, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	s.conn = newWebSocketConn(client, io.MultiReader(bytes.NewReader(pending), client))
	client.Write(head.Bytes())                       // if the write fails, the listener below ends too
	ctx, cancel := context.WithCancel(v.r.Context()) // it does not end with a hijacked connection
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		s.conn.Listen() // how the client disconnects does not matter
	}()
	s.releases = append(s.releases, func() { s.conn.Close(); <-left })
	return s.conn, ctx, nil
}

// release releases the connection, in reverse order.
func (s *webSocketSwitch) release() {
	for i := len(s.releases) - 1; i >= 0; i-- {
		s.releases[i]()
	}
	if s.conn != nil {
		s.v.bytes = s.conn.Sent()
	}
}
