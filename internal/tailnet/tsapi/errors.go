package tsapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// A Class tells the caller how to react to a failure. It is derived from the HTTP status, never
// from text.
type Class string

// The classes. OK is for metrics only; no error has it.
const (
	OK           Class = "OK"
	Refused      Class = "Refused"          // 401: the credential is invalid or revoked
	NoToken      Class = "NoToken"          // no access token could be obtained, for a reason other than an invalid credential
	Forbidden    Class = "Forbidden"        // 403: the credential lacks a scope
	Invalid      Class = "Invalid"          // 400 and similar: the API rejected the request; for a key, its tags
	NotFound     Class = "NotFound"         // 404
	RateLimited  Class = "RateLimited"      // 429
	Unavailable  Class = "Unavailable"      // 5xx, a timeout, no connection, or a response that cannot be parsed
	CircuitOpen  Class = "CircuitOpen"      // not sent: the API failed too often recently
	Dropped      Class = "Dropped"          // not sent: the client was retired
	noClass      Class = "callerGaveUp"     // the caller's context ended: no information about the API
	maxMessage         = 200                // runes of an API message in an error
	maxWait            = 10 * time.Minute   // maximum that is accepted from a Retry-After header
	maxBody            = 64 << 20           // of a response: 10,000 devices are about 10 MB
	maxToken           = 64 << 10           // of a token response
	attemptTime        = 10 * time.Second   // time limit of one request, and of one token request
	circuitRest        = 60 * time.Second   // how long an open circuit stays open
	circuitAfter       = 5                  // consecutive failures
	firstBackoff       = time.Second        // doubled after each failure
	lastBackoff        = 5 * time.Minute    // maximum
	jitter             = 0.2                // relative deviation of a backoff, in both directions
	tokenMargin        = 60 * time.Second   // a token is not used in the last minute of its life
	tokenLife          = 3600 * time.Second // lifetime of a token without expires_in
)

// An Op is an operation of the API. It is a metric label.
type Op string

// The operations.
const (
	opToken       Op = "get a token"
	ListDevices   Op = "list devices"
	GetDevice     Op = "get a device"
	DeleteDevice  Op = "delete a device"
	ListServices  Op = "list services"
	GetService    Op = "get a service"
	PutService    Op = "write a service"
	DeleteService Op = "delete a service"
	ListHosts     Op = "list hosts of a service"
	ApproveHost   Op = "approve a host of a service"
	CreateKey     Op = "create a key"
	GetKey        Op = "get a key"
	ListKeys      Op = "list keys"
	DeleteKey     Op = "delete a key"
)

// Scope returns the OAuth scope that the operation needs.
func (o Op) Scope() string {
	switch o {
	case ListDevices, GetDevice:
		return "devices:core:read"
	case DeleteDevice:
		return "devices:core"
	case ListServices, GetService, ListHosts:
		return "services:read"
	case PutService, DeleteService, ApproveHost:
		return "services"
	case CreateKey, GetKey, ListKeys, DeleteKey:
		return "auth_keys"
	}
	return ""
}

// repeatable reports whether an operation may be retried after a lost response. Creating a key may
// not, because it could create two keys.
func (o Op) repeatable() bool { return o != CreateKey }

// An Error describes why an operation failed. It contains no secret.
type Error struct {
	Op    Op
	Class Class
	// AtToken means that no access token was obtained, so the operation was not sent.
	AtToken bool
	Status  int // 0: no response
	// Message is the message of the API, shortened and made printable. It is for people.
	Message string
	// RetryAfter is how long to wait before the next attempt. 0: no wait.
	RetryAfter time.Duration

	cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", e.Op)
	switch e.Class {
	case CircuitOpen:
		fmt.Fprintf(&b, "not sent: the API failed %d times in a row", circuitAfter)
	case Dropped:
		b.WriteString("not sent: this client was retired")
	default:
		if e.AtToken {
			b.WriteString("no access token: ")
		}
		switch {
		case e.Status != 0:
			fmt.Fprintf(&b, "%d %s", e.Status, http.StatusText(e.Status))
		case e.Class == RateLimited:
			b.WriteString("not sent: the API requests a pause")
		default:
			b.WriteString("no answer")
		}
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// Unwrap returns the cause, such as a connection error.
func (e *Error) Unwrap() error { return e.cause }

// classOf returns the class of a status. A failure with a status below 400 means that the response
// could not be parsed.
func classOf(status int) Class {
	switch {
	case status == http.StatusUnauthorized:
		return Refused
	case status == http.StatusForbidden:
		return Forbidden
	case status == http.StatusNotFound:
		return NotFound
	case status == http.StatusTooManyRequests:
		return RateLimited
	case status == http.StatusRequestTimeout:
		return Unavailable
	case status >= 400 && status < 500, status == http.StatusNotImplemented:
		return Invalid // 501: a device of another tailnet
	}
	return Unavailable
}

// retryAfter parses the Retry-After header: seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	return httptransport.RetryAfter(h, now, maxWait)
}

// printable shortens foreign text for a condition or a log line, and redacts the secrets.
func printable(s string, secrets ...secret.Text) string {
	for _, hidden := range secrets {
		if !hidden.IsZero() {
			s = strings.ReplaceAll(s, hidden.Reveal(), redacted)
		}
	}
	s = strings.Join(strings.Fields(strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, s), "?")), " ")
	if runes := []rune(s); len(runes) > maxMessage {
		s = string(runes[:maxMessage]) + "…"
	}
	return s
}
