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

// The headers that tailscaled sets on what it serves (ipn/ipnlocal/serve.go).
const (
	serveLogin        = "Tailscale-User-Login"
	serveName         = "Tailscale-User-Name"
	serveCapabilities = "Tailscale-App-Capabilities"
)

// Serve is the mode behind `tailscale serve` of a tailscaled beside us. It sets
// its headers anew on every request, for people only: a tagged node, and whoever
// comes from outside the tailnet, is named by none and refused here.
type Serve struct {
	// Capability is the one of whose values, in the policy, a Caller has the rules.
	// tailscaled sends those that its --accept-app-caps lists.
	Capability string
	// Users are the user ids as which tailscaled may run. They are needed on a
	// loopback port, which every process of the machine reaches: the kernel says
	// whose process the other end is. A Unix socket needs none.
	Users []uint32
}

// Check returns what is missing or makes no sense for a listener at the address.
func (m Serve) Check(at net.Addr) error {
	switch {
	case m.Capability == "":
		return errors.New("identity serve: no capability is named, so nobody could be granted anything")
	case at == nil:
		return errors.New("identity serve: there is no listener")
	case at.Network() == "unix":
		return nil
	case !loopback(at):
		return fmt.Errorf("identity serve: %s is neither a Unix socket nor a loopback address, so anybody could send what tailscaled sends", at)
	case len(m.Users) == 0:
		return errors.New("identity serve: on a loopback port, name the user ids as which tailscaled runs; every process reaches that port")
	}
	return canTellUsers()
}

// Identifier returns who tailscaled says is calling.
func (m Serve) Identifier(at net.Addr) (Identifier, error) {
	if err := errors.Join(m.Check(at), checkSocket(at)); err != nil {
		return nil, err
	}
	return behind(m.trust, m.read), nil
}

// trust refuses everybody but tailscaled.
func (m Serve) trust(r *http.Request) error {
	if overSocket(r) {
		return nil // its mode lets in nobody else
	}
	here, there, ok := ends(r)
	if !ok || !here.Addr().IsLoopback() || !there.Addr().IsLoopback() {
		return stranger("%s is not of this machine", r.RemoteAddr)
	}
	user, err := userAt(r, here, there)
	if err != nil {
		return stranger("whose process %s is: %w", r.RemoteAddr, err)
	}
	if !slices.Contains(m.Users, user) {
		return stranger("%s is a process of the user %d", r.RemoteAddr, user)
	}
	return nil
}

// read returns the caller that the headers of tailscaled name.
func (m Serve) read(h http.Header) (access.Caller, error) {
	var values [3]string
	for i, name := range []string{serveLogin, serveName, serveCapabilities} {
		v, _, err := one(h, name)
		if err != nil {
			return access.Caller{}, err
		}
		values[i] = decode(v)
	}
	c := access.Caller{DisplayName: values[1], Via: access.ViaServe,
		// Nothing in the headers tells a device of ours from one that is shared in.
		// What is not known counts against the caller.
		Shared: true,
	}
	var err error
	if c.Login, err = parseLogin(values[0]); err != nil {
		return access.Caller{}, nobody(fmt.Errorf("%s: %w", serveLogin, err))
	}
	if values[2] != "" {
		var granted map[string][]json.RawMessage
		if err := json.Unmarshal([]byte(values[2]), &granted); err != nil {
			return c, problem.New(problem.BadRequest, "The header "+serveCapabilities+" cannot be read.",
				"Ask whoever runs this server what stands before it.").Because(err)
		}
		c.Rules = granted[m.Capability]
	}
	return c, nil
}

// decode undoes the Q encoding of RFC 2047, where there is one. tailscaled sends
// plain text as it is, so text that only looks encoded is left alone: it would
// become a name that tailscaled never wrote that way.
func decode(s string) string {
	if !strings.Contains(s, "=?") {
		return s
	}
	plain, err := new(mime.WordDecoder).DecodeHeader(s)
	if err != nil || mime.QEncoding.Encode("utf-8", plain) != s {
		return s
	}
	return plain
}
