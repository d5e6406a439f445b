// Package problem defines errors that may be shown to callers: a code for machines, a message for
// people, and advice. Every other error appears to callers as "internal error", and in full in the
// log.
package problem

import (
	"errors"
	"fmt"
	"time"
)

// An Error is a refusal or failure that is safe to show to the caller. It contains no secret, file
// name, stack trace or data of other people.
//
// Clients of the sign-in API show the message and the advice of its JSON form to people.
type Error struct {
	Code    Code     `json:"code"`
	Message string   `json:"message"`
	Advice  []string `json:"advice"`
	// AuditID is the ID of the request's audit entry. The HTTP server sets it.
	AuditID string `json:"auditId,omitempty"`
	// Choices are the values that the caller could have chosen, if there were several.
	Choices []Choice `json:"choices,omitempty"`
	// Field is the invalid field or parameter.
	Field string `json:"field,omitempty"`
	// Needed is the right that is missing. Have lists the caller's roles, such as "operator@acme".
	Needed *Need    `json:"needed,omitempty"`
	Have   []string `json:"have,omitempty"`
	// Seen is the identity of a caller without a role.
	Seen *Seen `json:"seen,omitempty"`
	// Confirm says how to confirm a request with wide effect.
	Confirm *Confirm `json:"confirm,omitempty"`
	// State is the state of the sign-in, if the request must be repeated later.
	State string `json:"state,omitempty"`
	// RetryAfter is the minimum time before the next attempt. It is sent as the Retry-After header
	// in whole seconds.
	RetryAfter time.Duration `json:"-"`

	cause error
}

// A Choice is one of several grants that the caller may choose.
type Choice struct {
	Role       string   `json:"role"`
	Namespaces []string `json:"namespaces,omitempty"` // empty: the whole cluster
	Period     string   `json:"period"`               // Go duration
}

// A Need is a verb and the organisation that it is needed for.
type Need struct {
	Verb string `json:"verb"`
	Org  string `json:"org,omitempty"` // "": all organisations
}

// A Seen is a caller as the tailnet names it.
type Seen struct {
	Login string `json:"login"` // "" for a tagged node
	Node  string `json:"node"`
	Via   string `json:"via"`
}

// A Confirm describes how to confirm a request: repeat it with the phrase, or with the code that a
// person gets on a page.
type Confirm struct {
	Phrase  string    `json:"phrase,omitempty"`  // send this as "confirm"
	ID      string    `json:"id,omitempty"`      // ID of the change that a person must confirm
	Path    string    `json:"path,omitempty"`    // path of the confirmation page on the dashboard
	Targets *int      `json:"targets,omitempty"` // number of affected objects; nil: unknown
	Until   time.Time `json:"until"`
}

// New returns an Error. The message and the advice are shown to the caller.
func New(code Code, message string, advice ...string) *Error {
	return &Error{Code: code, Message: message, Advice: advice}
}

// WithCause returns a copy of e with an internal cause. Only the log shows the cause.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// WithRetryAfter returns a copy of e with RetryAfter set to d.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// Error returns the message for the caller.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the internal cause, which callers never see.
func (e *Error) Unwrap() error { return e.cause }

// Cause returns the internal cause, for the log.
func (e *Error) Cause() error { return e.cause }

// From returns the *Error in err. If there is none, it returns an Error with the code Internal and
// err as its cause. It returns nil for a nil err.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return New(Internal, "internal error",
		"Try again. If the problem persists, send the audit id to the administrator of this server.").WithCause(err)
}

// CodeOf returns the code of err, or "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}

// Plural returns a count with its noun, such as "1 rule" or "3 rules".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
