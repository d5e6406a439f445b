package access

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/problem"
)

// A Login is a whole login name as the tailnet's identity provider has it, such
// as "alice@example.com". It is never cut at the "@": alice@a.example and
// alice@b.example are two people.
type Login string

// maxLogin is the longest login in bytes: RFC 5321's longest mail address.
const maxLogin = 254

// ParseLogin returns s as a Login. It refuses what no identity provider gives
// out and what could be shown as somebody else: an empty or overlong name,
// white space, control and invisible characters, and more than one "@".
func ParseLogin(s string) (Login, error) {
	switch {
	case s == "":
		return "", fmt.Errorf("login is empty")
	case len(s) > maxLogin:
		return "", fmt.Errorf("login has %d bytes, more than %d", len(s), maxLogin)
	case !utf8.ValidString(s):
		return "", fmt.Errorf("login is not UTF-8")
	case strings.Count(s, "@") > 1:
		return "", fmt.Errorf("login %q has more than one @", s)
	case strings.HasPrefix(s, "@") || strings.HasSuffix(s, "@"):
		return "", fmt.Errorf("login %q lacks a name or a domain", s)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) || unicode.IsSpace(r) {
			return "", fmt.Errorf("login %q has the character %U", s, r)
		}
	}
	return Login(s), nil
}

// A Tag names the purpose of a node that belongs to no person: "tag:ci".
type Tag string

// A Device is the node that the caller's connection comes from.
type Device struct {
	ID   string // stable node id; survives renaming and a new key
	Name string // fully qualified name without the final dot
}

// A Via is the way by which a connection came.
type Via string

// The ways in. Funnel is the public internet: it is refused before anyone asks who it is.
const (
	ViaTailnet Via = "tailnet"
	ViaFunnel  Via = "funnel"
)

// The ways in through somebody whom the server trusts to say who is calling, each
// a mode of its listener that is off by default. The tailnet vouches for none.
const (
	ViaServe Via = "serve" // tailscaled serve
	ViaProxy Via = "proxy" // a named reverse proxy
	ViaOIDC  Via = "oidc"  // an id_token of the tailnet's identity provider
	ViaDev   Via = "dev"   // a fixed login, on one's own machine
)

// known reports whether v is one of the ways in, which is to say: somebody decided
// who is believed there.
func (v Via) known() bool {
	switch v {
	case ViaTailnet, ViaServe, ViaProxy, ViaOIDC, ViaDev:
		return true
	}
	return false
}

// A Caller is who is at the door, as the tailnet vouches for the connection.
type Caller struct {
	Login       Login // empty for a tagged node
	DisplayName string
	UserID      string
	Device      Device
	Tags        []Tag  // not empty: a tagged node, which is nobody's
	Tailnet     string // the tailnet's name, such as "example.com"
	Via         Via
	Expired     bool // the node's key has expired; the tailnet still answers for it
	Shared      bool // the node is shared in from another tailnet

	// Rules are the values of our capability in the grants that match this
	// caller and this server, word for word as the tailnet's policy has them.
	Rules []json.RawMessage
}

// Tagged reports whether the caller is a tagged node and so no person.
func (c Caller) Tagged() bool { return len(c.Tags) > 0 }

// Identity is the caller's whole identity as one string: the login of a person,
// "node:<name>" of a tagged node.
func (c Caller) Identity() string {
	if c.Tagged() {
		return "node:" + c.Device.Name
	}
	return string(c.Login)
}

// Admit refuses who may not even ask: the public internet, nobody, and nodes
// whose key has expired, in this order. It keeps law 3.
func Admit(c Caller) error {
	switch {
	case c.Via == ViaFunnel:
		return problem.New(problem.FunnelRefused, "Requests from the public internet through Funnel are refused.",
			"Connect from a device of the tailnet.")
	case !c.Via.known(), c.Via == ViaTailnet && c.Device.ID == "", c.Login == "" && !c.Tagged(), c.Login != "" && c.Tagged():
		return nobody()
	case c.Expired:
		return problem.New(problem.NodeExpired, fmt.Sprintf("The key of the device %s has expired.", c.Device.Name),
			"Run: tailscale up --force-reauth")
	}
	return nil
}

func nobody() error {
	return problem.New(problem.NoIdentity, "The tailnet does not say who you are.",
		"Connect directly from a device of the tailnet, not through a router or a proxy.")
}
