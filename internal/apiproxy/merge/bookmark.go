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
	if s.dirty {
		due := s.lastEvent.Add(burstEnd)
		if latest := s.since.Add(busyTime); latest.Before(due) {
			due = latest
		}
		if wait := due.Sub(now); wait > 0 {
			s.timer.Reset(wait)
			return nil
		}
	}
	return s.bookmark(false)
}

// bookmark tells the client where it stands.
func (s *stream) bookmark(end bool) error {
	s.timer.Reset(idleTime)
	if !s.q.Bookmarks || s.kind == "" {
		return nil
	}
	if !s.stands() {
		s.timer.Reset(busyTime)
		return nil
	}
	mark := wire.Mark{Kind: s.kind, APIVersion: s.version, ResourceVersion: s.vector.String(), InitialEnd: end, Bare: s.c.Bare}
	if s.columns != nil {
		mark.Cells = s.columns.Len() + 1
	}
	s.buf = mark.Append(s.buf[:0], s.Form)
	s.dirty, s.placed = false, true
	return s.sink.Event(s.buf)
}

// endInitial tells the client, once, that it has what was there.
func (s *stream) endInitial() error {
	if !s.owed || !s.stands() {
		return nil
	}
	s.owed = false
	return s.bookmark(true)
}

// goodbye ends the stream in good order.
func (s *stream) goodbye() error {
	if err := s.bookmark(false); err != nil {
		return err
	}
	return s.sink.Flush()
}
