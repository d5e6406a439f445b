package httpapi

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
	"github.com/tailplane/tailplane/internal/audit"
)

// streamLife is how long a stream continues without a renewed permit. A revoked grant ends the
// stream within this time (PL-03).
const streamLife = 10 * time.Second

// writeStall is the time limit of one write to a stream. A client that does not read is
// disconnected.
const writeStall = 10 * time.Second

// A Stream is a response that continues over time. It is one request with two audit entries: one at
// the start and one at the end.
type Stream struct {
	request *request
	cancel  context.CancelFunc
	control *http.ResponseController
	began   atomic.Bool

	mu    sync.Mutex // guards ended
	ended *time.Timer
}

var errNotRenewed = errors.New("the permit of the stream was not renewed in time")

// EventForms describes the events of a stream for the API reference. Name is the name of the description. Data has a
// value for each event, by the event's name; only its type is used.
type EventForms struct {
	Name string
	Data map[string]any
}

// ServeStream returns a route that handles o with fn and streams the response until the context
// ends. The context ends when the client leaves, when the server stops, or when [Stream.Renew] did
// not succeed for ten seconds. An error of fn before [Stream.Begin] is sent as a normal response.
// After Begin it appears only in the audit log.
func (o Op[Req, Resp]) ServeStream(fn func(context.Context, access.Permit, Req, *Stream) error) Route {
	return Route{o.Declare(), func(v *request, p access.Permit) (any, error) {
		req, err := decodeRequest[Req](v)
		if err != nil {
			return nil, err
		}
		return nil, v.serveStream(func(ctx context.Context, s *Stream) error { return fn(ctx, p, req, s) })
	}}
}

// ServeHandler returns a route for a handler that reads the request and writes the response itself.
// The server renews the permit and cancels the request's context when the renewal fails. Req and
// Resp only describe the operation.
func (o Op[Req, Resp]) ServeHandler(fn func(http.ResponseWriter, *http.Request, access.Permit)) Route {
	return Route{o.Declare(), func(v *request, p access.Permit) (any, error) {
		return nil, v.serveStream(func(ctx context.Context, s *Stream) error {
			s.began.Store(true) // only fn writes a response
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

// serveStream runs a request that becomes a stream.
func (v *request) serveStream(serve func(context.Context, *Stream) error) error {
	release, err := v.limits.acquireWaiter(v.caller)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancelCause(v.r.Context())
	defer cancel(nil)
	s := &Stream{request: v, control: http.NewResponseController(v.w), cancel: func() { cancel(errNotRenewed) }}
	s.ended = time.AfterFunc(streamLife, s.cancel)
	defer s.ended.Stop()
	defer context.AfterFunc(v.stopping, func() { cancel(nil) })()
	// Remove the deadlines of the request, because they would end the stream.
	for _, unset := range []func(time.Time) error{s.control.SetReadDeadline, s.control.SetWriteDeadline} {
		if err := unset(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return fmt.Errorf("stream: %w", err)
		}
	}
	v.stream = s
	began := v.server.Now()
	err = serve(ctx, s)
	v.waited = max(v.server.Now().Sub(began), 1)
	if s.began.Load() {
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		v.setStreamState("closed")
		return err
	}
	return unavailableIfCanceled(ctx, err)
}

func (v *request) setStreamState(stream string) {
	v.entry.Args = withArg(v.entry.Args, "stream", stream)
}

// SetOrg sets the organisation of the stream for the audit log, if the request does not name it. It
// must be called before Begin.
func (s *Stream) SetOrg(org string) { s.request.entry.Org = org }

// Begin sends the response headers and writes the audit entry for the start. It returns an error if
// the entry is required and cannot be written.
func (s *Stream) Begin(contentType string, header http.Header) error {
	opened := s.request.entry
	s.request.setStreamState("opened")
	opened.Args = s.request.entry.Args
	opened.Conclude(nil)
	opened.Actor = audit.ActorOf(s.request.caller)
	if err := s.request.record(opened); err != nil && s.request.mustRecord() {
		return auditUnavailable()
	}
	h := s.request.w.Header()
	maps.Copy(h, header)
	h.Set("Content-Type", contentType)
	s.request.setCommonHeaders()
	s.began.Store(true)
	s.request.w.WriteHeader(http.StatusOK)
	return s.control.Flush()
}

// Write sends p at once. A client that does not accept it within ten seconds is disconnected.
func (s *Stream) Write(p []byte) (int, error) {
	if err := s.control.SetWriteDeadline(time.Now().Add(writeStall)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return 0, err
	}
	n, err := s.request.w.Write(p)
	if err == nil {
		err = s.control.Flush()
	}
	return n, err
}

// Renew identifies the caller, decides again, and returns the current permit. It must be called at
// least every ten seconds. After an error the stream ends within ten seconds.
func (s *Stream) Renew() (access.Permit, error) {
	p, err := s.request.renew()
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
