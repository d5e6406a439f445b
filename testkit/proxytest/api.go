package proxytest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// An API is an API server that records every request, and every byte of every connection inside its TLS.
type API struct {
	URL   *url.URL
	Roots *x509.CertPool

	mu    sync.Mutex
	serve http.HandlerFunc
	got   []Received
	conns []*recordedConn
}

// Received is one request as it arrived.
type Received struct {
	Method, URI, Host, Body, Proto string
	Header, Trailer                http.Header
}

// Token returns the credential of the request, or "" unless it is exactly one bearer token.
func (r Received) Token() string {
	if v := r.Header["Authorization"]; len(v) == 1 && strings.HasPrefix(v[0], "Bearer ") {
		return strings.TrimPrefix(v[0], "Bearer ")
	}
	return ""
}

// A Certificate is a self-signed certificate for names and addresses, with the pool that trusts it.
func Certificate(t testing.TB, end time.Time, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: names[0]}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, name)
		}
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}, roots
}

// StartAPI starts an API server that answers with serve, or with an empty object.
func StartAPI(t testing.TB, serve http.HandlerFunc) *API {
	t.Helper()
	pair, roots := Certificate(t, time.Now().Add(time.Hour), "127.0.0.1")
	a := StartAPIWith(t, pair, serve)
	a.Roots = roots
	return a
}

// StartAPIWith is StartAPI with a certificate of the caller. Roots is not set.
func StartAPIWith(t testing.TB, pair tls.Certificate, serve http.HandlerFunc) *API {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &API{URL: &url.URL{Scheme: "https", Host: ln.Addr().String()}}
	a.Serve(serve)
	srv := &http.Server{Handler: http.HandlerFunc(a.record), ErrorLog: log.New(io.Discard, "", 0), Protocols: new(http.Protocols)}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true) // the TLS is below
	conf := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}
	go srv.Serve(recordingListener{tls.NewListener(ln, conf), a})
	t.Cleanup(func() { srv.Close() })
	return a
}

// Serve replaces the handler. nil answers with an empty object.
func (a *API) Serve(serve http.HandlerFunc) {
	if serve == nil {
		serve = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, "{}")
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.serve = serve
}

func (a *API) record(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = append(body, err.Error()...)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	a.mu.Lock()
	a.got = append(a.got, Received{r.Method, r.RequestURI, r.Host, string(body), r.Proto, r.Header.Clone(), r.Trailer.Clone()})
	serve := a.serve
	a.mu.Unlock()
	serve(w, r)
}

// Arrived returns the requests that have arrived after the first n.
func (a *API) Arrived(n int) []Received {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Received(nil), a.got[n:]...)
}

// Count returns the number of requests that have arrived.
func (a *API) Count() int { return len(a.Arrived(0)) }

// Bytes returns everything that has arrived on all connections, in the order of the connections.
func (a *API) Bytes() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all strings.Builder
	for _, c := range a.conns {
		all.Write(c.bytes())
	}
	return all.String()
}

// Quietly runs f and fails the test if a request or a connection arrives during it.
func (a *API) Quietly(t testing.TB, what string, f func()) {
	t.Helper()
	n, conns := a.Count(), a.connections()
	f()
	if got := a.Arrived(n); len(got) > 0 {
		t.Errorf("%s: it went upstream: %+v", what, got)
	}
	if d := a.connections() - conns; d > 0 {
		t.Errorf("%s: %d connections upstream", what, d)
	}
}

func (a *API) connections() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.conns)
}

type recordingListener struct {
	net.Listener
	api *API
}

func (l recordingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	r := &recordedConn{Conn: c}
	l.api.mu.Lock()
	l.api.conns = append(l.api.conns, r)
	l.api.mu.Unlock()
	return r, nil
}

type recordedConn struct {
	net.Conn
	mu  sync.Mutex
	all []byte
}

func (c *recordedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.all = append(c.all, p[:n]...)
	c.mu.Unlock()
	return n, err
}

func (c *recordedConn) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.all)
}

// Switching answers an upgrade with 101 and echoes lines in upper case. It answers other requests with an empty object.
func Switching(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		io.WriteString(w, "{}")
		return
	}
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer c.Close()
	io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
	rw.Flush()
	for {
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		io.WriteString(rw, strings.ToUpper(line))
		rw.Flush()
	}
}
