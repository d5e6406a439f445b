package identity

import (
	"errors"
	"net"
	"net/http"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// Whois is the mode of a listener inside the tailnet, and the one to use: the
// connection says who is calling, and no header is read.
type Whois struct {
	// Ask is how the tailnet says who is at the other end of a connection.
	Ask Identifier
	// Bearer, optional, is who signs the tokens that tools send although the
	// connection has named them. A token must then be good, and name the same
	// login: it widens nothing. Without Bearer no token is read, and one that
	// comes is meant for what stands behind us.
	Bearer *OIDC
}

// Check returns what is missing or makes no sense.
func (m Whois) Check(net.Addr) error {
	if m.Ask == nil {
		return errors.New("identity whois: nothing says how to ask the tailnet")
	}
	if m.Bearer != nil {
		return m.Bearer.Check(nil)
	}
	return nil
}

// Identifier returns who is calling, by the connection.
func (m Whois) Identifier(at net.Addr) (Identifier, error) {
	if err := m.Check(at); err != nil {
		return nil, err
	}
	var tokens *verifier
	if m.Bearer != nil {
		tokens = m.Bearer.verifier()
	}
	return func(r *http.Request) (access.Caller, error) {
		defer strip(r)
		if fromFunnel(r) {
			return access.Caller{Via: access.ViaFunnel}, nil
		}
		c, err := m.Ask(r)
		if err != nil || access.Admit(c) != nil || tokens == nil || len(r.Header["Authorization"]) == 0 {
			return c, err // whoever is not admitted is not asked for more
		}
		named, err := tokens.identify(r)
		if err != nil {
			return c, err
		}
		if named.Login != c.Login {
			return c, problem.New(problem.IdentityMismatch, "The token is of somebody else than the device that sends it.",
				"Send your own token, or none: on the tailnet the connection says who you are.")
		}
		return c, nil
	}, nil
}
