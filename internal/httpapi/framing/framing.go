// Package framing restricts a listener to strict HTTP/1, so that two parsers cannot read the same
// bytes differently. It enforces law 1 at the level of bytes: no part of one caller's request can
// become another caller's request.
package framing

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// headerTime limits a TLS handshake, and is the same as the limit for request headers.
const headerTime = 5 * time.Second

// A Listener accepts connections that carry only strict HTTP/1 (ID-15). net/http accepts a bare LF,
// folded headers, chunk extensions and more. A proxy in front may reject them or parse them
// differently. The body of one request could then become another request.
//
// With HTTP2, a connection may start with HTTP/2 instead. HTTP/2 frames have unambiguous lengths,
// so they need no check.
//
// MaxLine is the maximum length of a line before the body, in bytes; 0 means 32 KiB. It must be
// larger than the header limit of net/http, so that net/http answers "too large" first.
type Listener struct {
	net.Listener
	HTTP2   bool
	MaxLine int
}

// Accept implements [net.Listener].
func (s Listener) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, framing: framing{http2: s.HTTP2, longest: s.MaxLine}}, nil
}

// A conn returns an error at the first byte that is not strict HTTP/1. net/http then answers 400
// and closes the connection.
type conn struct {
	net.Conn
	framing framing
	err     error
	began   bool
	passed  bool // another protocol follows
}

// OnStateChange is a ConnState hook of net/http for connections of a Listener. A handler that takes over a connection speaks another
// protocol on it, such as WebSocket, whose bytes are not checked.
func OnStateChange(c net.Conn, s http.ConnState) {
	if c, ok := c.(*conn); ok && s == http.StateHijacked {
		c.passed = true // net/http has ended its own reads before it calls the hook
	}
}

var errFraming = errors.New("the framing of the request is not valid HTTP/1")

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	if !c.began {
		c.began = true
		c.err = c.handshake()
	}
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	if c.passed {
		return n, err
	}
	if good := c.framing.feed(p[:n]); good < n {
		c.err = errFraming
		if n, err = good, nil; good == 0 {
			err = c.err
		}
	}
	return n, err
}

