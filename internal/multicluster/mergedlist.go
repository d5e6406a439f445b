package multicluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/multicluster/merge"
)

// The policies of a configuration for a member that is down.
const (
	readFail = "fail"
	readSkip = "skip"
)

// readPolicy returns the policy for a member that is down.
func readPolicy(v *request) string {
	if v.decision.Spread == nil {
		return readFail
	}
	return v.decision.Spread.Read
}

// isUnavailable reports whether an error means that a member is unavailable. Errors about the request itself, such as
// forbidden, go to the client whatever the rule says.
func isUnavailable(err error) bool {
	if s, ok := errors.AsType[*codec.Status](err); ok {
		return s.Code >= http.StatusInternalServerError && s.Cause != codec.CauseTooLarge || s.Code == http.StatusTooManyRequests
	}
	if f, ok := errors.AsType[*apiproxy.UpstreamError](err); ok && f.Reason == apiproxy.FailedLimit {
		return false // the adapter exceeded its own limit; the member is not down
	}
	return !errors.Is(err, merge.ErrMixedFormats) && !errors.Is(err, context.Canceled)
}

// hasFixedPosition reports whether a list is at a position that only the members themselves can serve. No member may be
// left out of such a list.
func hasFixedPosition(q merge.Query) bool {
	anchorCluster := q.RV != "" && q.RV != "0"
	return q.Continue != "" || q.Match == "Exact" || q.Limit > 0 && q.Match == "" && anchorCluster
}

func (s *Router) serveList(v *request, c *merge.Collection, q merge.Query) error {
	if hasFixedPosition(q) {
		c.Skip = nil
	}
	l, err := c.List(v.Out.Context(), q)
	if err != nil {
		return err
	}
	defer l.Close()
	begin := func(whole bool) {
		s.writeMergedHeaders(v, l.Format.MediaType(false), l.Skipped)
		if l.Dropped > 0 {
			v.W.Header().Add("Warning", warningHeader(droppedWarning(l.Dropped, whole)))
		}
		v.W.WriteHeader(http.StatusOK)
	}
	if v.Out.Method == http.MethodHead {
		begin(true)
		return nil
	}
	out := &bufferedList{w: v.W, begin: begin}
	if _, err = l.WriteTo(out); err == nil {
		err = out.flush(true)
	}
	switch {
	case err != nil && out.begun:
		s.Log.Warn("a merged list was interrupted", "resource", v.Request.Resource, "group", v.Request.Group, "err", err)
		panic(http.ErrAbortHandler) // a truncated list must never look complete
	case err != nil:
		if status, ok := errors.AsType[*codec.Status](err); ok {
			return status
		}
		return &codec.Status{
			Code:       http.StatusServiceUnavailable,
			Reason:     codec.ReasonUnavailable,
			RetryAfter: 1,
			Message:    "mca: " + err.Error(),
		}
	}
	if l.Dropped > 0 {
		s.Log.Debug(
			"several clusters have objects with the same name; the list shows the first",
			"resource",
			v.Request.Resource,
			"group",
			v.Request.Group,
			"count",
			l.Dropped,
		)
	}
	return nil
}

// droppedWarning returns the warning about omitted copies. The final count of a long list is known only at its end,
// after the headers are sent.
func droppedWarning(n int, whole bool) string {
	if !whole {
		return fmt.Sprintf("objects with a name that an earlier cluster also has are left out: at least %d", n)
	}
	return fmt.Sprintf("objects with a name that an earlier cluster also has are left out: %d", n)
}

// maxBufferedList is how many bytes of a list are buffered. While the list fits, its headers can still have complete
// warnings, and a failure can still become an error response.
const maxBufferedList = 64 << 10

// bufferedList writes a list to a client. It buffers a short list until it is complete.
type bufferedList struct {
	w     http.ResponseWriter
	begin func(whole bool)
	buf   bytes.Buffer
	begun bool
}

// Write implements [io.Writer].
func (h *bufferedList) Write(b []byte) (int, error) {
	if !h.begun && h.buf.Len()+len(b) <= maxBufferedList {
		return h.buf.Write(b)
	}
	if err := h.flush(false); err != nil {
		return 0, err
	}
	return h.w.Write(b)
}

// flush writes the buffered bytes.
func (h *bufferedList) flush(whole bool) error {
	if h.begun {
		return nil
	}
	h.begun = true
	h.begin(whole)
	_, err := h.w.Write(h.buf.Bytes())
	h.buf = bytes.Buffer{}
	return err
}
