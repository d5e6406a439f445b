package apiproxy

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// webSocketVersion is the only WebSocket version.
const webSocketVersion = "13"

// webSocketGUID is a constant of the protocol.
const webSocketGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

// checkWebSocketHandshake returns why a request is not a valid WebSocket handshake. The caller must have checked the Upgrade
// header.
func checkWebSocketHandshake(h http.Header) error {
	if v := h["Sec-Websocket-Version"]; len(v) != 1 || v[0] != webSocketVersion {
		return errors.New("Sec-WebSocket-Version is not " + webSocketVersion)
	}
	keys := h["Sec-Websocket-Key"]
	if len(keys) != 1 {
		return errors.New("it needs exactly one Sec-WebSocket-Key")
	}
	if b, err := base64.StdEncoding.DecodeString(keys[0]); err != nil || len(b) != 16 {
		return errors.New("Sec-WebSocket-Key is not 16 bytes in base64")
	}
	if p := h["Sec-Websocket-Protocol"]; len(p) > 1 || len(p) == 1 && strings.Contains(p[0], ",") {
		return errors.New("it offers more than one Sec-WebSocket-Protocol")
	}
	return nil
}

// acceptWebSocket sets the headers of the response to a handshake, whose status is 101.
func acceptWebSocket(to, request http.Header) {
	sum := sha1.Sum([]byte(request.Get("Sec-Websocket-Key") + webSocketGUID))
	to.Set("Sec-Websocket-Accept", base64.StdEncoding.EncodeToString(sum[:]))
	to.Set("Connection", "Upgrade")
	to.Set("Upgrade", "websocket")
	if p := request["Sec-Websocket-Protocol"]; len(p) == 1 {
		to["Sec-Websocket-Protocol"] = p
	}
}

// Opcodes and bits of the frame header.
const (
	opText   = 0x1
	opBinary = 0x2
	opClose  = 0x8
	opPing   = 0x9
	opPong   = 0xa

	frameFin     = 0x80
	frameMasked  = 0x80
	opControlBit = 0x8 // the bit of control opcodes

	maxControlFrame = 125
	maxDataFrame    = 64 << 10 // of a client's data frame, which is discarded
)

// Close codes.
const (
	codeNormal   = 1000
	codeProtocol = 1002
	codeTooBig   = 1009
)

// webSocketConn is a connection after its handshake. Its methods except Listen are safe for concurrent use.
type webSocketConn struct {
	in *bufio.Reader
	c  io.Closer

	mu     sync.Mutex
	out    *bufio.Writer
	sent   int64
	closed bool
}

// newWebSocketConn returns a webSocketConn. in must return the bytes that are already buffered, and then those of the connection.
func newWebSocketConn(c io.WriteCloser, in io.Reader) *webSocketConn {
	return &webSocketConn{in: bufio.NewReader(in), c: c, out: bufio.NewWriterSize(c, 16<<10)}
}

// Send queues a message until the next Flush, at the latest.
func (c *webSocketConn) Send(payload []byte, text bool) error {
	op := byte(opBinary)
	if text {
		op = opText
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writeFrame(op, payload)
}

var errWebSocketClosed = errors.New("the connection was closed")

// writeFrame writes a frame. The caller must hold c.mu.
func (c *webSocketConn) writeFrame(op byte, payload []byte) error {
	if c.closed {
		return errWebSocketClosed
	}
	head := [10]byte{frameFin | op}
	n := 2
	switch size := len(payload); {
	case size <= 125:
		head[1] = byte(size)
	case size <= 0xffff:
		head[1], n = 126, 4
		binary.BigEndian.PutUint16(head[2:], uint16(size))
	default:
		head[1], n = 127, 10
		binary.BigEndian.PutUint64(head[2:], uint64(size))
	}
	c.sent += int64(n + len(payload))
	if _, err := c.out.Write(head[:n]); err != nil {
		return err
	}
	_, err := c.out.Write(payload)
	return err
}

// Flush sends the queued messages.
func (c *webSocketConn) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Flush()
}

// Sent returns the number of bytes sent, including framing.
func (c *webSocketConn) Sent() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// Close ends the connection with a close frame, or without it if the client does not read.
func (c *webSocketConn) Close() error { return c.closeWith(codeNormal) }

// closeTimeout is the timeout for sending the close frame to a client that does not read.
const closeTimeout = 5 * time.Second

func (c *webSocketConn) closeWith(code uint16) error {
	if d, ok := c.c.(interface{ SetWriteDeadline(time.Time) error }); ok {
		d.SetWriteDeadline(time.Now().Add(closeTimeout)) // it also ends a blocked Send
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	err := c.writeFrame(opClose, binary.BigEndian.AppendUint16(nil, code))
	if err == nil {
		err = c.out.Flush()
	}
	c.closed = true
	return errors.Join(err, c.c.Close())
}

// Listen reads the client's frames until it disconnects. It answers pings and discards messages. Its error is
// the reason, io.EOF for a clean close. It closes the connection before it returns.
func (c *webSocketConn) Listen() error {
	code, err := c.readFrames()
	c.closeWith(code)
	return err
}

func (c *webSocketConn) readFrames() (code uint16, _ error) {
	var err error
	read := func(b []byte) bool {
		_, err = io.ReadFull(c.in, b)
		return err == nil
	}
	for {
		var head [2]byte
		if !read(head[:]) {
			return codeNormal, err
		}
		op, size := head[0]&0xf, uint64(head[1]&^frameMasked)
		wrong := func(what string) (uint16, error) {
			return codeProtocol, fmt.Errorf("the client's frame %s", what)
		}
		switch {
		case head[0]&0x70 != 0:
			return wrong("has extension bits")
		case head[1]&frameMasked == 0:
			return wrong("is not masked")
		case op&opControlBit != 0 && (head[0]&frameFin == 0 || size > maxControlFrame):
			return wrong("is a fragmented or too long control frame")
		case op > opBinary && op < opClose, op > opPong:
			return wrong("has an unknown opcode")
		}
		var long [8]byte
		if size >= 126 {
			length := long[:]
			if size == 126 {
				length = long[6:]
			}
			if !read(length) {
				return codeNormal, err
			}
			size = binary.BigEndian.Uint64(long[:])
		}
		if size > maxDataFrame {
			return codeTooBig, errors.New("the client's message is too long")
		}
		var mask [4]byte
		if !read(mask[:]) {
			return codeNormal, err
		}
		switch op {
		case opClose:
			return codeNormal, io.EOF
		case opPing:
			var b [maxControlFrame]byte
			payload := b[:size]
			if !read(payload) {
				return codeNormal, err
			}
			for i := range payload {
				payload[i] ^= mask[i%4]
			}
			if err := c.pong(payload); err != nil {
				return codeNormal, err
			}
		default:
			if _, err := io.CopyN(io.Discard, c.in, int64(size)); err != nil {
				return codeNormal, err
			}
		}
	}
}

func (c *webSocketConn) pong(payload []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.writeFrame(opPong, payload); err != nil {
		return err
	}
	return c.out.Flush()
}