// handshake performs the TLS handshake, as net/http does for TLS connections, with the same time
// limit.
func (c *conn) handshake() error {
	t, ok := c.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), headerTime)
	defer cancel()
	err := t.HandshakeContext(ctx)
	if re, ok := errors.AsType[tls.RecordHeaderError](err); ok && re.Conn != nil && plainHTTP(re.RecordHeader) {
		// The client may have left, so the error is ignored.
		io.WriteString(re.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
	}
	if err != nil {
		// net/http closes without a response after a network error.
		return &net.OpError{Op: "read", Net: "tcp", Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	return nil
}

// plainHTTP reports whether the bytes in place of a TLS record header are HTTP.
func plainHTTP(header [5]byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO"}, string(header[:]))
}

// CloseWrite closes the write side. net/http uses it before it closes the connection.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn returns the wrapped connection, like the method of *tls.Conn.
func (c *conn) NetConn() net.Conn { return c.Conn }

// framing parses the bytes of a connection from request to request.
//
//	requestLine -> header* -> body ---------------------------> requestLine
//	                     \-> chunkSize -> chunk -> chunkEnd -+
//	                              ^                          |
//	                              +--------------------------+
//	                     \-> lastLine -> requestLine
type framing struct {
	state    part
	line     []byte // an incomplete line
	left     int64  // remaining bytes of a body or chunk
	length   int64  // Content-Length; -1: none
	chunked  bool
	old      bool // HTTP/1.0
	requests int  // complete requests so far
	http2    bool // the connection may begin with preface
	seen     int  // bytes of preface so far
	longest  int  // maximum line length; 0: maxLine
}

// preface is the start of an HTTP/2 connection (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

type part int

const (
	requestLine part = iota
	header
	body
	chunkSize
	chunk
	chunkEnd
	lastLine // after the last chunk; trailers are rejected
)

// maxLine is the default maximum line length. It is also the largest buffer that a connection keeps
// between lines.
const maxLine = 32 << 10

// feed returns how many of the next bytes are valid.
func (f *framing) feed(b []byte) int {
	if f.http2 {
		return f.begin(b)
	}
	longest := cmp.Or(f.longest, maxLine)
	for i := 0; i < len(b); {
		if f.state == body || f.state == chunk {
			n := int(min(f.left, int64(len(b)-i)))
			i += n
			if f.left -= int64(n); f.left == 0 {
				f.endOfBody()
			}
			continue
		}
		end := bytes.IndexByte(b[i:], '\n')
		if end < 0 {
			f.line = append(f.line, b[i:]...)
			if len(f.line) > longest {
				return i
			}
			return len(b)
		}
		line, ok := bytes.CutSuffix(append(f.line, b[i:i+end]...), []byte("\r"))
		if !ok || len(line) > longest || bytes.IndexByte(line, '\r') >= 0 || !f.parseLine(string(line)) {
			return i + end
		}
		if f.line = line[:0]; cap(line) > maxLine {
			f.line = nil
		}
		i += end + 1
	}
	return len(b)
}

// begin is like feed, until the protocol is known.
func (f *framing) begin(b []byte) int {
	n := 0
	for n < len(b) && f.seen < len(preface) && b[n] == preface[f.seen] {
		n++
		f.seen++
	}
	switch {
	case f.seen == len(preface):
		return len(b)
	case n == len(b): // the preface is still incomplete
		return n
	}
	// This is HTTP/1. The matched part of the preface is the start of the first line.
	f.http2 = false
	if looked := f.seen - n; looked > 0 {
		if f.feed([]byte(preface[:looked])) < looked {
			return 0
		}
	}
	return f.feed(b)
}

// endOfBody handles the end of a body or a chunk.
func (f *framing) endOfBody() {
	if f.state == body {
		f.state, f.requests = requestLine, f.requests+1
		return
	}
	f.state = chunkEnd
}

// parseLine parses one line.
func (f *framing) parseLine(line string) bool {
	switch f.state {
	case requestLine:
		method, rest, ok := strings.Cut(line, " ")
		target, version, ok2 := strings.Cut(rest, " ")
		*f = framing{state: header, line: f.line, length: -1, old: version == "HTTP/1.0", requests: f.requests, longest: f.longest}
		return ok && ok2 && isToken(method) && target != "" && isVisible(target) && (version == "HTTP/1.1" || f.old)
	case header:
		if line == "" {
			return f.endOfHead()
		}
		return f.parseField(line)
	case chunkSize:
		n, ok := chunkLength(line)
		f.left = n
		f.state = chunk
		if n == 0 {
			f.state = lastLine
		}
		return ok
	case chunkEnd:
		f.state = chunkSize
		return line == ""
	case lastLine:
		f.state, f.requests = requestLine, f.requests+1
		return line == ""
	}
	return false
}

// parseField parses one header field.
func (f *framing) parseField(line string) bool {
	name, value, ok := strings.Cut(line, ":")
	if !ok || !isToken(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return false // folded lines begin with a character that no name contains
	}
	value = strings.Trim(value, " \t")
	switch {
	case strings.EqualFold(name, "Content-Length"):
		n, err := strconv.ParseUint(value, 10, 62)
		if err != nil || f.length >= 0 || strings.HasPrefix(value, "+") {
			return false
		}
		f.length = int64(n)
	case strings.EqualFold(name, "Transfer-Encoding"):
		if f.chunked || f.old || !strings.EqualFold(value, "chunked") {
			return false
		}
		f.chunked = true
	}
	return true
}

func (f *framing) endOfHead() bool {
	switch {
	case f.chunked && f.length >= 0:
		return false
	case f.chunked:
		f.state = chunkSize
	case f.length > 0:
		f.state, f.left = body, f.length
	default:
		f.state, f.requests = requestLine, f.requests+1
	}
	return true
}

// chunkLength parses the size of a chunk, which must consist of hex digits only.
func chunkLength(line string) (int64, bool) {
	if line == "" || len(line) > 15 || strings.ContainsFunc(line, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF", r) }) {
		return 0, false
	}
	n, err := strconv.ParseInt(line, 16, 64)
	return n, err == nil
}

// isToken reports whether s is a token of RFC 9110, as required for methods and field names.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isVisible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}
