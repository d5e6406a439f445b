package multicluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/multicluster/merge"
)

// The duration of a watch without timeoutSeconds is random between these limits.
const (
	minWatchTime = 30 * time.Minute
	maxWatchTime = 60 * time.Minute
)

func (s *Router) serveWatch(v *request, c *merge.Collection, q merge.Query, f acceptedFormat) error {
	watch, err := c.Watch(v.Out.Context(), q, f.Format)
	if err != nil {
		return err
	}
	watch.Timeout = minWatchTime + rand.N(maxWatchTime-minWatchTime)
	if p := v.Request.Params.TimeoutSeconds; p != nil && *p > 0 {
		watch.Timeout = time.Duration(*p) * time.Second
	}
	watch.Drain, watch.Moved = v.Stopping(), v.replaced
	down := map[int]func(){} // by slot: ends the count of a member that is down
	defer func() {
		for _, back := range down {
			back()
		}
	}()
	watch.OnMemberState = func(m merge.Member, err error) {
		switch back := down[m.Slot]; {
		case err != nil && back == nil:
			down[m.Slot] = s.Metrics.MemberDown(m.Name)
		case err == nil && back != nil:
			delete(down, m.Slot)
			back()
		}
	}
	watch.OnEvents = func(m merge.Member, events int) { s.Metrics.WatchEvents(m.Name, events) }
	watch.OnBookmark = s.Metrics.BookmarkSent
	by := ""
	watch.OnExpired = func(m merge.Member) { by = m.Name }
	s.writeMergedHeaders(v, watch.Format.MediaType(true), watch.Skipped)
	sink, ctx, err := v.startStream(watch.Format, &s.buffers)
	if err != nil {
		watch.Close()
		return err
	}
	err = watch.Run(ctx, sink)
	if _, ok := errors.AsType[*codec.Status](err); ok || err == nil {
		if ok {
			s.countExpired(v, by)
		}
		return nil
	}
	if ctx.Err() == nil {
		s.Log.Info("a merged watch ended", "resource", v.Request.Resource, "group", v.Request.Group, "err", fmt.Sprint(err))
	}
	panic(http.ErrAbortHandler)
}

// startStream starts a stream of events: HTTP frames, or messages if the client requested a WebSocket. The returned
// context ends when the client disconnects.
func (v *request) startStream(f codec.Format, from *codec.BufferPool) (merge.Sink, context.Context, error) {
	messages, ctx, err := v.Watch()
	switch {
	case err != nil:
		return nil, nil, err
	case messages != nil:
		return &webSocketSink{messages, !f.Proto}, ctx, nil
	}
	return &merge.FrameWriter{Out: v.W, Proto: f.Proto, FlushFunc: http.NewResponseController(v.W).Flush, Buffers: from}, ctx, nil
}

// webSocketSink sends each event as a message.
type webSocketSink struct {
	apiproxy.MessageWriter
	text bool
}

// Event implements [merge.Sink].
func (s *webSocketSink) Event(payload []byte) error { return s.Send(payload, s.text) }

// countExpired counts a watch that ended with 410, because of a member or because of the client's position.
func (s *Router) countExpired(v *request, member string) {
	rv, bad := merge.ParseResourceVersion(v.Request.Params.ResourceVersion)
	switch {
	case member != "":
		s.Metrics.WatchExpired(member, apiproxy.ExpiredMember)
	case bad != nil || rv.Vector == nil:
		s.Metrics.WatchExpired(apiproxy.MergedLabel, apiproxy.ExpiredPlain)
	case rv.Vector.Epoch < v.planner().Epoch:
		s.Metrics.WatchExpired(apiproxy.MergedLabel, apiproxy.ExpiredEpoch)
	default:
		s.Metrics.WatchExpired(apiproxy.MergedLabel, apiproxy.ExpiredMoved)
	}
}
