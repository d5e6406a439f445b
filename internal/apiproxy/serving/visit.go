package serving

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// visit is the state of one request.
type visit struct {
	*Server
	w       http.ResponseWriter
	r       *http.Request
	seen    *observe.Visit
	parsed  bool
	req     apiproxy.Request
	out     *http.Request // as a cluster receives it, without a credential
	target  Target
	upgrade string // the protocol of a requested upgrade; "": none

	code     int // of the response; 0: not started
	bytes    int64
	reason   string // of the adapter's own Status; so is message
	message  string
	err      error // why it failed, for the log
	panicked bool
}

// pass runs all steps of a request in order. The caller answers with the error that it returns.
func (v *visit) pass() error {
	if err := checkForm(v.r); err != nil {
		return v.refused(observe.RefusedForm, err)
	}
	if err := v.checkHost(); err != nil {
		return v.refused(observe.RefusedHost, err)
	}
	if err := checkSite(v.r); err != nil {
		return v.refused(observe.RefusedSite, err)
	}
	if err := v.checkToken(); err != nil {
		return err
	}
	var err error
	if v.req, err = apiproxy.Parse(v.r.Method, v.r.URL); err != nil {
		return v.refused(observe.RefusedForm, err)
	}
	v.parsed = true
	v.seen.Asked(&v.req)
	if v.upgrade, err = upgradeOf(v.r, &v.req); err != nil {
		return v.refused(observe.RefusedUpgrade, err)
	}
	if err := v.checkImpersonation(); err != nil {
		return v.refused(observe.RefusedImpersonation, err)
	}
	if v.req.Verb == "create" && v.req.Group == "" && v.req.Resource == "serviceaccounts" && v.req.Subresource == "token" && !v.Allows().TokenRequests {
		return v.refused(observe.RefusedToken, refusal(http.StatusForbidden, "Forbidden", "tokens of ServiceAccounts are not given out to this pod: they are real credentials. allowTokenRequest in the adapter's configuration changes that"))
	}
	v.out = v.r.WithContext(v.r.Context())
	v.out.Header, v.out.Trailer, v.out.TransferEncoding = outbound(v.r.Header), nil, nil
	if v.out.ContentLength == 0 || v.upgrade != "" {
		v.out.Body = nil
	}
	if v.target, err = v.Route(v.out, &v.req); err != nil {
		if r, ok := errors.AsType[*apiproxy.Refusal](err); ok && r.Status == http.StatusForbidden {
			v.seen.Refused(observe.RefusedDeny)
		}
		return err
	}
	if v.target.Done != nil {
		defer v.target.Done()
	}
	if v.target.Cluster != nil {
		v.target.Clusters = []string{v.target.Cluster.Name}
	}
	v.seen.Routed(v.target.Rule, v.target.Clusters...)
	if err := v.seen.Admit(); err != nil {
		v.err = err
		return refusal(http.StatusServiceUnavailable, "ServiceUnavailable", "the audit record cannot be written, and this may not go unrecorded")
	}
	for _, text := range v.target.Warnings {
		v.w.Header().Add("Warning", "299 mca "+strconv.QuoteToASCII(text))
	}
	switch {
	case v.target.Serve != nil && v.upgrade != "":
		return v.serveSocket()
	case v.target.Serve != nil:
		return v.serve()
	case v.upgrade != "":
		return v.switchProtocols()
	}
	return v.forward()
}

// serve calls the target's Serve, which ends its streams itself.
func (v *visit) serve() error {
	if v.streams() {
		return v.target.Serve(&noted{v.w, v}, v.out, v.calling)
	}
	ctx, cancel := v.deadline()
	defer cancel()
	return v.target.Serve(&noted{v.w, v}, v.out.WithContext(ctx), v.calling)
}

// noted records the status and size of a response.
type noted struct {
	http.ResponseWriter
	v *visit
}

// WriteHeader implements [http.ResponseWriter].
func (n *noted) WriteHeader(code int) {
	if n.v.code == 0 {
		n.v.code = code
	}
	n.ResponseWriter.WriteHeader(code)
	n.v.opened(code)
}

// Write implements [http.ResponseWriter].
func (n *noted) Write(b []byte) (int, error) {
	m, err := n.ResponseWriter.Write(b)
	n.v.bytes += int64(m)
	return m, err
}

