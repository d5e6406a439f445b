package merge

import (
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// Delays after which a client that requested bookmarks gets one.
const (
	burstEnd = 100 * time.Millisecond // after the last event
	busyTime = time.Second            // after the first event since the last bookmark
	idleTime = time.Minute
)

// Why is the reason for a bookmark. The set is closed, because metrics use it as a label.
type Why string

// The reasons for a bookmark.
const (
	WhyInitial Why = "initial" // the client has all initial objects
	WhyJoin    Why = "join"    // before the first objects of a joining member
	WhyBurst   Why = "burst"   // after a burst of events
	WhyBusy    Why = "busy"    // during continuous events
	WhyIdle    Why = "idle"
	WhyEnd     Why = "end" // before the stream ends
)

// touch records that the client has events after its last bookmark, and starts the timer.
func (s *stream) touch() error {
	if !s.q.Bookmarks || s.waiting > 0 {
		return nil
	}
	s.lastEvent = time.Now()
	if !s.dirty {
		s.dirty, s.since = true, s.lastEvent
		s.timer.Reset(burstEnd)
	}
	return nil
}

// tick sends a bookmark if one is due.
func (s *stream) tick(now time.Time) error {
	if !s.q.Bookmarks {
		return nil
	}
	why := WhyIdle
	if s.dirty {
		due := s.lastEvent.Add(burstEnd)
		why = WhyBurst
		if latest := s.since.Add(busyTime); latest.Before(due) {
			due, why = latest, WhyBusy
		}
		if wait := due.Sub(now); wait > 0 {
			s.timer.Reset(wait)
			return nil
		}
	}
	return s.bookmark(why)
}

// bookmark sends the current position to the client.
func (s *stream) bookmark(why Why) error {
	s.timer.Reset(idleTime)
	if !s.q.Bookmarks || s.kind == "" {
		return nil
	}
	if !s.stands() {
		s.timer.Reset(busyTime)
		return nil
	}
	mark := wire.Mark{Kind: s.kind, APIVersion: s.version, ResourceVersion: s.vector.String(), InitialEnd: why == WhyInitial, Bare: s.c.Bare}
	if s.columns != nil {
		mark.Cells = s.columns.Len() + 1
	}
	s.buf = mark.Append(s.buf[:0], s.Form)
	s.dirty, s.placed = false, true
	if s.Marked != nil {
		s.Marked(why)
	}
	return s.sink.Event(s.buf)
}

// endInitial sends the bookmark that ends the initial events, once.
func (s *stream) endInitial() error {
	if !s.owed || !s.stands() {
		return nil
	}
	s.owed = false
	return s.bookmark(WhyInitial)
}

// goodbye ends the stream cleanly.
func (s *stream) goodbye() error {
	if err := s.bookmark(WhyEnd); err != nil {
		return err
	}
	return s.sink.Flush()
}
