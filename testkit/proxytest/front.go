package proxytest

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/audit"
)

// Policy is the policy of the access server.
var Policy = access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view", "edit"}, Min: 10 * time.Minute, Max: 24 * time.Hour,
	Reserved: []string{"tailplane-system", "tailplane-signins"}, Planes: []access.Tag{"tag:plane"}}

// ViewRule is a rule of a grant for the role view.
const ViewRule = `{"role": "view", "period": "8h"}`

// A Front is an access proxy in this process, with fakes around it.
type Front struct {
	Proxy   *accessproxy.Proxy
	Tailnet *Tailnet
	Signins *Signins
	API     *API
	Log     *Log // of the proxy

	decide atomic.Pointer[func() (access.Permit, error)]

	addr  string
	roots *x509.CertPool
	mu    sync.Mutex
	audit []audit.Entry
}

// New returns a proxy with fakes around it that does not serve yet. now is its clock.
func New(t testing.TB, api *API, now func() time.Time) *Front {
	t.Helper()
	upstream, err := accessproxy.NewUpstream(api.URL, &tls.Config{RootCAs: api.Roots, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(upstream.Close)
	f := &Front{Tailnet: NewTailnet(), Signins: NewSignins(now), API: api, Log: &Log{}}
	f.Proxy = &accessproxy.Proxy{Cluster: "east", Tailnet: f.Tailnet, Signins: f.Signins, Upstream: upstream,
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			if decide := f.decide.Load(); decide != nil {
				return (*decide)()
			}
			return access.Decide(c, v, Policy, now)
		},
		Protected: []string{"tailplane-system", "tailplane-signins", "kube-system"},
		Record: func(e audit.Entry) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.audit = append(f.audit, e)
			return nil
		},
		RecordAll: true, Log: slog.New(slog.NewTextHandler(f.Log, nil)), Now: now}
	return f
}

// Start starts an access proxy in front of api. Alice has a device at 127.0.0.2 and bob one at 127.0.0.3, both with the
// role view. It stops at the end of the test. The options change the proxy before its start.
func Start(t testing.TB, api *API, options ...func(*accessproxy.Proxy)) *Front {
	t.Helper()
	f := New(t, api, time.Now)
	for _, change := range options {
		change(f.Proxy)
	}
	f.Tailnet.Set("127.0.0.2", Person("alice@example.com", "alice-laptop", ViewRule))
	f.Tailnet.Set("127.0.0.3", Person("bob@example.com", "bob-laptop", ViewRule))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pair, roots := Certificate(t, time.Now().Add(time.Hour), Name)
	f.addr, f.roots = ln.Addr().String(), roots
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- f.Proxy.Run(ctx, tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the proxy's log:\n%s", f.Log)
		}
	})
	return f
}

// OnDecide replaces the decisions of the policy; nil restores them.
func (f *Front) OnDecide(decide func() (access.Permit, error)) {
	if decide == nil {
		f.decide.Store(nil)
		return
	}
	f.decide.Store(&decide)
}

// Audit returns the audit entries after the first n.
func (f *Front) Audit(n int) []audit.Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.audit[n:])
}

// dial connects to the proxy from an address.
func (f *Front) dial(ctx context.Context, from string) (net.Conn, error) {
	return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", f.addr)
}

// Client returns a client at an address, for HTTP/2 or HTTP/1.1. It follows no redirect.
func (f *Front) Client(t testing.TB, from string, http2 bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.roots}, Protocols: new(http.Protocols), DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return f.dial(ctx, from) }}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Request returns a request with the token of the default session. pairs are names and values of fields; a value for
// Authorization replaces the token, and "" removes it.
func Request(t testing.TB, method, path, body string, pairs ...string) *http.Request {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+Name+path, in)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer session.default")
	for i := 0; i+1 < len(pairs); i += 2 {
		switch pairs[i] {
		case "Authorization":
			if delete(r.Header, "Authorization"); pairs[i+1] != "" {
				r.Header["Authorization"] = []string{pairs[i+1]}
			}
		case "Host":
			r.Host = pairs[i+1]
		default:
			r.Header[pairs[i]] = append(r.Header[pairs[i]], pairs[i+1])
		}
	}
	return r
}

// Do sends a request and returns the response with its body.
func Do(t testing.TB, hc *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := hc.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL.Path, err)
	}
	return res, string(b)
}

// Dial returns a TLS connection from an address, with a protocol of ALPN.
func (f *Front) Dial(t testing.TB, from, protocol string) *tls.Conn {
	t.Helper()
	raw, err := f.dial(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(raw, &tls.Config{RootCAs: f.roots, ServerName: Name, NextProtos: []string{protocol}})
	t.Cleanup(func() { c.Close() })
	if err := c.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(time.Minute))
	return c
}

// Raw sends bytes over HTTP/1.1 and returns the connection. It replaces $HOST with the proxy's name.
func (f *Front) Raw(t testing.TB, from, text string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	c := f.Dial(t, from, "http/1.1")
	if _, err := io.WriteString(c, strings.ReplaceAll(text, "$HOST", Name)); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// RawStatus sends bytes over HTTP/1.1 and returns the status and the body of the first response. Status 0 means that the
// proxy closed the connection without one.
func (f *Front) RawStatus(t testing.TB, from, text string) (int, string) {
	t.Helper()
	c, in := f.Raw(t, from, text)
	defer c.Close()
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusSwitchingProtocols {
		return res.StatusCode, ""
	}
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// A Log keeps the lines of a log.
type Log struct {
	mu  sync.Mutex
	all strings.Builder
}

// Write implements [io.Writer].
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(b)
}

// String returns all lines.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}
