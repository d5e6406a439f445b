package accessproxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// An Upstream is the API server.
type Upstream struct {
	address *url.URL
	// Watches share HTTP/2 connections. Every other request has an HTTP/1.1 connection for its time, which costs less
	// processor time for each byte and for each request: the token and the audit id would push each other out of
	// HTTP/2's table of header fields. Above maxPlain requests at once, the others share HTTP/2 connections too.
	shared, plain *http.Transport
	// Upgrades exist in HTTP/1.1 only, and their connections are not used again.
	upgrade *http.Transport
	busy    atomic.Int64 // requests of plain
}

// maxPlain limits the HTTP/1.1 connections to the API server, without those of upgrades.
const maxPlain = 128

// NewUpstream returns the API server at an https URL. conf must name the CA and must not contain a client certificate:
// the token of a sign-in is the only credential of a request.
func NewUpstream(address *url.URL, conf *tls.Config) (*Upstream, error) {
	switch {
	case address == nil || address.Scheme != "https" || address.Host == "":
		return nil, errors.New("the address of the API server is not an https URL")
	case conf == nil || len(conf.Certificates) > 0 || conf.GetClientCertificate != nil:
		return nil, errors.New("connections to the API server must not carry a client certificate")
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}
	base := func() *http.Transport {
		return &http.Transport{
			// Proxy is nil, so that no environment variable can redirect a token.
			DialContext: dialer.DialContext, TLSClientConfig: conf.Clone(), TLSHandshakeTimeout: 5 * time.Second, DisableCompression: true,
			IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: maxPlain, MaxResponseHeaderBytes: 1 << 20, Protocols: new(http.Protocols),
		}
	}
	u := &Upstream{address: address, shared: base(), plain: base(), upgrade: base()}
	u.shared.Protocols.SetHTTP1(true)
	u.shared.Protocols.SetHTTP2(true)
	u.shared.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, MaxReceiveBufferPerStream: 1 << 20}
	u.plain.Protocols.SetHTTP1(true)
	u.upgrade.Protocols.SetHTTP1(true)
	u.upgrade.DisableKeepAlives = true
	return u, nil
}

// roundTrip sends a request of x on a suitable connection.
func (u *Upstream) roundTrip(x *exchange, out *http.Request) (*http.Response, error) {
	switch {
	case x.upgrade != "":
		return u.upgrade.RoundTrip(out)
	case x.request.Verb == "watch":
		return u.shared.RoundTrip(out)
	}
	if u.busy.Add(1) > maxPlain {
		u.busy.Add(-1)
		return u.shared.RoundTrip(out)
	}
	res, err := u.plain.RoundTrip(out)
	if err != nil {
		u.busy.Add(-1)
		return nil, err
	}
	res.Body = &plainBody{ReadCloser: res.Body, close: sync.OnceFunc(func() { u.busy.Add(-1) })}
	return res, nil
}

// A plainBody is the body of a response over HTTP/1.1, whose connection is busy until the body is closed.
type plainBody struct {
	io.ReadCloser
	close func()
}

// Close implements [io.Closer].
func (b *plainBody) Close() error {
	defer b.close()
	return b.ReadCloser.Close()
}

// Close closes idle connections.
func (u *Upstream) Close() {
	for _, t := range []*http.Transport{u.shared, u.plain, u.upgrade} {
		t.CloseIdleConnections()
	}
}
