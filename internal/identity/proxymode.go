package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
)

// The headers that the proxy must set. deploy/caddy/Caddyfile contains the settings for Caddy.
const (
	UserHeader    = "X-Tailscale-User"    // the complete login
	NameHeader    = "X-Tailscale-Name"    // optional, for display
	TailnetHeader = "X-Tailscale-Tailnet" // empty for a device that is shared from another tailnet
	SecretHeader  = "X-Tailplane-Proxy-Secret"
)

// Proxy is the mode behind a reverse proxy that queries the tailnet for the caller's identity. The
// proxy must connect over a Unix socket, or from an address in Trusted with a proof: a secret or a
// certificate.
type Proxy struct {
	Trusted []netip.Prefix
	Secret  Secret
	// Certificates are the accepted DNS names of the proxy's client certificate; one must match.
	// The listener must request the certificate and verify its chain, and its server must use
	// ConnContext.
	Certificates []string
	// Tailnet is the server's tailnet, as the proxy names it. For Caddy it is the suffix of device
	// names, such as "tail12345.ts.net". A caller from a different or unnamed tailnet counts as
	// shared.
	Tailnet string
}

// Check returns an error if a setting is missing or invalid for a listener at the address.
func (m Proxy) Check(at net.Addr) error {
	if withoutDot(m.Tailnet) == "" {
		return errors.New("identity proxy: the tailnet is missing, so shared devices cannot be distinguished from its own")
	}
	if slices.Contains(m.Certificates, "") {
		return errors.New("identity proxy: a trusted certificate must have a name")
	}
	for _, p := range m.Trusted {
		switch {
		case !p.IsValid() || p != p.Masked():
			return fmt.Errorf("identity proxy: %s is not an address range", p)
		case p.Addr().Is4() && p.Bits() < 8, p.Addr().Is6() && p.Bits() < 32:
			return fmt.Errorf("identity proxy: the address range %s is too large for a proxy", p)
		}
	}
	switch {
	case at == nil:
		return errors.New("identity proxy: there is no listener")
	case at.Network() == "unix":
		return nil
	case len(m.Trusted) == 0:
		return errors.New("identity proxy: trusted addresses are missing; only a Unix socket needs none")
	case m.Secret.IsZero() && len(m.Certificates) == 0:
		return errors.New("identity proxy: an address alone is not a proof: set a secret or a certificate as well")
	}
	return nil
}

// Identifier returns the caller that the proxy names.
func (m Proxy) Identifier(at net.Addr) (Identifier, error) {
	if err := errors.Join(m.Check(at), checkSocket(at)); err != nil {
		return nil, err
	}
	return behindPeer(m.trust, m.read), nil
}

// trust rejects every peer except the proxy. Each configured proof must be present.
func (m Proxy) trust(r *http.Request) error {
	if !overSocket(r) {
		_, there, ok := connEndpoints(r)
		if !ok || !slices.ContainsFunc(m.Trusted, func(p netip.Prefix) bool { return p.Contains(there.Addr()) }) {
			return errUntrustedPeer("%s is not a trusted address", r.RemoteAddr)
		}
		if m.Secret.IsZero() && len(m.Certificates) == 0 {
			return errUntrustedPeer("there is no proof except the address of %s", r.RemoteAddr)
		}
	}
	if !m.Secret.IsZero() {
		// Like an identity header: one value, in one spelling.
		v, there, err := singleHeader(r.Header, SecretHeader)
		if err != nil || !there || !m.Secret.matches(v) {
			return errUntrustedPeer("%s did not send the secret", r.RemoteAddr)
		}
	}
	if len(m.Certificates) > 0 && !m.hasTrustedCertificate(connectionState(r)) {
		return errUntrustedPeer("%s has no certificate of the proxy", r.RemoteAddr)
	}
	return nil
}

// hasTrustedCertificate reports whether the peer has a verified certificate with one of the names.
func (m Proxy) hasTrustedCertificate(state *tls.ConnectionState) bool {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return false
	}
	leaf := state.VerifiedChains[0][0]
	return slices.ContainsFunc(m.Certificates, func(name string) bool { return slices.Contains(leaf.DNSNames, name) })
}

// read returns the caller that the proxy's headers name.
func (m Proxy) read(h http.Header) (access.Caller, error) {
	values, err := singleHeaders(h, UserHeader, NameHeader, TailnetHeader)
	if err != nil {
		return access.Caller{}, err
	}
	user, name, tailnet := values[0], values[1], values[2]
	if strings.Contains(user, ",") { // an earlier hop merged two headers
		return access.Caller{}, errAmbiguousHeader(UserHeader, "has more than one value")
	}
	c := access.Caller{DisplayName: name, Tailnet: m.Tailnet, Via: access.ViaProxy, Shared: withoutDot(tailnet) != withoutDot(m.Tailnet)}
	if c.Login, err = parseLogin(user); err != nil {
		return access.Caller{}, errNoIdentity(fmt.Errorf("%s: %w", UserHeader, err))
	}
	return c, nil
}

// A Secret is the shared secret of a proxy. It stores only a hash and cannot be printed.
type Secret struct{ sum *[sha256.Size]byte }

const (
	redacted  = "[redacted]"
	minSecret = 32 // characters
)

// ParseSecret parses a secret, such as the content of a file, and removes surrounding white space.
// It must have at least 32 printable ASCII characters and no spaces.
func ParseSecret(s string) (Secret, error) {
	s = strings.TrimSpace(s)
	if len(s) < minSecret {
		return Secret{}, fmt.Errorf("a proxy's secret has at least %d characters; this one has %d", minSecret, len(s))
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Secret{}, errors.New("a proxy's secret has printable ASCII characters only, and no space")
	}
	return Secret{new(sha256.Sum256([]byte(s)))}, nil
}

// matches reports whether s is the secret, in constant time.
func (k Secret) matches(s string) bool {
	sum := sha256.Sum256([]byte(s))
	return k.sum != nil && subtle.ConstantTimeCompare(sum[:], k.sum[:]) == 1
}

// IsZero reports whether k holds no secret.
func (k Secret) IsZero() bool { return k.sum == nil }

// String returns "[redacted]".
func (k Secret) String() string { return redacted }

// Format implements [fmt.Formatter], for the verbs that do not call String.
func (k Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue implements [slog.LogValuer]: "[redacted]".
func (k Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler]: "[redacted]".
func (k Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
