package merge

import (
	"bytes"
	"context"
	"math/bits"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// copySearch is the search for the next copy of an object after the shown copy was deleted. Several members
// may have an object of the same name; the client sees one of them.
type copySearch struct {
	key             uint64
	feed            *feed
	namespace, name string
	cancel          context.CancelFunc

	event *codec.Event // nil: the member has no copy; its own stream will report why
	err   error        // a 410: the search failed
	done  chan struct{}
}

// resolveDuplicate reports whether an event is of the shown copy, which is that of the first member that has one. If
// that copy was deleted and another member has one, next is the search for it.
func (s *watchStream) resolveDuplicate(f *feed, ev *codec.Event) (deliver bool, next *copySearch) {
	key := s.names.hash(ev.Namespace, ev.Name)
	bit := uint32(1) << f.index
	have := s.names.bits[key]
	winner := have&(bit-1) == 0
	waits := s.pending[key]
	if ev.Type != codec.EventDeleted {
		s.names.bits[key] = have | bit
		if !winner {
			return false, nil
		}
		if rv, ok := s.promoted[key]; ok {
			if ev.ResourceVersion <= rv && f.index == bits.TrailingZeros32(have|bit) && have&bit != 0 {
				return false, nil // older than the shown copy
			}
			delete(s.promoted, key)
		}
		if waits != nil {
			s.cancelSearch(waits)
		}
		return true, nil
	}
	have &^= bit
	if have == 0 {
		delete(s.names.bits, key)
	} else {
		s.names.bits[key] = have
	}
	if !winner {
		return false, nil
	}
	delete(s.promoted, key)
	shown := true
	if waits != nil {
		shown = waits.feed != f // the client has no copy during a search
		s.cancelSearch(waits)
	}
	if have != 0 {
		next = &copySearch{key: key, feed: s.feeds[bits.TrailingZeros32(have)],
			namespace: string(bytes.Clone(ev.Namespace)), name: string(bytes.Clone(ev.Name))}
	}
	return shown, next
}

func (s *watchStream) cancelSearch(p *copySearch) {
	p.cancel()
	delete(s.pending, p.key)
}

// startSearch starts the search for the copy of the first member that has one.
func (s *watchStream) startSearch(p *copySearch) {
	ctx, cancel := context.WithCancel(s.ctx)
	p.cancel, p.done = cancel, make(chan struct{})
	s.pending[p.key] = p
	s.group.Go(func() {
		defer cancel()
		p.search(ctx, s.results)
	})
}

// search requests the object as a watch with initial events. Its result is thus an event, filtered by the
// client's selectors.
func (p *copySearch) search(ctx context.Context, results chan<- *copySearch) {
	f := p.feed
	req := requestAt(f.member.Slot, 0)
	req.Namespace, req.Name = p.namespace, p.name
	for wait := minReopenDelay; ; wait = min(2*wait, maxReopenDelay) {
		body, err := f.c.openStream(ctx, f.member, req)
		if err == nil && body.Format != f.format {
			body.Close()
			err = ErrMixedFormats
		}
		if err == nil {
			stop := context.AfterFunc(ctx, func() { body.Close() })
			r := codec.NewEventReader(body, f.format, f.c.Buffers, nil)
			ev := new(codec.Event)
			if err = r.Next(ev); err == nil && ev.Type == codec.EventError {
				err = ev.Status
			}
			if err == nil {
				if ev.Type == codec.EventAdded {
					p.event = ev
				}
				select {
				case results <- p:
					select {
					case <-p.done:
					case <-ctx.Done():
					}
				case <-ctx.Done():
				}
			}
			stop()
			body.Close()
			if err == nil {
				return
			}
		}
		if status, ok := err.(*codec.Status); ok && (status.Code == 410 || status.Code == 422) {
			p.err = clientError(f.member, expiredStatus("the shown copy of an object is deleted, and the next copy cannot be fetched"))
			select {
			case results <- p:
			case <-ctx.Done():
			}
			return
		}
		if retry.Sleep(ctx, jittered(wait)) != nil {
			return
		}
	}
}

// finishSearch sends the result of a search.
func (s *watchStream) finishSearch(p *copySearch) error {
	defer close(p.done)
	if s.pending[p.key] != p {
		return nil // the member's stream was faster
	}
	if p.err != nil {
		return p.err
	}
	if p.event == nil {
		return nil // deleted there too; the entry stays pending until the stream reports it
	}
	delete(s.pending, p.key)
	s.promoted[p.key] = p.event.ResourceVersion
	if p.event.Columns != nil {
		p.feed.columns, p.feed.row = p.event.Columns, nil
	}
	if err := s.deliver(p.feed, p.event); err != nil {
		return err
	}
	return s.endInitial()
}
