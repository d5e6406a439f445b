package merge

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// Watch is a merged watch whose members have responded.
type Watch struct {
	// Format is the encoding of the events, which is that of the members.
	Format codec.Format
	// Skipped lists the members that are left out because Skip allowed it. They join when they are available
	// again.
	Skipped []Member

	// Timeout ends the stream cleanly after this time; 0: no limit.
	Timeout time.Duration
	// Drain and Moved end the stream cleanly when one of them is closed.
	Drain, Moved <-chan struct{}
	// OnMemberState is called with the error when a member's stream ends, and with nil when it is open again; nil:
	// not called.
	OnMemberState func(m Member, err error)
	// OnEvents is called with the number of events that a member sent. OnBookmark is called for each bookmark to the
	// client. OnExpired is called with the member whose 410 ends the stream. Each may be nil.
	OnEvents   func(m Member, events int)
	OnBookmark func(why apiproxy.BookmarkReason)
	OnExpired  func(m Member)

	c         *Collection
	q         Query
	vector    Vector
	feeds     []*feed
	names     *nameSet
	expired   *codec.Status
	expiredBy *Member // the member that sent it; nil: the position itself has expired
}

// Sink receives events. Each call of Event passes one event without framing. Flush is called when no other
// event is ready.
type Sink interface {
	Event(payload []byte) error
	Flush() error
}

// FrameWriter is a Sink that writes events as an HTTP response body.
type FrameWriter struct {
	Out   io.Writer
	Proto bool
	// FlushFunc flushes the written bytes, such as the Flush of an http.ResponseController.
	FlushFunc func() error
	// Buffers is the pool for the write buffer; nil: the sink allocates its own.
	Buffers *codec.BufferPool

	buf []byte
}

// flushAt is how many bytes are collected before a write.
const flushAt = 16 << 10

// Event implements [Sink].
func (f *FrameWriter) Event(payload []byte) error {
	if f.buf == nil {
		f.buf = f.Buffers.Get()[:0]
	}
	f.buf = codec.AppendFrame(f.buf, payload, f.Proto)
	if len(f.buf) < flushAt {
		return nil
	}
	return f.write()
}

func (f *FrameWriter) write() error {
	_, err := f.Out.Write(f.buf)
	f.buf = f.buf[:0]
	return err
}

// Flush implements [Sink].
func (f *FrameWriter) Flush() error {
	if len(f.buf) > 0 {
		if err := f.write(); err != nil {
			return err
		}
	}
	f.Buffers.Release(f.buf)
	f.buf = nil
	return f.FlushFunc()
}

// Watch opens the watches of all members. It waits until each one has responded or 10 seconds have passed.
// Its error is for the client instead of a stream, as that of [Collection.List]. An expired position is not
// an error here. Run reports it within the stream in the form that the client prefers, because some clients
// retry an HTTP error endlessly. If Watch returns no error, the caller must call Run or Close.
func (c *Collection) Watch(ctx context.Context, q Query, prefers codec.Format) (*Watch, error) {
	w := &Watch{c: c, q: q, Format: prefers}
	plan, refusal := c.planner().Plan(q)
	if refusal != nil {
		if refusal.Code != 410 {
			return nil, refusal
		}
		w.expired = refusal
		return w, nil
	}
	if plan.Verbatim {
		return nil, c.relayError(ctx, plan.Requests[0])
	}
	w.vector = plan.Vector
	err := w.open(ctx, plan.Requests)
	if err == nil {
		err = w.loadNames(ctx)
	}
	if s, ok := errors.AsType[*codec.Status](err); ok && s.Code == 410 {
		w.expired, err = s, nil
		w.expiredBy = c.failedMember(s)
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (w *Watch) open(ctx context.Context, requests []MemberRequest) error {
	open := *w.c
	open.Fetch = w.c.openStream
	if w.q.wantsInitial() {
		open.Fetch = w.c.fetchStream // a 422 is for the client, which then falls back to list and watch
	}
	responses, skipped, err := open.fetchAll(ctx, requests)
	if err != nil {
		return err
	}
	w.Skipped, w.Format = skipped, responses[0].body.Format
	for i, a := range requests {
		f := &feed{c: w.c, format: w.Format, member: w.c.member(a.Slot), index: i, request: a, reply: make(chan MemberRequest)}
		f.initial = a.isInitial()
		for _, response := range responses {
			if response.request.Slot == a.Slot {
				f.body = response.body
			}
		}
		if f.body == nil && !f.initial {
			if w.c.Spread && len(requests) > 1 {
				closeAll(responses)
				return clientError(f.member, expiredStatus("its names cannot be fetched, so the collection must be read again without it"))
			}
			f.request = requestAt(a.Slot, w.vector.At(a.Slot))
			f.initial = f.request.isInitial()
		}
		f.awaited = f.body != nil && f.initial && w.q.wantsInitial()
		w.feeds = append(w.feeds, f)
	}
	return nil
}

// loadNames reads the names that members have, if some of them resume from a position. Their streams do not show
// which names already occur twice.
func (w *Watch) loadNames(ctx context.Context) error {
	if !w.c.Spread || len(w.feeds) < 2 {
		return nil
	}
	w.names = newNameSet()
	var requests []MemberRequest
	for _, f := range w.feeds {
		if !f.initial {
			requests = append(requests, MemberRequest{Slot: f.member.Slot})
		}
	}
	if len(requests) == 0 {
		return nil
	}
	return w.c.loadNames(ctx, w.names, requests)
}

// Close ends a Watch that has not been run.
func (w *Watch) Close() error {
	for _, f := range w.feeds {
		if f.body != nil {
			f.body.Close()
		}
	}
	return nil
}

// fetchStream sends a request to a member, which has startTimeout to start its response and unlimited time to
// stream.
func (c *Collection) fetchStream(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
	body, end, err := StartInTime(ctx, func(ctx context.Context) (*Body, error) { return c.Fetch(ctx, m, a) })
	if err != nil {
		return nil, err
	}
	return &Body{CloseWith(body.ReadCloser, end), body.Format}, nil
}
