// Package client connects tka to servers: to access servers, whose responses the key of the cluster must prove; to the operator plane, with
// a bearer token; and to the API servers of clusters, directly or with kubectl.
//
// The package keeps the laws of trust on the side of the client. Law 1: the proof identifies a server, not its name or certificate. Law 5:
// the directory of clusters gives only the address of a cluster and the key that its server must prove; tka shows an excluded entry with
// the reason and never signs in to it. Law 6: administrators use their own identity, kubectl and kubeconfig. Law 7: the client rejects
// everything that a server sends beyond what tka requested. Law 8: a token goes only to the configured https host or to the API server with
// the known certificate authority. It follows no redirect and never appears in a URL, an error or a log. The cache has each token of
// kubectl's plugin, until shortly before it expires, in one file that only its owner can read, in memory if the system has a place for
// that; a failure of the cache is never an error.
package client

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
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/cli/tailscaled"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Client is a client for one server, with its last response. It must not be used concurrently.
type Client struct {
	Base    string        // URL: scheme and host
	Timeout time.Duration // of the whole command, for messages
	Last    Exchange
	http    httpapi.Client
	options Options

	Key          httpapi.PublicKey  // must prove every response; zero: not yet known
	Pinned       bool               // the key is in the settings
	KeyFrom      string             // the flag or the variable that gave the key; "": none did
	Source       string             // the server that reported the key; "": this machine knows it
	Info         signin.ClusterInfo // of the server's cluster, once the server has proved its identity
	FirstContact bool               // its key was not known before
	Foreign      bool               // the server does not prove the key that it must prove
	Denied       *output.Error      // the server refused the request for its cluster; proved if the key is known

	Known        func(base string) (key httpapi.PublicKey, pinned bool) // keys that this machine knows, for a name that is completed; may be nil
	HTTPUnlisted bool                                                   // the settings do not allow http:// for this server

	dialled atomic.Pointer[netip.Addr] // of the last connection
	proxied atomic.Bool                // that was a proxy
	chosen  *signin.ProxyServer        // the access proxy for kubeconfig entries; nil: not chosen yet
}

// An Exchange is the metadata of the last request and response.
type Exchange struct {
	Reached bool // a connection was established
	Status  int
	Header  http.Header
	nonce   string
	host    string       // as in the request
	body    bytes.Buffer // as far as it was read
}

// Options are what the clients of one command share.
type Options struct {
	Limit     time.Duration      // of the whole command, for messages
	Agent     string             // the User-Agent header
	Tailscale *tailscaled.Client // of this machine
	IDTokens  *IDTokens          // may be nil
}

// New returns a client for the server at base. It opens no connection.
func New(base string, o Options) *Client {
	return newClient(base, o, dialpolicy.Transport(base, o.Tailscale))
}

// NewDiscovered is [New] for a server whose address and key another server reported; source is that server. It connects only within the
// tailnet.
func NewDiscovered(base string, key httpapi.PublicKey, source string, o Options) *Client {
	c := newClient(base, o, dialpolicy.TailnetTransport(o.Tailscale))
	c.Key, c.Source = key, source
	return c
}

func newClient(base string, o Options, transport *http.Transport) *Client {
	c := &Client{Timeout: o.Limit, options: o}
	c.setTransport(base, c.observe(transport))
	return c
}

// redirectError is the target of a redirect. tka never follows one: otherwise the server that responds once could choose which server tka
// queries next.
type redirectError string

func (r redirectError) Error() string { return fmt.Sprintf("a redirect to %.200q", string(r)) }

// A responseRecorder records the responses of a client.
type responseRecorder struct {
	client *Client
	next   http.RoundTripper
	agent  string
}

func (rec *responseRecorder) RoundTrip(r *http.Request) (*http.Response, error) {
	rec.client.Last = Exchange{}
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { rec.client.Last.Reached = true },
	})
	r = r.Clone(ctx)
	rec.client.Last.nonce, rec.client.Last.host = httpapi.NewNonce(), r.URL.Host
	r.Header.Set("User-Agent", rec.agent)
	r.Header.Set(httpapi.NonceHeader, rec.client.Last.nonce)
	res, err := rec.next.RoundTrip(r)
	if err == nil {
		rec.client.Last.Status, rec.client.Last.Header = res.StatusCode, res.Header
		res.Body = struct { // records the body while it is read; the reader must bound it
			io.Reader
			io.Closer
		}{io.TeeReader(res.Body, &rec.client.Last.body), res.Body}
	}
	return res, err
}

