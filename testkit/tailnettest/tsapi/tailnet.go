package tsapi

import (
	"net/netip"
	"time"

	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
)

// Tailnet is what the API shows and changes. Each method is one step, which happens
// whole or not at all, and what it returns is to be read only. The API asks for a
// step when its own rules are kept: scopes, tags, shapes.
type Tailnet interface {
	// Policy returns the policy in force. ReplacePolicy puts next in force, but if
	// old is given, only in its place; it reports whether it did.
	Policy() *tailpolicy.Policy
	ReplacePolicy(old, next *tailpolicy.Policy) bool

	// Keys returns all auth keys that were ever made, by ID. Mint makes one, and
	// the text that opens. Revoke reports whether there is such a key.
	Keys() []Key
	Mint(Key) (_ Key, text string)
	Revoke(id string) bool

	// Devices returns the nodes by ID. The other methods change one and report
	// whether they could: there is the node, and no other one of the name, which is
	// a label or a full name; the empty name is the host's own.
	Devices() []Device
	Delete(tailcfg.StableNodeID) bool
	Retag(id tailcfg.StableNodeID, tags []string) bool
	Rename(id tailcfg.StableNodeID, name string) bool
	SetKeyExpiry(id tailcfg.StableNodeID, on bool) bool

	// Services returns the services by name. PutService makes one, or replaces all
	// of one but its addresses; its errors say what is wrong with those that it was
	// given. ApproveHost lets a tagged node answer for a service, or no longer.
	Services() []Service
	PutService(Service) (Service, error)
	DeleteService(tailcfg.ServiceName) bool
	ApproveHost(_ tailcfg.ServiceName, host tailcfg.StableNodeID, approved bool) bool

	// Hosts returns the nodes that may answer for a service.
	Hosts(tailcfg.ServiceName) []tailcfg.StableNodeID
}

// Key is an auth key without its secret. To Mint the ID, Valid, Created and Revoked
// say nothing.
type Key struct {
	ID          string
	Description string
	Tags        []string
	Ephemeral   bool
	Reusable    bool
	Valid       bool // it still lets a node in
	Created     time.Time
	Expires     time.Time // zero: never
	Revoked     time.Time // zero: it was not
}

// Device is a node as its peers see it, and what they do not see.
type Device struct {
	*tailcfg.Node
	Login     string // "tagged-devices" if it has tags
	Ephemeral bool
}

// Service is a service with addresses of its own, in the API's form.
type Service struct {
	Name        tailcfg.ServiceName `json:"name"`
	Addrs       []netip.Addr        `json:"addrs"` // one IPv4, one IPv6
	Comment     string              `json:"comment,omitempty"`
	Annotations map[string]string   `json:"annotations,omitempty"`
	Ports       []string            `json:"ports,omitempty"`
	Tags        []string            `json:"tags,omitempty"`
}
