package apiproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// UpstreamConfig configures an Upstream. Fields without a remark are required.
type UpstreamConfig struct {
	Name    string
	Servers []string // host:port of each API server of the cluster
	// ServerName is optional. It is the name in the server's certificate, if that is not the host in Servers.
	ServerName string
	CAFile     string // PEM of the server's CA; system CAs are never used
	// TokenFile, or CertFile and KeyFile, hold the credential. They are read again when they change.
	TokenFile, CertFile, KeyFile string
	// SecretDir is a mounted Secret and replaces all those files. ParseSecret interprets its files, given by name.
	SecretDir   string
	ParseSecret func(files map[string][]byte) (CredentialData, error)
	// CheckToken is optional and can refuse a token before it is used.
	CheckToken func(token secret.Text) error
	// CheckAddress is optional and can refuse an address that a name in Servers resolves to.
	CheckAddress func(netip.Addr) error
	Limits       Limits // zero: no limits
	// Probe is optional and configures the health probe.
	Probe Probe
	// UID is optional. It is the UID of the cluster's namespace kube-system. If another cluster answers at
	// the address, it receives no requests.
	UID string
	// Dial is optional and wraps the dialler, to observe connections.
	Dial func(Dialer) Dialer
	// OnProbe is optional and receives the duration of each probe of [Upstream.RunProbe].
	OnProbe func(time.Duration)
	Log     *slog.Logger
	Now     func() time.Time
}

// CredentialData is the content of a cluster's mounted Secret: the CA, and either a token or a certificate with its
// key. All but Token are PEM.
type CredentialData struct {
	CA, Cert   []byte
	Token, Key secret.Text
}

// Limits limit the requests of one adapter to a cluster. 0 means no limit.
type Limits struct {
	QPS      float64 // requests per second
	Burst    int     // size of the token bucket; at least 1
	InFlight int     // concurrent requests, including streams
}

// Dialer opens connections, as [net/http.Transport.DialContext] does.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// Upstream is the client of one cluster: the addresses of its API server, its credential and its health. It keeps law
// 7: a request is sent with the current credential of this cluster, or it is not sent. It is safe for concurrent use.
type Upstream struct {
	UpstreamConfig
	endpoints []*endpoint
	bucket    *rate.Limiter // nil: no limit
	inFlight  atomic.Int64
	health    health
	identity  clusterIdentity

	loading sync.Mutex // held while credential files are read
	current atomic.Pointer[credential]
}

// NewUpstream returns an Upstream. It reads no files and opens no connections. It panics if a required field is
// missing, which is a programming error.
func NewUpstream(c UpstreamConfig) *Upstream {
	files := c.CAFile != "" && (c.TokenFile == "") != (c.CertFile == "") && (c.CertFile == "") == (c.KeyFile == "")
	if c.Name == "" || len(c.Servers) == 0 || c.Log == nil || c.Now == nil || files == (c.SecretDir != "") ||
		(c.SecretDir == "") != (c.ParseSecret == nil) {
		panic("apiproxy.Upstream: a required field is missing")
	}
	u := &Upstream{UpstreamConfig: c, health: health{since: c.Now(), failures: c.Probe.Failures, successes: c.Probe.Successes}}
	for _, host := range c.Servers {
		u.endpoints = append(u.endpoints, &endpoint{host: host})
	}
	if c.Limits.QPS > 0 {
		u.bucket = rate.NewLimiter(rate.Limit(c.Limits.QPS), max(1, c.Limits.Burst))
	}
	return u
}

// Transport is the transport of a request.
type Transport int

const (
	// PlainTransport uses HTTP/2 if the server supports it.
	PlainTransport Transport = iota
	// UpgradeTransport uses HTTP/1.1 on a separate connection. HTTP/2 has no Upgrade header, and a connection must not
	// be reused after a failed upgrade.
	UpgradeTransport
)

// UpstreamRequest is a request to send. Path, query, method, body and header are sent unchanged. Host and credential are
// those of the cluster.
type UpstreamRequest struct {
	*http.Request
	Transport Transport
	// ReadOnly allows one retry if there was no response.
	ReadOnly bool
	// Proxied means that the response may come from another server than the API server, such as a proxied
	// service. A 401 then does not concern the adapter's credential.
	Proxied bool
}

// UpstreamResponse is the response of a cluster. The caller must close it.
type UpstreamResponse struct {
	*http.Response
	Cluster string // the name of the cluster
	done    func()
}

// Close closes the response.
func (a *UpstreamResponse) Close() error {
	err := a.Body.Close()
	a.done()
	return err
}

// UpstreamError is the error if there is no response.
type UpstreamError struct {
	Reason CallFailure
	// Sent means that the cluster may have received and executed the request.
	Sent bool
	Err  error
}

// Error implements error.
func (f *UpstreamError) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *UpstreamError) Unwrap() error { return f.Err }