// Unwrap is for [http.ResponseController].
func (n *noted) Unwrap() http.ResponseWriter { return n.ResponseWriter }

// survive converts a panic to an internal error. If a response has started, it aborts the connection.
func (v *visit) survive() {
	switch p := recover(); {
	case p == nil:
	case p == http.ErrAbortHandler:
		panic(p)
	default:
		v.panicked, v.err = true, fmt.Errorf("panic: %v", p)
		if v.code != 0 {
			panic(http.ErrAbortHandler)
		}
		v.refuse(refusal(http.StatusInternalServerError, "InternalError", "internal error"))
	}
}

// refused counts a refusal of the adapter itself.
func (v *visit) refused(why observe.Refusal, err error) error {
	v.seen.Refused(why)
	return err
}

// opened records the start of a stream.
func (v *visit) opened(code int) {
	if v.streams() && (code/100 == 2 || code == http.StatusSwitchingProtocols) {
		v.seen.Opened(code)
	}
}

// streams reports whether the response continues until the client disconnects. Such a response has no
// deadline, and each part is flushed at once.
func (v *visit) streams() bool {
	if v.req.Verb == "watch" || v.upgrade != "" {
		return true
	}
	switch v.req.Subresource {
	case "attach", "exec", "log", "portforward", "proxy": // the long-running requests of Kubernetes
		return true
	}
	return false
}

// reads reports whether the request changes nothing and may be sent again.
func (v *visit) reads() bool {
	return !v.streams() && (v.req.Verb == "get" || v.req.Verb == "list" || v.r.Method == http.MethodHead)
}

var errSlow = errors.New("no answer in time")

// deadline returns the context of the request to the cluster.
func (v *visit) deadline() (context.Context, context.CancelFunc) {
	if v.streams() {
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
	limit := requestTime
	if strings.Contains(v.r.URL.RawQuery, "timeout=") {
		if asked, err := time.ParseDuration(v.r.URL.Query().Get("timeout")); err == nil {
			limit += min(max(0, asked), longestAsked)
		}
	}
	return context.WithTimeoutCause(v.r.Context(), limit, errSlow)
}

// ended reports whether the adapter ends the stream. Such an end is not an error, and the client opens the
// stream again.
func (v *visit) ended() bool {
	select {
	case <-v.target.Until:
		return true
	default:
		return v.stopping.Err() != nil
	}
}

// ask returns the request to the cluster.
func (v *visit) ask(ctx context.Context) upstream.Ask {
	out := v.out.WithContext(ctx)
	return upstream.Ask{Request: out, Read: v.reads(), Others: v.req.Subresource == "proxy"}
}

// failure returns the refusal for a request that got no response from its cluster.
func (v *visit) failure(err error) error {
	v.err = err
	if v.r.Context().Err() != nil {
		v.code = observe.StatusGone
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	f, ok := errors.AsType[*upstream.Failure](err)
	if !ok {
		return err
	}
	name := v.target.Cluster.Name
	unavailable := refusal(http.StatusServiceUnavailable, "ServiceUnavailable", "")
	unavailable.RetryAfter = time.Second
	switch {
	case f.Reason == upstream.Limited:
		limited := refusal(http.StatusTooManyRequests, "TooManyRequests", "cluster %s: %v", name, f.Err)
		limited.RetryAfter = time.Second
		return limited
	case f.Reason == upstream.Credential:
		// The cause names files of the adapter, so it is only in the log.
		unavailable.Message = fmt.Sprintf("credential for cluster %s was refused or cannot be read", name)
		return unavailable
	case !f.Sent:
		unavailable.Message = fmt.Sprintf("cluster %s cannot be reached: %v", name, f.Err)
		return unavailable
	}
	if v.stopping.Err() != nil && v.req.Verb == "watch" {
		unavailable.Message = "this adapter is stopping"
		return unavailable
	}
	unknown := refusal(http.StatusGatewayTimeout, "Timeout", "cluster %s gave no answer, and may have done what was asked: %v", name, f.Err)
	if v.reads() || v.req.Verb == "watch" {
		unknown.RetryAfter = time.Second // clients would retry any verb, so writes get no Retry-After
	}
	return unknown
}
