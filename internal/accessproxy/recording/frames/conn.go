package frames

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// ErrEnded is returned for bytes that come after End.
var ErrEnded = errors.New("the stream was ended")

// Config describes a connection.
type Config struct {
	Protocol Protocol
	// Event receives what a side has sent, before it is passed on. It may be nil. It is called by both directions at the same time.
	Event func(Event)
	// Pass is called after Event and before bytes of from are written to the other side. It may be nil, and it may block. Its error ends
	// the copying, and the bytes are not written. ctx ends when End is called; a Pass that need not wait must return nil even then.
	Pass func(ctx context.Context, from Side) error
}

// A Conn observes one upgraded connection.
type Conn struct {
	cfg     Config
	streams streams
	up      flow // what the client sends
	down    flow // what the server sends

	ctx    context.Context // ends with the first End
	cancel context.CancelFunc
	ending atomic.Bool // End was called
	over   atomic.Bool // the end was written, or cannot be

	ports [256]atomic.Bool // port-forward over WebSocket: the channels that the server has used

	turn     chan struct{} // holds one token: of who writes to the client
	progress chan struct{} // a Write to the client has returned

	// The holder of the turn owns these.
	client io.Writer
	at     position // of the bytes that the client has
	stuck  bool     // no more of the server's bytes will come
	ended  bool     // the client has the end
}

// New returns a Conn for a connection that has just switched protocols.
func New(cfg Config) *Conn {
	c := &Conn{cfg: cfg, turn: make(chan struct{}, 1), progress: make(chan struct{}, 1), at: position{boundary: true}}
	if c.cfg.Event == nil {
		c.cfg.Event = func(Event) {}
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	event := c.cfg.Event
	c.cfg.Event = func(e Event) {
		if e.From == Server || !c.over.Load() {
			event(e)
		}
	}
	c.streams = streams{kind: cfg.Protocol.Kind, open: map[uint32]*stream{}}
	c.up.parser, c.down.parser = c.newParser(Client), c.newParser(Server)
	c.down.ending = &c.ending
	return c
}

func (c *Conn) newParser(from Side) parser {
	p := c.cfg.Protocol
	spdy := func() *spdyParser { return &spdyParser{from: from, streams: &c.streams, event: c.cfg.Event} }
	switch p.Framing {
	case SPDY:
		return spdy()
	case SPDYOverWebSocket:
		t := &tunnelParser{inner: flow{parser: spdy()}}
		t.webSocketParser = webSocketParser{from: from, data: func(b []byte, _ Channel) error { return t.inner.feed(b, nil) }}
		return t
	}
	return &webSocketParser{from: from, channels: true, base64: p.base64(), data: func(b []byte, ch Channel) error {
		e := Event{Type: Bytes, From: from, Channel: ch, Stream: uint32(ch), Data: b}
		if p.Kind == PortForward {
			e.Channel = []Channel{Data, Error}[ch%2]
			if from == Server {
				c.ports[ch].Store(true)
			}
		}
		c.cfg.Event(e)
		return nil
	}}
}

// A tunnelParser reads SPDY inside WebSocket messages. Frames of SPDY do not begin and end with messages.
type tunnelParser struct {
	webSocketParser
	inner flow
}

func (t *tunnelParser) position() position {
	at, in := t.webSocketParser.position(), t.inner.parser.position()
	at.boundary = at.boundary && in.boundary && len(t.inner.hold) == 0
	at.closed = at.closed || in.closed
	return at
}

func (t *tunnelParser) commit() { t.inner.parser.commit() }

// pieceSize is the most that is passed on at once, so that one answer of Pass does not cover more.
const pieceSize = 16 << 10

// A flow is one direction: a parser, and the beginning of a header or control frame that is not whole yet.
type flow struct {
	parser parser
	hold   []byte
	ending *atomic.Bool // if true, feed stops at the next boundary; may be nil
}

// feed parses p and gives everything that may be passed on to pass, in order.
func (f *flow) feed(p []byte, pass func([]byte) error) error {
	for len(p) > 0 {
		if f.atEnd() {
			return ErrEnded
		}
		var n int
		var out []byte
		var wrong error
		if len(f.hold) > 0 {
			n = min(f.parser.need(f.hold), len(p))
			f.hold, p = append(f.hold, p[:n]...), p[n:]
			n, wrong = f.parser.step(f.hold)
			if out = f.hold[:n]; n > 0 {
				f.hold = f.hold[:0]
			}
		} else {
			n, wrong = f.run(p)
			if out, p = p[:n], p[n:]; n == 0 && wrong == nil {
				f.hold, p = append(f.hold, p...), nil // less than a header or a control frame
			}
		}
		if len(out) > 0 && pass != nil {
			if err := pass(out); err != nil {
				return err
			}
		}
		if wrong != nil {
			return wrong
		}
	}
	return nil
}

func (f *flow) atEnd() bool {
	return f.ending != nil && f.ending.Load() && f.parser.position().boundary
}

// run takes steps through p, up to pieceSize bytes.
func (f *flow) run(p []byte) (n int, err error) {
	p = p[:min(len(p), pieceSize)]
	for n < len(p) && (n == 0 || !f.atEnd()) {
		k, err := f.parser.step(p[n:])
		if err != nil || k == 0 {
			return n, err
		}
		n += k
	}
	return n, nil
}

// toClient and toServer are the two directions.
type (
	toClient struct{ *Conn }
	toServer struct {
		*Conn
		server io.Writer
	}
)

// ToClient returns the writer for what the server has sent. It must be called before the first End, and once.
func (c *Conn) ToClient(client io.Writer) io.Writer {
	c.client = client
	return toClient{c}
}

// ToServer returns the writer for what the client has sent. It must be called once.
func (c *Conn) ToServer(server io.Writer) io.Writer { return toServer{c, server} }

func (c *Conn) pass(from Side) error {
	if c.cfg.Pass == nil {
		return nil
	}
	return c.cfg.Pass(c.ctx, from)
}

func (c toServer) Write(p []byte) (int, error) {
	err := c.up.feed(p, func(b []byte) error {
		if c.over.Load() {
			return nil
		}
		if err := c.pass(Client); err != nil {
			return err
		}
		c.up.parser.commit()
		_, err := c.server.Write(b)
		return err
	})
	if err == nil && c.over.Load() {
		err = c.refuseStreams()
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// refuseStreams answers the streams that a client opens although the connection has ended: a client of SPDY opens one after another,
// and waits 30 seconds for each answer, even if the connection breaks.
func (c toServer) refuseStreams() error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if !c.ended {
		return ErrEnded
	}
	if c.cfg.Protocol.Framing != SPDY {
		return nil
	}
	_, err := c.client.Write(c.streams.appendRefusals(nil))
	return err
}

func (c toClient) Write(p []byte) (int, error) {
	c.turn <- struct{}{}
	defer func() {
		<-c.turn
		select {
		case c.progress <- struct{}{}:
		default:
		}
	}()
	if c.stuck || c.over.Load() {
		return 0, ErrEnded
	}
	err := c.down.feed(p, func(b []byte) error {
		if err := c.pass(Server); err != nil {
			return err
		}
		if _, err := c.client.Write(b); err != nil {
			c.over.Store(true) // the client may have a part of b
			return err
		}
		c.down.parser.commit()
		c.at = c.down.parser.position()
		return nil
	})
	if err != nil {
		c.stuck = true
		return 0, err
	}
	return len(p), nil
}