// Do sends a request and returns the response, or a *[UpstreamError]. It returns redirects as responses and never
// follows them.
//
// Do retries in three cases only. No connection was made, so the cluster did not receive the request. The
// request is read-only. Or the cluster refused a credential that has been replaced since.
func (c *Upstream) Do(req UpstreamRequest) (*UpstreamResponse, error) {
	if n := c.inFlight.Add(1); c.Limits.InFlight > 0 && n > int64(c.Limits.InFlight) || c.bucket != nil && !c.bucket.AllowN(c.Now(), 1) {
		c.inFlight.Add(-1)
		return nil, &UpstreamError{Reason: FailedLimit, Err: errors.New("the adapter's request limit is reached")}
	}
	response, err := c.doWithinLimits(req)
	if err != nil {
		c.inFlight.Add(-1)
		return nil, err
	}
	return response, nil
}

// doWithinLimits implements Do within the limits.
func (c *Upstream) doWithinLimits(req UpstreamRequest) (*UpstreamResponse, error) {
	cred, err := c.credential()
	if err != nil {
		return nil, &UpstreamError{Reason: FailedCredential, Err: err}
	}
	trial, ok := c.health.admit(c.Now())
	if !ok {
		return nil, &UpstreamError{Reason: FailedUnhealthy, Err: c.health.err()}
	}
	defer trial()
	if err := c.identify(req.Context(), cred); err != nil {
		return nil, err
	}
	replayable := req.Body == nil || req.Body == http.NoBody || req.GetBody != nil
	var tried []*endpoint // endpoints with failed connections
	readAgain, retried := req.ReadOnly && replayable, false
	for {
		to := c.pick(tried)
		res, sent, err := c.send(req, cred, to)
		c.health.record(c.Now(), attemptOutcome(req.Context(), res, sent, err), err)
		switch {
		case err != nil && req.Context().Err() != nil:
			return nil, &UpstreamError{Reason: FailedTimeout, Sent: sent, Err: context.Cause(req.Context())}
		case err != nil && !sent:
			if tried = append(tried, to); len(tried) < len(c.endpoints) {
				continue
			}
			return nil, &UpstreamError{Reason: FailedConnect, Err: err}
		case err != nil && readAgain:
			readAgain = false
			continue
		case err != nil:
			return nil, &UpstreamError{Reason: FailedReset, Sent: true, Err: err}
		case res.StatusCode == http.StatusUnauthorized:
			fresh, changed := c.reloadCredential(cred)
			if changed && replayable && !retried {
				cred, retried = fresh, true
				res.Close()
				continue
			}
			if !req.Proxied {
				res.Close()
				return nil, &UpstreamError{Reason: FailedCredential, Err: fmt.Errorf("cluster %s rejected its credential", c.Name)}
			}
		}
		inner := res.done
		res.done = sync.OnceFunc(func() { inner(); c.inFlight.Add(-1) })
		return res, nil
	}
}

// attemptOutcome converts the result of an attempt to an outcome.
func attemptOutcome(ctx context.Context, res *UpstreamResponse, sent bool, err error) attempt {
	switch {
	case err == nil && res.StatusCode < http.StatusInternalServerError:
		return attemptSucceeded
	case err == nil:
		return attemptServerError
	case context.Cause(ctx) == context.Canceled:
		return attemptCanceled // the client disconnected, which is not the cluster's failure
	case sent:
		return attemptServerError
	}
	return attemptUnreachable
}

// send makes one attempt. sent reports that there was a connection, after which the request may have arrived.
func (c *Upstream) send(req UpstreamRequest, cred *credential, to *endpoint) (_ *UpstreamResponse, sent bool, _ error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	out := req.Request.WithContext(ctx)
	u := *req.URL
	u.Scheme, u.Host, u.User = "https", to.host, nil
	out.URL, out.Host, out.Close, out.RequestURI = &u, "", false, ""
	out.Header = req.Header.Clone()
	delete(out.Header, "Authorization")
	if !cred.token.IsZero() {
		out.Header["Authorization"] = []string{"Bearer " + cred.token.Reveal()}
	}
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, false, err
		}
		out.Body = body
	}
	transport := cred.plain
	if req.Transport == UpgradeTransport {
		transport = cred.upgrade
	}
	to.inFlight.Add(1)
	res, err := transport.RoundTrip(out)
	if err != nil {
		to.inFlight.Add(-1)
		if !connected.Load() && req.Context().Err() == nil {
			to.lastFailure.Store(c.Now().UnixNano())
		}
		return nil, connected.Load(), err
	}
	to.lastFailure.Store(0)
	return &UpstreamResponse{Response: res, Cluster: c.Name, done: func() { to.inFlight.Add(-1) }}, true, nil
}

// bufferBody reads a small body completely, so that it can be sent again. A retry follows a refused
// credential. HTTP/2 also retries if a server that shuts down reports that it did not process the request.
func bufferBody(r *http.Request) error {
	if r.Body == nil || r.GetBody != nil || r.ContentLength <= 0 || r.ContentLength > maxReplayedBody {
		return nil
	}
	b := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, b); err != nil {
		return err
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	return nil
}

// maxReplayedBody is the largest body in bytes that is kept for a retry.
const maxReplayedBody = 64 << 10
