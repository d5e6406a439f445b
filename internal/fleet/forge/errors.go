package forge

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A Class says what a failure means for the next step. It is derived from the response, never from
// a text for people.
type Class string

// The classes.
const (
	Refused     Class = "Refused"     // 401: the credential is not valid, or not any more
	Forbidden   Class = "Forbidden"   // 403: the credential lacks the permission
	NotFound    Class = "NotFound"    // 404, 410: not there, or not visible for this credential
	Conflict    Class = "Conflict"    // 409, 412: the request is based on a state that has changed
	Invalid     Class = "Invalid"     // 400, 422 and similar: the forge understood the request and refuses it
	RateLimited Class = "RateLimited" // 429, and GitHub's 403 for rate limits
	Unavailable Class = "Unavailable" // 5xx, timeout, no connection, or an unreadable or incomplete response
)

// An Error says why a forge did not perform an operation. It contains no secret, neither in its
// text nor in its fields.
type Error struct {
	Op     string // the operation, such as "list runners"
	Class  Class
	Status int // HTTP status; 0: no response
	// RetryAfter is the time to wait before the next try. 0: the forge gave no time.
	RetryAfter time.Duration
	// Message is the forge's message, or the problem with its response. It is printable, short and
	// meant for people.
	Message string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op + ": ")
	switch {
	case e.Status >= 400:
		fmt.Fprintf(&b, "%d %s", e.Status, http.StatusText(e.Status))
	case e.Class == RateLimited && e.Status == 0:
		b.WriteString("not sent, the forge's rate limit requires a pause")
	case e.Status == 0 && (e.Class == Unavailable || e.Message == ""):
		b.WriteString("no answer")
	case e.Status == 0:
		b.WriteString(string(e.Class))
	default:
		fmt.Fprintf(&b, "unusable response (%d)", e.Status)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// ClassOf returns the class of an error. It is empty for nil. It is Unavailable for any error that
// is not an *[Error], such as the end of a context, because such an error says nothing about the
// forge.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Unavailable
}

// classOfStatus returns the class of a failure status. A status below 400 means that the response
// could not be read.
func classOfStatus(status int) Class {
	switch {
	case status == http.StatusUnauthorized:
		return Refused
	case status == http.StatusForbidden:
		return Forbidden
	case status == http.StatusNotFound, status == http.StatusGone:
		return NotFound
	case status == http.StatusConflict, status == http.StatusPreconditionFailed:
		return Conflict
	case status == http.StatusTooManyRequests:
		return RateLimited
	case status == http.StatusRequestTimeout:
		return Unavailable
	case status >= 400 && status < 500:
		return Invalid
	}
	return Unavailable
}

// ignoreNotFound treats NotFound as success: the object does not exist any more.
func ignoreNotFound(err error) error {
	if ClassOf(err) == NotFound {
		return nil
	}
	return err
}
