package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// A link is the way to one server, with what it answered last. One request at a
// time goes over it.
type link struct {
	base   string // URL: scheme and host
	client door.Client
	limit  time.Duration // of the whole command, for sentences
	last   exchange

	key    door.PublicKey     // by which every answer must be proved; none: not yet known
	listed bool               // the key is in the settings
	info   signin.ClusterInfo // of the server's cluster, once it has proved that it is the one
	first  bool               // its key was not known before
	denied *fault.Fault       // it says no more than that it refuses, with its proof if the key is known
}

// An exchange is what is worth knowing of a request beside its body.
type exchange struct {
	reached bool // there was a connection
	status  int
	header  http.Header
	nonce   string
	host    string       // as the request named it
	body    bytes.Buffer // as far as it was read
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
	o.link.last.nonce, o.link.last.host = door.NewNonce(), r.URL.Host
	r.Header.Set("User-Agent", o.agent)
	r.Header.Set(door.NonceHeader, o.link.last.nonce)
	res, err := o.next.RoundTrip(r)
	if err == nil {
		o.link.last.status, o.link.last.header = res.StatusCode, res.Header
		res.Body = tee{io.TeeReader(res.Body, &o.link.last.body), res.Body}
	}
	return res, err
}

// A tee is a body that is noted while it is read. Whoever reads it bounds it.
type tee struct {
	io.Reader
	io.Closer
}

// call asks the server for op. Every error is a fault.
func call[Req, Resp any](ctx context.Context, l *link, op door.Op[Req, Resp], req Req) (Resp, error) {
	resp, err := op.Call(ctx, l.client, req)
	p, refused := errors.AsType[*problem.Error](err)
	if err != nil && !refused {
		return resp, l.explain(ctx, err)
	}
	if !l.key.IsZero() && l.proves(l.key) != nil {
		if !refused || !unproved(p.Code) {
			var none Resp
			return none, l.impostor(door.PublicKey{})
		}
		p.Advice = append([]string{"This answer is without proof, so it may be somebody else's than the server's."}, p.Advice...)
	}
	if refused {
		return resp, l.explain(ctx, err)
	}
	return resp, nil
}

// proves returns an error unless the last answer is proved by key.
func (l *link) proves(key door.PublicKey) error {
	return key.Check(l.last.nonce, l.last.host, l.last.body.Bytes(), l.last.header.Get(door.ProofHeader))
}

// unproved are the codes of refusals that come before the server knows whom it
// speaks to, or while it does not have its key: it proves nothing with them.
func unproved(c problem.Code) bool {
	switch c {
	case problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.IdentityUnavailable,
		problem.NodeExpired, problem.RateLimited, problem.Unavailable:
		return true
	}
	return false
}

// impostor is the fault of a server that is not the one that this machine knows,
// or does not prove it. What it shows, if anything, is a key.
func (l *link) impostor(shown door.PublicKey) *fault.Fault {
	shows := "it shows no key that it could prove"
	if !shown.IsZero() && l.proves(shown) == nil {
		shows = "it has the key " + shown.String()
	}
	f := fault.New(fault.Refused, "The server %s is not the one that this machine knows, which has the key %v: %s", l.base, l.key, shows).
		Try("If nobody told you of a new key, ask an administrator: another machine may have taken the name.")
	if l.listed {
		return f.Try("If the key is known to have changed, change it in the settings, under servers.")
	}
	return f.Try("If the key is known to have changed: tka config --forget-server %s", screen.Word(l.base))
}

