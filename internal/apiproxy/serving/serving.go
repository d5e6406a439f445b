// Package serving is the Kubernetes API of a pod as the pod reaches it: it lets
// the pod's own applications in, and carries each request to the cluster that
// serves it and the answer back, byte for byte. It keeps law 3: every refusal
// comes before the first byte that a cluster sees.
//
//	form -> host -> same site -> local token -> read -> upgrade -> impersonation -> token request -> route -> credential -> send
//
// There is no permit here: the caller is the pod, known by the loopback address
// and its local token, and what it may do is what its ServiceAccount may at each
// cluster.
package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
	"github.com/tailplane/tailplane/internal/door/framing"
)

// A Server serves the Kubernetes API of a pod. Fields without a remark are required.
type Server struct {
	// Names are the host names and addresses by which the listener may be
	// called, without ports and in lower case.
	Names []string
	// Opens says whether a bearer token is the local one.
	Opens func(token string) bool
	// Route says who serves a request. It gets it as a cluster would, without the
	// client's credentials, and may put another body in the place of its own. Its
	// error is a *[apiproxy.Refusal].
	Route func(*http.Request, *apiproxy.Request) (Target, error)
	// Allows says what the pod may do beside the ordinary. It is asked for each
	// request that wants it.
	Allows func() Allowed
	// Observe takes in each visit: it is counted, traced, recorded and logged there.
	Observe *observe.Observer
	Log     *slog.Logger
	Now     func() time.Time
	// Grace, optional, is how long exec and port-forward may go on after the
	// server was told to stop.
	Grace time.Duration

	once     sync.Once
	stopping context.Context // ends when the server is told to stop
	stop     context.CancelFunc
	upgrades sync.WaitGroup
	cut      context.Context // ends when upgraded connections must
	cutAll   context.CancelFunc
	buffers  sync.Pool
}

// Allowed is what a pod may do beside the ordinary; the zero value is nothing.
type Allowed struct {
	// Impersonation lets Impersonate- headers through: RBAC at the cluster then
	// decides whether the pod may be somebody else.
	Impersonation bool
	// TokenRequests lets the pod ask for tokens of ServiceAccounts, which are real
	// credentials.
	TokenRequests bool
}

// A Target is where a request goes, and the rule that says so.
type Target struct {
	Cluster *upstream.Cluster
	Rule    string // "" if none did: it is served at home
	// Serve, instead of Cluster, answers what several clusters serve. Nothing was
	// answered when it returns an error. The writer is a [Switch] when the client of
	// a watch asked for a WebSocket.
	Serve func(http.ResponseWriter, *http.Request, Calling) error
	// Clusters are those that Serve asks.
	Clusters []string
	// Warnings are told with the answer.
	Warnings []string
	// Heard, optional, is told of a cluster's answer before the client is, and may
	// put another in its place.
	Heard func(*http.Response)
	// Again, optional, is told of the cluster's answer first, and may name another
	// cluster that is to be asked instead, once.
	Again func(*http.Response) *upstream.Cluster
	// Until, optional, ends a watch at the cluster when it is closed.
	Until <-chan struct{}
	// Done, optional, is called when the request has been answered, or not.
	Done func()
}

// Calling is told that a cluster is about to be asked with a header, to which it
// adds, and by what it returns what came of it: the status, or why there is none.
type Calling func(cluster string, h http.Header) (end func(code int, err error))

// Do asks a cluster, and tells what came of it.
func (call Calling) Do(c *upstream.Cluster, ask upstream.Ask) (*upstream.Answer, error) {
	end := call(c.Name, ask.Header)
	answer, err := c.Do(ask)
	if err != nil {
		end(0, err)
		return nil, err
	}
	end(answer.StatusCode, nil)
	return answer, nil
}

// calling is the Calling of a visit.
func (v *visit) calling(cluster string, h http.Header) func(int, error) {
	call := v.seen.Call(cluster, h)
	return func(code int, err error) {
		why := observe.Failure("")
		if f, ok := errors.AsType[*upstream.Failure](err); ok {
			why = observe.Failure(f.Reason)
		} else if err != nil {
			why = observe.FailedReset
		}
		call.End(code, why)
	}
}

// Bounds of the listener and of one request.
const (
	headerTime   = 10 * time.Second
	idleTime     = 2 * time.Minute
	requestTime  = time.Minute      // beside what the request itself allows
	longestAsked = 10 * time.Minute // that a request may add to it
	plainGrace   = 10 * time.Second
	maxHeader    = 256 << 10
	maxStreams   = 250 // of one HTTP/2 connection, as the API server's own
	bufferSize   = 32 << 10
)

// prepare makes what the literal does not say.
func (s *Server) prepare() {
	s.once.Do(func() {
		if len(s.Names) == 0 || s.Opens == nil || s.Route == nil || s.Allows == nil || s.Observe == nil || s.Log == nil || s.Now == nil {
			panic("serving: a required field is missing")
		}
		s.stopping, s.stop = context.WithCancel(context.Background())
		s.cut, s.cutAll = context.WithCancel(context.Background())
		s.buffers.New = func() any { return new([bufferSize]byte) }
	})
}

