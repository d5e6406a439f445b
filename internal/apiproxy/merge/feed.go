package merge

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// How long it takes to open a member's stream again: the first time and at most.
// A stream that lasted for steadyTime counts as a new beginning.
const (
	firstWait  = 500 * time.Millisecond
	longWait   = 30 * time.Second
	steadyTime = 30 * time.Second
)

// batchEvents is how many events are handed over at once.
const batchEvents = 16

// A feed is one member's part of a watch. Its goroutine reads; whatever there is
// to know of it belongs to the stream, which alone decides.
type feed struct {
	c      *Collection
	form   wire.Form
	member Member
	at     int // its place in the order
	ask    position.Ask
	body   *Body
	reply  chan position.Ask
	events []wire.Event

	initial   bool // the objects that it began with are not all there
	awaited   bool // the client is not told that they are before this one
	delivered bool // some of them went to the client
	columns   *wire.Columns
	row       *wire.Row
}

// A handover is what a feed has: events, or an end.
type handover struct {
	feed   *feed
	events []wire.Event
	opened bool
	ended  bool
	err    error // of the end; nil: in good order
}

// follow reads the member's stream, and opens it again when it ends, until ctx
// is done.
func (f *feed) follow(ctx context.Context, in chan<- handover) {
	wait := firstWait
	var opened time.Time
	if f.body != nil {
		opened = time.Now()
	}
	for {
		if f.body == nil {
			if retry.Sleep(ctx, jittered(wait)) != nil {
				return
			}
			wait = min(2*wait, longWait)
			body, err := f.c.stream(ctx, f.member, f.ask)
			if err == nil && body.Form != f.form {
				body.Close()
				err = ErrForms
			}
			if err != nil {
				if !f.hand(ctx, in, handover{ended: true, err: err}) {
					return
				}
				continue
			}
			f.body, opened = body, time.Now()
			if !f.hand(ctx, in, handover{opened: true}) {
				break
			}
		}
		err := f.read(ctx, in)
		f.body.Close()
		f.body = nil
		if ctx.Err() != nil {
			return
		}
		if time.Since(opened) >= steadyTime {
			wait = firstWait
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if !f.hand(ctx, in, handover{ended: true, err: err}) {
			return
		}
	}
	f.body.Close()
}

func jittered(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}

// hand gives something to the stream and waits for its word on how to go on.
func (f *feed) hand(ctx context.Context, in chan<- handover, h handover) bool {
	h.feed = f
	select {
	case in <- h:
	case <-ctx.Done():
		return false
	}
	select {
	case f.ask = <-f.reply:
		return true
	case <-ctx.Done():
		return false
	}
}

// read hands over events until the stream ends. What the member says instead of
// going on is the error.
func (f *feed) read(ctx context.Context, in chan<- handover) error {
	body := f.body
	stop := context.AfterFunc(ctx, func() { body.Close() }) // a read that blocks hears of the end by its body
	defer stop()
	ready := 0
	give := func() error {
		if ready > 0 && !f.hand(ctx, in, handover{events: f.events[:ready]}) {
			return ctx.Err()
		}
		ready = 0
		return nil
	}
	r := wire.NewEvents(body, f.form, f.c.Buffers, give)
	for {
		if ready == len(f.events) {
			if ready < batchEvents {
				f.events = append(f.events, wire.Event{})
			} else if err := give(); err != nil {
				return err
			}
		}
		at := ready
		err := r.Next(&f.events[at])
		if err == nil && f.events[at].Type == wire.Error {
			err = f.events[at].Status
		}
		if err != nil {
			if gave := give(); gave != nil {
				return gave
			}
			return err
		}
		// Those before it may have been given while it was read. They change
		// places, as each has memory of its own.
		f.events[ready], f.events[at] = f.events[at], f.events[ready]
		ready++
	}
}