// prove asks a server which cluster it serves, and takes no answer that is not
// proved by the key that this machine knows it by. Nothing else is sent before.
// The key of a server that is new is taken on trust, and remembered. With a
// cluster, the server must be of that cluster.
func (t *tka) prove(ctx context.Context, l *link, cluster string) error {
	known := l.key
	l.key = door.PublicKey{}
	info, err := call(ctx, l, signin.GetClusterInfo, signin.ClusterInfoRequest{})
	p, refused := errors.AsType[*problem.Error](err)
	l.key = known
	switch {
	case refused && !known.IsZero() && l.proves(known) != nil:
		if !unproved(p.Code) {
			return l.impostor(door.PublicKey{})
		}
		f := fault.New(fault.CodeOfRefusal(p.Code), "The server %s refuses, and without proof that it is the one that this machine knows: %s", l.base, p.Message).Because(err)
		f.AuditID = p.AuditID
		return f.Try("Try again in a moment; if it stays, ask whoever runs the server.")
	case refused && !unproved(p.Code):
		l.denied = l.explain(ctx, err)
		return l.denied
	case err != nil:
		return err
	case !known.IsZero() && l.proves(known) != nil:
		return l.impostor(info.Key)
	case known.IsZero() && (info.Key.IsZero() || l.proves(info.Key) != nil):
		return fault.New(fault.Refused, "The server %s does not prove which cluster it serves", l.base).
			Try("It may be an older server, which tka does not use, or none at all: ask whoever runs it.").
			Try("Name another one: --server NAME")
	}
	if !clusterForm.MatchString(info.Name) {
		return l.badAnswer("cluster-info", fmt.Errorf("%.60q is not the name of a cluster", info.Name))
	}
	if cluster != "" && info.Name != cluster {
		return wrongCluster(l, info.Name, cluster)
	}
	l.info = info
	if known.IsZero() {
		l.key, l.first = info.Key, true
	}
	if t.dry {
		return nil
	}
	if known.IsZero() {
		t.hint("First contact with %s: it serves %s and has the key %v, which is remembered.", l.base, info.Name, l.key)
	}
	err = t.remember(ctx, l.base, func(k *knownServer) {
		k.Cluster = info.Name
		if !l.listed {
			k.Key = l.key
		}
	})
	if err != nil {
		t.warn("the server's key is not remembered: %v", err)
	}
	return nil
}

// explain turns an error of a call into a sentence and a code to exit with.
func (l *link) explain(ctx context.Context, err error) *fault.Fault {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		f := fault.Of(p)
		if l.last.status >= 500 && !slices.Contains(problem.Codes(), p.Code) {
			f.Code = fault.Failed // a code that this tka does not know yet
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
		return fault.New(fault.Failed, "The server %s answered with %v, and tka follows none", l.base, to).Because(err).
			Try("Name the access server itself: --server NAME")
	case badCertificate, noTLS, alert:
		return fault.New(fault.Refused, "The server %s does not prove that it is the one: %v", l.base, certificateReason(cause)).Because(err).
			Try("Use the name that its certificate has, such as tka.TAILNET.ts.net: --server NAME")
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded) && l.last.reached:
		return fault.New(fault.NotReady, "The server %s did not answer within %v", l.base, l.limit).Because(err).
			Try("Try again, or give it longer: --timeout 2m")
	case ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fault.New(fault.Interrupted, "interrupted").Because(err)
	case !l.last.reached && (isNet || cause != err):
		return fault.New(fault.Unreachable, "The server %s cannot be reached: %v", l.base, dialReason(cause)).Because(err).
			Try("Is this machine in the tailnet? Look with: tailscale status").
			Try("If the server has another name: --server NAME, or tka config server NAME")
	case l.last.status == http.StatusUnauthorized, l.last.status == http.StatusForbidden:
		return fault.New(fault.Refused, "%v", err).Because(err).Try("Name the access server itself: --server NAME")
	case l.last.status == http.StatusBadGateway, l.last.status == http.StatusServiceUnavailable, l.last.status == http.StatusGatewayTimeout:
		return fault.New(fault.Unreachable, "%v", err).Because(err).Try("Try again in a moment.")
	case cause != err: // it was reached and then broke off
		return fault.New(fault.Unreachable, "The server %s broke off: %v", l.base, cause).Because(err).Try("Try again.")
	}
	return fault.New(fault.Failed, "%v", err).Because(err).Try("Name an access server: --server NAME")
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
	case ok && fault.CodeOfRefusal(p.Code) == fault.NotReady:
		return p.RetryAfter, true
	case !ok && fault.CodeOf(err) == fault.Failed && l.last.status == http.StatusAccepted: // a server that has no codes
		return retryAfter(l.last.header), true
	}
	return 0, false
}
