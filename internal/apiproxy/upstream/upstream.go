// Package upstream is the client of one cluster: the addresses of its API server, its credential and its
// health. It keeps law 7: a request is sent with the current credential of this cluster, or it is not sent.
package upstream

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
)

// Config configures a Cluster. Fields without a remark are required.
type Config struct {
	Name    string
	Servers []string // host:port of each API server of the cluster
	// ServerName is optional. It is the name in the server's certificate, if that is not the host in Servers.
	ServerName string
	CAFile     string // PEM of the server's CA; system CAs are never used
	// TokenFile, or CertFile and KeyFile, hold the credential. They are read again when they change.
	TokenFile, CertFile, KeyFile string
	// Folder is a mounted Secret and replaces all those files. Read interprets its files, given by name.
	Folder string
	Read   func(files map[string][]byte) (Material, error)
	// Vet is optional and can refuse a token before it is used.
	Vet func(token []byte) error
	// Reaches is optional and can refuse an address that a name in Servers resolves to.
	Reaches func(netip.Addr) error
	Limits  Limits // zero: no limits
	// Probe is optional and configures the health probe.
	Probe Probe
	// UID is optional. It is the UID of the cluster's namespace kube-system. If another cluster answers at
	// the address, it receives no requests.
	UID string
	// Dial is optional and wraps the dialler, to observe connections.
	Dial func(Dialer) Dialer
	// Probed is optional and receives the duration of each probe of [Cluster.Look].
	Probed func(time.Duration)
	Log    *slog.Logger
	Now    func() time.Time
}

// Material is the content of a cluster's mounted Secret: the CA, and either a token or a certificate with its
// key. All but Token are PEM.
type Material struct{ CA, Token, Cert, Key []byte }

// Limits limit the requests of one adapter to a cluster. 0 means no limit.
type Limits struct {
	QPS      float64 // requests per second
	Burst    int     // size of the token bucket; at least 1
	InFlight int     // concurrent requests, including streams
}

// Dialer opens connections, as [net/http.Transport.DialContext] does.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// Cluster sends requests to one cluster. It is safe for concurrent use.
type Cluster struct {
	Config
	endpoints []*endpoint
	bucket    *rate.Limiter // nil: no limit
	inFlight  atomic.Int64
	health    health
	identity  identity

	loading sync.Mutex // held while credential files are read
	sealed  atomic.Pointer[credential]
}

// New returns a Cluster. It reads no files and opens no connections. It panics if a required field is
// missing, which is a programming error.
func New(c Config) *Cluster {
	files := c.CAFile != "" && (c.TokenFile == "") != (c.CertFile == "") && (c.CertFile == "") == (c.KeyFile == "")
	if c.Name == "" || len(c.Servers) == 0 || c.Log == nil || c.Now == nil || files == (c.Folder != "") || (c.Folder == "") != (c.Read == nil) {
		panic("upstream: a required field is missing")
	}
	u := &Cluster{Config: c, health: health{since: c.Now(), failures: c.Probe.Failures, recovers: c.Probe.Successes}}
	for _, host := range c.Servers {
		u.endpoints = append(u.endpoints, &endpoint{host: host})
	}
	if c.Limits.QPS > 0 {
		u.bucket = rate.NewLimiter(rate.Limit(c.Limits.QPS), max(1, c.Limits.Burst))
	}
	return u
}

// Way is the transport of a request.
type Way int

const (
	// Plain uses HTTP/2 if the server supports it.
	Plain Way = iota
	// Upgrade uses HTTP/1.1 on a separate connection. HTTP/2 has no Upgrade header, and a connection must not
	// be reused after a failed upgrade.
	Upgrade
)

// Ask is a request to send. Path, query, method, body and header are sent unchanged. Host and credential are
// those of the cluster.
type Ask struct {
	*http.Request
	Way Way
	// Read allows one retry if there was no response.
	Read bool
	// Others means that the response may come from another server than the API server, such as a proxied
	// service. A 401 then does not concern the adapter's credential.
	Others bool
}

// Answer is the response of a cluster. The caller must close it.
type Answer struct {
	*http.Response
	done func()
}

// Close closes the response.
func (a *Answer) Close() error {
	err := a.Body.Close()
	a.done()
	return err
}

// Failure is the error if there is no response.
type Failure struct {
	Reason Reason
	// Sent means that the cluster may have received and executed the request.
	Sent bool
	Err  error
}

// Reason is the reason of a failure. The set is closed, because metrics use it as a label.
type Reason string

// The reasons.
const (
	Unhealthy  Reason = "unhealthy"  // the cluster did not respond earlier, so the request was not sent
	Limited    Reason = "limit"      // the adapter's limit is reached
	Credential Reason = "credential" // no credential, or the cluster refuses it
	Connect    Reason = "connect"
	Timeout    Reason = "timeout"
	Reset      Reason = "reset" // the connection ended without a response
)

