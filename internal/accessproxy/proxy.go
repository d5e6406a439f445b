// Package accessproxy is the access proxy: kubectl over the tailnet, without a credential on the client and without a
// right to impersonate anybody. The connection says who calls (law 1). The caller's own live sign-in says what the
// caller may do: the proxy forwards each request with a token of that sign-in's ServiceAccount, which it holds in
// memory only. These are the steps of a request:
//
//	form -> host -> same site -> identify -> decide -> session -> parse -> limits -> impersonation -> sign-in -> policy -> token -> forward
//
// Everything ends with the sign-in: new requests are refused, and open streams are cut.
package accessproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/accessproxy/policy"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Signins are the stored sign-ins. [signin.Store] describes the methods.
type Signins interface {
	Get(ctx context.Context, name string) (signin.Signin, error)
	GetCached(name string) (signin.Signin, bool)
	ListCached(login string) []signin.Signin
	Await(ctx context.Context, name string, done func(signin.Signin, bool) bool) error
	IssueToken(ctx context.Context, s signin.Signin, life time.Duration) (secret.Text, time.Time, error)
	// Live lists the sign-ins that the API server has now and that are not being deleted. It never answers from a cache.
	Live(ctx context.Context) (LiveSignins, error)
}

// LiveSignins is a consistent list of sign-ins.
type LiveSignins struct {
	Version string            // resource version of the list
	UIDs    map[string]string // by name
}

// Tailnet is the proxy's node. [tailnet.Node] describes the methods.
type Tailnet interface {
	Names() []string
	ConnContext(context.Context, net.Conn) context.Context
	Identify(*http.Request) (access.Caller, error)
	Changed() <-chan struct{}
}

// A Proxy is the access proxy of one cluster. Fields are required unless their comment says otherwise.
type Proxy struct {
	Cluster  string // name of the cluster, for messages
	Tailnet  Tailnet
	Decide   func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error)
	Signins  Signins
	Upstream *Upstream
	// Recorder, optional, stores the recordings that the policy asks for. RecordInput records what people type too.
	Recorder    recording.Sink
	RecordInput bool
	// Protected are the namespaces whose ServiceAccounts no caller may impersonate.
	Protected []string
	Record    func(audit.Entry) error
	// RecordLater, optional, records reads without a wait for the file. Everything else is recorded before the end of its
	// response.
	RecordLater func(audit.Entry) error
	// RecordAll writes an audit entry for each routine read. Otherwise one entry a minute sums them up.
	RecordAll bool
	Limits    Limits
	// Access, optional, begins sign-ins on first use. Without it, only a login begins one.
	Access AccessServer
	Drain  time.Duration // how long open streams may continue after the proxy starts to stop; 0: they end at once
	// Measure, optional, is called at the end of each request.
	Measure func(Outcome)
	Log     *slog.Logger
	Now     func() time.Time

	once    sync.Once
	conns   conns
	own     http.Handler // of the paths below connections.Prefix
	rules   atomic.Pointer[policy.Policy]
	streams streams
	tokens  tokens
	proof   proof
	lookups lookups
	inUse   inUse
	sums    readSums
	buffers bufferPools

	firstUses firstUses
}

// An Outcome is the result of one request, for metrics. All values come from closed sets.
type Outcome struct {
	Verb   string // Kubernetes verb, "nonresource", or "" if the request was not parsed
	Stream string // kind of stream, such as "watch", or ""
	Status int    // of the response; 0: the client left first
	Code   string // of a refusal of the proxy itself, or ""
	Cut    string // why the proxy cut the stream, or ""
	Bytes  int64  // of the response
	Took   time.Duration
}

// stopTime is how long plain requests may take when the proxy stops.
const stopTime = 10 * time.Second

func (p *Proxy) prepare() {
	p.once.Do(func() {
		if p.Cluster == "" || p.Tailnet == nil || p.Decide == nil || p.Signins == nil || p.Upstream == nil || p.Record == nil || p.Log == nil || p.Now == nil {
			panic("accessproxy: a required field is missing")
		}
		p.streams.init(p)
		p.tokens.init(p)
		p.sums.init(p)
		p.buffers.init()
		p.own = p.ownHandler()
	})
}

// Ready returns why the proxy cannot carry requests now, or nil.
func (p *Proxy) Ready() error {
	p.prepare()
	return p.proof.check(p.Now())
}

// Run serves on ln until ctx ends. Then it accepts no new requests, sends GOAWAY to HTTP/2 clients, lets streams
// continue for Drain, and cuts the rest.
func (p *Proxy) Run(ctx context.Context, ln net.Listener) error {
	p.prepare()
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	var loops sync.WaitGroup
	defer loops.Wait()
	defer endWork()
	p.proof.renew(work, p) // without a first proof, all requests are refused
	tasks := []func(context.Context){p.proof.loop(p), p.watchTailnet, p.sums.loop}
	if p.Access != nil {
		tasks = append(tasks, p.reportUsage)
	}
	for _, loop := range tasks {
		loops.Go(func() { loop(work) })
	}
	srv := apiproxy.NewHTTPServer(p, p.Log)
	srv.ConnContext = p.connContext
	bound, framed := httpapi.NewConnLimiter(apiproxy.FramedListener(ln), p.Limits.Connections, 0), srv.ConnState
	srv.ConnState = func(c net.Conn, state http.ConnState) {
		p.conns.onStateChange(c, state)
		bound.OnStateChange(c, state)
		framed(c, state)
	}
	srv.HTTP2.SendPingTimeout, srv.HTTP2.PingTimeout = 30*time.Second, 15*time.Second
	served := make(chan error, 1)
	go func() { served <- srv.Serve(bound) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	p.stop(ctx, srv)
	<-served
	return nil
}

// stop ends the server: first it stops to accept, then it waits for Drain, then it cuts the streams that are left.
func (p *Proxy) stop(ctx context.Context, srv *http.Server) {
	ctx = context.WithoutCancel(ctx)
	drain, cancel := context.WithTimeout(ctx, p.Drain)
	defer cancel()
	context.AfterFunc(drain, func() { p.streams.cutAll(cutStopping) })
	grace, cancelGrace := context.WithTimeout(ctx, p.Drain+stopTime)
	defer cancelGrace()
	if err := srv.Shutdown(grace); err != nil {
		p.Log.Warn("requests were interrupted because they did not end in time", "limit", p.Drain+stopTime)
		srv.Close()
	}
	p.streams.wait(grace) // Shutdown does not wait for upgraded connections
}

// ServeHTTP implements [http.Handler]. Only Run adds strict framing, identities of connections, and proofs.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.prepare()
	if strings.HasPrefix(r.URL.Path, connections.Prefix) {
		p.own.ServeHTTP(w, r)
		return
	}
	x := newExchange(p, w, r)
	defer x.end()
	defer x.recoverPanic()
	if err := x.serve(); err != nil {
		x.refuse(err)
	}
}

// recoverPanic converts a panic to an internal error. If a response has started, it aborts the connection.
func (x *exchange) recoverPanic() {
	switch cause := recover(); {
	case cause == nil:
	case cause == http.ErrAbortHandler:
		panic(cause)
	default:
		x.proxy.Log.Error("a request panicked", "audit", x.id, "panic", cause)
		if x.status != 0 {
			panic(http.ErrAbortHandler)
		}
		x.refuse(errors.New("a panic"))
	}
}
