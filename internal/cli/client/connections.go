package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
)

// AccessProxy returns a client for the own operations of an access proxy that the server proved. The connection identifies
// the caller, so the client sends no credential. It dials only within the tailnet.
func (c *Client) AccessProxy(p signin.ProxyServer) httpapi.Client {
	transport := dialpolicy.TailnetTransport(c.options.Tailscale)
	if len(p.CAData) > 0 {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(p.CAData)
		transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	return httpapi.Client{Base: p.URL, HTTP: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("tka follows no redirects") }}}
}
