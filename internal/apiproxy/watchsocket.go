package apiproxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
)

// MessageWriter sends messages to the client of a WebSocket.
type MessageWriter interface {
	// Send queues a message until the next Flush, at the latest.
	Send(payload []byte, text bool) error
	Flush() error
}

// checkWatchSocket refuses an upgrade that Watch cannot serve. It removes the handshake from Out, because requests to
// clusters are plain streams.
func (x *Exchange) checkWatchSocket() error {
	x.W.Header().Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	if x.Request.Verb != "watch" || !strings.EqualFold(x.result.Upgrade, "websocket") {
		return NewBadRequest("a request to several clusters can be upgraded only for a watch, to websocket")
	}
	if err := checkWebSocketHandshake(x.Out.Header); err != nil {
		x.W.Header().Set("Sec-WebSocket-Version", webSocketVersion)
		return NewBadRequest("the request is not a WebSocket handshake: %v", err)
	}
	x.handshake = x.Out.Header
	x.Out.Header = x.Out.Header.Clone()
	for name := range x.Out.Header {
		if strings.HasPrefix(strings.ToLower(name), "sec-websocket-") {
			delete(x.Out.Header, name)
		}
	}
	return nil
}

// Watch starts the response to a watch with the headers of W. The caller must call Answer first. If the client requested
// a WebSocket, Watch accepts it and returns the writer of its messages, which the server closes. Otherwise the writer
// is nil, and the caller writes the events to W. The context ends when the client disconnects or the server must stop.
func (x *Exchange) Watch() (MessageWriter, context.Context, error) {
	if x.handshake == nil {
		x.W.WriteHeader(http.StatusOK)
		return nil, x.Out.Context(), nil
	}
	hijacked, buffered, err := http.NewResponseController(x.W).Hijack()
	if err != nil {
		return nil, nil, err
	}
	x.server.upgrades.Add(1)
	x.atEnd(x.server.upgrades.Done)
	client := unwrapConn(hijacked)
	x.atEnd(func() { client.Close() })
	x.atEnd(x.closeOnStop(client))
	x.result.Code = http.StatusSwitchingProtocols
	x.streamOpened(x.result.Code)
	h := x.W.Header().Clone()
	for _, name := range []string{"Content-Type", "Content-Length", "Cache-Control"} {
		h.Del(name) // they describe a body, and there is none
	}
	acceptWebSocket(h, x.handshake)
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	pending, _ := buffered.Reader.Peek(buffered.Reader.Buffered())
	conn := newWebSocketConn(client, io.MultiReader(bytes.NewReader(pending), client))
	client.Write(head.Bytes())                        // if the write fails, the listener below ends too
	ctx, cancel := context.WithCancel(x.In.Context()) // it does not end with a hijacked connection
	left := make(chan struct{})
	go func() {
		defer close(left)
		defer cancel()
		conn.Listen() // how the client disconnects does not matter
	}()
	x.atEnd(func() {
		conn.Close()
		<-left
		x.result.Bytes = conn.Sent()
	})
	return conn, ctx, nil
}
