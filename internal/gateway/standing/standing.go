// Package standing computes the health of a tailnet connection. It decides whether the credential
// is valid, when to prove and check it, and which leftovers of a proof to delete. It follows law
// 7: a transient failure only causes a warning, and a key is recorded before it is created.
//
// The package is pure: no clock, no I/O.
package standing

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// KeyLife is the lifetime of a validation key that is not deleted.
const KeyLife = 300 * time.Second

// refusedAgain is the time before a refused credential is tried again if nothing changes.
const refusedAgain = 5 * time.Minute

// Condition types and reasons of a tailnet, as in the API type.
const (
	authenticated = "Authenticated"
	validated     = "Validated"
	ready         = "Ready"
	degraded      = "Degraded"

	yes, no, unknown = "True", "False", "Unknown"

	metadataFound = "Tailnet metadata discovered successfully"
)

// Phase is the progress of the proof of a credential.
//
//	Pending -> InProgress -> CleanupPending -> Done
//	   ^           |               |
//	   `-----------+---------------' a leftover key was deleted or has expired
type Phase string

// The phases. The zero value means Pending.
const (
	Pending Phase = "Pending"
	Begun   Phase = "InProgress"     // a key with the nonce may exist
	ToTidy  Phase = "CleanupPending" // the key with KeyID was created
	Done    Phase = "Done"
)

// A Proof is the state of a proof for one credential and one generation of the spec.
type Proof struct {
	Phase      Phase
	Credential string // version of the credential
	Generation int64
	Nonce      string
	KeyID      string
	At         time.Time
}

// left reports whether a key of this proof may still be valid.
func (p Proof) left(now time.Time) bool {
	return (p.Phase == Begun || p.Phase == ToTidy) && now.Before(p.At.Add(KeyLife))
}

// A Verdict is a condition without its times.
type Verdict struct{ Status, Reason, Message string }

// Class classifies a failed request. The values equal those of the tsapi client.
type Class string

// The classes of failures.
const (
	Refused     Class = "Refused"
	NoToken     Class = "NoToken"
	Forbidden   Class = "Forbidden"
	Invalid     Class = "Invalid"
	NotFound    Class = "NotFound"
	RateLimited Class = "RateLimited"
	Unavailable Class = "Unavailable"
	CircuitOpen Class = "CircuitOpen"
)

// A Failure describes why a request to Tailscale's API failed.
type Failure struct {
	Class   Class
	AtToken bool
	MakeKey bool   // the failed request was the creation of a key
	Scope   string // scope that the request requires
	Message string
	Wait    time.Duration // before the next try
}

// Facts are everything known about a tailnet.
type Facts struct {
	Deleting   bool
	Held       bool // the finalizer is set
	SkipRemote bool // an administrator allows removal without cleanup at Tailscale
	Users      []string
	Generation int64
	Interval   time.Duration // between checks

	// Credential is the version of the credential. If it is empty, Trouble contains the reason.
	Credential string
	Trouble    Verdict

	// From the status.
	Proof Proof
	Next  time.Time // time of the next check
	Was   map[string]Verdict

	// Results of this reconcile.
	Failure  *Failure
	Answer   *Answer
	LeftOver bool // a key expired before it could be deleted
}

// Answer is the result of a check.
type Answer struct {
	Devices         int // including devices that are shared into the tailnet
	Services        int
	Names           []string // names of the tailnet's own devices with their domain
	ServicesRefused string   // reason if the credential may not list services, otherwise empty
}

// A Deed is the next action.
type Deed string

// The actions. After each action except Rest, Next must be called again.
const (
	Rest    Deed = "rest"    // report, and reconcile again at the returned time
	Hold    Deed = "hold"    // add the finalizer
	Prove   Deed = "prove"   // create a key and delete it, step by step
	Tidy    Deed = "tidy"    // delete the key that a proof left behind
	Forget  Deed = "forget"  // the key that a proof left behind has expired
	Check   Deed = "check"   // read the lists of devices and services
	Release Deed = "release" // remove the finalizer
)

