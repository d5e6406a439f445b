package codec

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Reasons that clients act on, in the spelling of Kubernetes.
const (
	ReasonBadRequest  = "BadRequest"
	ReasonExpired     = "Expired"
	ReasonTimeout     = "Timeout"
	ReasonUnavailable = "ServiceUnavailable"

	// CauseTooLarge is the cause of a 504 for a resourceVersion that is ahead of the server.
	CauseTooLarge = "ResourceVersionTooLarge"
)

// Status is an error of the Kubernetes API.
type Status struct {
	Code       int
	Reason     string
	Message    string
	Continue   string // the token to continue with, of a 410 for a page
	Cause      string // the reason of its first cause
	RetryAfter int    // seconds; 0: not given

	From string // the cluster that failed; for the adapter only, it is not written

	// Name, Group and Resource identify the object of the error; "" if not given.
	Name, Group, Resource string
}

func (s *Status) Error() string { return s.Message }

// statusJSONForm is the JSON form of a metav1.Status.
type statusJSONForm struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Metadata   struct {
		Continue string `json:"continue,omitempty"`
	} `json:"metadata"`
	Status  string         `json:"status"`
	Message string         `json:"message,omitempty"`
	Reason  string         `json:"reason,omitempty"`
	Details *statusDetails `json:"details,omitempty"`
	Code    int            `json:"code"`
}

type statusDetails struct {
	Name              string        `json:"name,omitempty"`
	Group             string        `json:"group,omitempty"`
	Kind              string        `json:"kind,omitempty"` // Kubernetes puts the resource here
	Causes            []statusCause `json:"causes,omitempty"`
	RetryAfterSeconds int           `json:"retryAfterSeconds,omitempty"`
}

type statusCause struct {
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Append appends the Status in JSON, or in protobuf with its envelope.
func (s *Status) Append(dst []byte, proto bool) []byte {
	if proto {
		return appendEnvelope(dst, "Status", "v1", s.message())
	}
	o := statusJSONForm{Kind: "Status", APIVersion: "v1", Status: "Failure", Message: s.Message, Reason: s.Reason, Code: s.Code}
	o.Metadata.Continue = s.Continue
	if s.hasDetails() {
		o.Details = &statusDetails{Name: s.Name, Group: s.Group, Kind: s.Resource, RetryAfterSeconds: s.RetryAfter}
		if s.Cause != "" {
			o.Details.Causes = []statusCause{{s.Cause, s.Message}}
		}
	}
	b, err := json.Marshal(o)
	if err != nil {
		panic("a Status of strings and numbers: " + err.Error())
	}
	return append(dst, b...)
}

func (s *Status) hasDetails() bool {
	return s.Name != "" || s.Group != "" || s.Resource != "" || s.Cause != "" || s.RetryAfter > 0
}

// message returns the protobuf message of a Status: metadata 1 (continue 3), status 2, message 3, reason 4,
// details 5 (name 1, group 2, kind 3, causes 4, retryAfterSeconds 5), code 6.
func (s *Status) message() (b []byte) {
	var meta []byte
	if s.Continue != "" {
		meta = appendText(nil, 3, s.Continue)
	}
	b = appendText(b, 1, meta)
	b = appendText(b, 2, "Failure")
	b = appendText(b, 3, s.Message)
	b = appendText(b, 4, s.Reason)
	if s.hasDetails() {
		d := appendText(appendText(appendText(nil, 1, s.Name), 2, s.Group), 3, s.Resource)
		if s.Cause != "" {
			d = appendText(d, 4, appendText(appendText(nil, 1, s.Cause), 2, s.Message))
		}
		d = protowire.AppendVarint(protowire.AppendTag(d, 5, protowire.VarintType), uint64(s.RetryAfter))
		b = appendText(b, 5, d)
	}
	return protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.VarintType), uint64(s.Code))
}

func appendText[T string | []byte](b []byte, num protowire.Number, v T) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(len(v)))
	return append(b, v...)
}

func appendEnvelope(dst []byte, kind, version string, message []byte) []byte {
	dst = append(dst, magic...)
	dst = appendText(dst, 1, appendText(appendText(nil, 1, version), 2, kind))
	dst = appendText(dst, 2, message)
	dst = appendText(dst, 3, "")
	return appendText(dst, 4, "")
}

// ParseStatus parses the body of a member's error response. If the body is not a Status, the result has only
// the code and a generic message.
func ParseStatus(body []byte, proto bool, code int) *Status {
	var s *Status
	if proto {
		var ev Event
		b, err := ev.envelope(body)
		if err != nil || string(ev.Kind) != "Status" {
			return &Status{Code: code, Message: fmt.Sprintf("HTTP %d", code)}
		}
		s = parseStatusProto(b)
	} else {
		s = parseStatusJSON(body)
	}
	s.Code = code
	if s.Message == "" {
		s.Message = fmt.Sprintf("HTTP %d", code)
	}
	return s
}

func parseStatusJSON(b []byte) *Status {
	var o statusJSONForm
	if err := json.Unmarshal(b, &o); err != nil || o.Kind != "Status" {
		return &Status{}
	}
	s := &Status{Code: o.Code, Reason: o.Reason, Message: o.Message, Continue: o.Metadata.Continue}
	if d := o.Details; d != nil {
		s.RetryAfter = d.RetryAfterSeconds
		if len(d.Causes) > 0 {
			s.Cause = d.Causes[0].Reason
		}
	}
	return s
}

func parseStatusProto(b []byte) *Status {
	s := &Status{}
	m := NewMessage(b) // the fields of a malformed Status that can be read are better than none
	for m.Next() {
		switch m.Num {
		case 1:
			var meta ListMeta
			_ = meta.parse(m.Value)
			s.Continue = meta.Continue
		case 3:
			s.Message = string(m.Value)
		case 4:
			s.Reason = string(m.Value)
		case 5:
			s.parseDetails(m.Value)
		case 6:
			s.Code = int(int32(m.N))
		}
	}
	return s
}

func (s *Status) parseDetails(b []byte) {
	m := NewMessage(b)
	for m.Next() {
		switch {
		case m.Num == 4 && s.Cause == "":
			for cause := NewMessage(m.Value); cause.Next(); {
				if cause.Num == 1 {
					s.Cause = string(cause.Value)
				}
			}
		case m.Num == 5:
			s.RetryAfter = int(int32(m.N))
		}
	}
}
