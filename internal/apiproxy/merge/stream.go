package merge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// stream is a running watch. One goroutine owns all of it.
type stream struct {
	*Watch
	sink    Sink
	in      chan handover
	results chan *promotion
	group   sync.WaitGroup
	ctx     context.Context // of all goroutines of the stream

	kind, version string // of the objects, once an event was read
	columns       *wire.Columns
	columnsSent   bool
	waiting       int  // the number of members whose initial events have not ended
	owed          bool // the client waits for the bookmark that ends the initial events
	placed        bool // the client knows a position of this collection
	buf           []byte

	dirty     bool // events were sent since the last bookmark
	since     time.Time
	lastEvent time.Time
	timer     *time.Timer

	pending  map[uint64]*promotion
	promoted map[uint64]uint64
}

// Run sends events until the stream ends. It returns nil if it ended the stream cleanly. If positions have
// expired, it returns the *wire.Status that it sent to the client. Otherwise it returns the error of ctx or
// of the sink.
func (w *Watch) Run(ctx context.Context, sink Sink) error {
	if w.expired != nil {
		w.Close()
		w.tellExpired(w.by)
		return tell(sink, w.Form, w.expired)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{Watch: w, sink: sink, in: make(chan handover), results: make(chan *promotion), ctx: ctx,
		pending: map[uint64]*promotion{}, promoted: map[uint64]uint64{}, timer: time.NewTimer(idleTime)}
	s.placed = w.q.RV != "" && w.q.RV != "0" && !initialAsked(w.q)
	for _, f := range w.feeds {
		if f.awaited {
			s.waiting++
			s.owed = true
		}
		if !f.initial {
			s.stand(f)
		}
		s.group.Go(func() { f.follow(ctx, s.in) })
	}
	err := s.run(ctx)
	s.timer.Stop()
	cancel()
	s.group.Wait()
	return err
}

// tell ends a stream with an ERROR event.
func tell(sink Sink, form wire.Form, status *wire.Status) error {
	if err := sink.Event(wire.AppendError(nil, form.Proto, status)); err != nil {
		return err
	}
	if err := sink.Flush(); err != nil {
		return err
	}
	return status
}

func (s *stream) run(ctx context.Context) error {
	var end <-chan time.Time
	if s.Timeout > 0 {
		t := time.NewTimer(s.Timeout)
		defer t.Stop()
		end = t.C
	}
	err := s.sink.Flush() // send the headers
	for err == nil {
		select {
		case h := <-s.in:
			err = s.take(h)
		case p := <-s.results:
			err = s.settle(p)
		case <-s.timer.C:
			err = s.tick(time.Now())
		case <-end:
			return s.goodbye()
		case <-s.Drain:
			return s.goodbye()
		case <-s.Moved:
			return s.goodbye()
		case <-ctx.Done():
			return ctx.Err()
		}
		for more := true; err == nil && more; {
			select {
			case h := <-s.in:
				err = s.take(h)
			case p := <-s.results:
				err = s.settle(p)
			default:
				more = false
				err = s.sink.Flush()
			}
		}
	}
	if status, ok := errors.AsType[*wire.Status](err); ok && status.Code == 410 {
		s.tellExpired(s.c.named(status))
		return tell(s.sink, s.Form, status)
	}
	return err
}

// tellExpired reports the member whose 410 ends the stream.
func (w *Watch) tellExpired(by *Member) {
	if by != nil && w.Expired != nil {
		w.Expired(*by)
	}
}

// take processes a handover of a feed and replies with the next request.
func (s *stream) take(h handover) error {
	f := h.feed
	if s.Took != nil && len(h.events) > 0 {
		s.Took(f.member, len(h.events))
	}
	for i := range h.events {
		if err := s.event(f, &h.events[i]); err != nil {
			return err
		}
		if err := s.endInitial(); err != nil {
			return err
		}
	}
	next := f.ask
	if h.opened && s.Report != nil {
		s.Report(f.member, nil)
	}
	if h.ended {
		if expired(h.err) {
			return failure(f.member, h.err)
		}
		if f.initial && f.delivered {
			return failure(f.member, position.Expired("its stream broke off before it had sent what was there"))
		}
		if s.Report != nil {
			s.Report(f.member, h.err)
		}
		if !f.initial {
			next = position.At(f.member.Slot, s.vector.At(f.member.Slot))
			f.initial = next.Begins()
		}
	}
	select {
	case f.reply <- next:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// event processes one event of a member.
func (s *stream) event(f *feed, ev *wire.Event) error {
	if s.kind == "" {
		s.kind, s.version = string(ev.Kind), string(ev.APIVersion)
	}
	if ev.Columns != nil {
		f.columns, f.row = ev.Columns, nil
	}
	slot := f.member.Slot
	if ev.Type == wire.Bookmark {
		if f.initial && !ev.InitialEnd {
			return nil // it does not describe the initial objects
		}
		from := s.vector.At(slot)
		s.vector.Raise(slot, ev.ResourceVersion)
		if !f.initial {
			return s.step(f, position.Step{From: from, To: ev.ResourceVersion})
		}
		f.initial = false
		s.stand(f)
		if f.awaited {
			f.awaited = false
			s.waiting--
		}
		return s.touch()
	}
	deliver := f.member.Keep == nil || f.member.Keep(ev.Namespace)
	if len(ev.Name) == 0 && s.c.needsNames(f.member) {
		return fmt.Errorf("watch of cluster %s: an event without a name", f.member.Name)
	}
	var lost *promotion
	if deliver && s.names != nil {
		deliver, lost = s.compete(f, ev)
	}
	if deliver {
		if err := s.join(f); err != nil {
			return err
		}
	}
	if lost != nil {
		s.promote(lost) // start it first: until it ends, the client has no valid position
	}
	var step position.Step
	if !f.initial {
		step.From, step.To = s.vector.At(slot), ev.ResourceVersion
		s.vector.Raise(slot, ev.ResourceVersion)
	}
	if deliver {
		return s.deliver(f, ev, step)
	}
	return s.step(f, step)
}

// join records that the client gets the first initial objects of a member, so that its position can no longer
// be 0. It sends a bookmark with resourceVersion 1 for the member. If the client returns with 1, the member
// either sends every event since its start or answers that 1 has expired. Both are correct.
func (s *stream) join(f *feed) error {
	if !f.initial || f.delivered {
		return nil
	}
	f.delivered = true
	if s.waiting > 0 {
		return nil // no bookmark is sent before the end of the initial events
	}
	s.vector.Raise(f.member.Slot, 1)
	if s.placed {
		return s.bookmark(WhyJoin)
	}
	return nil
}

// deliver sends an event to the client. step is empty if the event is not from the member's stream.
func (s *stream) deliver(f *feed, ev *wire.Event, step position.Step) error {
	if s.c.Learn != nil && len(ev.Name) > 0 {
		s.c.Learn(f.member, ev.Namespace, ev.Name, ev.Type != wire.Deleted)
	}
	payload := ev.Raw
	if s.Form.Shape == wire.Table && ev.IsTable() {
		if s.columns == nil {
			s.columns = f.columns
		}
		if f.row == nil {
			f.row = wire.NewRow(f.columns, s.columns, f.member.Name, s.c.Bare)
		}
		var err error
		withColumns := !s.columnsSent && s.columns != nil
		if s.buf, err = ev.AppendTable(s.buf[:0], f.row, s.columns, withColumns); err != nil {
			return fmt.Errorf("watch of cluster %s: %w", f.member.Name, err)
		}
		s.columnsSent = s.columnsSent || withColumns
		payload = s.buf
	}
	if err := s.sink.Event(payload); err != nil {
		return err
	}
	if s.c.Ring != nil && f.initial && s.stands() {
		s.c.Ring.Object(f.member.Slot, ev.ResourceVersion, s.vector)
	}
	if step.Sent = ev.ResourceVersion; f.initial {
		step.Sent = 0
	}
	if err := s.step(f, step); err != nil {
		return err
	}
	return s.touch()
}

// step records in the ring what the client received.
func (s *stream) step(f *feed, step position.Step) error {
	if s.c.Ring == nil || step == (position.Step{}) {
		return nil
	}
	step.Slot, step.Nowhere = f.member.Slot, !s.stands()
	if step.From <= 1 || step.To < step.From { // the start is unknown
		step.From, step.To = 0, 0
	}
	s.c.Ring.Step(step, s.vector, time.Now())
	return nil
}

// stand records where a member's stream starts.
func (s *stream) stand(f *feed) {
	if at := s.vector.At(f.member.Slot); s.c.Ring != nil && at > 1 {
		s.c.Ring.Step(position.Step{Slot: f.member.Slot, From: at, To: at}, s.vector, time.Now())
	}
}

// stands reports whether the client's position is valid, which means that it has every earlier event. It is
// not valid while a search for the next copy of a deleted object is pending. A client that disconnects then
// continues from an earlier position, or lists again.
func (s *stream) stands() bool { return s.waiting == 0 && len(s.pending) == 0 }
