// Package upstream is one cluster as its adapter sees it: the addresses of its
// API server, the credential for it, and whether it answers. It keeps law 7: a
// request leaves with the credential of this cluster, as its files are at that
// moment, or it does not leave.
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

// A Config says where a cluster is. Fields without a remark are required.
type Config struct {
	Name    string
	Servers []string // host:port of each API server of this one cluster
	// ServerName is optional: the name in the server's certificate, when it is
	// not the host in Servers.
	ServerName string
	CAFile     string // PEM of who vouches for the server; the system's authorities are never asked
	// TokenFile, or CertFile and KeyFile, hold the credential. Their files are
	// read again when they change.
	TokenFile, CertFile, KeyFile string
	// Folder, instead of all those, is a mounted Secret: Read understands its
	// files, by their names.
	Folder string
	Read   func(files map[string][]byte) (Material, error)
	// Vet, optional, refuses a token before it is used.
	Vet func(token []byte) error
	// Reaches, optional, refuses an address that a name in Servers leads to.
	Reaches func(netip.Addr) error
	Limits  Limits // the zero value limits nothing
	// Probe, optional, says how the cluster is asked whether it is there.
	Probe Probe
	// UID, optional, is that of the cluster's namespace kube-system: another
	// cluster behind the address gets no request.
	UID string
	// Dial, optional, is told of connections: it wraps how they are made.
	Dial func(Dialer) Dialer
	// Probed, optional, is told how long a question of [Cluster.Look] took.
	Probed func(time.Duration)
	Log    *slog.Logger
	Now    func() time.Time
}

// Material is what a mounted Secret holds for a cluster: who vouches for it, and
// either a token or a certificate with its key. All but Token are PEM.
type Material struct{ CA, Token, Cert, Key []byte }

// Limits bound what one adapter asks of a cluster. 0 is no limit.
type Limits struct {
	QPS      float64 // requests a second
	Burst    int     // at once, above QPS
	InFlight int     // at a time, streams included
}

// A Dialer makes connections, as [net/http.Transport.DialContext] does.
type Dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// A Cluster sends requests to one cluster. It may be used by several goroutines.
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

// New returns a Cluster. It reads no file and dials nobody. It panics when a
// required field is missing, which is a mistake of the program.
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

// A Way is how a request travels.
type Way int

const (
	// Plain is HTTP/2 where the server speaks it.
	Plain Way = iota
	// Upgrade is HTTP/1.1 on a connection of the request's own: HTTP/2 has no
	// Upgrade header, and a connection whose upgrade failed is used for nothing else.
	Upgrade
)

// An Ask is a request to be sent. Its path, query, method, body and header are
// sent as they are; its host and credential are the cluster's.
type Ask struct {
	*http.Request
	Way Way
	// Read says that the request may be sent once more when it got no answer.
	Read bool
	// Others says that an answer may be somebody else's than the API server's, as
	// that of a proxied service is: its 401 is not about our credential.
	Others bool
}

// An Answer is the cluster's response. It must be closed.
type Answer struct {
	*http.Response
	done func()
}

// Close ends the response.
func (a *Answer) Close() error {
	err := a.Body.Close()
	a.done()
	return err
}

// A Failure is why there is no answer.
type Failure struct {
	Reason Reason
	// Sent says that the cluster may have got the request, and done what it asks.
	Sent bool
	Err  error
}

// A Reason of a failure; the set is closed, for metrics.
type Reason string

// The reasons.
const (
	Unhealthy  Reason = "unhealthy"  // it did not answer before, and nobody asked now
	Limited    Reason = "limit"      // more than this adapter may ask
	Credential Reason = "credential" // no credential, or one that the cluster refuses
	Connect    Reason = "connect"
	Timeout    Reason = "timeout"
	Reset      Reason = "reset" // the connection ended without an answer
)

// Error implements error.
func (f *Failure) Error() string { return f.Err.Error() }

// Unwrap returns the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Do sends a request and returns its answer, or a *[Failure]. Redirects are
// answers: they are never followed.
//
// It sends more than once only what surely was not received (no connection came
// about), what only reads, and what the cluster refused for a credential that has
// been replaced since.
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

// try is Do within the limits.
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
	var tried []*endpoint // that could not be reached
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

// verdict is what an attempt says about the cluster.
func verdict(ctx context.Context, res *Answer, sent bool, err error) outcome {
	switch {
	case err == nil && res.StatusCode < http.StatusInternalServerError:
		return answered
	case err == nil:
		return complained
	case context.Cause(ctx) == context.Canceled:
		return noOutcome // the client went away, and nobody who waited lost patience
	case sent:
		return complained
	}
	return unreached
}

// send is one attempt. sent says that a connection was there: from then on
// nobody knows what of the request arrived.
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

// Replayable lets a small body be sent again: it is read as a whole first. It
// may be sent again after a refused credential, or by HTTP/2 after a server that
// is about to stop has said that it did not look at the request.
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

// replayed is the longest body that is kept until it was answered.
const replayed = 64 << 10