// Run serves on ln, whose connections it wraps in TLS, until ctx ends. Then it
// takes no more, tells HTTP/2 clients to go, ends watches and followed logs, lets
// plain requests finish for ten seconds and upgraded connections for Grace.
func (s *Server) Run(ctx context.Context, ln net.Listener, conf *tls.Config) error {
	s.prepare()
	defer s.cutAll()
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		// "OPTIONS *" would else be answered to anybody.
		DisableGeneralOptionsHandler: true,
	}
	// TLS ends below framing, so what net/http sees is not TLS to it.
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(framing.Listener{Listener: tls.NewListener(ln, conf), HTTP2: true}) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	s.stop()
	began := s.Now()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), plainGrace)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		s.Log.Warn("requests were cut off, as they did not end in time", "limit", plainGrace)
		srv.Close()
	}
	<-served
	ended := make(chan struct{})
	go func() { s.upgrades.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(max(0, s.Grace-s.Now().Sub(began))):
		s.Log.Warn("upgraded connections were cut off, as they did not end in time", "limit", s.Grace)
		s.cutAll()
		<-ended
	}
	return nil
}

// ServeHTTP implements [http.Handler]. Under Run only, connections are framed strictly.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.prepare()
	v := &visit{Server: s, w: w, r: r, seen: s.Observe.Begin(r)}
	defer func() {
		v.seen.End(observe.Outcome{Code: v.code, Bytes: v.bytes, Upgrade: v.upgrade, Reason: v.reason, Message: v.message, Err: v.err, Panicked: v.panicked})
	}()
	defer v.survive()
	if err := v.pass(); err != nil {
		v.refuse(err)
	}
}

// A visit is one request on its way through.
type visit struct {
	*Server
	w       http.ResponseWriter
	r       *http.Request
	seen    *observe.Visit
	parsed  bool
	req     apiproxy.Request
	out     *http.Request // as a cluster gets it, without a credential
	target  Target
	upgrade string // the protocol that the client wants to switch to; "": none

	code     int // of the answer; 0: none was begun
	bytes    int64
	reason   string // of our own Status, as message
	message  string
	err      error // why it failed, for the log
	panicked bool
}

// pass is the whole way through, in order. What it returns is answered.
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

// serve answers by the target's own Serve, which ends its streams itself.
func (v *visit) serve() error {
	if v.streams() {
		return v.target.Serve(&noted{v.w, v}, v.out, v.calling)
	}
	ctx, cancel := v.deadline()
	defer cancel()
	return v.target.Serve(&noted{v.w, v}, v.out.WithContext(ctx), v.calling)
}

// noted writes down what somebody else answers.
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

// survive turns a panic into an answer. Nothing was sent when rewriting panicked.
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

// refused counts what the adapter itself says no to.
func (v *visit) refused(why observe.Refusal, err error) error {
	v.seen.Refused(why)
	return err
}

// opened says that the answer goes on for as long as somebody listens.
func (v *visit) opened(code int) {
	if v.streams() && (code/100 == 2 || code == http.StatusSwitchingProtocols) {
		v.seen.Opened(code)
	}
}

// streams says whether the answer goes on for as long as somebody listens: then
// it has no deadline, and each of its pieces is sent at once.
func (v *visit) streams() bool {
	if v.req.Verb == "watch" || v.upgrade != "" {
		return true
	}
	switch v.req.Subresource {
	case "attach", "exec", "log", "portforward", "proxy": // Kubernetes' own long-running ones
		return true
	}
	return false
}

// reads says whether the request changes nothing and may be sent again.
func (v *visit) reads() bool {
	return !v.streams() && (v.req.Verb == "get" || v.req.Verb == "list" || v.r.Method == http.MethodHead)
}

var errSlow = errors.New("no answer in time")

// deadline returns the context of the request at the cluster.
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

// ended says whether it is us who end a stream: its end is not an error's, and the
// client begins it anew.
func (v *visit) ended() bool {
	select {
	case <-v.target.Until:
		return true
	default:
		return v.stopping.Err() != nil
	}
}

// ask returns the request as the cluster gets it.
func (v *visit) ask(ctx context.Context) upstream.Ask {
	out := v.out.WithContext(ctx)
	return upstream.Ask{Request: out, Read: v.reads(), Others: v.req.Subresource == "proxy"}
}

// failure is what the client is told when a cluster gave no answer.
func (v *visit) failure(err error) error {
	v.err = err
	if v.r.Context().Err() != nil {
		v.code = observe.StatusGone
		panic(http.ErrAbortHandler) // nobody is there to be answered
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
		// The cause names files of the adapter; it is in its log.
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
		unknown.RetryAfter = time.Second // clients repeat any verb for it, so no write gets one
	}
	return unknown
}
