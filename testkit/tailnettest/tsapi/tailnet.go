package tsapi

import (
	"net/netip"
	"time"

	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
)

// Tailnet is the state that the API reads and changes. Each method is atomic, and callers must not modify its
// results. The API checks scopes, tags and shapes before it calls a method.
type Tailnet interface {
	// Policy returns the current policy. ReplacePolicy sets next. If old is given, it does so only if old is the
	// current policy. It reports whether it replaced the policy.
	Policy() *tailpolicy.Policy
	ReplacePolicy(old, next *tailpolicy.Policy) bool

	// Keys returns all auth keys ever created, by ID. Mint creates a key and returns its secret too. Revoke reports
	// whether the key exists.
	Keys() []Key
	Mint(Key) (_ Key, text string)
	Revoke(id string) bool

	// Devices returns the nodes by ID. The other methods change one node and report success: the node must exist. For
	// Rename, no other node may have the name, which is a label or a full name. An empty name restores the host's
	// own.
	Devices() []Device
	Delete(tailcfg.StableNodeID) bool
	Retag(id tailcfg.StableNodeID, tags []string) bool
	Rename(id tailcfg.StableNodeID, name string) bool
	SetKeyExpiry(id tailcfg.StableNodeID, on bool) bool

	// Services returns the services by name. PutService creates a service, or replaces all fields except its
	// addresses. Its error describes invalid addresses. ApproveHost approves a tagged node as a host, or withdraws
	// the approval.
	Services() []Service
	PutService(Service) (Service, error)
	DeleteService(tailcfg.ServiceName) bool
	ApproveHost(_ tailcfg.ServiceName, host tailcfg.StableNodeID, approved bool) bool

	// Hosts returns the nodes that are approved as hosts of a service.
	Hosts(tailcfg.ServiceName) []tailcfg.StableNodeID
}

// Key is an auth key without its secret. Mint ignores ID, Valid, Created and Revoked.
type Key struct {
	ID          string
	Description string
	Tags        []string
	Ephemeral   bool
	Reusable    bool
	Valid       bool // it can still register a node
	Created     time.Time
	Expires     time.Time // zero: never
	Revoked     time.Time // zero: not revoked
}

// Device is a node as its peers see it, with additional data that they do not see.
type Device struct {
	*tailcfg.Node
	Login     string // "tagged-devices" if it has tags
	Ephemeral bool
}

// Service is a service with its own addresses, in the API's form.
type Service struct {
	Name        tailcfg.ServiceName `json:"name"`
	Addrs       []netip.Addr        `json:"addrs"` // one IPv4, one IPv6
	Comment     string              `json:"comment,omitempty"`
	Annotations map[string]string   `json:"annotations,omitempty"`
	Ports       []string            `json:"ports,omitempty"`
	Tags        []string            `json:"tags,omitempty"`
}
