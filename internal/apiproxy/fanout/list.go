package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/tailplane/tailplane/internal/apiproxy/merge"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/position"
	"github.com/tailplane/tailplane/internal/apiproxy/merge/wire"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// The policies of a configuration for a member that is down.
const (
	readFail = "fail"
	readSkip = "skip"
)

// readPolicy returns the policy for a member that is down.
func readPolicy(v *Visit) string {
	if v.Decision.Spread == nil {
		return readFail
	}
	return v.Decision.Spread.Read
}

// down reports whether an error means that a member is unavailable. Errors about the request itself, such as
// forbidden, go to the client whatever the rule says.
func down(err error) bool {
	if s, ok := errors.AsType[*wire.Status](err); ok {
		return s.Code >= http.StatusInternalServerError && s.Cause != wire.CauseTooLarge || s.Code == http.StatusTooManyRequests
	}
	if f, ok := errors.AsType[*upstream.Failure](err); ok && f.Reason == upstream.Limited {
		return false // the adapter exceeded its own limit; the member is not down
	}
	return !errors.Is(err, merge.ErrForms) && !errors.Is(err, context.Canceled)
}

// fixed reports whether a list is at a position that only the members themselves can serve. No member may be
// left out of such a list.
func fixed(q position.Query) bool {
	at := q.RV != "" && q.RV != "0"
	return q.Continue != "" || q.Match == "Exact" || q.Limit > 0 && q.Match == "" && at
}

func (s *Server) list(w http.ResponseWriter, v *Visit, c *merge.Collection, q position.Query) error {
	if fixed(q) {
		c.Skip = nil
	}
	l, err := c.List(v.Out.Context(), q)
	if err != nil {
		return err
	}
	defer l.Close()
	begin := func(whole bool) {
		s.head(w, v, l.Form.MediaType(false), l.Left)
		if l.Dropped > 0 {
			w.Header().Add("Warning", warning(copies(l.Dropped, whole)))
		}
		w.WriteHeader(http.StatusOK)
	}
	if v.Out.Method == http.MethodHead {
		begin(true)
		return nil
	}
	out := &held{w: w, begin: begin}
	if _, err = l.WriteTo(out); err == nil {
		err = out.end(true)
	}
	switch {
	case err != nil && out.begun:
		s.Log.Warn("a merged list broke off", "resource", v.Request.Resource, "group", v.Request.Group, "err", err)
		panic(http.ErrAbortHandler) // a truncated list must never look complete
	case err != nil:
		if status, ok := errors.AsType[*wire.Status](err); ok {
			return status
		}
		return &wire.Status{Code: http.StatusServiceUnavailable, Reason: wire.ReasonUnavailable, RetryAfter: 1, Message: "mca: " + err.Error()}
	}
	if l.Dropped > 0 {
		s.Log.Debug("objects of one name are in several clusters; the first is shown", "resource", v.Request.Resource, "group", v.Request.Group, "count", l.Dropped)
	}
	return nil
}

// copies returns the warning about omitted copies. The final count of a long list is known only at its end,
// after the headers are sent.
func copies(n int, whole bool) string {
	if !whole {
		return fmt.Sprintf("objects are left out that have names which an earlier cluster has, too: at least %d", n)
	}
	return fmt.Sprintf("objects are left out that have names which an earlier cluster has, too: %d", n)
}

// maxHeld is how many bytes of a list are buffered. While the list fits, its headers can still have complete
// warnings, and a failure can still become an error response.
const maxHeld = 64 << 10

// held writes a list to a client. It buffers a short list until it is complete.
type held struct {
	w     http.ResponseWriter
	begin func(whole bool)
	buf   bytes.Buffer
	begun bool
}

// Write implements [io.Writer].
func (h *held) Write(b []byte) (int, error) {
	if !h.begun && h.buf.Len()+len(b) <= maxHeld {
		return h.buf.Write(b)
	}
	if err := h.end(false); err != nil {
		return 0, err
	}
	return h.w.Write(b)
}

// end writes the buffered bytes.
func (h *held) end(whole bool) error {
	if h.begun {
		return nil
	}
	h.begun = true
	h.begin(whole)
	_, err := h.w.Write(h.buf.Bytes())
	h.buf = bytes.Buffer{}
	return err
}
