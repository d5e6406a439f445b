package door

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// streamLife is how long a stream goes on without its permit being renewed: a grant
// that is taken away ends it within this time (PL-03).
const streamLife = 10 * time.Second

// writeStall is how long one write to a stream may take: who does not read is cut off.
const writeStall = 10 * time.Second

// A Stream is an answer that goes on. It is one visit with two entries in the
// record: when it begins, and when it ends.
type Stream struct {
	v       *visit
	cancel  context.CancelFunc
	control *http.ResponseController
	began   atomic.Bool

	mu    sync.Mutex // of the permit's end
	ended *time.Timer
}

var errNotRenewed = errors.New("the stream's permit was not renewed in time")

// ServeStream puts fn behind o for an answer that goes on until the context ends:
// when the client leaves, when the server stops, when [Stream.Renew] was not called
// for ten seconds or refused. What fn returns before [Stream.Begin] is answered like
// any other; after it, it only stands in the record.
func (o Op[Req, Resp]) ServeStream(fn func(context.Context, access.Permit, Req, *Stream) error) Route {
	return Route{o.Declare(), func(v *visit, p access.Permit) (any, error) {
		req, err := asked[Req](v)
		if err != nil {
			return nil, err
		}
		return nil, v.last(func(ctx context.Context, s *Stream) error { return fn(ctx, p, req, s) })
	}}
}

// ServeHandler puts a handler behind o that reads the request and answers by
// itself. The door renews the permit meanwhile, and ends the request's context when
// that is refused. Req and Resp only describe it.
func (o Op[Req, Resp]) ServeHandler(fn func(http.ResponseWriter, *http.Request, access.Permit)) Route {
	return Route{o.Declare(), func(v *visit, p access.Permit) (any, error) {
		return nil, v.last(func(ctx context.Context, s *Stream) error {
			s.began.Store(true) // nothing is answered but by fn
			ctx, stop := context.WithCancel(ctx)
			var keeping sync.WaitGroup
			keeping.Go(func() {
				tick := time.NewTicker(streamLife / 2)
				defer tick.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case <-tick.C:
						if _, err := s.Renew(); err != nil {
							s.cancel()
							return
						}
					}
				}
			})
			defer keeping.Wait()
			defer stop()
			fn(v.w, v.r.WithContext(ctx), p)
			return nil
		})
	}}
}

// last lets a visit last.
func (v *visit) last(serve func(context.Context, *Stream) error) error {
	release, err := v.limits.hold(v.caller)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancelCause(v.r.Context())
	defer cancel(nil)
	s := &Stream{v: v, control: http.NewResponseController(v.w), cancel: func() { cancel(errNotRenewed) }}
	s.ended = time.AfterFunc(streamLife, s.cancel)
	defer s.ended.Stop()
	defer context.AfterFunc(v.stopping, func() { cancel(nil) })()
	// The request has been read. Its deadline would end the stream.
	for _, unset := range []func(time.Time) error{s.control.SetReadDeadline, s.control.SetWriteDeadline} {
		if err := unset(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("stream: %w", err)
		}
	}
	v.stream = s
	began := v.door.Now()
	err = serve(ctx, s)
	v.waited = max(v.door.Now().Sub(began), 1)
	if s.began.Load() {
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		v.note("closed")
		return err
	}
	return stopped(ctx, err)
}

func (v *visit) note(stream string) {
	v.entry.Args = maps.Clone(v.entry.Args)
	if v.entry.Args == nil {
		v.entry.Args = map[string]string{}
	}
	v.entry.Args["stream"] = stream
}

// About tells the record which organisation the stream is about, before it begins, where
// the request does not say so.
func (s *Stream) About(org string) { s.v.entry.Org = org }

// Begin sends the head of the answer, and records that the stream is open. It
// returns an error if the record takes no entry and must.
func (s *Stream) Begin(contentType string, header http.Header) error {
	opened := s.v.entry
	s.v.note("opened")
	opened.Args = s.v.entry.Args
	opened.Conclude(nil)
	if err := s.v.openEntry(opened); err != nil {
		return err
	}
	h := s.v.w.Header()
	maps.Copy(h, header)
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Request-Id", s.v.entry.RequestID)
	s.began.Store(true)
	s.v.w.WriteHeader(http.StatusOK)
	return s.control.Flush()
}

// Write sends p at once. Who does not take it for ten seconds is cut off.
func (s *Stream) Write(p []byte) (int, error) {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeStall)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	n, err := s.v.w.Write(p)
	if err == nil {
		err = s.control.Flush()
	}
	return n, err
}

// Renew identifies the caller and decides once more, and returns the permit of now.
// It is to be called at least every ten seconds. A refusal ends the stream.
func (s *Stream) Renew() (access.Permit, error) {
	p, err := s.v.renewed()
	if err != nil {
		return access.Permit{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.Stop() {
		s.ended.Reset(streamLife)
	}
	return p, nil
}
