package identity

import (
	"errors"
	"net"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

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
