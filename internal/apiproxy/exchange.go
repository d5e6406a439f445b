package apiproxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// Exchange is one request and its response. [Server.Handle] serves it in three steps. It decides which clusters serve
// the request, calls Routed, and relays the response of one cluster (Send and Relay). If the response does
// not come from one cluster, it calls Answer instead and writes the response to W. Only Do is safe for concurrent use.
type Exchange struct {
	W  http.ResponseWriter // records the status and size of the response
	In *http.Request       // as the client sent it
	// Out is the request as a cluster receives it, without a credential. Handle may change its query, its header
	// fields and its body. If Handle cancels its context, a stream of a cluster ends without an error.
	Out       *http.Request
	Request   *Request // nil until it is parsed
	Telemetry *RequestTelemetry

	server    *Server
	handshake http.Header     // of the WebSocket that Watch accepts; nil: none
	ctx       context.Context // of the requests that Send sends; nil: not created yet
	releases  []func()        // for the end of the exchange
	routed    bool
	result    Result // so far
}

// handle runs all steps of a request in order. The caller answers with the error that it returns.
func (x *Exchange) handle() error {
	if err := x.check(); err != nil {
		return err
	}
	x.Out = x.In.WithContext(x.In.Context())
	x.Out.Header, x.Out.Trailer, x.Out.TransferEncoding = RequestHeaders(x.In.Header), nil, nil
	if x.Out.ContentLength == 0 || x.result.Upgrade != "" {
		x.Out.Body = nil
	}
	defer x.release()
	err := x.server.Handle(x)
	if r, ok := errors.AsType[*Refusal](err); ok && r.Status == http.StatusForbidden && !x.routed {
		x.Telemetry.SetRefused(RefusedDeny)
	}
	return err
}

// check parses the request and refuses what no cluster may receive.
func (x *Exchange) check() error {
	if err := CheckTarget(x.In); err != nil {
		return x.countRefusal(RefusedForm, err)
	}
	if err := x.checkHost(); err != nil {
		return x.countRefusal(RefusedHost, err)
	}
	if err := CheckSite(x.In); err != nil {
		return x.countRefusal(RefusedSite, err)
	}
	if err := x.checkToken(); err != nil {
		return err
	}
	req, err := ParseRequest(x.In.Method, x.In.URL)
	if err != nil {
		return x.countRefusal(RefusedForm, err)
	}
	x.Request = &req
	x.Telemetry.SetRequest(x.Request)
	if x.result.Upgrade, err = UpgradeOf(x.In, x.Request); err != nil {
		return x.countRefusal(RefusedUpgrade, err)
	}
	if err := x.checkImpersonation(); err != nil {
		return x.countRefusal(RefusedImpersonation, err)
	}
	token := req.Verb == "create" && req.Group == "" && req.Resource == "serviceaccounts" && req.Subresource == "token"
	if token && !x.server.Permissions().TokenRequests {
		return x.countRefusal(RefusedToken, NewRefusal(http.StatusForbidden,
			"the adapter does not issue ServiceAccount tokens to this pod, because they are real credentials. "+
				"To allow it, set allowTokenRequest in the adapter's configuration"))
	}
	return nil
}

// Routed records the rule that decided, "" for none, and the clusters that serve the request. No cluster may receive
// the request before Routed returned nil. The error refuses a request that must be recorded and cannot be.
func (x *Exchange) Routed(rule string, clusters ...string) error {
	x.routed = true
	x.Telemetry.SetRoute(rule, clusters...)
	if err := x.Telemetry.RequireAudit(); err != nil {
		x.result.Err = err
		return NewRefusal(http.StatusServiceUnavailable,
			"the audit log cannot be written, and this request must be recorded")
	}
	return nil
}

// Answer prepares a response that Handle writes to W itself. It sets the deadline of the request in Out, unless the
// response is a stream. The caller must call Routed first.
func (x *Exchange) Answer() error {
	if x.result.Upgrade != "" {
		return x.checkWatchSocket()
	}
	if !x.isStream() {
		x.Out = x.Out.WithContext(x.limit())
	}
	return nil
}

// Stopping returns a channel that is closed when the server starts to stop. Streams must end then.
func (x *Exchange) Stopping() <-chan struct{} { return x.server.stopping.Done() }

// atEnd calls f when Handle has returned. The last function is called first.
func (x *Exchange) atEnd(f func()) { x.releases = append(x.releases, f) }

func (x *Exchange) release() {
	for i := len(x.releases) - 1; i >= 0; i-- {
		x.releases[i]()
	}
}

// recordedWriter records the status and size of a response.
type recordedWriter struct {
	http.ResponseWriter
	x *Exchange
}

// WriteHeader implements [http.ResponseWriter].
func (n *recordedWriter) WriteHeader(code int) {
	if n.x.result.Code == 0 {
		n.x.result.Code = code
	}
	n.ResponseWriter.WriteHeader(code)
	n.x.streamOpened(code)
}

