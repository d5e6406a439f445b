package client

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// observe makes the client record the address of each connection.
func (c *Client) observe(transport *http.Transport) *http.Transport {
	dial, proxy := transport.DialContext, transport.Proxy
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
				c.dialled.Store(new(at.Addr().Unmap()))
			}
		}
		return conn, err
	}
	if proxy != nil {
		transport.Proxy = func(r *http.Request) (*url.URL, error) {
			via, err := proxy(r)
			c.proxied.Store(via != nil)
			return via, err
		}
	}
	return transport
}

// moveTo makes base the server's URL. If addr is valid, the client connects to that address only, without a proxy and without resolving the
// name again.
func (c *Client) moveTo(base string, addr netip.Addr) {
	transport := c.observe(dialpolicy.Transport(base, c.options.Tailscale))
	if addr.IsValid() {
		transport.Proxy = nil
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return dial(ctx, network, net.JoinHostPort(addr.String(), port))
		}
	}
	c.setTransport(base, transport)
	if c.Key.IsZero() && c.Known != nil {
		c.Key, c.Pinned = c.Known(base)
	}
}

// hostURL returns the base URL of another host, with the scheme and the port of the client's.
func (c *Client) hostURL(host string) string {
	u, err := url.Parse(c.Base)
	if err != nil {
		return ""
	}
	if port := u.Port(); port != "" {
		host = net.JoinHostPort(host, port)
	}
	return u.Scheme + "://" + host
}

// FullNameURL returns the base URL with the full MagicDNS name that the bare host name of the server stands for in this machine's tailnet; ""
// if the name is not bare or the tailnet is unknown.
func (c *Client) FullNameURL(ctx context.Context) string {
	host := hostOf(c.Base)
	if !isBare(host) {
		return ""
	}
	full := c.options.Tailscale.FullName(ctx, host)
	if full == "" {
		return ""
	}
	return c.hostURL(full)
}

// isBare reports whether a host is a name without a domain.
func isBare(host string) bool { return host != "" && !strings.ContainsAny(host, ".:") }

// completeName replaces a bare host name by the full name in the certificate of the host that was dialled, and reports whether it did. One
// of these must vouch for the full name: the key that the server must prove, or this machine's Tailscale. Tailscale vouches if the dialled
// address is the peer of this tailnet with that MagicDNS name. A certificate alone proves only that somebody owns some name.
func (c *Client) completeName(ctx context.Context, err error) bool {
	host := hostOf(c.Base)
	mismatch, ok := errors.AsType[x509.HostnameError](err)
	if !ok || mismatch.Certificate == nil || !isBare(host) {
		return false
	}
	addr := c.dialledAddr()
	names := slices.DeleteFunc(slices.Clone(mismatch.Certificate.DNSNames), func(name string) bool {
		return !dialpolicy.IsHostName(name) || !strings.HasPrefix(strings.ToLower(name), host+".")
	})
	full := c.options.Tailscale.FullName(ctx, host)
	for _, name := range names {
		name = strings.ToLower(name)
		known := !c.Key.IsZero()
		if !known && c.Known != nil {
			key, _ := c.Known(c.hostURL(name))
			known = !key.IsZero()
		}
		confirmed := addr.IsValid() && name == full && c.options.Tailscale.PeerName(ctx, addr) == full
		switch {
		case confirmed:
			c.moveTo(c.hostURL(name), addr)
			return true
		case known && (full == "" || name == full):
			c.moveTo(c.hostURL(name), netip.Addr{})
			return true
		}
	}
	return false
}

// dialledAddr returns the address of the host that the last connection reached; it is not valid if a proxy was between.
func (c *Client) dialledAddr() netip.Addr {
	if at := c.dialled.Load(); at != nil && !c.proxied.Load() {
		return *at
	}
	return netip.Addr{}
}