// Error implements error.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Do sends a request and returns the response, or a *[Failure]. It returns redirects as responses and never
// follows them.
//
// Do retries in three cases only. No connection was made, so the cluster did not receive the request. The
// request is read-only. Or the cluster refused a credential that has been replaced since.
func (c *Cluster) Do(ask Ask) (*Answer, error) {
	if n := c.inFlight.Add(1); c.Limits.InFlight > 0 && n > int64(c.Limits.InFlight) || c.bucket != nil && !c.bucket.AllowN(c.Now(), 1) {
		c.inFlight.Add(-1)
		return nil, &Failure{Reason: Limited, Err: errors.New("this adapter's limit of requests is reached")}
	}
	answer, err := c.try(ask)
	if err != nil {
		c.inFlight.Add(-1)
		return nil, err
	}
	return answer, nil
}

// try implements Do within the limits.
func (c *Cluster) try(ask Ask) (*Answer, error) {
	cred, err := c.credential()
	if err != nil {
		return nil, &Failure{Reason: Credential, Err: err}
	}
	trial, ok := c.health.ask(c.Now())
	if !ok {
		return nil, &Failure{Reason: Unhealthy, Err: c.health.err()}
	}
	defer trial()
	if err := c.identify(ask.Context(), cred); err != nil {
		return nil, err
	}
	replayable := ask.Body == nil || ask.Body == http.NoBody || ask.GetBody != nil
	var tried []*endpoint // endpoints with failed connections
	readAgain, askedAgain := ask.Read && replayable, false
	for {
		to := c.pick(tried)
		res, sent, err := c.send(ask, cred, to)
		c.health.hear(c.Now(), verdict(ask.Context(), res, sent, err), err)
		switch {
		case err != nil && ask.Context().Err() != nil:
			return nil, &Failure{Reason: Timeout, Sent: sent, Err: context.Cause(ask.Context())}
		case err != nil && !sent:
			if tried = append(tried, to); len(tried) < len(c.endpoints) {
				continue
			}
			return nil, &Failure{Reason: Connect, Err: err}
		case err != nil && readAgain:
			readAgain = false
			continue
		case err != nil:
			return nil, &Failure{Reason: Reset, Sent: true, Err: err}
		case res.StatusCode == http.StatusUnauthorized:
			fresh, changed := c.again(cred)
			if changed && replayable && !askedAgain {
				cred, askedAgain = fresh, true
				res.Close()
				continue
			}
			if !ask.Others {
				res.Close()
				return nil, &Failure{Reason: Credential, Err: fmt.Errorf("credential for cluster %s was refused", c.Name)}
			}
		}
		inner := res.done
		res.done = sync.OnceFunc(func() { inner(); c.inFlight.Add(-1) })
		return res, nil
	}
}

// verdict converts the result of an attempt to an outcome.
func verdict(ctx context.Context, res *Answer, sent bool, err error) outcome {
	switch {
	case err == nil && res.StatusCode < http.StatusInternalServerError:
		return answered
	case err == nil:
		return complained
	case context.Cause(ctx) == context.Canceled:
		return noOutcome // the client disconnected, which is not the cluster's failure
	case sent:
		return complained
	}
	return unreached
}

// send makes one attempt. sent reports that there was a connection, after which the request may have arrived.
func (c *Cluster) send(ask Ask, cred *credential, to *endpoint) (_ *Answer, sent bool, _ error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(ask.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	out := ask.Request.WithContext(ctx)
	u := *ask.URL
	u.Scheme, u.Host, u.User = "https", to.host, nil
	out.URL, out.Host, out.Close, out.RequestURI = &u, "", false, ""
	out.Header = ask.Header.Clone()
	delete(out.Header, "Authorization")
	if cred.token != "" {
		out.Header["Authorization"] = []string{"Bearer " + string(cred.token)}
	}
	if ask.GetBody != nil {
		body, err := ask.GetBody()
		if err != nil {
			return nil, false, err
		}
		out.Body = body
	}
	transport := cred.plain
	if ask.Way == Upgrade {
		transport = cred.upgrade
	}
	to.inFlight.Add(1)
	res, err := transport.RoundTrip(out)
	if err != nil {
		to.inFlight.Add(-1)
		if !connected.Load() && ask.Context().Err() == nil {
			to.missed.Store(c.Now().UnixNano())
		}
		return nil, connected.Load(), err
	}
	to.missed.Store(0)
	return &Answer{Response: res, done: func() { to.inFlight.Add(-1) }}, true, nil
}

// Replayable reads a small body completely, so that it can be sent again. A retry follows a refused
// credential. HTTP/2 also retries if a server that shuts down reports that it did not process the request.
func Replayable(r *http.Request) error {
	if r.Body == nil || r.ContentLength <= 0 || r.ContentLength > replayed {
		return nil
	}
	b := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, b); err != nil {
		return err
	}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	return nil
}

// replayed is the largest body in bytes that is kept for a retry.
const replayed = 64 << 10
