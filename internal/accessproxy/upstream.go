package accessproxy

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"
)

// An Upstream is the API server.
type Upstream struct {
	address *url.URL
	// Short answers and watches share HTTP/2 connections. A long answer has its own HTTP/1.1 connection, which is cheaper
	// for each byte. Upgrades exist in HTTP/1.1 only, and their connections are not used again.
	short, long, upgrade *http.Transport
}

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
			IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 64, MaxResponseHeaderBytes: 1 << 20, Protocols: new(http.Protocols),
		}
	}
	u := &Upstream{address: address, short: base(), long: base(), upgrade: base()}
	u.short.Protocols.SetHTTP1(true)
	u.short.Protocols.SetHTTP2(true)
	u.short.HTTP2 = &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second, MaxReceiveBufferPerStream: 1 << 20}
	u.long.Protocols.SetHTTP1(true)
	u.upgrade.Protocols.SetHTTP1(true)
	u.upgrade.DisableKeepAlives = true
	return u, nil
}

// transport returns the transport for a request.
func (u *Upstream) transport(x *exchange) *http.Transport {
	switch {
	case x.upgrade != "":
		return u.upgrade
	case x.request.Verb == "list" || x.request.Subresource == "proxy" || x.request.Subresource == "log":
		return u.long
	}
	return u.short
}

// Close closes idle connections.
func (u *Upstream) Close() {
	for _, t := range []*http.Transport{u.short, u.long, u.upgrade} {
		t.CloseIdleConnections()
	}
}
