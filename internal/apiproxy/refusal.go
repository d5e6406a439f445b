package apiproxy

import (
	"fmt"
	"net/http"
	"time"
)

// Refusal is an error response that the adapter itself produces. It has the parts of a Kubernetes Status. The
// HTTP layer encodes it in the format that the client accepts.
type Refusal struct {
	Status     int           // HTTP status code
	Reason     string        // a Kubernetes StatusReason, such as "BadRequest"
	Message    string        // without the "mca: " prefix
	RetryAfter time.Duration // zero: no Retry-After header
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// NewRefusal returns the refusal with an HTTP status and its usual reason.
func NewRefusal(status int, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Reason: statusReasons[status], Message: fmt.Sprintf(format, args...)}
}

// NewBadRequest returns a refusal with status 400.
func NewBadRequest(format string, args ...any) *Refusal {
	return NewRefusal(http.StatusBadRequest, format, args...)
}

// ReasonOf returns the usual Kubernetes status reason of an HTTP status, or "".
func ReasonOf(status int) string { return statusReasons[status] }

// statusReasons maps the HTTP statuses of a Refusal to Kubernetes status reasons. Status 409 can mean AlreadyExists
// or Conflict, so code that needs AlreadyExists must set Reason itself.
var statusReasons = map[int]string{
	http.StatusBadRequest:            "BadRequest",
	http.StatusUnauthorized:          "Unauthorized",
	http.StatusForbidden:             "Forbidden",
	http.StatusNotFound:              "NotFound",
	http.StatusMethodNotAllowed:      "MethodNotAllowed",
	http.StatusNotAcceptable:         "NotAcceptable",
	http.StatusConflict:              "Conflict",
	http.StatusRequestEntityTooLarge: "RequestEntityTooLarge",
	http.StatusUnsupportedMediaType:  "UnsupportedMediaType",
	http.StatusMisdirectedRequest:    "MisdirectedRequest",
	http.StatusUnprocessableEntity:   "Invalid",
	http.StatusTooManyRequests:       "TooManyRequests",
	http.StatusInternalServerError:   "InternalError",
	http.StatusServiceUnavailable:    "ServiceUnavailable",
	http.StatusGatewayTimeout:        "Timeout",
}