// Next returns the next action for a tailnet. For Rest it also returns the time of the next
// reconcile; zero means on change.
func Next(f Facts, now time.Time) (Deed, time.Time) {
	left := f.Proof.left(now)
	if f.Deleting {
		switch {
		case !f.Held, len(f.Users) > 0:
			return Rest, time.Time{}
		case !left || f.SkipRemote:
			return Release, time.Time{}
		case f.Credential == "":
			return Rest, f.Proof.At.Add(KeyLife) // without a credential the key cannot be deleted; wait until it expires
		case f.Failure != nil:
			return Rest, earlier(f.Proof.At.Add(KeyLife), now.Add(f.pause()))
		}
		return Tidy, time.Time{}
	}
	proved := f.Proof.Phase == Done && f.Proof.Credential == f.Credential && f.Proof.Generation == f.Generation
	tried := f.Proof.Phase == Pending && f.Proof.Credential == f.Credential && f.Proof.Generation == f.Generation
	switch {
	case !f.Held && (len(f.Users) > 0 || f.Credential != "" && !proved):
		return Hold, time.Time{}
	case f.Credential == "":
		return Rest, time.Time{} // the watch of the credential triggers the next reconcile
	case f.Failure != nil:
		return Rest, now.Add(f.pause())
	case left:
		return Tidy, time.Time{}
	case f.Proof.Phase == Begun || f.Proof.Phase == ToTidy:
		return Forget, time.Time{}
	case tried && now.Before(f.Next):
		return Rest, f.Next
	case !proved:
		return Prove, time.Time{}
	case f.Answer != nil:
		return Rest, now.Add(f.Interval)
	case f.Next.IsZero(), !now.Before(f.Next), f.Was[ready].Status != yes && f.Was[validated].Status != no:
		return Check, time.Time{}
	}
	// A shorter interval applies immediately.
	return Rest, earlier(f.Next, now.Add(max(f.Interval, refusedAgain)))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// pause returns the time to wait after a failure.
func (f Facts) pause() time.Duration {
	switch f.Failure.Class {
	case RateLimited, Unavailable, CircuitOpen:
		return f.Failure.Wait
	}
	return refusedAgain
}

// Passing reports whether a failure may be transient. A transient failure does not mean that the
// credential is invalid.
func (f *Failure) Passing() bool {
	switch f.Class {
	case Refused, NoToken, Forbidden, NotFound:
		return false
	case Invalid:
		return !f.MakeKey
	}
	return true
}

// Verdicts returns the conditions of a tailnet after a reconcile.
func Verdicts(f Facts) map[string]Verdict {
	keep := func(kind string, otherwise Verdict) Verdict {
		if v, ok := f.Was[kind]; ok {
			return v
		}
		return otherwise
	}
	pending := Verdict{unknown, "Pending", "The credential was not tried yet."}
	asExpected := Verdict{no, "AsExpected", ""}
	out := map[string]Verdict{
		authenticated: keep(authenticated, Verdict{unknown, "Pending", ""}), validated: keep(validated, pending),
		ready: keep(ready, Verdict{no, "Pending", pending.Message}), degraded: keep(degraded, asExpected),
	}
	if out[authenticated].Reason == "Pending" {
		out[authenticated] = Verdict{unknown, "APIUnavailable", pending.Message} // the only reason defined for Unknown
	}
	issued := Verdict{yes, "TokenIssued", "The API issued an access token."}
	failed := func(message string) Verdict { return Verdict{no, "Failed", message} }
	switch fail := f.Failure; {
	case f.Credential == "":
		out[authenticated] = Verdict{no, f.Trouble.Reason, f.Trouble.Message}
		out[validated], out[ready], out[degraded] = pending, failed(f.Trouble.Message), asExpected
	case fail != nil && fail.Passing():
		reason := "APIUnavailable"
		switch fail.Class {
		case RateLimited, CircuitOpen:
			reason = string(fail.Class)
		}
		out[degraded] = Verdict{yes, reason, fail.Message}
		if f.Was[ready].Status == yes {
			break // keep the last known good state
		}
		out[ready] = Verdict{no, "Pending", fail.Message}
		out[validated] = Verdict{unknown, "APIUnavailable", fail.Message}
		if fail.Class == RateLimited {
			out[validated] = Verdict{unknown, "RateLimited", fail.Message}
		}
		if out[authenticated].Status != yes {
			out[authenticated] = Verdict{unknown, "APIUnavailable", fail.Message}
		}
	case fail != nil:
		out[ready], out[degraded] = failed(fail.Message), asExpected
		out[authenticated] = issued
		switch fail.Class {
		case Refused:
			out[authenticated], out[validated] = Verdict{no, "InvalidCredentials", fail.Message}, pending
		case NoToken:
			out[authenticated], out[validated] = Verdict{no, "TokenExchangeFailed", fail.Message}, pending
		case Forbidden:
			m := fmt.Sprintf("The credential lacks the scope %s: %s", fail.Scope, fail.Message)
			out[validated], out[ready] = Verdict{no, "InsufficientPermissions", m}, failed(m)
		case Invalid:
			m := "The credential may not give out the tags of this tailnet: " + fail.Message
			out[validated], out[ready] = Verdict{no, "TagsNotPermitted", m}, failed(m)
		case NotFound:
			m := "The API knows no such tailnet: " + fail.Message
			out[validated], out[ready] = Verdict{no, "TailnetNotFound", m}, failed(m)
		}
	case f.Answer != nil:
		out[authenticated], out[degraded] = issued, asExpected
		out[validated] = Verdict{yes, "Ready", metadataFound}
		out[ready] = Verdict{yes, "Ready", metadataFound}
		if Domain(f.Answer.Names) == "" {
			out[validated] = Verdict{yes, "NoDevices", "The credential is good; the tailnet has no device yet that tells its domain."}
			out[ready] = Verdict{yes, "Ready", out[validated].Message}
		}
		if f.Answer.ServicesRefused != "" {
			out[degraded] = Verdict{yes, "PartialScopes", f.Answer.ServicesRefused}
		}
	}
	if f.Deleting {
		m := "It is being deleted."
		if len(f.Users) > 0 {
			m = "It is being deleted, and still used by " + some(f.Users) + "."
		} else if f.Failure != nil {
			m = "It is being deleted, but a validation key is not yet: " + f.Failure.Message
		}
		out[ready] = Verdict{no, "Pending", m}
	}
	return out
}

// some joins the first names of a list.
func some(names []string) string {
	const most = 5
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Domain returns the MagicDNS domain of a tailnet: the most frequent domain in the names of its
// devices, after the first dot. It returns "" if there is none.
func Domain(names []string) string {
	votes := map[string]int{}
	for _, name := range names {
		if _, domain, ok := strings.Cut(strings.TrimSuffix(name, "."), "."); ok && isDomain(domain) {
			votes[domain]++
		}
	}
	best := ""
	for domain, n := range votes {
		if best == "" || n > votes[best] || n == votes[best] && domain < best {
			best = domain
		}
	}
	return best
}

func isDomain(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
}

// Organization guesses from the domain whether a tailnet belongs to a person or to an
// organization. Every tailnet starts with a domain of the first kind. The result is only a hint
// for people, and no decision depends on it.
func Organization(domain string) string {
	if hex, ok := strings.CutSuffix(domain, ".ts.net"); ok {
		if hex, ok = strings.CutPrefix(hex, "tail"); ok && hex != "" && strings.Trim(hex, "0123456789abcdef") == "" {
			return "Personal"
		}
	}
	return "Organization"
}
