// Package identity identifies callers. If the connection alone does not identify the caller, it
// uses a trusted proxy, a token of the tailnet's identity provider, or a fixed login for
// development. It enforces law 1. A header identifies a caller only in a mode that the
// administrator chose, and only if the trusted peer of that mode sent it. It is removed before any
// other code reads the request.
//
//	Whois   the tailnet identifies the connection; a token must name the same login
//	Serve   behind the proxy of tailscaled, over a Unix socket or loopback
//	Proxy   behind a configured reverse proxy, such as Caddy with tailscale_auth
//	OIDC    an id_token that tsidp signed for this server
//	Dev     a fixed login, on a developer's machine
//
// Each mode is a struct with settings. Check validates it once, and Identifier also calls Check.
package identity

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// An Identifier returns the caller of a request. It removes every header that names a caller from
// the request, so it must run before any handler. A stream that identifies its caller again must
// pass the original headers. It has the type of Door.Identify.
type Identifier = func(*http.Request) (access.Caller, error)

// withoutHeaders returns identify for connections that can carry the headers of a proxy. It refuses
// requests from Funnel, and removes the identity headers afterwards.
func withoutHeaders(identify Identifier) Identifier {
	return func(r *http.Request) (access.Caller, error) {
		defer strip(r)
		if fromFunnel(r) {
			return access.Caller{Via: access.ViaFunnel}, nil
		}
		return identify(r)
	}
}

// behindPeer returns an Identifier that reads the identity from the headers of a trusted peer.
func behindPeer(trust func(*http.Request) error, read func(http.Header) (access.Caller, error)) Identifier {
	return withoutHeaders(func(r *http.Request) (access.Caller, error) {
		if err := trust(r); err != nil {
			return access.Caller{}, err
		}
		return read(r.Header)
	})
}

// taggedDevices is the login of the profile that all tagged nodes share. It belongs to no person.
const taggedDevices = "tagged-devices"

// parseLogin parses a login from a header or a token.
func parseLogin(s string) (access.Login, error) {
	if s == taggedDevices {
		return "", errors.New("the profile that all tagged nodes share belongs to no person")
	}
	return access.ParseLogin(s)
}

// loopback reports whether a listener at the address is reachable only from the local machine.
func loopback(at net.Addr) bool {
	if at == nil || at.Network() != "tcp" {
		return false
	}
	a, err := netip.ParseAddrPort(at.String())
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// errUntrustedPeer returns the error for a peer that the mode does not trust. The peer's headers were not
// read.
func errUntrustedPeer(cause string, args ...any) error {
	return problem.New(problem.NoIdentity, "This connection does not come from the trusted proxy.",
		"Use the address at which the proxy serves this page.").WithCause(fmt.Errorf(cause, args...))
}

// errNoIdentity returns the error for a request in which the trusted peer names no person.
func errNoIdentity(cause error) error {
	return problem.New(problem.NoIdentity, "The proxy in front of this server does not identify you.",
		"Connect from a device of the tailnet that belongs to a person.").WithCause(cause)
}

// errAmbiguousHeader returns the error for a header that two parsers could read differently.
func errAmbiguousHeader(name, how string) error {
	return problem.New(problem.BadRequest, fmt.Sprintf("The header %s %s.", name, how), "Send the request without it.")
}
