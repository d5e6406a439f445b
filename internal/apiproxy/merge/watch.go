package merge

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// A Watch is a merged watch whose members have answered.
type Watch struct {
	// Form is how events are written, the same as the members'.
	Form wire.Form
	// Left has the members that were left out because Skip said so. They join
	// when they are back.
	Left []Member

	// Timeout ends the stream in good order; 0: nothing does.
	Timeout time.Duration
	// Drain and Moved, when one of them is closed, end the stream in good order, too.
	Drain, Moved <-chan struct{}
	// Report is told when a member's stream ended, why, and when it is open
	// again, then with nil; nil: nobody asks.
	Report func(m Member, err error)
	// Took is told of events that a member sent, Marked of bookmarks that the client
	// is sent, Expired of the member whose 410 ends the stream; nil: nobody asks.
	Took    func(m Member, events int)
	Marked  func(why Why)
	Expired func(m Member)

	c       *Collection
	q       position.Query
	vector  position.Vector
	feeds   []*feed
	names   *names
	expired *wire.Status
	by      *Member // who said so; nil: the position itself does
}

// A Sink is where events go: one call, one event, without framing. Flush is
// called when no other event is at hand.
type Sink interface {
	Event(payload []byte) error
	Flush() error
}

// A Framed sink writes events as an HTTP body has them.
type Framed struct {
	Out   io.Writer
	Proto bool
	// Push sends what was written; it may be that of an http.ResponseController.
	Push func() error
	// Buffers lends what events are gathered in; nil: it is the sink's own.
	Buffers *wire.Buffers

	buf []byte
}

// flushAt is how much is gathered before it is written.
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

// Watch asks all members for their watches and waits until each has answered or
// had 10 seconds. Its error is what is to be told instead of a stream, as that
// of [Collection.List] is. A position that has expired is told in the stream,
// which Run does, in the form that the client prefers: on HTTP level some
// clients would try again for ever. After a Watch without an error, Run or
// Close must be called.
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
		open.Ask = w.c.askStream // a 422 is for the client, which knows what to do then
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

// initialAsked says whether the client waits for the end of the initial events.
func initialAsked(q position.Query) bool { return q.Initial != nil && *q.Initial }

// prime reads the names that members have, when some of them go on from a
// position: their streams do not say which names were there twice before.
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

// Close ends a Watch that is not run.
func (w *Watch) Close() error {
	for _, f := range w.feeds {
		if f.body != nil {
			f.body.Close()
		}
	}
	return nil
}

// askStream asks a member, who has answerTime to answer and any time to stream.
func (c *Collection) askStream(ctx context.Context, m Member, a position.Ask) (*Body, error) {
	body, end, err := InTime(ctx, func(ctx context.Context) (*Body, error) { return c.Ask(ctx, m, a) })
	if err != nil {
		return nil, err
	}
	return &Body{Ending(body.ReadCloser, end), body.Form}, nil
}
