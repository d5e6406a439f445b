// Package problem is an error that may leave the house: a code for machines, a
// sentence for people and what to try next. It keeps the law that every other
// error is "internal error" outside and complete in the log.
package problem

import (
	"errors"
	"fmt"
	"time"
)

// An Error is a refusal or failure that is safe to show to the caller: it names
// no secret, no file, no stack and nobody else's data.
//
// Its JSON form is the one that clients of the sign-in API show to people:
// message and advice.
type Error struct {
	Code    Code     `json:"code"`
	Message string   `json:"message"`
	Advice  []string `json:"advice"`
	// AuditID names the one audit entry of the visit; the door fills it in.
	AuditID string `json:"auditId,omitempty"`
	// Choices is what the caller could have asked for by name, when there was more than one.
	Choices []Choice `json:"choices,omitempty"`
	// Field is the field or parameter that is wrong.
	Field string `json:"field,omitempty"`
	// Needed is what a role would have to allow, and Have the roles that there are,
	// such as "operator@acme".
	Needed *Need    `json:"needed,omitempty"`
	Have   []string `json:"have,omitempty"`
	// Seen is as whom a caller came who has no role.
	Seen *Seen `json:"seen,omitempty"`
	// Confirm is how what was asked for is confirmed, when it goes that far.
	Confirm *Confirm `json:"confirm,omitempty"`
	// State is the state of the sign-in asked about, when the answer is "not yet".
	State string `json:"state,omitempty"`
	// RetryAfter asks the caller to come back no sooner than this; it is sent
	// as the Retry-After header in whole seconds.
	RetryAfter time.Duration `json:"-"`

	cause error
}

// A Choice is one of several grants that a caller may choose between.
type Choice struct {
	Role       string   `json:"role"`
	Namespaces []string `json:"namespaces,omitempty"` // none: the whole cluster
	Period     string   `json:"period"`               // Go duration
}

// A Need is a verb, and the organisation it was asked for.
type Need struct {
	Verb string `json:"verb"`
	Org  string `json:"org,omitempty"` // "": it is asked for all of them
}

// A Seen is a caller as the tailnet names him.
type Seen struct {
	Login string `json:"login"` // "": a node that is nobody's
	Node  string `json:"node"`
	Via   string `json:"via"`
}

// A Confirm is how something that goes far is confirmed: by asking once more with
// the phrase, or with the code that a person gets at a page.
type Confirm struct {
	Phrase  string    `json:"phrase,omitempty"`  // to send as "confirm"
	ID      string    `json:"id,omitempty"`      // of what a person is to confirm
	Path    string    `json:"path,omitempty"`    // of the page where, on the dashboard
	Targets *int      `json:"targets,omitempty"` // how many it is about; nil: not known
	Until   time.Time `json:"until"`
}

// New returns an Error. The message and the advice are shown to the caller.
func New(code Code, message string, advice ...string) *Error {
	return &Error{Code: code, Message: message, Advice: advice}
}

// Because returns a copy of e with an internal cause, which goes to the log only.
func (e *Error) Because(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// After returns a copy of e that asks the caller to wait for d.
func (e *Error) After(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// Error returns the sentence that the caller sees.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the internal cause, which no caller sees.
func (e *Error) Unwrap() error { return e.cause }

// Cause returns the internal cause, for the log.
func (e *Error) Cause() error { return e.cause }

// From returns the problem that err is, or the problem "internal error" with
// err as its cause. It returns nil for a nil err.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return New(Internal, "internal error",
		"Try again; if it stays, give the audit id to whoever runs this server.").Because(err)
}

// CodeOf returns err's code, "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}

// Plural is "1 rule" or "3 rules": counts in sentences for people.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
