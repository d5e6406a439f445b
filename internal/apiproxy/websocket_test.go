package apiproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func handshakeHeader(pairs ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

const handshakeKey = "dGhlIHNhbXBsZSBub25jZQ==" // from RFC 6455, section 1.3

func TestHandshake(t *testing.T) {
	for _, tt := range []struct {
		why  string
		ask  http.Header
		want string
	}{
		{"good", handshakeHeader("Sec-Websocket-Version", "13", "Sec-Websocket-Key", handshakeKey), ""},
		{"with a protocol", handshakeHeader("Sec-Websocket-Version", "13", "Sec-Websocket-Key", handshakeKey, "Sec-Websocket-Protocol", "x"), ""},
		{"without a version", handshakeHeader("Sec-Websocket-Key", handshakeKey), "Version"},
		{"of the past", handshakeHeader("Sec-Websocket-Version", "8", "Sec-Websocket-Key", handshakeKey), "Version"},
		{"without a key", handshakeHeader("Sec-Websocket-Version", "13"), "Key"},
		{"two keys", handshakeHeader("Sec-Websocket-Version", "13", "Sec-Websocket-Key", handshakeKey, "Sec-Websocket-Key", handshakeKey), "Key"},
		{"a short key", handshakeHeader("Sec-Websocket-Version", "13", "Sec-Websocket-Key", "YQ=="), "Key"},
		{"two protocols", handshakeHeader("Sec-Websocket-Version", "13", "Sec-Websocket-Key", handshakeKey, "Sec-Websocket-Protocol", "x, y"), "Protocol"},
	} {
		err := checkWebSocketHandshake(tt.ask)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.why, err, tt.want)
		}
	}
	h := http.Header{}
	acceptWebSocket(h, handshakeHeader("Sec-Websocket-Key", handshakeKey, "Sec-Websocket-Protocol", "x"))
	if h.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" || h.Get("Sec-Websocket-Protocol") != "x" {
		t.Errorf("%v", h)
	}
}

