// Package framing lets nothing through a listener but HTTP/1 that two readers
// cannot read in two ways. It keeps law 1 where bytes become requests: what one
// caller sends is that caller's, and nobody's next request.
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
	"strconv"
	"strings"
	"time"
)

// headerTime bounds a TLS handshake, as it does the head of a request.
const headerTime = 5 * time.Second

// A Listener is one whose connections carry nothing but strict HTTP/1 (ID-15).
// net/http forgives a bare LF, a folded header, a chunk extension and more; a
// proxy before us may not, or differently, and one's body is then the other's
// next request.
//
// With HTTP2, a connection may carry HTTP/2 instead, from its first byte on. Its
// frames have one length each, so there is nothing to hold against net/http.
//
// MaxLine is the longest line of a head in bytes, 32 KiB if it is 0. It must be
// beyond what net/http reads of a head, so that net/http answers "too large" first.
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

// A conn ends with an error at the first byte that is not strict HTTP/1.
// net/http answers 400 to that and closes.
type conn struct {
	net.Conn
	framing framing
	err     error
	began   bool
}

var errFraming = errors.New("the request is not framed as HTTP/1 demands")

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
	if good := c.framing.feed(p[:n]); good < n {
		c.err = errFraming
		if n, err = good, nil; good == 0 {
			err = c.err
		}
	}
	return n, err
}

// handshake does what net/http does for a connection that it sees to be TLS, and
// in the same time.
func (c *conn) handshake() error {
	t, ok := c.Conn.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), headerTime)
	defer cancel()
	err := t.HandshakeContext(ctx)
	if re, ok := errors.AsType[tls.RecordHeaderError](err); ok && re.Conn != nil && plainHTTP(re.RecordHeader) {
		io.WriteString(re.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n") // it may have left
	}
	if err != nil {
		// As an error of the network: net/http then closes without an answer.
		return &net.OpError{Op: "read", Net: "tcp", Err: fmt.Errorf("TLS handshake: %w", err)}
	}
	return nil
}

// plainHTTP reports whether what stands where a TLS record should begin is HTTP.
func plainHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

// CloseWrite lets net/http tell the other side that it has said all, before it closes.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn returns the connection inside, as that of *tls.Conn does: what it came
// through can be told from it.
func (c *conn) NetConn() net.Conn { return c.Conn }

// framing follows the bytes of a connection from request to request.
//
//	requestLine -> header* -> body ---------------------------> requestLine
//	                     \-> chunkSize -> chunk -> chunkEnd -+
//	                              ^                          |
//	                              +--------------------------+
//	                     \-> lastLine -> requestLine
type framing struct {
	state    part
	line     []byte // of a line that goes on
	left     int64  // bytes of a body or chunk
	length   int64  // Content-Length; -1: none
	chunked  bool
	old      bool // HTTP/1.0
	requests int  // whole ones so far
	http2    bool // may begin with preface
	seen     int  // bytes of preface
	longest  int  // line; 0: maxLine
}

// preface is how HTTP/2 begins (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

type part int

const (
	requestLine part = iota
	header
	body
	chunkSize
	chunk
	chunkEnd
	lastLine // after the last chunk: trailers are refused
)

// maxLine is the longest line where the listener sets no other limit, and what a
// connection holds on to between lines.
const maxLine = 32 << 10

// feed returns how many of the next bytes may be read.
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
				f.ended()
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
		if !ok || len(line) > longest || bytes.IndexByte(line, '\r') >= 0 || !f.take(string(line)) {
			return i + end
		}
		if f.line = line[:0]; cap(line) > maxLine {
			f.line = nil
		}
		i += end + 1
	}
	return len(b)
}

// begin is feed until it is clear which protocol is spoken.
func (f *framing) begin(b []byte) int {
	n := 0
	for n < len(b) && f.seen < len(preface) && b[n] == preface[f.seen] {
		n++
		f.seen++
	}
	switch {
	case f.seen == len(preface):
		return len(b)
	case n == len(b): // as far as it goes
		return n
	}
	// HTTP/1: what looked like the preface so far is its first line's beginning.
	f.http2 = false
	if looked := f.seen - n; looked > 0 {
		if f.feed([]byte(preface[:looked])) < looked {
			return 0
		}
	}
	return f.feed(b)
}

// ended is the end of a body or a chunk.
func (f *framing) ended() {
	if f.state == body {
		f.state, f.requests = requestLine, f.requests+1
		return
	}
	f.state = chunkEnd
}

// take reads one line.
func (f *framing) take(line string) bool {
	switch f.state {
	case requestLine:
		method, rest, ok := strings.Cut(line, " ")
		target, version, ok2 := strings.Cut(rest, " ")
		*f = framing{state: header, line: f.line, length: -1, old: version == "HTTP/1.0", requests: f.requests, longest: f.longest}
		return ok && ok2 && isToken(method) && target != "" && visible(target) && (version == "HTTP/1.1" || f.old)
	case header:
		if line == "" {
			return f.headEnds()
		}
		return f.field(line)
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

// field reads one header field.
func (f *framing) field(line string) bool {
	name, value, ok := strings.Cut(line, ":")
	if !ok || !isToken(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
		return false // folded lines begin with what no name holds
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

func (f *framing) headEnds() bool {
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

// chunkLength reads the size of a chunk: hex digits and nothing else.
func chunkLength(line string) (int64, bool) {
	if line == "" || len(line) > 15 || strings.ContainsFunc(line, func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF", r) }) {
		return 0, false
	}
	n, err := strconv.ParseInt(line, 16, 64)
	return n, err == nil
}

// isToken reports whether s is a token of RFC 9110: what methods and names of
// fields are made of.
func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func visible(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f })
}
