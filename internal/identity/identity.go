// Package identity says who is calling where the connection alone cannot: behind
// a proxy that is named and proves itself, by a token of the tailnet's identity
// provider, or in development. It keeps law 1: a header names somebody only in a
// mode that was chosen, from the one peer that the mode trusts, and is gone
// before anything else reads the request.
//
//	Whois   the tailnet says it of the connection; a token may only agree
//	Serve   tailscaled's own proxy in front, over a Unix socket or loopback
//	Proxy   a named reverse proxy, such as Caddy with tailscale_auth
//	OIDC    an id_token that tsidp signed for us
//	Dev     always the same login, on a developer's machine
//
// Each mode is a struct that is filled in and then checked once, by Check or on
// the way to its Identifier.
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

// An Identifier says who a request comes from. It takes out of the request every
// header that names somebody, so it comes before any handler; whoever asks once
// more, as a stream does, gives it the headers as they came. It is what the
// Identify of a Door asks for.
type Identifier = func(*http.Request) (access.Caller, error)

// behind is who a peer that is trusted names in its headers.
func behind(trust func(*http.Request) error, read func(http.Header) (access.Caller, error)) Identifier {
	return func(r *http.Request) (access.Caller, error) {
		defer strip(r)
		if fromFunnel(r) {
			return access.Caller{Via: access.ViaFunnel}, nil
		}
		if err := trust(r); err != nil {
			return access.Caller{}, err
		}
		return read(r.Header)
	}
}

// taggedDevices is the login of the one profile that all tagged nodes share. It
// is nobody's.
const taggedDevices = "tagged-devices"

// parseLogin reads a login that a header or a token names.
func parseLogin(s string) (access.Login, error) {
	if s == taggedDevices {
		return "", errors.New("the profile that all tagged nodes share is nobody's")
	}
	return access.ParseLogin(s)
}

// loopback reports whether a listener at the address hears this machine only.
func loopback(at net.Addr) bool {
	if at == nil || at.Network() != "tcp" {
		return false
	}
	a, err := netip.ParseAddrPort(at.String())
	return err == nil && a.Addr().Unmap().IsLoopback()
}

// stranger is the refusal of a peer that the mode does not trust: what it says of
// anybody was not read.
func stranger(cause string, args ...any) error {
	return problem.New(problem.NoIdentity, "This connection does not come from the proxy that may say who you are.",
		"Use the address at which the proxy serves this page.").Because(fmt.Errorf(cause, args...))
}

// nobody is the refusal of a request in which the trusted peer names no person.
func nobody(cause error) error {
	return problem.New(problem.NoIdentity, "The proxy in front of this server does not say who you are.",
		"Connect from a device of the tailnet that belongs to a person.").Because(cause)
}

// ambiguous is the refusal of a header that two readers could read in two ways.
func ambiguous(name, how string) error {
	return problem.New(problem.BadRequest, fmt.Sprintf("The header %s %s.", name, how), "Send the request without it.")
}
