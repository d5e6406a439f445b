package frames

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
)

// Opcodes and bits of a frame's header (RFC 6455, section 5.2).
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa

	bitFin     = 0x80
	bitsRSV    = 0x70
	bitMasked  = 0x80
	bitControl = 0x8

	maxControlPayload = 125
	closeNormal       = 1000
)

// A webSocketParser reads the frames of one side. It is strict, because the API server's WebSocket library takes each frame for a
// message: a fragment of the client would have two meanings.
type webSocketParser struct {
	from     Side
	channels bool // the first byte of a message is its channel; else all payload goes to data
	base64   bool // the channel is a digit
	data     func(p []byte, ch Channel) error

	left     uint64  // bytes of the present frame that are to come
	mask     [4]byte // of the present frame
	maskAt   int     // index of the mask for the next byte
	open     bool    // the message has more fragments
	first    bool    // the next byte of the message is its channel
	channel  Channel // of the message
	closed   bool    // a close frame was sent
	status   bool    // the error channel has carried bytes
	unmasked [4 << 10]byte
}

// headerSize returns the size of a frame's header, or 2 if p is shorter.
func headerSize(p []byte) int {
	if len(p) < 2 {
		return 2
	}
	n := 2
	switch p[1] &^ bitMasked {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if p[1]&bitMasked != 0 {
		n += 4
	}
	return n
}

// payloadSize returns the size of the payload, and an error if it is not written in the shortest form, or has the top bit set.
func payloadSize(p []byte) (uint64, error) {
	short := p[1] &^ bitMasked
	size, least := uint64(short), uint64(0)
	switch short {
	case 126:
		size, least = uint64(binary.BigEndian.Uint16(p[2:])), 126
	case 127:
		size, least = binary.BigEndian.Uint64(p[2:]), 1<<16
	}
	if size < least || size >= 1<<63 {
		return 0, fmt.Errorf("a frame has the length %d in a wrong form", size)
	}
	return size, nil
}

func (w *webSocketParser) refuse(format string, args ...any) error {
	return &ProtocolError{w.from, fmt.Sprintf(format, args...)}
}

func (w *webSocketParser) position() position {
	return position{left: w.left, boundary: w.left == 0, open: w.open, closed: w.closed, status: w.status}
}

func (w *webSocketParser) commit() {}

func (w *webSocketParser) need(p []byte) int {
	n := headerSize(p)
	if len(p) >= n && p[0]&bitControl != 0 { // control frames are held until they are whole
		n += int(p[1] &^ bitMasked)
	}
	return max(n-len(p), 1)
}

func (w *webSocketParser) step(p []byte) (int, error) {
	if w.left > 0 {
		return w.payload(p)
	}
	n := headerSize(p)
	if len(p) < n {
		return 0, nil
	}
	if err := w.check(p); err != nil {
		return 0, err
	}
	size, err := payloadSize(p)
	if err != nil {
		return 0, w.refuse("%v", err)
	}
	op := p[0] & 0xf
	if op&bitControl != 0 {
		if len(p) < n+int(size) {
			return 0, nil
		}
		w.closed = w.closed || op == opClose
		return n + int(size), nil
	}
	if op != opContinuation {
		w.first, w.channel = w.channels, 0
	}
	w.open = p[0]&bitFin == 0
	w.left, w.maskAt = size, 0
	if w.from == Client {
		copy(w.mask[:], p[n-4:n])
	}
	return n, nil
}

// check refuses headers that RFC 6455 or the API server does not allow.
func (w *webSocketParser) check(p []byte) error {
	op, fin := p[0]&0xf, p[0]&bitFin != 0
	switch {
	case w.closed:
		return w.refuse("a frame follows the close frame")
	case p[0]&bitsRSV != 0:
		return w.refuse("a frame has extension bits")
	case (p[1]&bitMasked != 0) != (w.from == Client):
		return w.refuse("only a client's frames must be masked")
	case op&bitControl != 0 && (!fin || p[1]&^bitMasked > maxControlPayload):
		return w.refuse("a control frame is fragmented or too long")
	case op > opBinary && op < opClose, op > opPong:
		return w.refuse("a frame has the unknown opcode %d", op)
	case op&bitControl == 0 && (op == opContinuation) != w.open:
		return w.refuse("a message begins or goes on inside another one")
	case op&bitControl == 0 && !fin && w.from == Client && w.channels:
		return w.refuse("a message is fragmented; the API server would take each fragment for a message")
	}
	return nil
}

func (w *webSocketParser) payload(p []byte) (int, error) {
	n := int(min(w.left, uint64(len(p))))
	for rest := p[:n]; len(rest) > 0; {
		part := rest
		if w.from == Client {
			part = w.unmask(rest)
		}
		rest = rest[len(part):]
		if w.first {
			w.first, w.channel = false, Channel(part[0])
			if w.base64 {
				w.channel -= '0'
			}
			part = part[1:]
		}
		if len(part) == 0 {
			continue
		}
		w.status = w.status || w.channel == Error
		if err := w.data(part, w.channel); err != nil {
			return 0, err
		}
	}
	w.left -= uint64(n)
	return n, nil
}

// unmask returns the beginning of p, unmasked, until the next call.
func (w *webSocketParser) unmask(p []byte) []byte {
	part := w.unmasked[:copy(w.unmasked[:], p)]
	var key [8]byte
	for i := range key {
		key[i] = w.mask[(w.maskAt+i)&3]
	}
	words, i := binary.NativeEndian.Uint64(key[:]), 0
	for ; i+8 <= len(part); i += 8 {
		binary.NativeEndian.PutUint64(part[i:], binary.NativeEndian.Uint64(part[i:])^words)
	}
	for ; i < len(part); i++ {
		part[i] ^= key[i&7]
	}
	w.maskAt = (w.maskAt + len(part)) & 3
	return part
}

// appendFrame appends a server's frame.
func appendFrame(b []byte, op byte, payload []byte) []byte {
	b = append(b, bitFin|op)
	switch size := len(payload); {
	case size <= maxControlPayload:
		b = append(b, byte(size))
	case size < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(size))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(size))
	}
	return append(b, payload...)
}

// appendMessage appends a server's message on a channel of the protocol.
func (p Protocol) appendMessage(b []byte, ch Channel, text []byte) []byte {
	if p.base64() {
		return appendFrame(b, opText, append([]byte{'0' + byte(ch)}, base64.StdEncoding.EncodeToString(text)...))
	}
	return appendFrame(b, opBinary, append([]byte{byte(ch)}, text...))
}

func appendClose(b []byte) []byte {
	return appendFrame(b, opClose, binary.BigEndian.AppendUint16(nil, closeNormal))
}
