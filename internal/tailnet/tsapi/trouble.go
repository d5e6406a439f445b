package tsapi

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// A Class says what a failure means for what is done next. It is found from the
// status that came over the wire, never from a text.
type Class string

// The classes. OK is for metrics only: no error has it.
const (
	OK           Class = "OK"
	Refused      Class = "Refused"          // 401: the credential is not good, or no longer
	NoToken      Class = "NoToken"          // no access token could be had, and it is not said that the credential is bad
	Forbidden    Class = "Forbidden"        // 403: the credential lacks a scope
	Invalid      Class = "Invalid"          // 400 and the like: the API understood and will not; of a key: its tags
	NotFound     Class = "NotFound"         // 404
	RateLimited  Class = "RateLimited"      // 429
	Unavailable  Class = "Unavailable"      // 5xx, a time-out, no connection, or an answer that nobody can read
	CircuitOpen  Class = "CircuitOpen"      // not asked: the API failed too often just now
	Dropped      Class = "Dropped"          // not asked: this client was given up
	noClass      Class = "callerGaveUp"     // the caller's context ended: says nothing about the API
	mostMessage        = 200                // of an API's text in ours
	longestWait        = 10 * time.Minute   // that a Retry-After may ask for
	mostBody           = 64 << 20           // of an answer: 10,000 devices are about 10 MB
	mostToken          = 64 << 10           // of a token's answer
	attemptTime        = 10 * time.Second   // of one request, and of one token
	circuitRest        = 60 * time.Second   // how long nothing is asked once a circuit is open
	circuitAfter       = 5                  // failures in a row
	firstBackoff       = time.Second        // doubled with each failure
	lastBackoff        = 5 * time.Minute    //
	jitter             = 0.2                // of a backoff, to either side
	tokenMargin        = 60 * time.Second   // before its end a token is no longer used
	tokenLife          = 3600 * time.Second // of a token that does not say
)

// An Op is what is asked of the API; the name of a metric's label.
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

// Scope returns the scope that a credential needs for it.
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

// repeatable says whether an operation may be asked twice because its first answer
// was lost. A key might be made twice.
func (o Op) repeatable() bool { return o != CreateKey }

// An Error is why the API did not do what was asked. It holds no secret.
type Error struct {
	Op    Op
	Class Class
	// AtToken says that it failed at the token, before the operation was asked.
	AtToken bool
	Status  int // 0: there was no answer
	// Message is what the API said, made printable and short. It is for people.
	Message string
	// RetryAfter is how long to wait before the next try. 0: at once.
	RetryAfter time.Duration

	cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", e.Op)
	switch e.Class {
	case CircuitOpen:
		fmt.Fprintf(&b, "not asked, the API failed %d times in a row", circuitAfter)
	case Dropped:
		b.WriteString("not asked, this client was given up")
	default:
		if e.AtToken {
			b.WriteString("no access token: ")
		}
		switch {
		case e.Status != 0:
			fmt.Fprintf(&b, "%d %s", e.Status, http.StatusText(e.Status))
		case e.Class == RateLimited:
			b.WriteString("not asked, the API wants a pause")
		default:
			b.WriteString("no answer")
		}
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	return b.String()
}

// Unwrap returns what failed below, such as a connection.
func (e *Error) Unwrap() error { return e.cause }

// classOf is the class of a status. What is below 400 and yet failed could not be read.
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

// retryAfter reads the header of that name: seconds, or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, longestWait)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), longestWait)
	}
	return 0
}

// printable cuts a text of somebody else's to what a condition or a log line may hold.
func printable(s string, secrets ...Secret) string {
	for _, secret := range secrets {
		if !secret.IsZero() {
			s = strings.ReplaceAll(s, secret.Reveal(), redacted)
		}
	}
	s = strings.Join(strings.Fields(strings.ToValidUTF8(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, s), "?")), " ")
	if runes := []rune(s); len(runes) > mostMessage {
		s = string(runes[:mostMessage]) + "…"
	}
	return s
}
