package merge

import (
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
)

// When a client that asked for bookmarks gets one.
const (
	burstEnd = 100 * time.Millisecond // after the last event
	busyTime = time.Second            // after the first one since the last bookmark
	idleTime = time.Minute
)

// Why is the reason of a bookmark; the set is closed, for metrics.
type Why string

// The reasons.
const (
	WhyInitial Why = "initial" // all that was there at the start has been sent
	WhyJoin    Why = "join"    // before the first objects of a member that joins
	WhyBurst   Why = "burst"   // after events
	WhyBusy    Why = "busy"    // among events that do not stop
	WhyIdle    Why = "idle"
	WhyEnd     Why = "end" // before the stream ends
)

// touch says that the client does not know where it stands.
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

// tick sends the bookmark that is due.
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

// bookmark tells the client where it stands.
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

// endInitial tells the client, once, that it has what was there.
func (s *stream) endInitial() error {
	if !s.owed || !s.stands() {
		return nil
	}
	s.owed = false
	return s.bookmark(WhyInitial)
}

// goodbye ends the stream in good order.
func (s *stream) goodbye() error {
	if err := s.bookmark(WhyEnd); err != nil {
		return err
	}
	return s.sink.Flush()
}
