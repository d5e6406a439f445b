package apiproxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// exchange is the state of one request.
type exchange struct {
	*Server
	w         http.ResponseWriter
	r         *http.Request
	telemetry *RequestTelemetry
	parsed    bool
	req       Request
	out       *http.Request // as a cluster receives it, without a credential
	target    Target
	upgrade   string // the protocol of a requested upgrade; "": none

	code     int // of the response; 0: not started
	bytes    int64
	reason   string // of the adapter's own Status; so is message
	message  string
	err      error // why it failed, for the log
	panicked bool
}

// handle runs all steps of a request in order. The caller answers with the error that it returns.
func (v *exchange) handle() error {
	if err := checkTarget(v.r); err != nil {
		return v.countRefusal(RefusedForm, err)
	}
	if err := v.checkHost(); err != nil {
		return v.countRefusal(RefusedHost, err)
	}
	if err := checkSite(v.r); err != nil {
		return v.countRefusal(RefusedSite, err)
	}
	if err := v.checkToken(); err != nil {
		return err
	}
	var err error
	if v.req, err = ParseRequest(v.r.Method, v.r.URL); err != nil {
		return v.countRefusal(RefusedForm, err)
	}
	v.parsed = true
	v.telemetry.SetRequest(&v.req)
	if v.upgrade, err = upgradeOf(v.r, &v.req); err != nil {
		return v.countRefusal(RefusedUpgrade, err)
	}
	if err := v.checkImpersonation(); err != nil {
		return v.countRefusal(RefusedImpersonation, err)
	}
	if v.req.Verb == "create" && v.req.Group == "" && v.req.Resource == "serviceaccounts" && v.req.Subresource == "token" && !v.Permissions().TokenRequests {
		return v.countRefusal(RefusedToken, refusalWithReason(http.StatusForbidden, "Forbidden", "the adapter does not issue ServiceAccount tokens to this pod, because they are real credentials. To allow it, set allowTokenRequest in the adapter's configuration"))
	}
	v.out = v.r.WithContext(v.r.Context())
	v.out.Header, v.out.Trailer, v.out.TransferEncoding = requestHeaders(v.r.Header), nil, nil
	if v.out.ContentLength == 0 || v.upgrade != "" {
		v.out.Body = nil
	}
	if v.target, err = v.Route(v.out, &v.req); err != nil {
		if r, ok := errors.AsType[*Refusal](err); ok && r.Status == http.StatusForbidden {
			v.telemetry.SetRefused(RefusedDeny)
		}
		return err
	}
	if v.target.Done != nil {
		defer v.target.Done()
	}
	if v.target.Upstream != nil {
		v.target.Clusters = []string{v.target.Upstream.Name}
	}
	v.telemetry.SetRoute(v.target.Rule, v.target.Clusters...)
	if err := v.telemetry.RequireAudit(); err != nil {
		v.err = err
		return refusalWithReason(http.StatusServiceUnavailable, "ServiceUnavailable", "the audit log cannot be written, and this request must be recorded")
	}
	for _, text := range v.target.Warnings {
		v.w.Header().Add("Warning", "299 mca "+strconv.QuoteToASCII(text))
	}
	switch {
	case v.target.Serve != nil && v.upgrade != "":
		return v.serveSocket()
	case v.target.Serve != nil:
		return v.serveTarget()
	case v.upgrade != "":
		return v.switchProtocols()
	}
	return v.forward()
}

// serveTarget calls the target's Serve, which ends its streams itself.
func (v *exchange) serveTarget() error {
	if v.isStream() {
		return v.target.Serve(&recordedWriter{v.w, v}, v.out, v.observeCall)
	}
	ctx, cancel := v.deadline()
	defer cancel()
	return v.target.Serve(&recordedWriter{v.w, v}, v.out.WithContext(ctx), v.observeCall)
}

// recordedWriter records the status and size of a response.
type recordedWriter struct {
	http.ResponseWriter
	v *exchange
}

// WriteHeader implements [http.ResponseWriter].
func (n *recordedWriter) WriteHeader(code int) {
	if n.v.code == 0 {
		n.v.code = code
	}
	n.ResponseWriter.WriteHeader(code)
	n.v.streamOpened(code)
}

// Write implements [http.ResponseWriter].
func (n *recordedWriter) Write(b []byte) (int, error) {
	m, err := n.ResponseWriter.Write(b)
	n.v.bytes += int64(m)
	return m, err
}

