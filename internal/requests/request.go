// Package requests implements access requests: a person asks for a role, other people approve, and the requester uses the
// request for one sign-in of limited time. It enforces law 3: an approval counts only while its person would be allowed to
// give it, and law 9: the state of a request is derived from stored times, so nothing has to move it.
//
//	ask -> Pending --N count--> Approved --the requester's login--> Used -> Over | Revoked
//	          |                    |
//	          +-- deny, cancel, too late --> Denied | Cancelled | Expired
//
// An approval is a permission to sign in, and no sign-in: the period starts at the use.
package requests

import (
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// A Request is one stored access request.
type Request struct {
	Name    string // also the session of its sign-in
	UID     string
	Version string // of the stored object; a write names the version that it read
	Digest  string // what an approval is bound to, computed from the stored object
	Created time.Time

	ClusterName, ClusterID string
	Requester              Requester
	Rule                   string // display only
	Binds                  access.Binds
	Period                 time.Duration
	Approvals              int // as many as were needed when it was asked
	Reason                 string
	BreakGlass             bool
	Record                 []string
	AskedAt                time.Time
	PendingUntil           time.Time // a request without enough approvals expires

	Status
}

// A Requester is a person or a tagged node that asks, with its device.
type Requester struct {
	access.Person
	DisplayName, DeviceName, Tailnet string
	Tags                             []string
}

// A Status is what people did. Fields are only added.
type Status struct {
	Approved    []Approval
	Decision    *Decision
	Revoked     *Act
	Use         *Use
	Reviewed    *Act
	UsableUntil time.Time // set by the write that adds the last needed approval; zero before
}

// An Approval is the approval of one person.
type Approval struct {
	access.Person
	Digest  string
	At      time.Time
	Comment string
	Period  time.Duration // 0: that of the request
}

// An Act is what one person did.
type Act struct {
	By     access.Person
	At     time.Time
	Reason string
}

// A Decision ended a request before its use.
type Decision struct {
	Is State // Denied or Cancelled
	Act
}

// A Use is the one use of a request.
type Use struct {
	At        time.Time // creationTimestamp of the sign-in
	Signin    string
	SigninUID string
	Device    string
	Period    time.Duration
}

// A State is the state of a request.
type State string

// The states. All but Pending, Approved and Used are final.
const (
	Pending   State = "pending"
	Approved  State = "approved"
	Used      State = "used"
	Denied    State = "denied"
	Cancelled State = "cancelled"
	Expired   State = "expired"
	Revoked   State = "revoked"
	Over      State = "over"
)

// States returns all states.
func States() []State {
	return []State{Pending, Approved, Used, Denied, Cancelled, Expired, Revoked, Over}
}

// IsFinal reports whether the state never changes.
func (s State) IsFinal() bool { return s != Pending && s != Approved && s != Used }

// A Presence is what is known about an approver now.
type Presence int

// The presences. Only Present counts: for granting, only positive evidence does.
const (
	Unknown Presence = iota
	Present
	Absent
)

// An Approver is an approver as the tailnet would identify them now.
type Approver struct {
	Is  Presence
	Why string // a sentence, unless Present
}

// Facts are what Judge knows besides the stored request.
type Facts struct {
	Approvers    map[string]Approver // by login as in the approval; a missing one is Unknown
	RuleNow      int                 // approvals that the requester's rule needs now; 0 if it is unknown
	Floor        int                 // of the roles, in the settings
	Limits       access.RequestPolicy
	SigninGone   bool          // the sign-in of the use does not exist any more
	SigninPeriod time.Duration // its period, which the guard may have shortened; 0: unknown
}

// A Verdict is the state of a request at one moment.
type Verdict struct {
	State   State
	Needed  int           // approvals; a rule can raise the number, and never lower it
	Counted int           // approvals that count now
	Void    []Void        // approvals that do not count
	Period  time.Duration // the shortest of the request's and of the counted approvals'
	Until   time.Time     // when the state ends by itself; zero if it is final
}

// A Void is an approval that does not count, and why.
type Void struct {
	Login   string
	Why     string
	Unknown bool // the approver cannot be looked up now
}

// Judge derives the state of r. It is total and depends on its arguments only.
func Judge(r Request, f Facts, now time.Time) Verdict {
	v := Verdict{Needed: max(r.Approvals, f.RuleNow, f.Floor), Period: r.Period}
	if r.BreakGlass {
		v.Needed = 0
	}
	v.count(r, f)
	switch {
	case r.Decision != nil && r.Decision.Is == Cancelled:
		v.State = Cancelled
	case r.Decision != nil:
		v.State = Denied
	case r.Revoked != nil:
		v.State = Revoked
	case r.Use != nil:
		v.State, v.Period = Used, r.Use.Period
		if f.SigninPeriod > 0 {
			v.Period = min(v.Period, f.SigninPeriod)
		}
		if v.Until = r.Use.At.Add(v.Period); f.SigninGone || !now.Before(v.Until) {
			v.State = Over
		}
	case !now.Before(r.deadline()):
		v.State = Expired
	case v.Counted >= v.Needed:
		v.State, v.Until = Approved, r.deadline()
	default:
		v.State, v.Until = Pending, r.deadline()
	}
	if v.State.IsFinal() {
		v.Until = time.Time{}
	}
	return v
}

// deadline returns when r expires if it is not used. It is stored, so no approver who returns and no setting moves it.
func (r Request) deadline() time.Time {
	if !r.UsableUntil.IsZero() {
		return r.UsableUntil
	}
	return r.PendingUntil
}

// count decides which approvals count: those of different people who are not the requester, for what is stored now.
func (v *Verdict) count(r Request, f Facts) {
	people := []access.Person{r.Requester.Person}
	for _, a := range r.Approved {
		is := f.Approvers[a.Login]
		void := Void{Login: a.Login, Why: is.Why, Unknown: is.Is == Unknown}
		switch {
		case a.Digest != r.Digest:
			void = Void{Login: a.Login, Why: "It is for another request."}
		case sameAsOne(f.Limits, people, a.Person):
			void = Void{Login: a.Login, Why: "It is by the requester, or by a person who has approved already."}
		case is.Is == Present:
			v.Counted++
			people = append(people, a.Person)
			if a.Period > 0 {
				v.Period = min(v.Period, a.Period)
			}
			continue
		case void.Why == "":
			void.Why = "It cannot be confirmed now."
		}
		v.Void = append(v.Void, void)
	}
}

func sameAsOne(limits access.RequestPolicy, people []access.Person, p access.Person) bool {
	for _, other := range people {
		if limits.Same(other, p) {
			return true
		}
	}
	return false
}

// approvalOf returns the approval of the person, or nil.
func (r Request) approvalOf(p access.Person) *Approval {
	for i, a := range r.Approved {
		if strings.EqualFold(a.Login, p.Login) || a.UserID == p.UserID {
			return &r.Approved[i]
		}
	}
	return nil
}

// isOf reports whether c is the requester, on any device of theirs.
func (r Request) isOf(c access.Caller) bool {
	return r.Requester.Login == c.Identity() && r.Requester.UserID == c.UserID && r.Requester.Tailnet == c.Tailnet
}
