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
// pass the original headers. It has the type of httpapi.Server.Identify.
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

// Whois is the mode of a listener inside the tailnet, and the preferred mode. The tailnet
// identifies the connection, and no header is read.
type Whois struct {
	// WhoIs returns the caller behind a connection, as the tailnet identifies it.
	WhoIs Identifier
	// Bearer, optional, verifies the tokens of tools that send one on an identified connection. A
	// token must be valid and name the same login; it gives no further rights. If Bearer is nil, no
	// token is read, and an Authorization header is left for the backend.
	Bearer *OIDC
}

// Check returns an error if a setting is missing.
func (m Whois) Check(net.Addr) error {
	if m.WhoIs == nil {
		return errors.New("identity whois: WhoIs is missing")
	}
	if m.Bearer != nil {
		return m.Bearer.Check(nil)
	}
	return nil
}

// Identifier returns the caller that the tailnet names for the connection.
func (m Whois) Identifier(at net.Addr) (Identifier, error) {
	if err := m.Check(at); err != nil {
		return nil, err
	}
	var tokens *verifier
	if m.Bearer != nil {
		tokens = m.Bearer.verifier()
	}
	return withoutHeaders(func(r *http.Request) (access.Caller, error) {
		c, err := m.WhoIs(r)
		if err != nil || access.Admit(c) != nil || tokens == nil || len(r.Header["Authorization"]) == 0 {
			return c, err // no token check for a caller that is not admitted
		}
		named, err := tokens.identify(r)
		if err != nil {
			return c, err
		}
		if named.Login != c.Login {
			return c, problem.New(problem.IdentityMismatch, "The token belongs to another user than the device that sends it.",
				"Send your own token, or no token: on the tailnet, the connection identifies you.")
		}
		return c, nil
	}), nil
}

// Dev is the mode for a developer's machine. Every caller gets the login Login.
type Dev struct {
	Login access.Login
	// LookupEnv is [os.LookupEnv]. It is used to refuse this mode inside a cluster.
	LookupEnv func(string) (string, bool)
}

// inCluster is an environment variable that Kubernetes sets in every pod.
const inCluster = "KUBERNETES_SERVICE_HOST"

// Check returns an error if a setting is missing or invalid for a listener at the address.
func (m Dev) Check(at net.Addr) error {
	if m.LookupEnv == nil {
		return errors.New("identity dev: LookupEnv is missing")
	}
	if _, in := m.LookupEnv(inCluster); in {
		return fmt.Errorf("identity dev: %s is set: this mode is not allowed in a cluster, because it does not identify callers", inCluster)
	}
	if !loopback(at) {
		return fmt.Errorf("identity dev: %v is not a loopback address", at)
	}
	if _, err := parseLogin(string(m.Login)); err != nil {
		return fmt.Errorf("identity dev: %w", err)
	}
	return nil
}

// Identifier returns the fixed login for requests from the local machine.
func (m Dev) Identifier(at net.Addr) (Identifier, error) {
	if err := m.Check(at); err != nil {
		return nil, err
	}
	return withoutHeaders(func(r *http.Request) (access.Caller, error) {
		if _, _, err := loopbackEndpoints(r); err != nil {
			return access.Caller{}, err
		}
		return access.Caller{Login: m.Login, DisplayName: string(m.Login), Via: access.ViaDev}, nil
	}), nil
}
