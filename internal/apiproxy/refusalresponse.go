package apiproxy

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// writeRefusal answers with a Status in the encoding that the client prefers. An error that is not a Refusal
// becomes an internal error, with its text only in the log.
func (x *Exchange) writeRefusal(err error) {
	r, ok := err.(*Refusal)
	if !ok {
		x.result.Err = err
		r = refusalWithReason(http.StatusInternalServerError, "InternalError", "internal error")
	} else if x.result.Err == nil {
		x.result.Err = r
	}
	s := codec.Status{Message: "mca: " + r.Message, Reason: r.Reason, Code: r.Status, RetryAfter: int((r.RetryAfter + time.Second - 1) / time.Second)}
	if x.Request != nil && !x.Request.NonResource {
		s.Name, s.Group, s.Resource = x.Request.Name, x.Request.Group, x.Request.Resource
	}
	h := x.W.Header()
	form := codec.Format{Proto: prefersProtobuf(x.In.Header["Accept"])}
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

// prefersProtobuf reports whether Accept prefers protobuf to JSON. The first of the two wins, unless the
// other has a greater weight.
func prefersProtobuf(accept []string) bool {
	best, protobuf := -1.0, false
	for _, v := range accept {
		for clause := range strings.SplitSeq(v, ",") {
			kind, params, _ := strings.Cut(clause, ";")
			kind = strings.ToLower(strings.TrimSpace(kind))
			if kind != mediaTypeProtobuf && kind != "application/json" && kind != "*/*" && kind != "application/*" {
				continue
			}
			weight := 1.0
			for p := range strings.SplitSeq(params, ";") {
				if q, ok := strings.CutPrefix(strings.TrimSpace(p), "q="); ok {
					if n, err := strconv.ParseFloat(q, 64); err == nil {
						weight = n
					}
				}
			}
			if weight > best && weight > 0 {
				best, protobuf = weight, kind == mediaTypeProtobuf
			}
		}
	}
	return protobuf
}