// Call sends a request for op to the server. Every error is an *output.Error.
func Call[Req, Resp any](ctx context.Context, c *Client, op httpapi.Op[Req, Resp], req Req) (Resp, error) {
	if carrier, is := any(&req).(interface{ SetToken(signin.IDToken) }); is {
		t, err := c.idTokenFor(ctx)
		if err != nil {
			var none Resp
			return none, err
		}
		carrier.SetToken(t)
	}
	resp, err := op.Call(ctx, c.http, req)
	p, refused := errors.AsType[*problem.Error](err)
	if err != nil && !refused {
		return resp, c.Explain(ctx, err)
	}
	if !c.Key.IsZero() && c.verifyResponse(c.Key) != nil {
		if !refused || !mayBeUnproved(p.Code) {
			var none Resp
			return none, c.wrongKeyError(httpapi.PublicKey{})
		}
		p.Advice = append([]string{"The server did not sign this answer, so it may come from another machine."}, p.Advice...)
	}
	if refused {
		return resp, c.Explain(ctx, err)
	}
	return resp, nil
}

// maxWait is how long one request may wait for a sign-in. It is less than servers allow, so that the server ends the wait.
const maxWait = 25 * time.Second

// CallUntilReady repeats the request until the response is other than "not yet" or the time limit is near. A server that supports waiting
// holds the request for the wait that req gets. For other servers, CallUntilReady repeats the request after their Retry-After.
func CallUntilReady[Req, Resp any](ctx context.Context, c *Client, op httpapi.Op[Req, Resp], req func(wait time.Duration) Req) (Resp, error) {
	return untilReady(ctx, c, func(wait time.Duration) (Resp, error) { return Call(ctx, c, op, req(wait)) })
}

// untilReady implements CallUntilReady for any call.
func untilReady[Resp any](ctx context.Context, c *Client, call func(wait time.Duration) (Resp, error)) (Resp, error) {
	deadline, _ := ctx.Deadline()
	var lateErr error // error for the last response, if no other one comes in time
	for last := false; ; {
		left := time.Until(deadline)
		resp, err := call(max(0, min(maxWait, left-lastRequestTime(left)).Truncate(time.Millisecond)))
		after, later := c.retryDelay(err)
		if !later {
			if _, answered := errors.AsType[*problem.Error](err); err != nil && !answered && lateErr != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return resp, lateErr
			}
			return resp, err
		}
		lateErr = c.notReadyError(err)
		left = time.Until(deadline)
		if available := left - lastRequestTime(left); after > available {
			if last || c.Last.Status != http.StatusAccepted || available <= 0 {
				return resp, lateErr
			}
			after, last = available, true // one more attempt, just before the end
		}
		switch err := retry.Sleep(ctx, after); {
		case errors.Is(err, context.DeadlineExceeded):
			return resp, lateErr
		case err != nil:
			return resp, c.Explain(ctx, err)
		}
	}
}

// lastRequestTime returns how much of the remaining time to reserve for the last request.
func lastRequestTime(left time.Duration) time.Duration { return min(time.Second, left/4) }

// notReadyError returns the error when the response stays "not yet" until the time limit.
func (c *Client) notReadyError(err error) *output.Error {
	if c.Last.Status != http.StatusAccepted {
		if f, ok := errors.AsType[*output.Error](err); ok {
			return f
		}
	}
	return output.Errorf(output.ExitNotReady, "The sign-in was not ready within %v", c.Timeout).Because(err).
		Try("The cluster continues without tka. See the state: tka status").
		Try("Allow more time: tka login --timeout 2m")
}

// retryAfterHeader returns the delay in the Retry-After header; one second without it.
func retryAfterHeader(h http.Header) time.Duration {
	s, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || s <= 0 {
		return time.Second
	}
	return time.Duration(min(s, 3600)) * time.Second
}

// retryDelay reports whether the last response asks the client to retry, and when.
func (c *Client) retryDelay(err error) (time.Duration, bool) {
	p, ok := errors.AsType[*problem.Error](err)
	if ok && p.RetryAfter == 0 {
		p.RetryAfter = time.Second
	}
	switch {
	case ok && output.ProblemExitCode(p.Code) == output.ExitNotReady:
		return p.RetryAfter, true
	case !ok && output.ExitCode(err) == output.ExitFailed && c.Last.Status == http.StatusAccepted: // a server without problem codes
		return retryAfterHeader(c.Last.Header), true
	}
	return 0, false
}

// verifyResponse returns an error unless key proves the last response.
func (c *Client) verifyResponse(key httpapi.PublicKey) error {
	return key.Check(c.Last.nonce, c.Last.host, c.Last.body.Bytes(), c.Last.Header.Get(httpapi.ProofHeader))
}

