package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// The headers that tailscaled sets in its serve proxy (ipn/ipnlocal/serve.go).
const (
	serveLogin        = "Tailscale-User-Login"
	serveName         = "Tailscale-User-Name"
	serveCapabilities = "Tailscale-App-Capabilities"
)

// Serve is the mode behind `tailscale serve` of a tailscaled on the same machine. tailscaled
// overwrites its headers on every request and sets them for people only. Tagged nodes and callers
// from outside the tailnet have no headers, and are rejected here.
type Serve struct {
	// Capability is the capability whose values become Caller.Rules. tailscaled sends the
	// capabilities in its --accept-app-caps list.
	Capability string
	// Users are the user IDs that tailscaled may run as. They are required on a loopback port,
	// because every local process can connect to it. The kernel reports the user ID of the
	// connecting process. A Unix socket does not need them.
	Users []uint32
}

// Check returns an error if a setting is missing or invalid for a listener at the address.
func (m Serve) Check(at net.Addr) error {
	switch {
	case m.Capability == "":
		return errors.New("identity serve: the capability is missing, so no grant could match")
	case at == nil:
		return errors.New("identity serve: there is no listener")
	case at.Network() == "unix":
		return nil
	case !loopback(at):
		return fmt.Errorf(
			"identity serve: %s is neither a Unix socket nor a loopback address, so any client could send the headers of tailscaled",
			at,
		)
	case len(m.Users) == 0:
		return errors.New("identity serve: a loopback port needs the user ids of tailscaled, because every local process can connect to it")
	}
	return checkUserLookup()
}

// Identifier returns the caller that tailscaled names.
func (m Serve) Identifier(at net.Addr) (Identifier, error) {
	if err := errors.Join(m.Check(at), checkSocket(at)); err != nil {
		return nil, err
	}
	return behindPeer(m.trust, m.read), nil
}

// trust rejects every peer except tailscaled.
func (m Serve) trust(r *http.Request) error {
	if overSocket(r) {
		return nil // the mode of the socket admits no other user
	}
	here, there, err := loopbackEndpoints(r)
	if err != nil {
		return err
	}
	user, err := userAt(r, here, there)
	if err != nil {
		return errUntrustedPeer("find the process of %s: %w", r.RemoteAddr, err)
	}
	if !slices.Contains(m.Users, user) {
		return errUntrustedPeer("%s is a process of the user %d", r.RemoteAddr, user)
	}
	return nil
}

// read returns the caller that the headers of tailscaled name.
func (m Serve) read(h http.Header) (access.Caller, error) {
	values, err := singleHeaders(h, serveLogin, serveName, serveCapabilities)
	if err != nil {
		return access.Caller{}, err
	}
	c := access.Caller{DisplayName: decodeQ(values[1]), Via: access.ViaServe,
		// The headers do not show whether a device is shared from another tailnet. Assume that it
		// is, because this gives the caller fewer rights.
		Shared: true,
	}
	if c.Login, err = parseLogin(decodeQ(values[0])); err != nil {
		return access.Caller{}, errNoIdentity(fmt.Errorf("%s: %w", serveLogin, err))
	}
	if capabilities := decodeQ(values[2]); capabilities != "" {
		var granted map[string][]json.RawMessage
		if err := json.Unmarshal([]byte(capabilities), &granted); err != nil {
			return c, problem.New(problem.BadRequest, "The header "+serveCapabilities+" cannot be read.",
				"Ask the administrator of this server which proxy is in front of it.").WithCause(err)
		}
		c.Rules = granted[m.Capability]
	}
	return c, nil
}

// decodeQ reverses the Q encoding of RFC 2047. It returns text unchanged if tailscaled would not
// have encoded it this way. Otherwise text that only looks encoded would become a name that
// tailscaled never sent.
func decodeQ(s string) string {
	if !strings.Contains(s, "=?") {
		return s
	}
	plain, err := new(mime.WordDecoder).DecodeHeader(s)
	if err != nil || mime.QEncoding.Encode("utf-8", plain) != s {
		return s
	}
	return plain
}
