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
	// Short answers and watches share HTTP/2 connections. A long answer has an HTTP/1.1 connection for its time, which is
	// cheaper for each byte. Upgrades exist in HTTP/1.1 only, and their connections are not used again.
	short, long, upgrade *http.Transport
	longs                atomic.Int64 // requests of long
}

// maxLong limits the HTTP/1.1 connections for long answers. Further ones share the HTTP/2 connections.
const maxLong = 64

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
			IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: maxLong, MaxResponseHeaderBytes: 1 << 20, Protocols: new(http.Protocols),
		}
	}
	u := &Upstream{address: address, short: base(), long: base(), upgrade: base()}
	u.short.Protocols.SetHTTP1(true)
	u.short.Protocols.SetHTTP2(true)
	u.short.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, MaxReceiveBufferPerStream: 1 << 20,
		// Audit ids differ in each request and response, so a table of fields would only be written, and push the token out.
		MaxEncoderHeaderTableSize: 1, MaxDecoderHeaderTableSize: 1}
	u.long.Protocols.SetHTTP1(true)
	u.upgrade.Protocols.SetHTTP1(true)
	u.upgrade.DisableKeepAlives = true
	return u, nil
}

// roundTrip sends a request of x on a suitable connection.
func (u *Upstream) roundTrip(x *exchange, out *http.Request) (*http.Response, error) {
	switch {
	case x.upgrade != "":
		return u.upgrade.RoundTrip(out)
	case x.request.Verb != "list" && x.request.Subresource != "proxy" && x.request.Subresource != "log":
		return u.short.RoundTrip(out)
	}
	if u.longs.Add(1) > maxLong {
		u.longs.Add(-1)
		return u.short.RoundTrip(out)
	}
	res, err := u.long.RoundTrip(out)
	if err != nil {
		u.longs.Add(-1)
		return nil, err
	}
	res.Body = &longBody{ReadCloser: res.Body, done: sync.OnceFunc(func() { u.longs.Add(-1) })}
	return res, nil
}

// A longBody is the body of a response of long, which uses its connection until the body is closed.
type longBody struct {
	io.ReadCloser
	done func()
}

// Close implements [io.Closer].
func (b *longBody) Close() error {
	defer b.done()
	return b.ReadCloser.Close()
}

// Close closes idle connections.
func (u *Upstream) Close() {
	for _, t := range []*http.Transport{u.short, u.long, u.upgrade} {
		t.CloseIdleConnections()
	}
}
