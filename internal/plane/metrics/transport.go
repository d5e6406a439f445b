package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"

	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
)

// limitedTransport is a transport that limits response bodies to MaxBytes.
type limitedTransport struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (b limitedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	next := b.next
	if next == nil {
		next = http.DefaultTransport
	}
	res, err := next.RoundTrip(r)
	if err == nil {
		res.Body = http.MaxBytesReader(nil, res.Body, MaxBytes)
	}
	return res, err
}

// statusClient is one query over HTTP. It records the status, which the library drops, and the failures that the library does not distinguish.
type statusClient struct {
	api.Client

	status  int
	failure error
}

// Do implements [api.Client].
func (x *statusClient) Do(ctx context.Context, r *http.Request) (*http.Response, []byte, error) {
	if r.Method != http.MethodPost {
		// The library repeats a query that failed with 403, 405 or 501 as a GET, with the expression in the URL, where proxies log it.
		x.failure = fmt.Errorf("it answered %d", x.status)
		return nil, nil, x.failure
	}
	res, body, err := x.Client.Do(ctx, r)
	if res != nil {
		x.status = res.StatusCode
	}
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		x.failure = fmt.Errorf("its answer has more than %d bytes", MaxBytes)
	case err != nil && res == nil:
		x.failure = unreachableError{"it cannot be reached", err}
	case err != nil:
		x.failure = unreachableError{"its answer is incomplete", err}
	case x.status/100 == 2 && x.status != http.StatusOK: // the library treats it as success
		x.failure = fmt.Errorf("it answered %d", x.status)
	}
	if x.failure != nil {
		return nil, nil, x.failure
	}
	return res, body, nil
}

// refused returns the error for a response that the library did not accept. It repeats only the name of the error from the response.
func (x *statusClient) refused(err error) error {
	if e, is := errors.AsType[*v1.Error](err); is && e.Type != v1.ErrBadResponse {
		return fmt.Errorf("it answered %d %.60q", x.status, e.Type)
	}
	return fmt.Errorf("it answered %d, which is not an answer of Prometheus", x.status)
}

// unreachableError says why there is no response. Every caller that sees the sources sees it. The cause may contain the URL of the Prometheus and
// its password, so Error omits it.
type unreachableError struct {
	what  string
	cause error
}

func (a unreachableError) Unwrap() error { return a.cause }

// Error implements error.
func (a unreachableError) Error() string {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](a.cause)
	_, name := errors.AsType[*net.DNSError](a.cause)
	timeout, is := errors.AsType[net.Error](a.cause)
	switch {
	case is && timeout.Timeout():
		return a.what + ": it took too long"
	case name:
		return a.what + ": its name could not be resolved"
	case certificate:
		return a.what + ": its certificate is not trusted"
	case errors.Is(a.cause, syscall.ECONNREFUSED):
		return a.what + ": nothing listens there"
	}
	return a.what
}
