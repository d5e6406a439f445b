// Package signin is the life of a sign-in: asked for, provisioned, extended,
// ended. It keeps law 9: whatever gives access has a wake time derived from
// what is stored, so that a restart loses nothing.
//
//	(none) --login--> Pending --provision--> Ready --validUntil--> Expired --> (none)
//	                     |                    | ^ login again: later validUntil
//	                     | not allowed        | +--+
//	                     v                    +--logout, other role, grant gone--> Ending --> (none)
//	                  Refused (nothing is bound)
//
// The desk serves callers; Next is what the operator does next. The two meet
// only in the stored Signin.
package signin

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// An Owner is whose sign-in it is: a person on a device, or a tagged node.
type Owner struct {
	Login       string // full login; "node:<name>" for a tagged node
	UserID      string
	DisplayName string
	DeviceID    string // stable node id
	DeviceName  string
	Tailnet     string
}

// OwnerOf returns the owner of the sign-ins that c makes.
func OwnerOf(c access.Caller) Owner {
	return Owner{Login: c.Identity(), UserID: c.UserID, DisplayName: c.DisplayName,
		DeviceID: c.Device.ID, DeviceName: c.Device.Name, Tailnet: c.Tailnet}
}

// Name is the name of the owner's sign-in, its ServiceAccount and, with a
// prefix, its bindings: a slug of the login to read and a hash to tell apart.
// Tailnet, whole login and device are all in the hash: alice@a.example and
// alice@b.example are two people, and each device has a sign-in of its own.
// It is a DNS-1123 label of at most 61 characters.
func (o Owner) Name() string {
	var slug strings.Builder
	for _, r := range strings.ToLower(o.Login) {
		if slug.Len() >= 40 {
			break
		}
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			slug.WriteRune(r)
		case slug.Len() > 0 && !strings.HasSuffix(slug.String(), "-"):
			slug.WriteByte('-')
		}
	}
	h := sha256.New()
	for _, part := range []string{o.Tailnet, o.Login, o.DeviceID} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	name := strings.Trim(slug.String(), "-")
	if name == "" {
		name = "user"
	}
	return name + "-" + hex.EncodeToString(h.Sum(nil))[:20]
}

// A Signin is one temporary access of one owner to one cluster, as it is stored.
type Signin struct {
	Name       string
	UID        string // of the stored object
	Version    string // of the stored object; a write names the version it read
	Generation int64
	Owner      Owner
	Role       access.Role
	Namespaces []string // sorted; none: the whole cluster
	Period     time.Duration
	AskedAt    time.Time // of the last login
	Created    time.Time
	Deleting   bool // it is being taken down

	// What the operator reports.
	Phase              Phase
	Reason             string // of the Ready condition
	Message            string
	ValidUntil         time.Time // zero until provisioned
	BoundRole          access.Role
	BoundNamespaces    []string
	MissingNamespaces  []string
	ServiceAccount     string
	ServiceAccountUID  string
	ObservedGeneration int64
}

// A Phase is the operator's summary of a stored sign-in.
type Phase string

// The phases.
const (
	PhasePending Phase = "Pending"
	PhaseReady   Phase = "Ready"
	PhaseRefused Phase = "Refused"
	PhaseEnding  Phase = "Ending"
	PhaseExpired Phase = "Expired"
)

// State is where s stands at now, as its owner sees it.
func (s Signin) State(now time.Time) State {
	switch {
	case s.Deleting, s.Phase == PhaseEnding:
		return Ending
	case s.Phase == PhaseExpired, !s.ValidUntil.IsZero() && !now.Before(s.ValidUntil) && s.ObservedGeneration == s.Generation:
		return Ended
	case s.Phase == PhaseRefused && s.ObservedGeneration == s.Generation:
		return Refused
	case s.Phase == PhaseReady && s.ObservedGeneration == s.Generation:
		return Ready
	}
	return Pending
}
