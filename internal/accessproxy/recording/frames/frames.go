// Package frames observes the two streaming protocols of Kubernetes, WebSocket and SPDY/3.1, without changing a byte, and ends their
// streams. It serves exec, attach and port-forward. The proxy needs it to cut streams even where nothing is recorded, so it does not
// depend on recordings.
//
// One [Conn] belongs to one upgraded connection. The proxy copies both directions through it:
//
//	p, err := frames.Negotiated(frames.Exec, answer.Header) // of the server's 101 answer
//	c := frames.New(frames.Config{Protocol: p, Event: record, Pass: gate})
//	go io.CopyBuffer(c.ToServer(server), client, buf1)
//	go io.CopyBuffer(c.ToClient(client), server, buf2)
//	…
//	client.SetWriteDeadline(…)                      // or a client that does not read blocks End
//	err = c.End(ctx, frames.Reason{Message: "…"})   // from any goroutine; ctx bounds the wait for a frame boundary
//	// then read and discard from the client until it closes (at most 1 s), and close both connections
//
// A Write that returns an error has passed on only whole headers and parts of payloads, so End still works after it. The proxy must
// remove Sec-WebSocket-Extensions from the client's request, because it reads no compressed messages. It must copy in both directions
// through the Conn: streams are declared by the client, and the server's frames are understood only after the client's.
//
// The text is foreign. The parsers hold at most one header or one control frame (8 KiB), decompress at most 64 KiB of headers a frame,
// and refuse everything that the Kubernetes servers could understand differently.
package frames

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// A Kind is the subresource that a connection belongs to.
type Kind string

// The kinds.
const (
	Exec        Kind = "exec"
	Attach      Kind = "attach"
	PortForward Kind = "portForward"
)

// A Framing is the way in which a connection carries its channels.
type Framing string

// The framings.
const (
	WebSocket         Framing = "websocket"                 // RFC 6455; the first byte of a message is its channel
	SPDY              Framing = "spdy/3.1"                  // one SPDY stream for each channel
	SPDYOverWebSocket Framing = "spdy/3.1+websocket"        // the bytes of SPDY in binary messages, for port-forward
	tunnelPrefix              = "SPDY/3.1+"                 // of subprotocols of SPDYOverWebSocket; KEP-4006
	versionHeader             = "X-Stream-Protocol-Version" // SPDY's counterpart of Sec-WebSocket-Protocol
)

// A Protocol is what client and server negotiated.
type Protocol struct {
	Kind    Kind
	Framing Framing
	Version string // the subprotocol, for example "v5.channel.k8s.io"; empty if none was negotiated
}

// Negotiated returns the protocol that the server's answer, whose status is 101, has chosen.
func Negotiated(kind Kind, answer http.Header) (Protocol, error) {
	p := Protocol{Kind: kind}
	switch upgrade := answer.Get("Upgrade"); {
	case strings.EqualFold(upgrade, "websocket"):
		p.Framing, p.Version = WebSocket, answer.Get("Sec-Websocket-Protocol")
		if answer.Get("Sec-Websocket-Extensions") != "" {
			return p, errors.New("the server has chosen WebSocket extensions, which the proxy cannot read")
		}
		if strings.HasPrefix(p.Version, tunnelPrefix) {
			p.Framing = SPDYOverWebSocket
		}
	case strings.EqualFold(upgrade, "SPDY/3.1"):
		p.Framing, p.Version = SPDY, answer.Get(versionHeader)
	default:
		return p, fmt.Errorf("the server has switched to %.40q, which is neither WebSocket nor SPDY/3.1", upgrade)
	}
	if p.Framing == SPDYOverWebSocket && kind != PortForward {
		return p, fmt.Errorf("the server has chosen %.60q for %s; only port-forward is tunnelled", p.Version, kind)
	}
	return p, nil
}

// Recordable reports whether everything that the protocol carries can be recorded: v4 and v5 of the channel protocol over WebSocket, and
// SPDY/3.1.
func (p Protocol) Recordable() bool {
	switch {
	case p.Framing != WebSocket:
		return true
	case p.Kind == PortForward:
		return p.Version == "v4.channel.k8s.io"
	}
	return p.Version == "v4.channel.k8s.io" || p.Version == "v5.channel.k8s.io"
}

// base64 reports whether messages are text: the channel as a digit, and the data in base64.
func (p Protocol) base64() bool { return strings.Contains(p.Version, "base64.") }

// statusObjects reports whether the error channel carries a metav1.Status in JSON. Before v4 it carries a text, as that of port-forward.
func (p Protocol) statusObjects() bool {
	return p.Kind != PortForward && (strings.HasPrefix(p.Version, "v4.") || strings.HasPrefix(p.Version, "v5."))
}

// A Side is one end of a connection.
type Side uint8

// The sides.
const (
	Client Side = iota
	Server
)

func (s Side) String() string {
	if s == Client {
		return "client"
	}
	return "server"
}

// A Channel is what a stream carries. The numbers of exec and attach are those of Kubernetes' channel protocol.
type Channel uint8

// The channels.
const (
	Stdin Channel = iota
	Stdout
	Stderr
	Error  // the end of a command, or why a port cannot be forwarded
	Resize // JSON: {"Width": columns, "Height": rows}

	Data        Channel = 253 // the bytes of a forwarded port
	CloseSignal Channel = 255 // v5: the next byte is a channel that the client has closed
)

var channelNames = map[Channel]string{Stdin: "stdin", Stdout: "stdout", Stderr: "stderr", Error: "error", Resize: "resize",
	Data: "data", CloseSignal: "close signal"}

func (c Channel) String() string {
	if s, ok := channelNames[c]; ok {
		return s
	}
	return fmt.Sprintf("channel %d", uint8(c))
}

// An EventType says what happened.
type EventType uint8

// The types of events.
const (
	Bytes  EventType = iota // Data was sent
	Opened                  // a SPDY stream was opened
	Closed                  // From has closed its direction of a SPDY stream, or with Reset both
)

// An Event is something that a side sent. Data is valid only until the handler returns.
type Event struct {
	Type    EventType
	From    Side
	Channel Channel
	Stream  uint32 // the SPDY stream; over WebSocket the channel's number
	Data    []byte // of Bytes
	Reset   bool   // of Closed

	Port, RequestID string // of Opened, with Kind PortForward: headers of the stream
}

// A ProtocolError says why the bytes of a side are refused.
type ProtocolError struct {
	From   Side
	Reason string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("read the %s's frames: %s", e.From, e.Reason)
}

// A parser reads the frames of one direction.
type parser interface {
	// step reads p, which continues after the bytes that earlier steps returned, and returns how many bytes can be passed on: a header,
	// a part of a payload, or a whole control frame. With 0 it needs more bytes.
	step(p []byte) (int, error)
	// need returns how many bytes more than p the next step needs. It is called after a step of p returned 0.
	need(p []byte) int
	// position returns where the bytes so far end.
	position() position
	// commit says that the bytes so far were passed on.
	commit()
}

// A position is the end of the bytes that were passed on.
type position struct {
	left     uint64 // bytes until the end of the frame
	boundary bool   // all bytes are whole frames
	open     bool   // WebSocket: the message has more fragments
	closed   bool   // the side has announced that nothing follows
	status   bool   // exec and attach: the error channel has carried bytes
}
