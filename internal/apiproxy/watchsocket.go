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
	h := x.W.Header().Clone()
	for _, name := range []string{"Content-Type", "Content-Length", "Cache-Control"} {
		h.Del(name) // they describe a body, and there is none
	}
	acceptWebSocket(h, x.handshake)
	x.server.upgrades.Add(1)
	x.atEnd(x.server.upgrades.Done)
	client, pending, err := x.hijack(h)
	if client == nil {
		return nil, nil, err
	} // if the response cannot be written, the listener below ends too
	x.atEnd(func() { client.Close() })
	release := x.closeOnStop(client)
	x.atEnd(func() { release() })
	conn := newWebSocketConn(client, io.MultiReader(bytes.NewReader(pending), client))
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
