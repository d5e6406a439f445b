package merge

import (
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// Delays after which a client that requested bookmarks gets one.
const (
	burstEnd = 100 * time.Millisecond // after the last event
	busyTime = time.Second            // after the first event since the last bookmark
	idleTime = time.Minute
)

// markDirty records that the client has events after its last bookmark, and starts the timer.
func (s *watchStream) markDirty() {
	if !s.q.Bookmarks || s.waiting > 0 {
		return
	}
	s.lastEvent = time.Now()
	if !s.dirty {
		s.dirty, s.since = true, s.lastEvent
		s.timer.Reset(burstEnd)
	}
}

// tick sends a bookmark if one is due.
func (s *watchStream) tick(now time.Time) error {
	if !s.q.Bookmarks {
		return nil
	}
	why := apiproxy.BookmarkIdle
	if s.dirty {
		due := s.lastEvent.Add(burstEnd)
		why = apiproxy.BookmarkBurst
		if latest := s.since.Add(busyTime); latest.Before(due) {
			due, why = latest, apiproxy.BookmarkBusy
		}
		if wait := due.Sub(now); wait > 0 {
			s.timer.Reset(wait)
			return nil
		}
	}
	return s.bookmark(why)
}

// bookmark sends the current position to the client.
func (s *watchStream) bookmark(why apiproxy.BookmarkReason) error {
	s.timer.Reset(idleTime)
	if !s.q.Bookmarks || s.kind == "" {
		return nil
	}
	if !s.hasPosition() {
		s.timer.Reset(busyTime)
		return nil
	}
	mark := codec.BookmarkObject{
		Kind:            s.kind,
		APIVersion:      s.version,
		ResourceVersion: s.vector.String(),
		InitialEnd:      why == apiproxy.BookmarkInitial,
		Bare:            s.c.Bare,
	}
	if s.columns != nil {
		mark.Cells = s.columns.Len() + 1
	}
	s.buf = mark.Append(s.buf[:0], s.Format)
	s.dirty, s.positioned = false, true
	if s.OnBookmark != nil {
		s.OnBookmark(why)
	}
	return s.sink.Event(s.buf)
}

// endInitial sends the bookmark that ends the initial events, once.
func (s *watchStream) endInitial() error {
	if !s.initialEndDue || !s.hasPosition() {
		return nil
	}
	s.initialEndDue = false
	return s.bookmark(apiproxy.BookmarkInitial)
}

// endCleanly ends the stream cleanly.
func (s *watchStream) endCleanly() error {
	if err := s.bookmark(apiproxy.BookmarkEnd); err != nil {
		return err
	}
	return s.sink.Flush()
}
