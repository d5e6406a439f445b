// Package standing decides how the operator stands with a tailnet: whether its
// credential is good, when to prove and when to check it, and what of a proof is to
// be cleaned up. It keeps law 7: what may pass by itself changes nothing but a
// warning, and a key is written down before it is made.
//
// It is pure: no clock, no I/O.
package standing

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// KeyLife is how long a validation key lives if nobody deletes it.
const KeyLife = 300 * time.Second

// refusedAgain is when what was refused is tried again, if nothing changes before.
const refusedAgain = 5 * time.Minute

// Conditions and reasons of a tailnet, as the API type has them.
const (
	authenticated = "Authenticated"
	validated     = "Validated"
	ready         = "Ready"
	degraded      = "Degraded"

	yes, no, unknown = "True", "False", "Unknown"

	metadataFound = "Tailnet metadata discovered successfully"
)

// Phase is how far the proof of a credential is.
//
//	Pending -> InProgress -> CleanupPending -> Done
//	   ^           |               |
//	   `-----------+---------------' what was left behind is deleted, or dead
type Phase string

// The phases. The zero value is as good as Pending.
const (
	Pending Phase = "Pending"
	Begun   Phase = "InProgress"     // a key with the nonce may have been made
	ToTidy  Phase = "CleanupPending" // the key with the id was made
	Done    Phase = "Done"
)

// A Proof is what was tried with which credential for which spec.
type Proof struct {
	Phase      Phase
	Credential string // its version
	Generation int64
	Nonce      string
	KeyID      string
	At         time.Time
}

// left reports whether there may be a key of it that still opens.
func (p Proof) left(now time.Time) bool {
	return (p.Phase == Begun || p.Phase == ToTidy) && now.Before(p.At.Add(KeyLife))
}

// A Verdict is a condition without its times.
type Verdict struct{ Status, Reason, Message string }

// Class says what a failed request means; its values are those of the clients.
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

// An Failure is why Tailscale's API did not do what a deed asked for.
type Failure struct {
	Class   Class
	AtToken bool
	MakeKey bool   // it was the key that could not be made
	Scope   string // that the request needs
	Message string
	Wait    time.Duration // before the next try
}

// Facts are all that is known of a tailnet.
type Facts struct {
	Deleting   bool
	Held       bool // by our finalizer
	SkipRemote bool // an administrator lets it go without cleaning up
	Users      []string
	Generation int64
	Interval   time.Duration // between checks

	// Credential is the version of the one there is. If it is empty, Trouble is
	// the reason and says what is missing.
	Credential string
	Trouble    Verdict

	// As the status says.
	Proof Proof
	Next  time.Time // of the next check
	Was   map[string]Verdict

	// What was found out in this look.
	Failure  *Failure
	Answer   *Answer
	LeftOver bool // a key could not be deleted before it died
}

// Answer is what a check found.
type Answer struct {
	Devices         int // with those that are shared in
	Services        int
	Names           []string // of the tailnet's own devices, with their domain
	ServicesRefused string   // why the credential may not list services; "": it may
}

// A Deed is what is to be done next.
type Deed string

// The deeds. Each but Rest is followed by another decision.
const (
	Rest    Deed = "rest"    // report, and look again at Wake
	Hold    Deed = "hold"    // put the finalizer on
	Prove   Deed = "prove"   // make a key and delete it, step by step
	Tidy    Deed = "tidy"    // delete the key that a proof left
	Forget  Deed = "forget"  // the key that a proof left is dead
	Check   Deed = "check"   // read the lists
	Release Deed = "release" // take the finalizer off
)

// Next decides what to do with a tailnet, and when to look again if nothing.
func Next(f Facts, now time.Time) (Deed, time.Time) {
	left := f.Proof.left(now)
	if f.Deleting {
		switch {
		case !f.Held, len(f.Users) > 0:
			return Rest, time.Time{}
		case !left || f.SkipRemote:
			return Release, time.Time{}
		case f.Credential == "":
			return Rest, f.Proof.At.Add(KeyLife) // nobody can delete it; it dies
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
		return Rest, time.Time{} // whoever watches the credential wakes us
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
	// A shorter interval holds at once.
	return Rest, earlier(f.Next, now.Add(max(f.Interval, refusedAgain)))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// pause is how long a failure lets us wait.
func (f Facts) pause() time.Duration {
	switch f.Failure.Class {
	case RateLimited, Unavailable, CircuitOpen:
		return f.Failure.Wait
	}
	return refusedAgain
}

// Passing reports whether a failure may be gone in a moment: it says nothing about
// the credential.
func (f *Failure) Passing() bool {
	switch f.Class {
	case Refused, NoToken, Forbidden, NotFound:
		return false
	case Invalid:
		return !f.MakeKey
	}
	return true
}

// Verdicts are the conditions of a tailnet after a look at it.
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
		out[authenticated] = Verdict{unknown, "APIUnavailable", pending.Message} // the only reason that Unknown has
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
			break // last known good
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

// some names the first of a list.
func some(names []string) string {
	const most = 5
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Domain is what the names of a tailnet's own devices agree on most: the MagicDNS
// domain, which is what follows the first dot. "": there is none.
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

// Organization guesses from a domain whether a tailnet is a person's or an
// organization's. Every tailnet starts with a domain of the first kind, so it is a
// hint for people, and nothing depends on it.
func Organization(domain string) string {
	if hex, ok := strings.CutSuffix(domain, ".ts.net"); ok {
		if hex, ok = strings.CutPrefix(hex, "tail"); ok && hex != "" && strings.Trim(hex, "0123456789abcdef") == "" {
			return "Personal"
		}
	}
	return "Organization"
}
