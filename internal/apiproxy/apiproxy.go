// Package apiproxy decides for the Kubernetes API of a pod which cluster serves
// a request: what is asked for, where it goes, who has an object, where a new
// one is made. It keeps law 7: what it cannot read exactly as Kubernetes would,
// or cannot place for certain, is refused and never guessed.
//
// Everything here is pure: bytes and values in, values out, with no I/O and no
// clock.
package apiproxy

import (
	"fmt"
	"net/http"
	"time"
)

// A Refusal is an answer that the adapter gives itself. It has the parts of a
// Kubernetes Status; who serves it writes it in the encoding that was asked for.
type Refusal struct {
	Status     int           // of HTTP
	Reason     string        // a StatusReason of Kubernetes, such as "BadRequest"
	Message    string        // without the "mca: " before it
	RetryAfter time.Duration // 0: no Retry-After
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

func refuse(status int, format string, args ...any) *Refusal {
	return &Refusal{Status: status, Reason: reasons[status], Message: fmt.Sprintf(format, args...)}
}

func bad(format string, args ...any) *Refusal { return refuse(http.StatusBadRequest, format, args...) }

// reasons are what Kubernetes calls the statuses that a Refusal carries. 409 is
// AlreadyExists or Conflict, which whoever makes the refusal says.
var reasons = map[int]string{
	http.StatusBadRequest:            "BadRequest",
	http.StatusForbidden:             "Forbidden",
	http.StatusNotFound:              "NotFound",
	http.StatusMethodNotAllowed:      "MethodNotAllowed",
	http.StatusConflict:              "Conflict",
	http.StatusRequestEntityTooLarge: "RequestEntityTooLarge",
	http.StatusUnsupportedMediaType:  "UnsupportedMediaType",
	http.StatusUnprocessableEntity:   "Invalid",
	http.StatusServiceUnavailable:    "ServiceUnavailable",
}