// Write implements [http.ResponseWriter].
func (n *recordedWriter) Write(b []byte) (int, error) {
	m, err := n.ResponseWriter.Write(b)
	n.x.result.Bytes += int64(m)
	return m, err
}

// Unwrap is for [http.ResponseController].
func (n *recordedWriter) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// recoverPanic converts a panic to an internal error. If a response has started, it aborts the connection.
func (x *Exchange) recoverPanic() {
	switch p := recover(); {
	case p == nil:
	case p == http.ErrAbortHandler:
		panic(p)
	default:
		x.result.Panicked, x.result.Err = true, fmt.Errorf("panic: %v", p)
		if x.result.Code != 0 {
			panic(http.ErrAbortHandler)
		}
		x.writeRefusal(NewRefusal(http.StatusInternalServerError, "internal error"))
	}
}

// countRefusal counts a refusal of the adapter itself.
func (x *Exchange) countRefusal(reason RefusalReason, err error) error {
	x.Telemetry.SetRefused(reason)
	return err
}

// streamOpened records the start of a stream.
func (x *Exchange) streamOpened(code int) {
	if (code/100 == 2 || code == http.StatusSwitchingProtocols) && x.isStream() {
		x.Telemetry.StreamOpened(code)
	}
}

// isStream reports whether the response continues until the client disconnects. Such a response has no
// deadline, and each part is flushed at once.
func (x *Exchange) isStream() bool {
	return x.Request.Verb == "watch" || x.result.Upgrade != "" || x.Request.HasStreamSubresource()
}

// isReadOnly reports whether the request changes nothing and may be sent again.
func (x *Exchange) isReadOnly() bool {
	return !x.isStream() && (x.Request.Verb == "get" || x.Request.Verb == "list" || x.In.Method == http.MethodHead)
}

var errNoResponse = errors.New("no answer in time")

// RequestLimit returns how long a request that is no stream may take: one minute, and the timeout in its query, of which ten
// minutes count.
func RequestLimit(r *http.Request) time.Duration {
	limit := requestTimeout
	if strings.Contains(r.URL.RawQuery, "timeout=") {
		if requested, err := time.ParseDuration(r.URL.Query().Get("timeout")); err == nil {
			limit += min(max(0, requested), maxRequestTimeout)
		}
	}
	return limit
}

// limit returns the context of the requests to a cluster, which ends with the exchange.
func (x *Exchange) limit() context.Context {
	if x.ctx != nil {
		return x.ctx
	}
	var cancel context.CancelFunc
	switch {
	case x.result.Upgrade != "":
		x.ctx, cancel = context.WithCancel(x.In.Context())
	case x.isStream():
		x.ctx, cancel = context.WithCancel(x.Out.Context())
		stop := context.AfterFunc(x.server.stopping, cancel)
		x.atEnd(func() { stop() })
	default:
		x.ctx, cancel = context.WithTimeoutCause(x.Out.Context(), RequestLimit(x.In), errNoResponse)
	}
	x.atEnd(cancel)
	return x.ctx
}

// endedByServer reports whether the adapter ends the stream. Such an end is not an error, and the client opens the
// stream again.
func (x *Exchange) endedByServer() bool {
	return x.server.stopping.Err() != nil || x.Out.Context().Err() != nil && x.In.Context().Err() == nil
}

// refusalFor returns the refusal for a request that got no response from its cluster.
func (x *Exchange) refusalFor(up *Upstream, err error) error {
	x.result.Err = err
	if x.In.Context().Err() != nil {
		x.result.Code = StatusClientClosedRequest
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	f, ok := errors.AsType[*UpstreamError](err)
	if !ok {
		return err
	}
	unavailable := NewRefusal(http.StatusServiceUnavailable, "")
	unavailable.RetryAfter = time.Second
	switch {
	case f.Reason == FailedLimit:
		limited := NewRefusal(http.StatusTooManyRequests, "cluster %s: %v", up.Name, f.Err)
		limited.RetryAfter = time.Second
		return limited
	case f.Reason == FailedCredential:
		// The cause names files of the adapter, so it is only in the log.
		unavailable.Message = fmt.Sprintf("credential for cluster %s was rejected or cannot be read", up.Name)
		return unavailable
	case !f.Sent:
		unavailable.Message = fmt.Sprintf("cluster %s cannot be reached: %v", up.Name, f.Err)
		return unavailable
	}
	if x.server.stopping.Err() != nil && x.Request.Verb == "watch" {
		unavailable.Message = "this adapter is stopping"
		return unavailable
	}
	unknown := NewRefusal(http.StatusGatewayTimeout,
		"cluster %s gave no answer, but may have executed the request: %v", up.Name, f.Err)
	if x.isReadOnly() || x.Request.Verb == "watch" {
		unknown.RetryAfter = time.Second // clients would retry any verb, so writes get no Retry-After
	}
	return unknown
}