// Unwrap is for [http.ResponseController].
func (n *recordedWriter) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// recoverPanic converts a panic to an internal error. If a response has started, it aborts the connection.
func (v *exchange) recoverPanic() {
	switch p := recover(); {
	case p == nil:
	case p == http.ErrAbortHandler:
		panic(p)
	default:
		v.panicked, v.err = true, fmt.Errorf("panic: %v", p)
		if v.code != 0 {
			panic(http.ErrAbortHandler)
		}
		v.writeRefusal(refusalWithReason(http.StatusInternalServerError, "InternalError", "internal error"))
	}
}

// countRefusal counts a refusal of the adapter itself.
func (v *exchange) countRefusal(reason RefusalReason, err error) error {
	v.telemetry.SetRefused(reason)
	return err
}

// streamOpened records the start of a stream.
func (v *exchange) streamOpened(code int) {
	if v.isStream() && (code/100 == 2 || code == http.StatusSwitchingProtocols) {
		v.telemetry.StreamOpened(code)
	}
}

// isStream reports whether the response continues until the client disconnects. Such a response has no
// deadline, and each part is flushed at once.
func (v *exchange) isStream() bool {
	if v.req.Verb == "watch" || v.upgrade != "" {
		return true
	}
	switch v.req.Subresource {
	case "attach", "exec", "log", "portforward", "proxy": // the long-running requests of Kubernetes
		return true
	}
	return false
}

// isReadOnly reports whether the request changes nothing and may be sent again.
func (v *exchange) isReadOnly() bool {
	return !v.isStream() && (v.req.Verb == "get" || v.req.Verb == "list" || v.r.Method == http.MethodHead)
}

var errNoResponse = errors.New("no answer in time")

// deadline returns the context of the request to the cluster.
func (v *exchange) deadline() (context.Context, context.CancelFunc) {
	if v.isStream() {
		ctx, cancel := context.WithCancel(v.r.Context())
		if v.upgrade != "" {
			return ctx, cancel
		}
		release := context.AfterFunc(v.stopping, cancel)
		if until := v.target.Until; until != nil {
			go func() {
				select {
				case <-until:
					cancel()
				case <-ctx.Done():
				}
			}()
		}
		return ctx, func() { release(); cancel() }
	}
	limit := requestTimeout
	if strings.Contains(v.r.URL.RawQuery, "timeout=") {
		if requested, err := time.ParseDuration(v.r.URL.Query().Get("timeout")); err == nil {
			limit += min(max(0, requested), maxRequestTimeout)
		}
	}
	return context.WithTimeoutCause(v.r.Context(), limit, errNoResponse)
}

// endedByServer reports whether the adapter ends the stream. Such an end is not an error, and the client opens the
// stream again.
func (v *exchange) endedByServer() bool {
	select {
	case <-v.target.Until:
		return true
	default:
		return v.stopping.Err() != nil
	}
}

// upstreamRequest returns the request to the cluster.
func (v *exchange) upstreamRequest(ctx context.Context) UpstreamRequest {
	out := v.out.WithContext(ctx)
	return UpstreamRequest{Request: out, ReadOnly: v.isReadOnly(), Proxied: v.req.Subresource == "proxy"}
}

// refusalFor returns the refusal for a request that got no response from its cluster.
func (v *exchange) refusalFor(err error) error {
	v.err = err
	if v.r.Context().Err() != nil {
		v.code = StatusClientClosedRequest
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	f, ok := errors.AsType[*UpstreamError](err)
	if !ok {
		return err
	}
	name := v.target.Upstream.Name
	unavailable := refusalWithReason(http.StatusServiceUnavailable, "ServiceUnavailable", "")
	unavailable.RetryAfter = time.Second
	switch {
	case f.Reason == ErrorLimited:
		limited := refusalWithReason(http.StatusTooManyRequests, "TooManyRequests", "cluster %s: %v", name, f.Err)
		limited.RetryAfter = time.Second
		return limited
	case f.Reason == ErrorCredential:
		// The cause names files of the adapter, so it is only in the log.
		unavailable.Message = fmt.Sprintf("credential for cluster %s was rejected or cannot be read", name)
		return unavailable
	case !f.Sent:
		unavailable.Message = fmt.Sprintf("cluster %s cannot be reached: %v", name, f.Err)
		return unavailable
	}
	if v.stopping.Err() != nil && v.req.Verb == "watch" {
		unavailable.Message = "this adapter is stopping"
		return unavailable
	}
	unknown := refusalWithReason(http.StatusGatewayTimeout, "Timeout", "cluster %s gave no answer, but may have executed the request: %v", name, f.Err)
	if v.isReadOnly() || v.req.Verb == "watch" {
		unknown.RetryAfter = time.Second // clients would retry any verb, so writes get no Retry-After
	}
	return unknown
}
