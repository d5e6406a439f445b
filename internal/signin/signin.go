// Package signin implements the lifecycle of a sign-in: requested, provisioned, extended, ended. It
// enforces law 9: the end of everything that gives access is derived from stored values, so a
// restart loses nothing.
//
//	(none) --login--> Pending --provision--> Ready --validUntil--> Expired --> (none)
//	                     |                    | ^ login again: later validUntil
//	                     | not allowed        | +--+
//	                     v                    +--logout, other role, grant gone--> Ending --> (none)
//	                  Refused (nothing is bound)
//
// The Desk serves the callers, and Next computes the next step of the operator. They share nothing
// but the stored Signin.
package signin

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// An Owner is the owner of a sign-in: a session of a person on a device, or of a tagged node.
type Owner struct {
	Login       string // full login; "node:<name>" for a tagged node
	UserID      string
	DisplayName string
	DeviceID    string // stable node ID
	DeviceName  string
	Tailnet     string
	Session     Session

	Issuer  string // of the OIDC token with which the sign-in began; "": it began without one
	Subject string // of that token
}

// OwnerOf returns the Owner for a session of caller c.
func OwnerOf(c access.Caller, session Session) Owner {
	return Owner{Login: c.Identity(), UserID: c.UserID, DisplayName: c.DisplayName,
		DeviceID: c.Device.ID, DeviceName: c.Device.Name, Tailnet: c.Tailnet, Session: session}
}

// Name returns the name of the owner's sign-in and its ServiceAccount. With a prefix, it is also
// the name of its bindings. It consists of a readable part of the login and a hash of the tailnet,
// the complete login, the device, a session that is not the default one, and the issuer and the subject
// of a token. alice@a.example and alice@b.example therefore differ, each session of each device has a
// separate sign-in, and so has each job on a shared device. It is a DNS-1123 label of at most 61
// characters.
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
	parts := []string{o.Tailnet, o.Login, o.DeviceID}
	switch { // 3, 4 or 7 parts, so that no two owners have the same ones
	case o.Issuer != "":
		parts = append(parts, string(o.Session), "oidc", o.Issuer, o.Subject)
	case o.Session != "":
		parts = append(parts, string(o.Session))
	}
	var framed []byte
	for _, part := range parts {
		framed = append(binary.BigEndian.AppendUint64(framed, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(framed)
	name := strings.Trim(slug.String(), "-")
	if name == "" {
		name = "user"
	}
	return name + "-" + hex.EncodeToString(sum[:])[:20]
}

// A Signin is one stored, temporary access of one owner to one cluster.
type Signin struct {
	Name       string
	UID        string // of the stored object
	Version    string // resource version of the stored object; a write names the version that it read
	Generation int64
	Owner      Owner
	Binds      access.Binds // in the order of the rule
	Rule       string       // name of the rule of the last login, or ""
	ByRequest  RequestRef   // the access request that it uses; the zero value: it stands on a rule of the tailnet policy
	Record     []string     // streams through the access proxy that must be recorded; only ever extended
	Period     time.Duration
	Audience   string            // of the token of the owner
	Claims     map[string]string // of that token, those that rules require
	Why        string            // the reason that the person gave, or ""
	AskedAt    time.Time         // time of the last login
	Created    time.Time
	Deleting   bool // the object is being deleted

	OnUse  bool          // a request through the access proxy began it, and no login has extended it since
	Idle   time.Duration // how long it lasts without use; 0 without OnUse
	UsedAt time.Time     // when a proxy last reported its use; zero without OnUse

	DeletedAt time.Time // zero unless Deleting
	EndAsked  string    // why the access server ends it, for Delete; see EndAskedFor

	Report // stored in the status
}

// A Report is the operator's status of a sign-in.
type Report struct {
	Phase              Phase
	Reason             string // of the Ready condition
	Message            string
	ValidUntil         time.Time    // zero if nothing was provisioned
	Bound              access.Binds // the bound roles and their namespaces, without selectors
	MissingNamespaces  []string     // named namespaces without a binding, sorted
	ServiceAccount     string
	ServiceAccountUID  string // in the Report of a Step: "" means the account that the step creates
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

// State returns the state of s at now, as its owner sees it.
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
