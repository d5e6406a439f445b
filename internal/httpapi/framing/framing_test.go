package framing

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

const post = "POST /x HTTP/1.1\r\nHost: tka\r\n"

// ID-15: Valid and invalid framing of requests.
func TestFraming(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		requests  int // complete requests; -1: rejected
	}{
		{"GET", "GET / HTTP/1.1\r\nHost: tka\r\n\r\n", 1},
		{"HTTP/1.0", "GET / HTTP/1.0\r\n\r\n", 1},
		{"length", post + "Content-Length: 2\r\n\r\n{}", 1},
		{"length 0", post + "content-length:0\r\n\r\n", 1},
		{"chunks", post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 1},
		{"several chunks", post + "Transfer-Encoding: Chunked\r\n\r\n2\r\n{\n\r\nA\r\n0123456789\r\n0\r\n\r\n", 1},
		{"two requests", post + "Content-Length: 2\r\n\r\n{}" + post + "Content-Length: 2\r\n\r\n{}", 2},
		{"line ends in a body", post + "Content-Length: 4\r\n\r\n\n\r\n\rGET / HTTP/1.1\r\n\r\n", 2},
		{"odd but lawful", "GET /%2f?a=b:c HTTP/1.1\r\nHost: tka\r\nX_Y!#: \t a\tb é \r\nEmpty:\r\n\r\n", 1},

		{"no line", "\r\nGET / HTTP/1.1\r\n\r\n", -1},
		{"bare LF after the request line", "GET / HTTP/1.1\nHost: tka\r\n\r\n", -1},
		{"bare LF after a field", post + "A: b\nContent-Length: 2\r\n\r\n{}", -1},
		{"bare LF at the end", post + "\n", -1},
		{"bare CR", post + "A: b\rContent-Length: 0\r\n\r\n", -1},
		{"folded", post + "A: b\r\n c\r\n\r\n", -1},
		{"folded with a tab", post + "A: b\r\n\tc\r\n\r\n", -1},
		{"folded at once", "GET / HTTP/1.1\r\n A: b\r\n\r\n", -1},
		{"space before the colon", post + "Content-Length : 2\r\n\r\n{}", -1},
		{"no colon", post + "A\r\n\r\n", -1},
		{"no name", post + ": b\r\n\r\n", -1},
		{"NUL", post + "A: \x00\r\n\r\n", -1},
		{"length twice", post + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", -1},
		{"signed length", post + "Content-Length: +2\r\n\r\n{}", -1},
		{"negative length", post + "Content-Length: -2\r\n\r\n{}", -1},
		{"hex length", post + "Content-Length: 0x2\r\n\r\n{}", -1},
		{"list of lengths", post + "Content-Length: 2, 2\r\n\r\n{}", -1},
		{"empty length", post + "Content-Length: \r\n\r\n", -1},
		{"huge length", post + "Content-Length: 99999999999999999999\r\n\r\n", -1},
		{"length and chunks", post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", -1},
		{"chunks and length", post + "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", -1},
		{"another encoding", post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", -1},
		{"two encodings", post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", -1},
		{"encoding twice", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", -1},
		{"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", -1},
		{"chunk extension", post + "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n", -1},
		{"chunk size with a space", post + "Transfer-Encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n", -1},
		{"chunk with bare LF", post + "Transfer-Encoding: chunked\r\n\r\n2\n{}\r\n0\r\n\r\n", -1},
		{"chunk without its end", post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n", -1},
		{"chunk longer than its size field", post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}}\r\n0\r\n\r\n", -1},
		{"trailer", post + "Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\r\n\r\n", -1},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", -1},
		{"HTTP/1.10", "GET / HTTP/1.10\r\n\r\n", -1},
		{"no version", "GET /\r\n\r\n", -1},
		{"space in the target", "GET /x y HTTP/1.1\r\n\r\n", -1},
		{"two spaces", "GET  / HTTP/1.1\r\n\r\n", -1},
		{"no target", "GET  HTTP/1.1\r\n\r\n", -1},
		{"TLS", "\x16\x03\x01\x02\x00\n\r\n", -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []int{len(tt.raw), 1, 3} { // for any split of the bytes
				var f framing
				refused := false
				for rest := []byte(tt.raw); len(rest) > 0 && !refused; {
					n := min(size, len(rest))
					refused = f.feed(rest[:n]) < n
					rest = rest[n:]
				}
				switch {
				case refused != (tt.requests < 0):
					t.Errorf("in pieces of %d: refused %v", size, refused)
				case !refused && (f.requests != tt.requests || f.state != requestLine):
					t.Errorf("in pieces of %d: %d requests, then %d", size, f.requests, f.state)
				}
			}
		})
	}
}

// Law: net/http parses the accepted bytes as the same requests.
func FuzzFraming(f *testing.F) {
	for _, s := range []string{post + "Content-Length: 2\r\n\r\n{}", post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + post + "\r\n",
		"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var fr framing
		if fr.feed(raw) < len(raw) || fr.state != requestLine || len(fr.line) > 0 {
			return
		}
		in := bufio.NewReader(bytes.NewReader(raw))
		n := 0
		for ; ; n++ {
			r, err := http.ReadRequest(in)
			if err == io.EOF {
				break
			}
			if err != nil {
				return // net/http is stricter here: it refuses and closes
			}
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
		}
		if n != fr.requests {
			t.Errorf("%q: %d requests, and net/http reads %d", raw, fr.requests, n)
		}
	})
}

// A header that is too large for net/http passes, and net/http answers 431.
func TestLongLinesGoOn(t *testing.T) {
	var f framing
	long := "GET / HTTP/1.1\r\nA: " + strings.Repeat("x", 24<<10)
	if n := f.feed([]byte(long)); n != len(long) {
		t.Errorf("%d of %d bytes", n, len(long))
	}
	if n := f.feed(bytes.Repeat([]byte("x"), 16<<10)); n != 0 {
		t.Errorf("an endless line continues")
	}
}

// A listener can accept longer lines, and a connection does not keep their buffer.
func TestMaxLine(t *testing.T) {
	head := "GET /?" + strings.Repeat("x", 100<<10) + " HTTP/1.1\r\nHost: tka\r\n\r\n"
	for _, size := range []int{len(head), 4096} {
		f := framing{longest: 128 << 10}
		for rest := []byte(head); len(rest) > 0; {
			n := min(size, len(rest))
			if good := f.feed(rest[:n]); good < n {
				t.Fatalf("in pieces of %d: refused", size)
			}
			rest = rest[n:]
		}
		if f.requests != 1 {
			t.Errorf("in pieces of %d: %d requests", size, f.requests)
		}
		if cap(f.line) > maxLine {
			t.Errorf("in pieces of %d: %d bytes are held", size, cap(f.line))
		}
	}
	f := framing{longest: 64 << 10}
	if n := f.feed([]byte(head)); n == len(head) {
		t.Error("a line beyond the limit is taken")
	}
}

// A connection with HTTP/2 is opaque after the preface, and as strict as HTTP/1 before it.
func TestPreface(t *testing.T) {
	for _, tt := range []struct {
		raw     string
		refused bool
	}{
		{preface + "\x00\x00\x00\x04\n", false},
		{preface[:10], false},
		{"POST / HTTP/1.1\r\n\r\n", false},
		{"PUT / HTTP/1.1\r\n\r\n", false},
		{"PRI / HTTP/1.1\r\n\r\n", false},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", true},
		{"PRI * HTTP/2.0\n\r\n", true},
		{"P\nRI", true},
	} {
		for _, size := range []int{len(tt.raw), 1, 7} {
			f := framing{http2: true}
			refused := false
			for rest := []byte(tt.raw); len(rest) > 0 && !refused; {
				n := min(size, len(rest))
				refused = f.feed(rest[:n]) < n
				rest = rest[n:]
			}
			if refused != tt.refused {
				t.Errorf("%q in pieces of %d: refused %v", tt.raw, size, refused)
			}
		}
	}
}

// A handler that takes over the connection gets the bytes of its own protocol unchanged.
func TestTakenOver(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ConnState: OnStateChange, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		io.Copy(c, rw)
	})}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(Listener{Listener: ln}) }()
	defer func() {
		srv.Close()
		<-served
	}()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: tka\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
	from := bufio.NewReader(c)
	res, err := http.ReadResponse(from, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, sent := range []string{"\n\x00GET\n", strings.Repeat("x", maxLine+1)} {
		got := make([]byte, len(sent))
		io.WriteString(c, sent)
		if _, err := io.ReadFull(from, got); err != nil || string(got) != sent {
			t.Errorf("after %d bytes: %q, %v", len(sent), got[:min(len(got), 20)], err)
		}
	}
}
