package adapter

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// realToken stands for the token of the pod's ServiceAccount. Finding it anywhere except at the origin means a leak.
const realToken = "eyJhbGciOiJSUzI1NiJ9.real-service-account-token-canary.c2lnbmF0dXJl"

// A recordingCluster is a cluster that records the requests that arrive.
type recordingCluster struct {
	*httptest.Server
	CA []byte

	dials atomic.Int64
	bytes atomic.Int64 // read from all connections, including the handshakes
	mu    sync.Mutex
	got   []receivedRequest
}

// A receivedRequest is one request as it arrived.
type receivedRequest struct {
	Method, URI, Host, Body, Proto string
	Header                         http.Header
	Trailer                        http.Header
}

// counted is a listener that counts the bytes read from its connections.
type counted struct {
	net.Listener
	o *recordingCluster
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.o.dials.Add(1)
	return &countedConn{Conn: conn, o: c.o}, nil
}

type countedConn struct {
	net.Conn
	o *recordingCluster
}

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.o.bytes.Add(int64(n))
	return n, err
}

// authority creates a certificate authority for one test.
func authority(t testing.TB) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "origin"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	raw, err := x509.CreateCertificate(rand.Reader, ca, ca, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if ca, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	return ca, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// leafOf creates a server certificate for ip that is valid until end.
func leafOf(t testing.TB, ca *x509.Certificate, key *ecdsa.PrivateKey, ip string, end time.Time) tls.Certificate {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.ParseIP(ip)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, ca, &own.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: own}
}

// newOrigin starts a cluster that answers with serve. If serve is nil, it answers with an empty object.
func newOrigin(t testing.TB, serve http.HandlerFunc) *recordingCluster {
	t.Helper()
	ca, key, file := authority(t)
	o := &recordingCluster{CA: file}
	o.listen(t, &tls.Config{Certificates: []tls.Certificate{leafOf(t, ca, key, "127.0.0.1", time.Now().Add(time.Hour))}}, serve)
	return o
}

func (o *recordingCluster) listen(t testing.TB, conf *tls.Config, serve http.HandlerFunc) {
	if serve == nil {
		serve = func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, "{}")
		}
	}
	o.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			body = append(body, err.Error()...)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		o.mu.Lock()
		o.got = append(o.got, receivedRequest{r.Method, r.RequestURI, r.Host, string(body), r.Proto, r.Header.Clone(), r.Trailer.Clone()})
		o.mu.Unlock()
		serve(w, r)
	}))
	o.Listener = counted{o.Listener, o}
	o.EnableHTTP2, o.TLS = true, conf
	o.Config.ErrorLog = log.New(io.Discard, "", 0)
	o.StartTLS()
	t.Cleanup(o.Close)
}

// arrived returns the requests that have arrived so far.
func (o *recordingCluster) arrived() []receivedRequest {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]receivedRequest(nil), o.got...)
}

// quietly runs f and fails if the origin receives a byte during it.
func (o *recordingCluster) quietly(t *testing.T, what string, f func()) {
	t.Helper()
	dials, bytes, n := o.dials.Load(), o.bytes.Load(), len(o.arrived())
	f()
	if d := o.dials.Load() - dials; d != 0 {
		t.Errorf("%s: %d connections upstream", what, d)
	}
	if got := o.arrived(); len(got) != n {
		t.Errorf("%s: it went upstream: %+v", what, got[n:])
	}
	// An older connection may carry bytes that do not come from f: pings, or a late close.
	if b := o.bytes.Load() - bytes; b != 0 && dials == 0 {
		t.Errorf("%s: %d bytes upstream", what, b)
	}
}

// A podUnderAttack is an adapter before an origin, as an application in the same pod sees it.
type podUnderAttack struct {
	*testenv.Adapter
	roots *x509.CertPool
	token string // the local token
}

// startPod starts `mca proxy` before an origin.
func startPod(t testing.TB, o *recordingCluster, token string) *podUnderAttack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	a, err := testenv.StartAdapter(ctx, t.TempDir(), testenv.AdapterOptions{Server: o.URL, CA: o.CA, Token: token, Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	p := &podUnderAttack{Adapter: a}
	t.Cleanup(func() {
		if err := p.Adapter.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			lines := strings.Split(p.Output(), "\n")
			t.Logf("the adapter's last lines:\n%s", strings.Join(lines[max(0, len(lines)-15):], "\n"))
		}
	})
	p.read(t)
	return p
}

// read reads the files that an application reads.
func (p *podUnderAttack) read(t testing.TB) {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(p.Share, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(p.Share, "token"))
	if err != nil {
		t.Fatal(err)
	}
	p.roots, p.token = x509.NewCertPool(), string(token)
	p.roots.AppendCertsFromPEM(ca)
}

// client returns a net/http client for HTTP/2 or HTTP/1.1. It follows no redirect.
func (p *podUnderAttack) client(t testing.TB, http2 bool) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}, Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// request builds a request with the local token. pairs are header names and values, sent unchanged.
func (p *podUnderAttack) request(t testing.TB, method, path string, body io.Reader, pairs ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+p.Address+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Header[pairs[i]] = append(r.Header[pairs[i]], pairs[i+1])
	}
	return r
}

// raw sends bytes over TLS and returns the connection. It replaces $HOST and $TOKEN with the correct values.
func (p *podUnderAttack) raw(t testing.TB, text string) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	c, err := tls.Dial("tcp", p.Address, &tls.Config{RootCAs: p.roots, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, strings.NewReplacer("$HOST", p.Address, "$TOKEN", p.token).Replace(text)); err != nil {
		t.Fatal(err)
	}
	return c, bufio.NewReader(c)
}

// rawStatus sends bytes and returns the status and body of the first answer.
func (p *podUnderAttack) rawStatus(t testing.TB, text string) (int, string) {
	t.Helper()
	_, in := p.raw(t, text)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err.Error() // closed without an answer
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

// host returns the origin's host and port.
func (o *recordingCluster) host() string {
	u, err := url.Parse(o.URL)
	if err != nil {
		panic(err)
	}
	return u.Host
}

// switching answers an upgrade with 101 and echoes its input in upper case.
func switching(w http.ResponseWriter, r *http.Request) {
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer c.Close()
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Token: %s\r\n\r\n", r.Header.Get("Upgrade"), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	rw.Flush()
	for {
		line, err := rw.ReadString('\n')
		if err != nil {
			return
		}
		rw.WriteString(strings.ToUpper(line))
		rw.Flush()
	}
}
