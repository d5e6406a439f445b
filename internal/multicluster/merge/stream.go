package merge

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// watchStream is a running watch. One goroutine owns all of it.
type watchStream struct {
	*Watch
	sink    Sink
	in      chan feedUpdate
	results chan *copySearch
	group   sync.WaitGroup
	ctx     context.Context // of all goroutines of the stream

	kind, version string // of the objects, once an event was read
	columns       *codec.Columns
	columnsSent   bool
	waiting       int  // the number of members whose initial events have not ended
	initialEndDue bool // the client waits for the bookmark that ends the initial events
	positioned    bool // the client knows a position of this collection
	buf           []byte

	dirty     bool // events were sent since the last bookmark
	since     time.Time
	lastEvent time.Time
	timer     *time.Timer

	pending  map[uint64]*copySearch
	promoted map[uint64]uint64
}

// Run sends events until the stream ends. It returns nil if it ended the stream cleanly. If positions have
// expired, it returns the *codec.Status that it sent to the client. Otherwise it returns the error of ctx or
// of the sink.
func (w *Watch) Run(ctx context.Context, sink Sink) error {
	if w.expired != nil {
		w.Close()
		w.notifyExpired(w.expiredBy)
		return writeErrorEvent(sink, w.Format, w.expired)
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &watchStream{Watch: w, sink: sink, in: make(chan feedUpdate), results: make(chan *copySearch), ctx: ctx,
		pending: map[uint64]*copySearch{}, promoted: map[uint64]uint64{}, timer: time.NewTimer(idleTime)}
	s.positioned = w.q.RV != "" && w.q.RV != "0" && !w.q.wantsInitial()
	for _, f := range w.feeds {
		if f.awaited {
			s.waiting++
			s.initialEndDue = true
		}
		s.group.Go(func() { f.follow(ctx, s.in) })
	}
	err := s.run(ctx)
	s.timer.Stop()
	cancel()
	s.group.Wait()
	return err
}

// writeErrorEvent ends a stream with an ERROR event.
func writeErrorEvent(sink Sink, format codec.Format, status *codec.Status) error {
	if err := sink.Event(codec.AppendError(nil, format.Proto, status)); err != nil {
		return err
	}
	if err := sink.Flush(); err != nil {
		return err
	}
	return status
}

func (s *watchStream) run(ctx context.Context) error {
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
			err = s.handleUpdate(h)
		case p := <-s.results:
			err = s.finishSearch(p)
		case <-s.timer.C:
			err = s.tick(time.Now())
		case <-end:
			return s.endCleanly()
		case <-s.Drain:
			return s.endCleanly()
		case <-s.Moved:
			return s.endCleanly()
		case <-ctx.Done():
			return ctx.Err()
		}
		for more := true; err == nil && more; {
			select {
			case h := <-s.in:
				err = s.handleUpdate(h)
			case p := <-s.results:
				err = s.finishSearch(p)
			default:
				more = false
				err = s.sink.Flush()
			}
		}
	}
	if status, ok := errors.AsType[*codec.Status](err); ok && status.Code == 410 {
		s.notifyExpired(s.c.failedMember(status))
		return writeErrorEvent(s.sink, s.Format, status)
	}
	return err
}

// notifyExpired reports the member whose 410 ends the stream.
func (w *Watch) notifyExpired(by *Member) {
	if by != nil && w.OnExpired != nil {
		w.OnExpired(*by)
	}
}

// handleUpdate processes a handover of a feed and replies with the next request.
func (s *watchStream) handleUpdate(h feedUpdate) error {
	f := h.feed
	if s.OnEvents != nil && len(h.events) > 0 {
		s.OnEvents(f.member, len(h.events))
	}
	for i := range h.events {
		if err := s.handleEvent(f, &h.events[i]); err != nil {
			return err
		}
		if err := s.endInitial(); err != nil {
			return err
		}
	}
	next := f.request
	if h.opened && s.OnMemberState != nil {
		s.OnMemberState(f.member, nil)
	}
	if h.ended {
		if isExpired(h.err) {
			return clientError(f.member, h.err)
		}
		if f.initial && f.delivered {
			return clientError(f.member, expiredStatus("its stream ended before it had sent the existing objects"))
		}
		if s.OnMemberState != nil {
			s.OnMemberState(f.member, h.err)
		}
		if !f.initial {
			next = requestAt(f.member.Slot, s.vector.At(f.member.Slot))
			f.initial = next.isInitial()
		}
	}
	select {
	case f.reply <- next:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// handleEvent processes one event of a member.
func (s *watchStream) handleEvent(f *feed, ev *codec.Event) error {
	if s.kind == "" {
		s.kind, s.version = string(ev.Kind), string(ev.APIVersion)
	}
	if ev.Columns != nil {
		f.columns, f.row = ev.Columns, nil
	}
	slot := f.member.Slot
	if ev.Type == codec.EventBookmark {
		if f.initial && !ev.InitialEnd {
			return nil // it does not describe the initial objects
		}
		s.vector.Raise(slot, ev.ResourceVersion)
		if !f.initial {
			return nil
		}
		f.initial = false
		if f.awaited {
			f.awaited = false
			s.waiting--
		}
		s.markDirty()
		return nil
	}
	deliver := f.member.Keep == nil || f.member.Keep(ev.Namespace)
	if len(ev.Name) == 0 && s.c.needsNames(f.member) {
		return fmt.Errorf("watch of cluster %s: an event has no name", f.member.Name)
	}
	var lost *copySearch
	if deliver && s.names != nil {
		deliver, lost = s.resolveDuplicate(f, ev)
	}
	if deliver {
		if err := s.joinMember(f); err != nil {
			return err
		}
	}
	if lost != nil {
		s.startSearch(lost) // start it first: until it ends, the client has no valid position
	}
	if !f.initial {
		s.vector.Raise(slot, ev.ResourceVersion)
	}
	if deliver {
		return s.deliver(f, ev)
	}
	return nil
}

// joinMember records that the client gets the first initial objects of a member, so that its position can no longer
// be 0. It sends a bookmark with resourceVersion 1 for the member. If the client returns with 1, the member
// either sends every event since its start or answers that 1 has expired. Both are correct.
func (s *watchStream) joinMember(f *feed) error {
	if !f.initial || f.delivered {
		return nil
	}
	f.delivered = true
	if s.waiting > 0 {
		return nil // no bookmark is sent before the end of the initial events
	}
	s.vector.Raise(f.member.Slot, 1)
	if s.positioned {
		return s.bookmark(apiproxy.BookmarkJoin)
	}
	return nil
}

// deliver sends an event to the client.
func (s *watchStream) deliver(f *feed, ev *codec.Event) error {
	if s.c.OnObject != nil && len(ev.Name) > 0 {
		s.c.OnObject(f.member, ev.Namespace, ev.Name, ev.Type != codec.EventDeleted)
	}
	payload := ev.Raw
	if s.Format.Shape == codec.ShapeTable && ev.IsTable() {
		if s.columns == nil {
			s.columns = f.columns
		}
		if f.row == nil {
			f.row = codec.NewRow(f.columns, s.columns, f.member.Name, s.c.Bare)
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
	s.markDirty()
	return nil
}

// hasPosition reports whether the client's position is valid, which means that it has every earlier event. It is
// not valid while a search for the next copy of a deleted object is pending. A client that disconnects then
// continues from an earlier position, or lists again.
func (s *watchStream) hasPosition() bool { return s.waiting == 0 && len(s.pending) == 0 }
