package httptransport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// An Error says why a request has no usable answer. It contains neither the query nor a header nor
// the body of the request. Of the peer's answer it stores only the headers, and it does not print
// them.
type Error struct {
	Status  int         // of the answer; 0: there was none
	Header  http.Header // of the answer; nil: there was none
	Message string

	cause error // the context's error, or nil
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the error of the context that ended the request, if one did, and
// [context.DeadlineExceeded] also after the time limit of the transport.
func (e *Error) Unwrap() error { return e.cause }

// Format implements [fmt.Formatter], so that no verb prints the headers.
func (e *Error) Format(f fmt.State, verb rune) {
	if verb == 'q' {
		io.WriteString(f, strconv.Quote(e.Message))
		return
	}
	io.WriteString(f, e.Message)
}

// Scrub removes from an error of an [http.Client], or of a library that wraps one, everything
// around the [*Error] inside it. net/http adds the complete URL, and libraries add the answer. Of
// any other error it keeps only the error of a context.
func Scrub(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return &Error{Message: "the answer cannot be read", cause: contextError(err)}
}

func contextError(err error) error {
	for _, end := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, end) {
			return end
		}
	}
	return nil
}

// broken converts the error of a connection. It includes the text only of errors from below HTTP.
// Errors of net/http quote data of the peer, which may contain the credential.
func broken(ctx context.Context, err error) *Error {
	if ctx.Err() != nil {
		err = ctx.Err() // net/http sometimes reports a broken connection instead
	}
	if cause := contextError(err); cause != nil {
		message := "the request was cancelled"
		if cause == context.DeadlineExceeded {
			message = "no complete answer within the time limit"
		}
		return &Error{Message: message, cause: cause}
	}
	if e, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return &Error{Message: "the certificate is not trusted: " + certificateProblem(e.Err)}
	}
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return &Error{Message: e.Error()}
	}
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		return &Error{Message: "no answer within the time limit"}
	}
	return &Error{Message: "the connection ended, or the answer is not HTTP"}
}

// certificateProblem describes the error without the names in the peer's certificate.
func certificateProblem(err error) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "it is signed by an unknown authority"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "it is for another name"
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return "it has expired or is not yet valid"
	}
	return "it cannot be verified"
}

// ParseBase parses the URL of an API that may receive a credential: an https URL, or an http URL of
// the local machine. The URL has a scheme, a host and an optional path. ParseBase removes a
// trailing slash.
func ParseBase(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, errors.New("not a URL with a scheme and a host")
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.RawPath != "": // an escaped slash
		return nil, fmt.Errorf("the URL of %s must have only a scheme, a host and a path", strconv.Quote(u.Host))
	case u.Scheme == "http":
		if ip, err := netip.ParseAddr(u.Hostname()); (err != nil || !ip.IsLoopback()) && u.Hostname() != "localhost" {
			return nil, fmt.Errorf("%q would send a credential unencrypted; use https", u)
		}
	case u.Scheme != "https":
		return nil, fmt.Errorf("%q is not an https URL", u)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	return u, nil
}

// RetryAfter returns the wait that a Retry-After header demands, at most limit. It returns 0 without a
// valid header.
func RetryAfter(h http.Header, now time.Time, limit time.Duration) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, limit)
	}
	if at, err := http.ParseTime(text); err == nil {
		return min(max(at.Sub(now), 0), limit)
	}
	return 0
}
