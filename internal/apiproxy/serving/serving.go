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
	buffers  sync.Pool // of *[bufferSize]byte
	large    sync.Pool // of *[largeSize]byte
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
	maxLine      = maxHeader + 16<<10 // beyond it, as net/http reads some more
	maxStreams   = 250                // of one HTTP/2 connection, as the API server's own
	bufferSize   = 32 << 10
	largeSize    = 128 << 10
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
		s.large.New = func() any { return new([largeSize]byte) }
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
	go func() {
		served <- srv.Serve(framing.Listener{Listener: tls.NewListener(ln, conf), HTTP2: true, MaxLine: maxLine})
	}()
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
