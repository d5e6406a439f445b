package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/problem"
)

// Explain converts an error of a call into a sentence and an exit code.
func (l *Link) Explain(ctx context.Context, err error) *fault.Fault {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		f := fault.Of(p)
		if l.Last.Status >= 500 && !slices.Contains(problem.Codes(), p.Code) {
			f.Code = fault.Failed // a code that this tka version does not know
		}
		return f
	}
	cause := err
	if ue, ok := errors.AsType[*url.Error](err); ok {
		cause = ue.Err
	}
	to, isRedirect := errors.AsType[redirected](err)
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	noTLS = noTLS || errors.Is(err, http.ErrSchemeMismatch)
	_, isNet := errors.AsType[net.Error](err)
	switch {
	case isRedirect:
		return fault.New(fault.Failed, "The server %s answered with %v, and tka follows none", l.Base, to).Because(err).
			Try("Name the access server itself: --server NAME")
	case badCertificate, noTLS, alert:
		return fault.New(fault.Refused, "The server %s does not prove that it is the one: %v", l.Base, certificateReason(cause)).Because(err).
			Try("Use the name that its certificate has, such as tka.TAILNET.ts.net: --server NAME")
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) && l.Last.Reached:
		return fault.New(fault.NotReady, "The server %s did not answer within %v", l.Base, l.Limit).Because(err).
			Try("Try again, or give it longer: --timeout 2m")
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fault.New(fault.Interrupted, "interrupted").Because(err)
	case !l.Last.Reached && (isNet || cause != err):
		return fault.New(fault.Unreachable, "The server %s cannot be reached: %v", l.Base, dialReason(cause)).Because(err).
			Try("Is this machine in the tailnet? Look with: tailscale status").
			Try("If the server has another name: --server NAME, or tka config server NAME")
	case l.Last.Status == http.StatusUnauthorized, l.Last.Status == http.StatusForbidden:
		return fault.New(fault.Refused, "%v", err).Because(err).Try("Name the access server itself: --server NAME")
	case l.Last.Status == http.StatusBadGateway, l.Last.Status == http.StatusServiceUnavailable, l.Last.Status == http.StatusGatewayTimeout:
		return fault.New(fault.Unreachable, "%v", err).Because(err).Try("Try again in a moment.")
	case cause != err: // the connection broke after it was established
		return fault.New(fault.Unreachable, "The server %s broke off: %v", l.Base, cause).Because(err).Try("Try again.")
	}
	return fault.New(fault.Failed, "%v", err).Because(err).Try("Name an access server: --server NAME")
}

// dialReason removes the part that the sentence already contains.
func dialReason(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return op.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("nothing answers at its address")
	}
	return err
}

func certificateReason(err error) string {
	if host, ok := errors.AsType[x509.HostnameError](err); ok && host.Certificate != nil && len(host.Certificate.DNSNames) > 0 {
		return fmt.Sprintf("its certificate is for %s", strings.Join(host.Certificate.DNSNames[:min(3, len(host.Certificate.DNSNames))], ", "))
	}
	return strings.TrimPrefix(err.Error(), "tls: ")
}

// notYet reports whether the last response asks the client to retry, and when.
func (l *Link) notYet(err error) (time.Duration, bool) {
	p, ok := errors.AsType[*problem.Error](err)
	if ok && p.RetryAfter == 0 {
		p.RetryAfter = time.Second
	}
	switch {
	case ok && fault.CodeOfRefusal(p.Code) == fault.NotReady:
		return p.RetryAfter, true
	case !ok && fault.CodeOf(err) == fault.Failed && l.Last.Status == http.StatusAccepted: // a server without problem codes
		return retryAfter(l.Last.Header), true
	}
	return 0, false
}
