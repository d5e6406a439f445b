package apiproxy

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"

	"github.com/tailplane/tailplane/internal/httpapi/framing"
)

// NewHTTPServer returns the server of a proxy, with the limits of a listener. It must serve on a listener from
// [FramedListener].
func NewHTTPServer(handler http.Handler, log *slog.Logger) *http.Server {
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ConnState:         framing.OnStateChange,
		MaxHeaderBytes:    maxHeader,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		// Otherwise net/http would answer "OPTIONS *" before any check.
		DisableGeneralOptionsHandler: true,
	}
	// TLS terminates below the framing layer, so net/http does not see it.
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}

// FramedListener returns ln with strict framing of its connections. If ln has TLS, its connections are already decrypted.
func FramedListener(ln net.Listener) net.Listener {
	return framing.Listener{Listener: ln, HTTP2: true, MaxLine: maxLine}
}

// Hijack takes over the client's connection and answers with status 101 and h. It calls switched before the answer is
// written. pending are the bytes that the client has already sent. If client is nil, nothing has been written, and the
// error is the response.
func Hijack(w http.ResponseWriter, h http.Header, switched func()) (client net.Conn, pending []byte, _ error) {
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	switched()
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 101 Switching Protocols\r\n")
	h.Write(&head)
	head.WriteString("\r\n")
	pending, _ = buffered.Reader.Peek(buffered.Reader.Buffered())
	_, err = client.Write(head.Bytes())
	return client, pending, err
}

// CopyOneWay copies from one side of an upgraded connection until it ends, and then ends this direction of the other side,
// whose bytes go through a writer. It returns an error also if the other side cannot end one direction alone: the caller
// must then close both sides.
func CopyOneWay(through io.Writer, other io.Closer, from io.Reader, buf []byte) (int64, error) {
	// Without the wrappers, io.CopyBuffer would use another method with its own buffer.
	n, err := io.CopyBuffer(struct{ io.Writer }{through}, struct{ io.Reader }{from}, buf)
	if err != nil {
		return n, err
	}
	if half, ok := other.(interface{ CloseWrite() error }); ok {
		return n, half.CloseWrite()
	}
	return n, errors.ErrUnsupported
}
