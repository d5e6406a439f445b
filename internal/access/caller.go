package access

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/problem"
)

// A Login is a complete login name from the tailnet's identity provider, such as
// "alice@example.com". It is never cut at the "@", because alice@a.example and alice@b.example are
// two people.
type Login string

// maxLogin is the maximum length of a login in bytes: the longest mail address of RFC 5321.
const maxLogin = 254

// ParseLogin returns s as a Login. It rejects names that no identity provider issues and names that
// can imitate another login: an empty or too long name, white space, control and invisible
// characters, and more than one "@".
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

// A Tag names the purpose of a tagged node, such as "tag:ci". Such a node belongs to no person.
type Tag string

// A Device is the node that opened the caller's connection.
type Device struct {
	ID   string // stable node ID; unchanged after a rename or a new key
	Name string // fully qualified name without the trailing dot
}

// A Via is the path of a connection to the server.
type Via string

// Connections from the tailnet, and through Funnel from the public internet. Funnel connections are
// refused before the caller is identified.
const (
	ViaTailnet Via = "tailnet"
	ViaFunnel  Via = "funnel"
)

// Connections through a trusted intermediary that names the caller. Each is a mode of its listener
// and is off by default. The tailnet does not authenticate these callers.
const (
	ViaServe Via = "serve" // the serve feature of tailscaled
	ViaProxy Via = "proxy" // a configured reverse proxy
	ViaOIDC  Via = "oidc"  // an ID token of the tailnet's identity provider
	ViaDev   Via = "dev"   // a fixed login, for development on the local machine
)

// known reports whether v is a path for which the server has a way to authenticate callers.
func (v Via) known() bool {
	return slices.Contains([]Via{ViaTailnet, ViaServe, ViaProxy, ViaOIDC, ViaDev}, v)
}

// A Caller is the authenticated identity behind a connection.
type Caller struct {
	Login       Login // empty for a tagged node
	DisplayName string
	UserID      string
	Device      Device
	Tags        []Tag  // not empty for a tagged node, which belongs to no person
	Tailnet     string // name of the tailnet, such as "example.com"
	Via         Via
	Expired     bool // the node's key has expired; the tailnet still reports the node
	Shared      bool // the node is shared from another tailnet
	Router      bool // the node has routes besides its own addresses, so its connections may be those of other devices
	Ambiguous   bool // nodes of another user ID of the tailnet have the same login, so Login names no one

	// Rules are the values of the capability in the grants that match this caller and this server.
	// They are exactly as in the tailnet policy.
	Rules []json.RawMessage

	// RequestRules are those of the capability for access requests. Each capability is judged alone.
	RequestRules []json.RawMessage
}

// Tagged reports whether the caller is a tagged node and therefore not a person.
func (c Caller) Tagged() bool { return len(c.Tags) > 0 }

// hasOneOf reports whether the node has at least one of the tags.
func (c Caller) hasOneOf(tags []Tag) bool {
	return slices.ContainsFunc(c.Tags, func(t Tag) bool { return slices.Contains(tags, t) })
}

// TagNames returns the tags as text, or nil for a person.
func (c Caller) TagNames() (names []string) {
	for _, t := range c.Tags {
		names = append(names, string(t))
	}
	return names
}

// Identity returns the caller's identity as one string: the login of a person, or "node:<name>" for
// a tagged node.
func (c Caller) Identity() string {
	if c.Tagged() {
		return "node:" + c.Device.Name
	}
	return string(c.Login)
}

// Admit rejects callers that may not make any request, in this order: callers from the public
// internet, callers without an identity, nodes with an expired key, and callers whose login is not
// unique. It enforces law 3.
func Admit(c Caller) error {
	switch {
	case c.Via == ViaFunnel:
		return problem.New(problem.FunnelRefused, "Requests from the public internet through Funnel are refused.",
			"Connect from a device of the tailnet.")
	case !c.Via.known(), c.Via == ViaTailnet && c.Device.ID == "", c.Login == "" && !c.Tagged(), c.Login != "" && c.Tagged():
		return errNoIdentity()
	case c.Expired:
		return problem.New(problem.NodeExpired, fmt.Sprintf("The key of the device %s has expired.", c.Device.Name),
			"Run: tailscale up --force-reauth")
	case c.Ambiguous:
		return problem.New(problem.IdentityAmbiguous, fmt.Sprintf("Two users of the tailnet have the login %s: you are the user %s, and another user has devices under the same name.", c.Login, c.UserID),
			"Ask an administrator of the tailnet to rename one of the two users, or to delete the devices of one. Until then the server refuses both.")
	}
	return nil
}

func errNoIdentity() error {
	return problem.New(problem.NoIdentity, "The tailnet does not identify you.",
		"Connect directly from a device of the tailnet, not through a router or a proxy.")
}
