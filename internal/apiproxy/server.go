// Package apiproxy is a reverse proxy in front of Kubernetes API servers. It parses each request as an API server does
// ([ParseRequest]), authenticates and checks it ([Server]), sends it to a cluster ([Upstream]), relays the response or
// the upgraded connection byte for byte ([Exchange]), and observes it ([Telemetry]). It keeps law 3: every refusal happens before
// the first byte goes to a cluster. It keeps laws 8 and 10: telemetry contains no secret, and text that a client
// chooses cannot create a series, end a line or change the direction of text. These are the steps of a request:
//
//	form -> host -> same site -> local token -> read -> upgrade -> impersonation -> token request -> route -> audit -> credential -> send
//
// The package has no permits. The caller is the pod, which the loopback address and the local token authenticate. RBAC
// for its ServiceAccount in each cluster authorises it.
package apiproxy

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server serves the Kubernetes API of a pod. Fields without a remark are required.
type Server struct {
	// Hosts are the valid host names and addresses of the listener, without ports, in lower case.
	Hosts []string
	// ValidToken reports whether a bearer token is the local one.
	ValidToken func(token string) bool
	// Handle serves a request that passed all checks. Its error is the response, if nothing has been written: a
	// *[Refusal], or another error, which becomes an internal error.
	Handle func(*Exchange) error
	// Permissions returns the optional permissions of the pod. It is called for each request that needs one.
	Permissions func() Permissions
	// Telemetry records each request in metrics, traces, the audit log and the log.
	Telemetry *Telemetry
	Log       *slog.Logger
	Now       func() time.Time
	// Grace is optional. It is how long exec and port-forward may continue after the server starts to stop.
	Grace time.Duration

	once          sync.Once
	stopping      context.Context // ends when the server starts to stop
	stop          context.CancelFunc
	upgrades      sync.WaitGroup
	upgradesCtx   context.Context // ends when upgraded connections must close
	closeUpgrades context.CancelFunc
	buffers       sync.Pool // of *[bufferSize]byte
	large         sync.Pool // of *[largeSize]byte
}

// Permissions are the optional permissions of a pod; the zero value allows none.
type Permissions struct {
	// Impersonation forwards Impersonate- headers. RBAC of the cluster then decides whether the pod may
	// impersonate the user.
	Impersonation bool
	// TokenRequests lets the pod request ServiceAccount tokens, which are real credentials.
	TokenRequests bool
}

// Limits of the listener and of one request.
const (
	headerTimeout     = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	requestTimeout    = time.Minute      // in addition to the request's own timeout
	maxRequestTimeout = 10 * time.Minute // the largest timeout that a request may set
	plainGrace        = 10 * time.Second
	maxHeader         = 256 << 10
	maxLine           = maxHeader + 16<<10 // more than maxHeader, because net/http reads some bytes more
	maxStreams        = 250                // per HTTP/2 connection, the same as the API server
	bufferSize        = 32 << 10
	largeSize         = 128 << 10
)

// prepare initialises the internal fields.
func (s *Server) prepare() {
	s.once.Do(func() {
		if len(s.Hosts) == 0 || s.ValidToken == nil || s.Handle == nil || s.Permissions == nil || s.Telemetry == nil ||
			s.Log == nil || s.Now == nil {
			panic("apiproxy.Server: a required field is missing")
		}
		s.stopping, s.stop = context.WithCancel(context.Background())
		s.upgradesCtx, s.closeUpgrades = context.WithCancel(context.Background())
		s.buffers.New = func() any { return new([bufferSize]byte) }
		s.large.New = func() any { return new([largeSize]byte) }
	})
}

// Run serves on ln, whose connections it wraps in TLS, until ctx ends. Then it stops accepting requests,
// sends GOAWAY to HTTP/2 clients, and ends watches and followed logs. Plain requests may take ten more
// seconds, upgraded connections Grace.
func (s *Server) Run(ctx context.Context, ln net.Listener, conf *tls.Config) error {
	s.prepare()
	defer s.closeUpgrades()
	srv := NewHTTPServer(s, s.Log)
	served := make(chan error, 1)
	go func() {
		served <- srv.Serve(FramedListener(tls.NewListener(ln, conf)))
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
		s.Log.Warn("requests were cut off, because they did not end in time", "limit", plainGrace)
		srv.Close()
	}
	<-served
	ended := make(chan struct{})
	go func() { s.upgrades.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(max(0, s.Grace-s.Now().Sub(began))):
		s.Log.Warn("upgraded connections were cut off, because they did not end in time", "limit", s.Grace)
		s.closeUpgrades()
		<-ended
	}
	return nil
}

// ServeHTTP implements [http.Handler]. Only Run adds strict framing of connections.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.prepare()
	x := &Exchange{In: r, Telemetry: s.Telemetry.Begin(r), server: s}
	x.W = &recordedWriter{w, x}
	defer func() { x.Telemetry.End(x.result) }()
	defer x.recoverPanic()
	if err := x.handle(); err != nil {
		x.writeRefusal(err)
	}
}
