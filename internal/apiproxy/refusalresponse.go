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
func (x *Exchange) writeRefusal(err error) {
	r, ok := err.(*Refusal)
	if !ok {
		x.result.Err = err
		r = NewRefusal(http.StatusInternalServerError, "internal error")
	} else if x.result.Err == nil {
		x.result.Err = r
	}
	s := codec.Status{
		Message:    "mca: " + r.Message,
		Reason:     r.Reason,
		Code:       r.Status,
		RetryAfter: int((r.RetryAfter + time.Second - 1) / time.Second),
	}
	if x.Request != nil && !x.Request.NonResource {
		s.Name, s.Group, s.Resource = x.Request.Name, x.Request.Group, x.Request.Resource
	}
	h := x.W.Header()
	form := codec.Format{Proto: PrefersProtobuf(x.In.Header["Accept"])}
	body := s.Append(nil, form.Proto)
	h.Set("Content-Type", form.MediaType(false))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-cache, private")
	h.Set("X-Content-Type-Options", "nosniff")
	if s.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(s.RetryAfter))
	}
	x.result.Reason, x.result.Message = r.Reason, r.Message
	x.W.WriteHeader(r.Status)
	x.W.Write(body) // a client that disconnected needs no response
}

const mediaTypeProtobuf = "application/vnd.kubernetes.protobuf"

// PrefersProtobuf reports whether Accept prefers protobuf to JSON. The first of the two wins, unless the
// other has a greater weight.
func PrefersProtobuf(headers []string) bool {
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
