package merge

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// Backoff for reopening a member's stream: the first and the longest delay. A stream that lasted steadyTime
// resets the delay.
const (
	minReopenDelay = 500 * time.Millisecond
	maxReopenDelay = 30 * time.Second
	steadyTime     = 30 * time.Second
)

// batchEvents is the largest number of events in a handover.
const batchEvents = 16

// feed is one member's part of a watch. Its goroutine only reads. The stream owns the state and makes all
// decisions.
type feed struct {
	c       *Collection
	format  codec.Format
	member  Member
	index   int // its index in the member order
	request MemberRequest
	body    *Body
	reply   chan MemberRequest
	events  []codec.Event

	initial   bool // its initial objects are not complete yet
	awaited   bool // the end of the initial events must wait for this member
	delivered bool // some initial objects were sent to the client
	columns   *codec.Columns
	row       *codec.Row
}

// feedUpdate is what a feed passes to the stream: events, an opened stream, or an ended one.
type feedUpdate struct {
	feed   *feed
	events []codec.Event
	opened bool
	ended  bool
	err    error // why it ended; nil: cleanly
}

// follow reads the member's stream and reopens it when it ends, until ctx is done.
func (f *feed) follow(ctx context.Context, in chan<- feedUpdate) {
	wait := minReopenDelay
	var opened time.Time
	if f.body != nil {
		opened = time.Now()
	}
	for {
		if f.body == nil {
			if retry.Sleep(ctx, jittered(wait)) != nil {
				return
			}
			wait = min(2*wait, maxReopenDelay)
			body, err := f.c.openStream(ctx, f.member, f.request)
			if err == nil && body.Format != f.format {
				body.Close()
				err = ErrMixedFormats
			}
			if err != nil {
				if !f.send(ctx, in, feedUpdate{ended: true, err: err}) {
					return
				}
				continue
			}
			f.body, opened = body, time.Now()
			if !f.send(ctx, in, feedUpdate{opened: true}) {
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
			wait = minReopenDelay
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if !f.send(ctx, in, feedUpdate{ended: true, err: err}) {
			return
		}
	}
	f.body.Close()
}

func jittered(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}

// send passes h to the stream and waits for the reply, which is the next request. It returns false if ctx is
// done.
func (f *feed) send(ctx context.Context, in chan<- feedUpdate, h feedUpdate) bool {
	h.feed = f
	select {
	case in <- h:
	case <-ctx.Done():
		return false
	}
	select {
	case f.request = <-f.reply:
		return true
	case <-ctx.Done():
		return false
	}
}

// read hands over events until the stream ends. Its error is the end of the stream, or the Status of an ERROR
// event.
func (f *feed) read(ctx context.Context, in chan<- feedUpdate) error {
	body := f.body
	stop := context.AfterFunc(ctx, func() { body.Close() }) // closing the body unblocks a pending read
	defer stop()
	ready := 0
	send := func() error {
		if ready > 0 && !f.send(ctx, in, feedUpdate{events: f.events[:ready]}) {
			return ctx.Err()
		}
		ready = 0
		return nil
	}
	r := codec.NewEventReader(body, f.format, f.c.Buffers, send)
	for {
		if ready == len(f.events) {
			if ready < batchEvents {
				f.events = append(f.events, codec.Event{})
			} else if err := send(); err != nil {
				return err
			}
		}
		at := ready
		err := r.Next(&f.events[at])
		if err == nil && f.events[at].Type == codec.EventError {
			err = f.events[at].Status
		}
		if err != nil {
			if sendErr := send(); sendErr != nil {
				return sendErr
			}
			return err
		}
		// Next may have handed over the events before it. The two events swap places, because each has its
		// own memory.
		f.events[ready], f.events[at] = f.events[at], f.events[ready]
		ready++
	}
}
