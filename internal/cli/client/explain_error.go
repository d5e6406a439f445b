package client

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

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/problem"
)

// Explain converts an error of a call into a sentence and an exit code.
func (c *Client) Explain(ctx context.Context, err error) *output.Error {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		f := output.FromProblem(p)
		if c.Last.Status >= 500 && !slices.Contains(problem.Codes(), p.Code) {
			f.Code = output.ExitFailed // a code that this tka version does not know
		}
		return f
	}
	cause := err
	if ue, ok := errors.AsType[*url.Error](err); ok {
		cause = ue.Err
	}
	to, isRedirect := errors.AsType[redirectError](err)
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, noTLS := errors.AsType[tls.RecordHeaderError](err)
	_, alert := errors.AsType[tls.AlertError](err)
	noTLS = noTLS || errors.Is(err, http.ErrSchemeMismatch)
	_, isNet := errors.AsType[net.Error](err)
	switch {
	case isRedirect:
		return output.Errorf(output.ExitFailed, "The server %s answered with %v, and tka follows no redirects", c.Base, to).Because(err).
			Try("Select the access server itself: --server NAME")
	case badCertificate, noTLS, alert:
		return output.Errorf(output.ExitRefused, "The server %s did not prove its identity: %v", c.Base, certificateReason(cause)).Because(err).
			Try("Use the name in its certificate, such as tka.TAILNET.ts.net: --server NAME")
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) && c.Last.Reached:
		return output.Errorf(output.ExitNotReady, "The server %s did not answer within %v", c.Base, c.Timeout).Because(err).
			Try("Try again, or allow more time: --timeout 2m")
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return output.Errorf(output.ExitInterrupted, "interrupted").Because(err)
	case !c.Last.Reached && (isNet || cause != err):
		return output.Errorf(output.ExitUnreachable, "The server %s cannot be reached: %v", c.Base, dialReason(cause)).Because(err).
			Try("Check that this machine is in the tailnet: tailscale status").
			Try("If the server has another name: --server NAME, or tka config server NAME")
	case c.Last.Status == http.StatusUnauthorized, c.Last.Status == http.StatusForbidden:
		return output.Errorf(output.ExitRefused, "%v", err).Because(err).Try("Select the access server itself: --server NAME")
	case c.Last.Status == http.StatusBadGateway, c.Last.Status == http.StatusServiceUnavailable, c.Last.Status == http.StatusGatewayTimeout:
		return output.Errorf(output.ExitUnreachable, "%v", err).Because(err).Try("Try again in a moment.")
	case cause != err: // the connection broke after it was established
		return output.Errorf(output.ExitUnreachable, "The server %s closed the connection early: %v", c.Base, cause).Because(err).Try("Try again.")
	}
	return output.Errorf(output.ExitFailed, "%v", err).Because(err).Try("Select an access server: --server NAME")
}

// dialReason removes the part that the sentence already contains.
func dialReason(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return op.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no response from its address")
	}
	return err
}

func certificateReason(err error) string {
	if host, ok := errors.AsType[x509.HostnameError](err); ok && host.Certificate != nil && len(host.Certificate.DNSNames) > 0 {
		return fmt.Sprintf("its certificate is for %s", strings.Join(host.Certificate.DNSNames[:min(3, len(host.Certificate.DNSNames))], ", "))
	}
	return strings.TrimPrefix(err.Error(), "tls: ")
}

// InvalidResponse returns the error for a response that tka rejects.
func (c *Client) InvalidResponse(what string, err error) *output.Error {
	return output.Errorf(output.ExitFailed, "tka does not use the %s from %s: %v", what, c.Base, err).Because(err).
		Try("Ask an administrator of the server. tka changed nothing on this machine.")
}