// mayBeUnproved reports whether a refusal with code c carries no proof. The server sends these refusals before it has identified the caller
// or while it has no key.
func mayBeUnproved(c problem.Code) bool {
	switch c {
	case problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.IdentityUnavailable,
		problem.NodeExpired, problem.IdentityAmbiguous, problem.RateLimited, problem.Unavailable:
		return true
	}
	return false
}

// wrongKeyError returns the error for a server that is not the one that this machine knows, or that does not prove it. shown is the key in
// its response, if any.
func (c *Client) wrongKeyError(shown httpapi.PublicKey) *output.Error {
	c.Foreign = true
	shownKey := "it proves no key"
	if !shown.IsZero() && c.verifyResponse(shown) == nil {
		shownKey = "it has the key " + shown.String()
	}
	knownBy := "this machine knows"
	switch {
	case c.Source != "":
		knownBy = "the server " + c.Source + " knows"
	case c.KeyFrom != "":
		knownBy = c.KeyFrom + " names"
	}
	f := output.Errorf(output.ExitRefused, "The server %s is not the one that %s, which has the key %v: %s", c.Base, knownBy, c.Key, shownKey).
		Try("If you do not expect a new key, ask an administrator: another machine may have taken the name.")
	switch {
	case c.KeyFrom != "":
		return f.Try("The key of a cluster is shown on a machine that knows it: tka cluster-info -o yaml").
			Try("If you know that the key changed, change %s.", c.KeyFrom)
	case c.Pinned:
		return f.Try("If you know that the key changed, change it in the settings, under servers.")
	case c.Source != "":
		return f.Try("If you know that the key changed, wait until %s has the new key: tka clusters", c.Source)
	}
	return f.Try("If you know that the key changed: tka config --forget-server %s", output.ShellQuote(c.Base))
}

// Verify fetches the information on the server's cluster and requires a proof with the known key. Callers must call it before any other
// request. Verify trusts the key of a new server at first contact, and then sets FirstContact. If cluster is not "", the server must serve
// that cluster.
func (c *Client) Verify(ctx context.Context, cluster string) error {
	if err := c.confirmHTTP(ctx); err != nil {
		return err
	}
	known := c.Key
	info, err := c.fetchInfo(ctx)
	if err != nil && c.completeName(ctx, err) {
		known = c.Key
		info, err = c.fetchInfo(ctx)
	}
	p, refused := errors.AsType[*problem.Error](err)
	switch {
	case refused && !known.IsZero() && c.verifyResponse(known) != nil:
		if !mayBeUnproved(p.Code) {
			return c.wrongKeyError(httpapi.PublicKey{})
		}
		f := output.Errorf(output.ProblemExitCode(p.Code), "The server %s refused the request and did not prove that it is the one that this machine knows: %s", c.Base, p.Message).Because(err)
		f.AuditID = p.AuditID
		return f.Try("Try again in a moment. If the error stays, ask an administrator of the server.")
	case refused && !mayBeUnproved(p.Code):
		c.Denied = c.Explain(ctx, err)
		return c.Denied
	case err != nil:
		return err
	case !known.IsZero() && c.verifyResponse(known) != nil:
		return c.wrongKeyError(info.Key)
	case known.IsZero() && (info.Key.IsZero() || c.verifyResponse(info.Key) != nil):
		return output.Errorf(output.ExitRefused, "The server %s did not prove which cluster it serves", c.Base).
			Try("It may be an older server, which tka does not support, or not an access server. Ask its administrator.").
			Try("Select another server: --server NAME")
	}
	if !dialpolicy.IsClusterName(info.Name) {
		return c.InvalidResponse("cluster-info", fmt.Errorf("%.60q is not the name of a cluster", info.Name))
	}
	if cluster != "" && info.Name != cluster {
		return output.Errorf(output.ExitRefused, "The server %s serves the cluster %s, not %s", c.Base, info.Name, cluster).
			Try("Select the access server of %s: --server NAME", cluster)
	}
	c.Info = info
	if known.IsZero() {
		c.Key, c.FirstContact = info.Key, true
	}
	return nil
}

// fetchInfo fetches the information on the server's cluster, without a judgement on its proof.
func (c *Client) fetchInfo(ctx context.Context) (signin.ClusterInfo, error) {
	known := c.Key
	c.Key = httpapi.PublicKey{}
	defer func() { c.Key = known }()
	return Call(ctx, c, signin.GetClusterInfo, signin.ClusterInfoRequest{})
}

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
		f := output.Errorf(output.ExitRefused, "The server %s did not prove its identity: %v", c.Base, certificateReason(cause)).Because(err)
		return c.typeFullName(ctx, f, err)
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
