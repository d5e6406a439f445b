package apiproxy

import (
	"net/http"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/util/accept"
)

// writeRefusal answers with a Status in the encoding that the client prefers. An error that is not a Refusal
// becomes an internal error, with its text only in the log.
func (v *exchange) writeRefusal(err error) {
	r, ok := err.(*Refusal)
	if !ok {
		v.err = err
		r = refusalWithReason(http.StatusInternalServerError, "InternalError", "internal error")
	} else if v.err == nil {
		v.err = r
	}
	s := codec.Status{Message: "mca: " + r.Message, Reason: r.Reason, Code: r.Status, RetryAfter: int((r.RetryAfter + time.Second - 1) / time.Second)}
	if v.parsed && !v.req.NonResource {
		s.Name, s.Group, s.Resource = v.req.Name, v.req.Group, v.req.Resource
	}
	h := v.w.Header()
	form := codec.Format{Proto: prefersProtobuf(v.r.Header["Accept"])}
	body := s.Append(nil, form.Proto)
	h.Set("Content-Type", form.MediaType(false))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-cache, private")
	h.Set("X-Content-Type-Options", "nosniff")
	if s.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(s.RetryAfter))
	}
	v.code, v.reason, v.message = r.Status, r.Reason, r.Message
	v.w.WriteHeader(r.Status)
	if n, err := v.w.Write(body); err == nil {
		v.bytes = int64(n)
	}
}

const mediaTypeProtobuf = "application/vnd.kubernetes.protobuf"

// prefersProtobuf reports whether Accept prefers protobuf to JSON. The first of the two wins, unless the
// other has a greater weight.
func prefersProtobuf(headers []string) bool {
	best, protobuf := -1.0, false
	for r := range accept.Ranges(headers...) {
		if r.Media != mediaTypeProtobuf && r.Media != "application/json" && r.Media != "*/*" && r.Media != "application/*" {
			continue
		}
		weight, ok := r.Quality()
		if !ok {
			weight = 1
		}
		if weight > best && weight > 0 {
			best, protobuf = weight, r.Media == mediaTypeProtobuf
		}
	}
	return protobuf
}
