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

// Backoff for reopening a member's stream: the first and the longest delay. A stream that lasted steadyTime
// resets the delay.
const (
	firstWait  = 500 * time.Millisecond
	longWait   = 30 * time.Second
	steadyTime = 30 * time.Second
)

// batchEvents is the largest number of events in a handover.
const batchEvents = 16

// feed is one member's part of a watch. Its goroutine only reads. The stream owns the state and makes all
// decisions.
type feed struct {
	c      *Collection
	form   wire.Form
	member Member
	at     int // its index in the member order
	ask    position.Ask
	body   *Body
	reply  chan position.Ask
	events []wire.Event

	initial   bool // its initial objects are not complete yet
	awaited   bool // the end of the initial events must wait for this member
	delivered bool // some initial objects were sent to the client
	columns   *wire.Columns
	row       *wire.Row
}

// handover is what a feed passes to the stream: events, an opened stream, or an ended one.
type handover struct {
	feed   *feed
	events []wire.Event
	opened bool
	ended  bool
	err    error // why it ended; nil: cleanly
}

// follow reads the member's stream and reopens it when it ends, until ctx is done.
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

// hand passes h to the stream and waits for the reply, which is the next request. It returns false if ctx is
// done.
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

// read hands over events until the stream ends. Its error is the end of the stream, or the Status of an ERROR
// event.
func (f *feed) read(ctx context.Context, in chan<- handover) error {
	body := f.body
	stop := context.AfterFunc(ctx, func() { body.Close() }) // closing the body unblocks a pending read
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
		// Next may have handed over the events before it. The two events swap places, because each has its
		// own memory.
		f.events[ready], f.events[at] = f.events[at], f.events[ready]
		ready++
	}
}
