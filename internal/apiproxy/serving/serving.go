// Package serving is the HTTP server of the adapter, which serves the Kubernetes API to its pod. It authenticates the
// pod's applications, forwards each request to the cluster that serves it, and relays the response byte for byte. It
// keeps law 3: every refusal happens before the first byte goes to a cluster. These are the steps:
//
//	form -> host -> same site -> local token -> read -> upgrade -> impersonation -> token request -> route -> credential -> send
//
// The package has no permits. The caller is the pod, which the loopback address and the local token authenticate. RBAC
// for its ServiceAccount in each cluster authorises it.
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

// Server serves the Kubernetes API of a pod. Fields without a remark are required.
type Server struct {
	// Names are the valid host names and addresses of the listener, without ports, in lower case.
	Names []string
	// Opens reports whether a bearer token is the local one.
	Opens func(token string) bool
	// Route returns the target of a request. The request is as a cluster receives it, without the client's
	// credentials. Route may replace its body. Its error is a *[apiproxy.Refusal].
	Route func(*http.Request, *apiproxy.Request) (Target, error)
	// Allows returns the optional permissions of the pod. It is called for each request that needs one.
	Allows func() Allowed
	// Observe records each request in metrics, traces, the audit log and the log.
	Observe *observe.Observer
	Log     *slog.Logger
	Now     func() time.Time
	// Grace is optional. It is how long exec and port-forward may continue after the server starts to stop.
	Grace time.Duration

	once     sync.Once
	stopping context.Context // ends when the server starts to stop
	stop     context.CancelFunc
	upgrades sync.WaitGroup
	cut      context.Context // ends when upgraded connections must close
	cutAll   context.CancelFunc
	buffers  sync.Pool // of *[bufferSize]byte
	large    sync.Pool // of *[largeSize]byte
}

// Allowed are the optional permissions of a pod; the zero value allows none.
type Allowed struct {
	// Impersonation forwards Impersonate- headers. RBAC of the cluster then decides whether the pod may
	// impersonate the user.
	Impersonation bool
	// TokenRequests lets the pod request ServiceAccount tokens, which are real credentials.
	TokenRequests bool
}

// Target is where a request goes, and the rule that decided it.
type Target struct {
	Cluster *upstream.Cluster
	Rule    string // "" if no rule matched and the home cluster serves it
	// Serve is set instead of Cluster if several clusters serve the request. If it returns an error, it has
	// written nothing. The writer is a [Switch] if the client of a watch requested a WebSocket.
	Serve func(http.ResponseWriter, *http.Request, Calling) error
	// Clusters are the clusters that Serve uses.
	Clusters []string
	// Warnings are sent with the response.
	Warnings []string
	// Heard is optional. It is called with a cluster's response before the client gets it, and may replace
	// it.
	Heard func(*http.Response)
	// Again is optional. It is called first with the cluster's response, and may return another cluster to
	// send the request to instead, once.
	Again func(*http.Response) *upstream.Cluster
	// Until is optional. Closing it ends a watch at the cluster.
	Until <-chan struct{}
	// Done is optional. It is called when the request has ended, with or without a response.
	Done func()
}

// Calling is called before a request to a cluster, and may add header fields. The function that it returns
// must be called with the result: the status, or why there is none.
type Calling func(cluster string, h http.Header) (end func(code int, err error))

// Do sends a request to a cluster and reports the result.
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

// Limits of the listener and of one request.
const (
	headerTime   = 10 * time.Second
	idleTime     = 2 * time.Minute
	requestTime  = time.Minute      // in addition to the request's own timeout
	longestAsked = 10 * time.Minute // the largest timeout that a request may set
	plainGrace   = 10 * time.Second
	maxHeader    = 256 << 10
	maxLine      = maxHeader + 16<<10 // more than maxHeader, because net/http reads some bytes more
	maxStreams   = 250                // per HTTP/2 connection, the same as the API server
	bufferSize   = 32 << 10
	largeSize    = 128 << 10
)

// prepare initialises the internal fields.
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

// Run serves on ln, whose connections it wraps in TLS, until ctx ends. Then it stops accepting requests,
// sends GOAWAY to HTTP/2 clients, and ends watches and followed logs. Plain requests may take ten more
// seconds, upgraded connections Grace.
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
		// Otherwise net/http would answer "OPTIONS *" without a token.
		DisableGeneralOptionsHandler: true,
	}
	// TLS terminates below the framing layer, so net/http does not see it.
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

// ServeHTTP implements [http.Handler]. Only Run adds strict framing of connections.
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