// clientFrame returns a frame of a client.
func clientFrame(first byte, payload string) []byte {
	b := []byte{first, frameMasked}
	switch n := len(payload); {
	case n <= 125:
		b[1] |= byte(n)
	case n <= 0xffff:
		b[1] |= 126
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	default:
		b[1] |= 127
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	mask := []byte{1, 2, 3, 4}
	b = append(b, mask...)
	for i := range payload {
		b = append(b, payload[i]^mask[i%4])
	}
	return b
}

// readFrame returns the next frame of a server.
func readFrame(t *testing.T, r io.Reader) (op byte, payload []byte) {
	t.Helper()
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		t.Fatal(err)
	}
	if head[0]&frameFin == 0 || head[1]&frameMasked != 0 {
		t.Errorf("a frame begins with %x", head)
	}
	size := uint64(head[1])
	if size >= 126 {
		long := make([]byte, map[uint64]int{126: 2, 127: 8}[size])
		if _, err := io.ReadFull(r, long); err != nil {
			t.Fatal(err)
		}
		size = binary.BigEndian.Uint64(append(make([]byte, 8-len(long)), long...))
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(r, payload); err != nil {
		t.Fatal(err)
	}
	return head[0] & 0xf, payload
}

// TestMessages checks that messages of each length arrive, that pings between them are answered, and that a
// close is answered with a close.
func TestMessages(t *testing.T) {
	client, server := net.Pipe()
	defer client.Close()
	c := newWebSocketConn(server, server)
	ended := make(chan error, 1)
	go func() { ended <- c.Listen() }()
	sizes := []int{0, 1, 125, 126, 0xffff, 0x10000, 200_000}
	failed := make(chan error, 1)
	go func() {
		for _, n := range sizes {
			if err := errors.Join(c.Send(bytes.Repeat([]byte{'x'}, n), n%2 == 0), c.Flush()); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for _, n := range sizes {
		op, b := readFrame(t, client)
		want := byte(opBinary)
		if n%2 == 0 {
			want = opText
		}
		switch {
		case op != want:
			t.Errorf("op = %v, want %v", op, want)
		case len(b) != n:
			t.Errorf("len(b) = %v, want %v", len(b), n)
		case bytes.Trim(b, "x") != nil && len(bytes.Trim(b, "x")) > 0:
			t.Errorf(`bytes.Trim(b, "x") != nil && len(bytes.Trim(b, "x")) > 0; %d, %x, %d, want = %x`, len(b), op, n, want)
		}
	}
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	for _, f := range [][]byte{clientFrame(opText, "for nobody, in parts"), clientFrame(frameFin, strings.Repeat("y", 300)), clientFrame(frameFin|opPong, ""), clientFrame(frameFin|opPing, "are you there")} {
		if _, err := client.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	if op, b := readFrame(t, client); op != opPong || string(b) != "are you there" {
		t.Errorf("a ping: %x %q", op, b)
	}
	if _, err := client.Write(clientFrame(frameFin|opClose, "\x03\xe8")); err != nil {
		t.Fatal(err)
	}
	if op, b := readFrame(t, client); op != opClose || string(b) != "\x03\xe8" {
		t.Errorf("a close: %x %q", op, b)
	}
	if err := <-ended; err != io.EOF {
		t.Errorf("the client left with %v", err)
	}
	if err := c.Send([]byte("x"), true); err == nil {
		t.Error("a message was sent after the end")
	}
	if err := c.Close(); err != nil {
		t.Errorf("a second end: %v", err)
	}
}

// TestBadFrames checks that any invalid frame ends the connection.
func TestBadFrames(t *testing.T) {
	unmasked := []byte{frameFin | opText, 1, 'x'}
	for _, tt := range []struct {
		why  string
		sent []byte
		code string
	}{
		{"not masked", unmasked, "\x03\xea"},
		{"an extension", clientFrame(0x40|frameFin|opText, "x"), "\x03\xea"},
		{"no such opcode", clientFrame(frameFin|0x3, "x"), "\x03\xea"},
		{"no such control", clientFrame(frameFin|0xb, "x"), "\x03\xea"},
		{"a ping in parts", clientFrame(opPing, "x"), "\x03\xea"},
		{"a long ping", clientFrame(frameFin|opPing, strings.Repeat("x", 126)), "\x03\xea"},
		{"a message that is too long", clientFrame(frameFin|opText, strings.Repeat("x", maxDataFrame+1))[:14], "\x03\xf1"},
	} {
		client, server := net.Pipe()
		c := newWebSocketConn(server, server)
		ended := make(chan error, 1)
		go func() { ended <- c.Listen() }()
		go client.Write(tt.sent)
		if op, b := readFrame(t, client); op != opClose || string(b) != tt.code {
			t.Errorf("%s: %x %q", tt.why, op, b)
		}
		client.Close()
		if err := <-ended; err == nil || err == io.EOF {
			t.Errorf("%s: %v", tt.why, err)
		}
	}
}

// FuzzListen checks that Listen ends without a panic, whatever a client sends.
func FuzzListen(f *testing.F) {
	f.Add(clientFrame(frameFin|opPing, "x"))
	f.Add(clientFrame(frameFin|opClose, ""))
	f.Add(clientFrame(frameFin|opText, strings.Repeat("x", 300)))
	f.Fuzz(func(t *testing.T, sent []byte) {
		var out closeRecorder
		c := newWebSocketConn(&out, bytes.NewReader(sent))
		if err := c.Listen(); err == nil {
			t.Error("it ended without an error")
		}
		if !out.closed {
			t.Error("the connection is open")
		}
	})
}

type closeRecorder struct {
	bytes.Buffer
	closed bool
}

func (c *closeRecorder) Close() error { c.closed = true; return nil }
