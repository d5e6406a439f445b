package fanout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/merge"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
)

// The duration of a watch without timeoutSeconds is random between these limits.
const (
	shortestWatch = 30 * time.Minute
	longestWatch  = 60 * time.Minute
)

func (s *Server) watch(w http.ResponseWriter, v *Visit, c *merge.Collection, q position.Query, f form) error {
	ctx := v.Out.Context()
	watch, err := c.Watch(ctx, q, f.Form)
	if err != nil {
		return err
	}
	watch.Timeout = shortestWatch + rand.N(longestWatch-shortestWatch)
	if p := v.Request.Params.TimeoutSeconds; p != nil && *p > 0 {
		watch.Timeout = time.Duration(*p) * time.Second
	}
	watch.Drain, watch.Moved = s.Stopping, v.ended
	down := map[int]func(){} // by slot: ends the count of a member that is down
	defer func() {
		for _, back := range down {
			back()
		}
	}()
	watch.Report = func(m merge.Member, err error) {
		switch back := down[m.Slot]; {
		case err != nil && back == nil:
			down[m.Slot] = s.Metrics.MemberDown(m.Name)
		case err == nil && back != nil:
			delete(down, m.Slot)
			back()
		}
	}
	watch.Took = func(m merge.Member, events int) { s.Metrics.WatchEvents(m.Name, events) }
	watch.Marked = func(why merge.Why) { s.Metrics.BookmarkSent(observe.Bookmark(why)) }
	by := ""
	watch.Expired = func(m merge.Member) { by = m.Name }
	s.head(w, v, watch.Form.MediaType(true), watch.Left)
	sink, ctx, err := begin(ctx, w, watch.Form, &s.buffers)
	if err != nil {
		watch.Close()
		return err
	}
	err = watch.Run(ctx, sink)
	if _, told := errors.AsType[*wire.Status](err); told || err == nil {
		if told {
			s.expired(v, by)
		}
		return nil
	}
	if ctx.Err() == nil {
		s.Log.Info("a merged watch ended", "resource", v.Request.Resource, "group", v.Request.Group, "err", fmt.Sprint(err))
	}
	panic(http.ErrAbortHandler)
}

// begin starts a stream of events: HTTP frames, or messages if the client requested a WebSocket. The returned
// context ends when the client disconnects.
func begin(ctx context.Context, w http.ResponseWriter, f wire.Form, from *wire.Buffers) (merge.Sink, context.Context, error) {
	if to, ok := w.(serving.Switch); ok {
		messages, ctx, err := to.Switch()
		return &socketed{messages, !f.Proto}, ctx, err
	}
	w.WriteHeader(http.StatusOK)
	return &merge.Framed{Out: w, Proto: f.Proto, Push: http.NewResponseController(w).Flush, Buffers: from}, ctx, nil
}

// socketed sends each event as a message.
type socketed struct {
	serving.Messages
	text bool
}

// Event implements [merge.Sink].
func (s *socketed) Event(payload []byte) error { return s.Send(payload, s.text) }

// expired counts a watch that ended with 410, because of a member or because of the client's position.
func (s *Server) expired(v *Visit, member string) {
	rv, bad := position.ParseRV(v.Request.Params.ResourceVersion)
	switch {
	case member != "":
		s.Metrics.WatchExpired(member, observe.ExpiredMember)
	case bad != nil || rv.Vector == nil:
		s.Metrics.WatchExpired(observe.Merged, observe.ExpiredPlain)
	case rv.Vector.Epoch < v.place().Epoch:
		s.Metrics.WatchExpired(observe.Merged, observe.ExpiredEpoch)
	default:
		s.Metrics.WatchExpired(observe.Merged, observe.ExpiredMoved)
	}
}
