package forge

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// A Class says what a failure means for what is done next. It is found from what
// came over the wire, never from a text that is for people.
type Class string

// The classes.
const (
	Refused     Class = "Refused"     // 401: the credential is not good, or no longer
	Forbidden   Class = "Forbidden"   // 403: the credential may not do that
	NotFound    Class = "NotFound"    // 404, 410: it is not there, or not for this credential
	Conflict    Class = "Conflict"    // 409, 412: what was asked for goes by something that has changed
	Invalid     Class = "Invalid"     // 400, 422 and the like: understood, and it will not
	RateLimited Class = "RateLimited" // 429, and GitHub's 403 for the same
	Unavailable Class = "Unavailable" // 5xx, a time-out, no connection, an answer that nobody can read, or half of one
)

// An Error is why a forge did not do what was asked. It holds no secret: neither
// in what it prints nor in what it has.
type Error struct {
	Op     string // what was asked, such as "list runners"
	Class  Class
	Status int // 0: there was no answer
	// RetryAfter is how long to wait before the next try. 0: nothing was said.
	RetryAfter time.Duration
	// Message is what the forge said, or what is wrong with its answer, made
	// printable and short. It is for people.
	Message string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op + ": ")
	switch {
	case e.Status >= 400:
		fmt.Fprintf(&b, "%d %s", e.Status, http.StatusText(e.Status))
	case e.Class == RateLimited && e.Status == 0:
		b.WriteString("not asked, the forge wants a pause")
	case e.Status == 0 && (e.Class == Unavailable || e.Message == ""):
		b.WriteString("no answer")
	case e.Status == 0:
		b.WriteString(string(e.Class))
	default:
		fmt.Fprintf(&b, "an answer of no use (%d)", e.Status)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// ClassOf returns the class of an error: none for nil, and Unavailable for what is
// no *[Error], such as the end of a context, since it says nothing about the forge.
func ClassOf(err error) Class {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return Unavailable
}

// classOfStatus is the class of a status that is no success. What is below 400 and yet
// failed could not be read.
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

// gone takes for success that something is not there any more.
func gone(err error) error {
	if ClassOf(err) == NotFound {
		return nil
	}
	return err
}