// typeFullName adds to an error about the certificate of a host which full name a person should type.
func (c *Client) typeFullName(ctx context.Context, f *output.Error, err error) *output.Error {
	host := hostOf(c.Base)
	if !isBare(host) {
		return f.Try("Use the name in its certificate, such as tka.TAILNET.ts.net: --server NAME")
	}
	if full := c.options.Tailscale.FullName(ctx, host); full != "" {
		return f.Try("Tailscale does not confirm that this host is %s. If it is your access server, type its full name: --server %s", full, serverFlag(c.hostURL(full)))
	}
	if mismatch, ok := errors.AsType[x509.HostnameError](err); ok && mismatch.Certificate != nil {
		for _, name := range mismatch.Certificate.DNSNames {
			if dialpolicy.IsHostName(name) && strings.HasPrefix(strings.ToLower(name), host+".") {
				return f.Try("This machine's Tailscale cannot confirm that name. If it is the name of your access server, type it: --server %s", serverFlag(c.hostURL(name)))
			}
		}
	}
	return f.Try("Type the full name of your access server, such as %s.TAILNET.ts.net: --server NAME", host)
}

// serverFlag returns the shortest value of --server for a base URL.
func serverFlag(base string) string {
	return output.ShellQuote(strings.TrimPrefix(base, "https://"))
}

// confirmHTTP requires that this machine's Tailscale confirms a server without TLS whose key is not known, before anything is sent: its
// address must be that of the peer with the server's full MagicDNS name. The client then uses the full name and that address only. A server
// for which the settings allow http:// needs no confirmation on this machine, where a proxy into the tailnet may run.
func (c *Client) confirmHTTP(ctx context.Context) error {
	if !strings.HasPrefix(c.Base, "http://") || !c.Key.IsZero() {
		return nil
	}
	if !c.HTTPUnlisted && c.staysHere(ctx) {
		return nil
	}
	host := hostOf(c.Base)
	if addr, err := netip.ParseAddr(host); err == nil && c.options.Tailscale.PeerName(ctx, addr) != "" {
		c.moveTo(c.Base, addr)
		return nil
	}
	full := c.options.Tailscale.FullName(ctx, host)
	if full != "" {
		addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return c.Explain(ctx, &url.Error{Op: "Get", URL: c.Base, Err: err})
		}
		for _, addr := range addrs {
			if addr = addr.Unmap(); c.options.Tailscale.PeerName(ctx, addr) == full {
				c.moveTo(c.hostURL(full), addr)
				return nil
			}
		}
	}
	if c.HTTPUnlisted {
		f := output.UsageErrorf("The server %q is not usable: %v", dialpolicy.RedactURL(c.Base), dialpolicy.ErrInsecure).Because(dialpolicy.ErrInsecure).
			Try("Use https://, or list the server with insecureHTTP: true under servers in the settings.")
		if full != "" {
			f.Try("Tailscale does not confirm that it is %s. If you know the key of the server: --server-key KEY", full)
		}
		return f
	}
	f := output.Errorf(output.ExitRefused, "Nothing proves that %s is your access server: it has no certificate, this machine does not know its key, and Tailscale does not confirm its address", c.Base)
	if full != "" {
		f.Try("If it is your access server, use its full name: %s", c.hostURL(full))
	}
	return f.Try("Ask an administrator for the key of the cluster, and give it: --server-key KEY").
		Try("If Tailscale runs on this machine, see whether it is connected: tailscale status")
}

// staysHere reports whether requests to the server go to a program on this machine, or to a proxy that the dialer refuses anyway.
func (c *Client) staysHere(ctx context.Context) bool {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base, nil)
	if err != nil {
		return false
	}
	host := hostOf(c.Base)
	if via, err := dialpolicy.Proxy(c.options.Tailscale)(r); err == nil && via != nil {
		if addr, err := netip.ParseAddr(via.Hostname()); err == nil && !dialpolicy.IsTailnetAddr(addr) && !addr.Unmap().IsLoopback() {
			return true
		}
		host = via.Hostname()
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	return err != nil || !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.Unmap().IsLoopback() })
}

// setTransport makes the client send its requests to base through a transport.
func (c *Client) setTransport(base string, transport http.RoundTripper) {
	c.Base = base
	c.http = httpapi.Client{Base: base, HTTP: &http.Client{
		Transport:     &responseRecorder{client: c, next: transport, agent: c.options.Agent},
		CheckRedirect: func(r *http.Request, _ []*http.Request) error { return redirectError(r.URL.String()) },
	}}
}
