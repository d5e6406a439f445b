package frames

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// ErrMidFrame means that a stream could not be ended at a frame boundary. The caller must close the connection without an end.
var ErrMidFrame = errors.New("the server's frame is not whole, and cannot be completed")

// A Reason is why the proxy ends a stream.
type Reason struct {
	Message string // one sentence
	Reason  string // a metav1.StatusReason; empty means Forbidden
	Code    int    // an HTTP status; 0 means 403
}

// status returns what the error channel of a protocol carries.
func (p Protocol) status(r Reason) []byte {
	if !p.statusObjects() {
		return []byte(r.Message)
	}
	status := struct {
		Kind       string   `json:"kind"`
		APIVersion string   `json:"apiVersion"`
		Metadata   struct{} `json:"metadata"`
		Status     string   `json:"status"`
		Message    string   `json:"message"`
		Reason     string   `json:"reason"`
		Code       int      `json:"code"`
	}{Kind: "Status", APIVersion: "v1", Status: "Failure", Message: r.Message, Reason: r.Reason, Code: r.Code}
	if status.Reason == "" {
		status.Reason = "Forbidden"
	}
	if status.Code == 0 {
		status.Code = 403
	}
	b, _ := json.Marshal(status) // strings and a number
	return b
}

// maxFill is the most that End adds to a frame that the server has begun.
const maxFill = 64 << 10

// End writes the end of the stream to the client, at a frame boundary of what the server has sent, and stops both directions:
//
//   - exec and attach over WebSocket: a Status on the error channel (a text before v4), and a close frame 1000
//   - exec and attach over SPDY: the same Status on the error stream, and the end of all streams. No GOAWAY: a client that still opens
//     streams would stop reading, and wait 30 seconds for their answers
//   - port-forward: a text on the open error streams, the end of all streams, and GOAWAY or a close frame 1000
//
// If the server has already sent a Status or the end, only what is missing follows. End waits until ctx ends for the rest of a frame.
// Then it completes a frame of a command's output with zeros, because kubectl exits with 0 if a SPDY connection just breaks. It does not
// add bytes to a forwarded port, and returns ErrMidFrame. The caller must set a write deadline on the client's connection, because a
// client that does not read blocks the present Write and End. Further calls return ErrEnded.
//
// After End the caller should go on to write what the client sends to ToServer until the client closes, at most a second: a reset of the
// connection would discard the end, and streams that the client still opens get an answer. Nothing more reaches the server.
func (c *Conn) End(ctx context.Context, reason Reason) error {
	c.ending.Store(true)
	c.cancel()
	for wait := true; ; {
		if err := c.takeTurn(ctx); err != nil {
			return err
		}
		if !wait || c.stuck || c.at.boundary || c.over.Load() {
			break
		}
		<-c.turn
		select {
		case <-c.progress:
		case <-ctx.Done():
			wait = false
		}
	}
	defer func() { <-c.turn }()
	if c.over.Swap(true) {
		return ErrEnded
	}
	b, err := c.fill()
	if err != nil {
		return err
	}
	if !c.at.closed {
		b = c.appendEnd(b, reason)
	}
	if len(b) > 0 {
		if _, err := c.client.Write(b); err != nil {
			return fmt.Errorf("end the stream: %w", err)
		}
	}
	c.ended = true
	return nil
}

// IsComplete reports whether the client has the result of the command, or the end of the connection. Protocols before v4 have no
// result of a command that succeeded, so nothing is missing there. The caller must not be in a Write to the client.
func (c *Conn) IsComplete() bool {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	p := c.cfg.Protocol
	return c.at.closed || c.at.status || c.over.Load() || p.Kind != PortForward && !p.statusObjects()
}

// takeTurn waits for the right to write to the client. It prefers the turn to an ended ctx.
func (c *Conn) takeTurn(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("end the stream: the client does not read: %w", ctx.Err())
	}
}

// fill returns the bytes that complete the frame of which the client has a part.
func (c *Conn) fill() ([]byte, error) {
	if c.at.boundary {
		return nil, nil
	}
	if p := c.cfg.Protocol; p.Kind == PortForward || c.at.left > maxFill {
		return nil, ErrMidFrame
	}
	return make([]byte, c.at.left), nil
}

// appendEnd appends the end of all streams.
func (c *Conn) appendEnd(b []byte, reason Reason) []byte {
	p := c.cfg.Protocol
	switch {
	case p.Framing == SPDY:
		return c.streams.appendEnd(b, p.status(reason), c.at.status)
	case c.at.open:
		b = appendFrame(b, opContinuation, nil) // finishes the message
	}
	switch {
	case p.Framing == SPDYOverWebSocket:
		b = appendFrame(b, opBinary, c.streams.appendEnd(nil, p.status(reason), false))
	case p.Kind == PortForward:
		for ch := 1; ch < len(c.ports); ch += 2 {
			if c.ports[ch].Load() {
				b = p.appendMessage(b, Channel(ch), p.status(reason))
			}
		}
	case !c.at.status:
		b = p.appendMessage(b, Error, p.status(reason))
	}
	return appendClose(b)
}

// appendEnd appends the end of the streams as the client has them. Error streams come first.
func (s *streams) appendEnd(b, status []byte, sent bool) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := slices.Sorted(maps.Keys(s.open))
	if sent {
		status = nil
	}
	for _, errors := range []bool{true, false} {
		for _, id := range ids {
			switch st := s.open[id]; {
			case (st.channel == Error) != errors, st.ended[Server]:
			case !st.replied: // the client waits for the answer, and does not read
				b = st.appendRefusal(b, id)
			case errors:
				b = appendData(b, id, status)
			default:
				b = appendData(b, id, nil)
			}
		}
	}
	if s.kind == PortForward {
		b = appendControl(b, typeGoAway, s.lastID, 0)
	}
	return b
}

// appendRefusals appends the answers to the streams that have none.
func (s *streams) appendRefusals(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.open)) {
		if st := s.open[id]; !st.replied {
			b = st.appendRefusal(b, id)
		}
	}
	return b
}

// appendRefusal appends the answer that the stream is refused.
func (st *stream) appendRefusal(b []byte, id uint32) []byte {
	st.replied, st.ended = true, [2]bool{true, true}
	return appendControl(b, typeRstStream, id, refusedStream)
}
