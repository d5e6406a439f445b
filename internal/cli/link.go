package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
)

// A link is the way to one server, with what it answered last. One request at a
// time goes over it.
type link struct {
	base   string // URL: scheme and host
	client door.Client
	limit  time.Duration // of the whole command, for sentences
	last   exchange
}

// An exchange is what is worth knowing of a request beside its body.
type exchange struct {
	reached bool // there was a connection
	status  int
	header  http.Header
}

// link makes the way to the server at base. It opens no connection yet.
func (t *tka) link(base string) *link {
	l := &link{base: base, limit: t.timeout}
	l.client = door.Client{Base: base, HTTP: &http.Client{
		Transport:     &observer{link: l, next: transport(base), agent: "tka/" + t.Build.Version},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error { return redirected(r.URL.String()) },
	}}
	return l
}

// redirected is the target of a redirect, which is never followed: it would let
// whoever answers once choose who is asked next.
type redirected string

func (r redirected) Error() string { return fmt.Sprintf("a redirect to %.200q", string(r)) }

// An observer notes what a link answered.
type observer struct {
	link  *link
	next  http.RoundTripper
	agent string
}

func (o *observer) RoundTrip(r *http.Request) (*http.Response, error) {
	o.link.last = exchange{}
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { o.link.last.reached = true },
	})
	r = r.Clone(ctx)
	r.Header.Set("User-Agent", o.agent)
	res, err := o.next.RoundTrip(r)
	if err == nil {
		o.link.last.status, o.link.last.header = res.StatusCode, res.Header
	}
	return res, err
}

// call asks the server for op. Every error is a fault.
func call[Req, Resp any](ctx context.Context, l *link, op door.Op[Req, Resp], req Req) (Resp, error) {
	resp, err := op.Call(ctx, l.client, req)
	if err != nil {
		return resp, l.explain(ctx, err)
	}
	return resp, nil
}

// explain turns an error of a call into a sentence and a code to exit with.
func (l *link) explain(ctx context.Context, err error) *fault {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		f := refusal(p)
		if l.last.status >= 500 && !slices.Contains(problem.Codes(), p.Code) {
			f.code = exitFailed // a code that this tka does not know yet
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
		return fail(exitFailed, "The server %s answered with %v, and tka follows none", l.base, to).because(err).
			try("Name the access server itself: --server NAME")
	case badCertificate, noTLS, alert:
		return fail(exitRefused, "The server %s does not prove that it is the one: %v", l.base, certificateReason(cause)).because(err).
			try("Use the name that its certificate has, such as tka.TAILNET.ts.net: --server NAME")
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) && l.last.reached:
		return fail(exitNotReady, "The server %s did not answer within %v", l.base, l.limit).because(err).
			try("Try again, or give it longer: --timeout 2m")
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fail(exitInterrupted, "interrupted").because(err)
	case !l.last.reached && (isNet || cause != err):
		return fail(exitUnreachable, "The server %s cannot be reached: %v", l.base, dialReason(cause)).because(err).
			try("Is this machine in the tailnet? Look with: tailscale status").
			try("If the server has another name: --server NAME, or tka config server NAME")
	case l.last.status == http.StatusUnauthorized, l.last.status == http.StatusForbidden:
		return fail(exitRefused, "%v", err).because(err).try("Name the access server itself: --server NAME")
	case l.last.status == http.StatusBadGateway, l.last.status == http.StatusServiceUnavailable, l.last.status == http.StatusGatewayTimeout:
		return fail(exitUnreachable, "%v", err).because(err).try("Try again in a moment.")
	case cause != err: // it was reached and then broke off
		return fail(exitUnreachable, "The server %s broke off: %v", l.base, cause).because(err).try("Try again.")
	}
	return fail(exitFailed, "%v", err).because(err).try("Name an access server: --server NAME")
}

// dialReason leaves out what the sentence says already.
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

// notYet reports whether the last answer asks to come back, and when.
func (l *link) notYet(err error) (time.Duration, bool) {
	p, ok := errors.AsType[*problem.Error](err)
	if ok && p.RetryAfter == 0 {
		p.RetryAfter = time.Second
	}
	switch {
	case ok && refusalCode(p.Code) == exitNotReady:
		return p.RetryAfter, true
	case !ok && err != nil && l.last.status == http.StatusAccepted: // a server that has no codes
		return retryAfter(l.last.header), true
	}
	return 0, false
}
