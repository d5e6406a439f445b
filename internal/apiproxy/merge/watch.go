package merge

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// Watch is a merged watch whose members have responded.
type Watch struct {
	// Form is the encoding of the events, which is that of the members.
	Form wire.Form
	// Left lists the members that are left out because Skip allowed it. They join when they are available
	// again.
	Left []Member

	// Timeout ends the stream cleanly after this time; 0: no limit.
	Timeout time.Duration
	// Drain and Moved end the stream cleanly when one of them is closed.
	Drain, Moved <-chan struct{}
	// Report is called with the error when a member's stream ends, and with nil when it is open again; nil:
	// not called.
	Report func(m Member, err error)
	// Took is called with the number of events that a member sent. Marked is called for each bookmark to the
	// client. Expired is called with the member whose 410 ends the stream. Each may be nil.
	Took    func(m Member, events int)
	Marked  func(why Why)
	Expired func(m Member)

	c       *Collection
	q       position.Query
	vector  position.Vector
	feeds   []*feed
	names   *names
	expired *wire.Status
	by      *Member // the member that sent it; nil: the position itself has expired
}

// Sink receives events. Each call of Event passes one event without framing. Flush is called when no other
// event is ready.
type Sink interface {
	Event(payload []byte) error
	Flush() error
}

// Framed is a Sink that writes events as an HTTP response body.
type Framed struct {
	Out   io.Writer
	Proto bool
	// Push flushes the written bytes, such as the Flush of an http.ResponseController.
	Push func() error
	// Buffers is the pool for the write buffer; nil: the sink allocates its own.
	Buffers *wire.Buffers

	buf []byte
}

// flushAt is how many bytes are collected before a write.
const flushAt = 16 << 10

// Event implements [Sink].
func (f *Framed) Event(payload []byte) error {
	if f.buf == nil {
		f.buf = f.Buffers.Lend()[:0]
	}
	f.buf = wire.AppendFrame(f.buf, payload, f.Proto)
	if len(f.buf) < flushAt {
		return nil
	}
	return f.write()
}

func (f *Framed) write() error {
	_, err := f.Out.Write(f.buf)
	f.buf = f.buf[:0]
	return err
}

// Flush implements [Sink].
func (f *Framed) Flush() error {
	if len(f.buf) > 0 {
		if err := f.write(); err != nil {
			return err
		}
	}
	f.Buffers.Back(f.buf)
	f.buf = nil
	return f.Push()
}

// Watch opens the watches of all members. It waits until each one has responded or 10 seconds have passed.
// Its error is for the client instead of a stream, as that of [Collection.List]. An expired position is not
// an error here. Run reports it within the stream in the form that the client prefers, because some clients
// retry an HTTP error endlessly. If Watch returns no error, the caller must call Run or Close.
func (c *Collection) Watch(ctx context.Context, q position.Query, prefers wire.Form) (*Watch, error) {
	w := &Watch{c: c, q: q, Form: prefers}
	plan, refusal := c.place().Plan(q)
	if refusal != nil {
		if refusal.Code != 410 {
			return nil, refusal
		}
		w.expired = refusal
		return w, nil
	}
	if plan.Verbatim {
		return nil, c.verbatim(ctx, plan.Asks[0])
	}
	w.vector = plan.Vector
	err := w.open(ctx, plan.Asks)
	if err == nil {
		err = w.prime(ctx)
	}
	if s, ok := errors.AsType[*wire.Status](err); ok && s.Code == 410 {
		w.expired, err = s, nil
		w.by = c.named(s)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Watch) open(ctx context.Context, asks []position.Ask) error {
	open := *w.c
	open.Ask = w.c.stream
	if initialAsked(w.q) {
		open.Ask = w.c.askStream // a 422 is for the client, which then falls back to list and watch
	}
	answers, left, err := open.askAll(ctx, asks)
	if err != nil {
		return err
	}
	w.Left, w.Form = left, answers[0].body.Form
	for i, a := range asks {
		f := &feed{c: w.c, form: w.Form, member: w.c.member(a.Slot), at: i, ask: a, reply: make(chan position.Ask)}
		f.initial = a.Begins()
		for _, answer := range answers {
			if answer.ask.Slot == a.Slot {
				f.body = answer.body
			}
		}
		if f.body == nil && !f.initial {
			if w.c.Spread && len(asks) > 1 {
				closeAll(answers)
				return failure(f.member, position.Expired("it cannot be asked which names it has, so the collection must be read again without it"))
			}
			f.ask = position.At(a.Slot, w.vector.At(a.Slot))
			f.initial = f.ask.Begins()
		}
		f.awaited = f.body != nil && f.initial && initialAsked(w.q)
		w.feeds = append(w.feeds, f)
	}
	return nil
}

// initialAsked reports whether the client waits for the end of the initial events.
func initialAsked(q position.Query) bool { return q.Initial != nil && *q.Initial }

// prime reads the names that members have, if some of them resume from a position. Their streams do not show
// which names already occur twice.
func (w *Watch) prime(ctx context.Context) error {
	if !w.c.Spread || len(w.feeds) < 2 {
		return nil
	}
	w.names = newNames()
	var asks []position.Ask
	for _, f := range w.feeds {
		if !f.initial {
			asks = append(asks, position.Ask{Slot: f.member.Slot})
		}
	}
	if len(asks) == 0 {
		return nil
	}
	return w.c.prime(ctx, w.names, asks)
}

// Close ends a Watch that has not been run.
func (w *Watch) Close() error {
	for _, f := range w.feeds {
		if f.body != nil {
			f.body.Close()
		}
	}
	return nil
}

// askStream sends a request to a member, which has answerTime to start its response and unlimited time to
// stream.
func (c *Collection) askStream(ctx context.Context, m Member, a position.Ask) (*Body, error) {
	body, end, err := InTime(ctx, func(ctx context.Context) (*Body, error) { return c.Ask(ctx, m, a) })
	if err != nil {
		return nil, err
	}
	return &Body{Ending(body.ReadCloser, end), body.Form}, nil
}
