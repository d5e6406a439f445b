package serving

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// status is metav1.Status, as far as a refusal needs it.
type status struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   struct{} `json:"metadata"`
	Status     string   `json:"status"`
	Message    string   `json:"message"`
	Reason     string   `json:"reason,omitempty"`
	Details    *details `json:"details,omitempty"`
	Code       int      `json:"code"`
}

type details struct {
	Name              string `json:"name,omitempty"`
	Group             string `json:"group,omitempty"`
	Kind              string `json:"kind,omitempty"` // by which Kubernetes means the resource
	RetryAfterSeconds int    `json:"retryAfterSeconds,omitempty"`
}

// refuse answers with a Status in the encoding that the client reads. What is no
// refusal is told as an internal error, and is in the log.
func (v *visit) refuse(err error) {
	r, ok := err.(*apiproxy.Refusal)
	if !ok {
		v.err = err
		r = refusal(http.StatusInternalServerError, "InternalError", "internal error")
	} else if v.err == nil {
		v.err = r
	}
	s := status{Kind: "Status", APIVersion: "v1", Status: "Failure", Message: "mca: " + r.Message, Reason: r.Reason, Code: r.Status}
	d := details{RetryAfterSeconds: int((r.RetryAfter + time.Second - 1) / time.Second)}
	if v.parsed && !v.req.NonResource {
		d.Name, d.Group, d.Kind = v.req.Name, v.req.Group, v.req.Resource
	}
	if d != (details{}) {
		s.Details = &d
	}
	h := v.w.Header()
	body, contentType := s.encode(v.r.Header["Accept"])
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-cache, private")
	h.Set("X-Content-Type-Options", "nosniff")
	if d.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(d.RetryAfterSeconds))
	}
	v.code, v.reason, v.message = r.Status, r.Reason, r.Message
	v.w.WriteHeader(r.Status)
	if n, err := v.w.Write(body); err == nil {
		v.bytes = int64(n)
	}
}

const protobufType = "application/vnd.kubernetes.protobuf"

// encode returns s in JSON, or in protobuf if the client prefers it.
func (s *status) encode(accept []string) ([]byte, string) {
	if prefersProtobuf(accept) {
		return s.protobuf(), protobufType
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b, "application/json"
}

// prefersProtobuf reads Accept: the first of the two encodings that it names
// wins, unless the other has the greater weight.
func prefersProtobuf(accept []string) bool {
	best, protobuf := -1.0, false
	for _, v := range accept {
		for clause := range strings.SplitSeq(v, ",") {
			kind, params, _ := strings.Cut(clause, ";")
			kind = strings.ToLower(strings.TrimSpace(kind))
			if kind != protobufType && kind != "application/json" && kind != "*/*" && kind != "application/*" {
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
				best, protobuf = weight, kind == protobufType
			}
		}
	}
	return protobuf
}

// protobuf returns the envelope of Kubernetes: four bytes of magic and an
// Unknown with the type and the message.
func (s *status) protobuf() []byte {
	var d []byte
	if s.Details != nil {
		d = text(d, 1, s.Details.Name)
		d = text(d, 2, s.Details.Group)
		d = text(d, 3, s.Details.Kind)
		d = number(d, 5, s.Details.RetryAfterSeconds)
	}
	var m []byte
	m = text(m, 1, "") // metadata, which is empty
	m = text(m, 2, s.Status)
	m = text(m, 3, s.Message)
	m = text(m, 4, s.Reason)
	if s.Details != nil {
		m = text(m, 5, string(d))
	}
	m = number(m, 6, s.Code)
	var kind []byte
	kind = text(kind, 1, s.APIVersion)
	kind = text(kind, 2, s.Kind)
	out := []byte("k8s\x00")
	out = text(out, 1, string(kind))
	out = text(out, 2, string(m))
	out = text(out, 3, "")
	return text(out, 4, "")
}

func text(b []byte, field protowire.Number, s string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), s)
}

func number(b []byte, field protowire.Number, n int) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), uint64(n))
}
