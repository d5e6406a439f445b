package forge

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/secret"
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

// statusClasses has the classes of failure statuses. Every other status from 400 to 499 is [Invalid].
var statusClasses = map[int]Class{
	http.StatusUnauthorized: Refused, http.StatusForbidden: Forbidden, http.StatusNotFound: NotFound, http.StatusGone: NotFound,
	http.StatusConflict: Conflict, http.StatusPreconditionFailed: Conflict, http.StatusTooManyRequests: RateLimited,
	http.StatusRequestTimeout: Unavailable,
}

// classOfStatus returns the class of a failure status. A status below 400 means that the response
// could not be read.
func classOfStatus(status int) Class {
	if class, ok := statusClasses[status]; ok {
		return class
	}
	if status >= 400 && status < 500 {
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

const (
	redacted    = "[secret]" // replaces a secret in a text from outside
	maxMessage  = 200        // runes of a text from outside
	maxRedacted = 64 << 10   // bytes of a text from outside that are inspected
)

// secretForms matches credentials of the forges in texts that a forge or a proxy may repeat: tokens of
// GitHub and GitLab, keys, JWTs, and passwords in URLs.
var secretForms = regexp.MustCompile(
	`gh[a-z]_[A-Za-z0-9_]+|github_pat_[A-Za-z0-9_]+|gl(?:pat|rtr?|dt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[A-Za-z0-9_.\-]+|GR1348941[A-Za-z0-9_\-]+|` +
		`(?s:-----BEGIN.*?(?:-----END[^-]*-----|$))|eyJ[A-Za-z0-9_\-]*\.[A-Za-z0-9_\-.]*|//[^/@\s]*@`,
)

// redact makes a text from outside safe for a condition or a log line: one line, printable, short,
// and without the given secrets and texts that look like secrets.
func redact(text string, secrets ...secret.Text) string {
	text = text[:min(len(text), maxRedacted)]
	for _, s := range secrets {
		if !s.IsZero() {
			text = strings.ReplaceAll(text, s.Reveal(), redacted)
		}
	}
	text = secretForms.ReplaceAllString(text, redacted)
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))), " ")
	if runes := []rune(text); len(runes) > maxMessage {
		text = string(runes[:maxMessage]) + "…"
	}
	return text
}

// Rate is a forge's rate limit, as last reported. The zero Rate means that the forge never reported
// one.
type Rate struct {
	Limit, Remaining int
	Reset            time.Time // by the forge's clock
}

// maxRetryAfter limits the wait that a forge can demand. GitHub's limits are per hour.
const maxRetryAfter = time.Hour

// parseRate reads the three headers with the prefix "X-RateLimit-" (GitHub) or "RateLimit-"
// (GitLab). ok reports whether all are present and valid.
func parseRate(h http.Header, prefix string) (r Rate, ok bool) {
	limit, err1 := strconv.Atoi(h.Get(prefix + "Limit"))
	remaining, err2 := strconv.Atoi(h.Get(prefix + "Remaining"))
	reset, err3 := strconv.ParseInt(h.Get(prefix+"Reset"), 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || limit < 0 || remaining < 0 || reset <= 0 {
		return Rate{}, false
	}
	return Rate{Limit: limit, Remaining: remaining, Reset: time.Unix(reset, 0).UTC()}, true
}

// retryAfter reads the Retry-After header: seconds, or a date by the forge's clock. now must be the
// time of that clock. It returns 0 if there is no readable header.
func retryAfter(h http.Header, now time.Time) time.Duration {
	return httptransport.RetryAfter(h, now, maxRetryAfter)
}
