package signin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// useWithin is how long a sign-in waits until its access request names it as its use.
const useWithin = time.Minute

// A RequestRef names the access request that a sign-in uses.
type RequestRef struct {
	Name   string // also the session of the sign-in
	UID    string
	Digest string // of what was approved
}

// RequestRules are the operator's limits of access requests. The zero value means that they are off.
type RequestRules struct {
	access.RequestPolicy
	BreakGlass []BreakGlass
	Keep       time.Duration // how long a final request remains readable
}

// A BreakGlass lists what a person may use without approvals.
type BreakGlass struct {
	access.Person // login and user ID
	Roles         []access.Role
	Period        time.Duration // maximum
}

// A Request is what the operator knows about the access request of a sign-in. The writer of a request
// is not trusted, so Next counts its approvals again.
type Request struct {
	Unread bool // the operator cannot read it now; nothing else is known

	Exists     bool
	UID        string
	Digest     string        // of the stored request, computed by the operator
	IsHere     bool          // it is for this cluster
	By         access.Person // the requester, with the device
	Binds      access.Binds
	Record     []string
	Period     time.Duration
	Approvals  int // as many as were needed when it was asked
	BreakGlass bool
	Approved   []Approval
	IsDecided  bool // denied or cancelled
	IsRevoked  bool
	Use        Use
}

// An Approval is the approval of one person.
type Approval struct {
	access.Person
	Digest string
	Period time.Duration // 0: as requested
}

// A Use is the use of a request. The zero value means that it is not used.
type Use struct {
	At        time.Time
	Signin    string // name
	SigninUID string
	Device    string
	Period    time.Duration
}

// end returns when the sign-in expires. With a request it is the end of its use, which only the
// sign-in's own period can shorten.
func (f Facts) end() time.Time {
	end := f.End(f.Rules.MaxLife)
	switch {
	case f.ByRequest.Name == "" || !f.Rules.Requests.Enabled:
	case f.Request.Unread:
		if !f.ValidUntil.IsZero() && f.ValidUntil.Before(end) {
			return f.ValidUntil
		}
	case f.isUnused():
		return f.Created.Add(useWithin)
	default:
		if use := f.Request.Use.At.Add(f.Request.period()).Truncate(time.Second); use.Before(end) {
			return use
		}
	}
	return end
}

// period returns the least of the periods of the request, of its approvals and of its use.
func (r Request) period() time.Duration {
	least := min(r.Period, r.Use.Period)
	for _, a := range r.Approved {
		if a.Period > 0 {
			least = min(least, a.Period)
		}
	}
	return least
}

// isUnused reports whether the sign-in still waits for the use of its request.
func (f Facts) isUnused() bool {
	return f.ByRequest.Name != "" && f.Rules.Requests.Enabled && !f.Request.Unread && f.Request.Use == Use{}
}

// withdrawal returns why the sign-in has to be deleted, or "".
func (f Facts) withdrawal(now time.Time) (reason, message string) {
	name := f.ByRequest.Name
	switch {
	case name == "" || !f.Rules.Requests.Enabled || f.Request.Unread:
		return "", ""
	case !f.Request.Exists:
		return ReasonRequestGone, fmt.Sprintf("The access request %s does not exist any more.", name)
	case f.Request.UID != f.ByRequest.UID:
		return ReasonRequestGone, fmt.Sprintf("The access request %s was deleted, and another one has its name.", name)
	case f.Request.IsRevoked:
		return ReasonRequestRevoked, fmt.Sprintf("The access request %s was revoked.", name)
	case f.isUnused() && !now.Before(f.Created.Add(useWithin)):
		return ReasonNotUsed, fmt.Sprintf("The access request %s did not name it as its use within %v.", name, useWithin)
	}
	return "", ""
}

// IsWithdrawal reports whether the reason is one for which the operator deletes a sign-in.
func IsWithdrawal(reason string) bool {
	return reason == ReasonRequestGone || reason == ReasonRequestRevoked || reason == ReasonNotUsed
}

// withdraw removes the existing objects, reports the reason and deletes the sign-in.
func (f Facts) withdraw(reason, message string) Step {
	report := f.unboundReport(PhaseEnding, reason, message)
	report.ValidUntil = f.ValidUntil
	return f.deprovision(Step{Action: Withdraw, Report: report, DeleteSignin: true})
}

// wait reports that the sign-in waits for the use of its request. It gives nothing until then.
func (f Facts) wait() Step {
	step := f.deprovision(Step{Action: Wait, Report: f.unboundReport(PhasePending, ReasonNotUsed, fmt.Sprintf("The access request %s does not name it as its use yet.", f.ByRequest.Name))})
	if !step.IsDestructive() && equalReports(step.Report, f.Report) {
		step.Action = Keep
	}
	return step
}

// requestRefusal returns why the access request does not allow the sign-in, or "".
func (f Facts) requestRefusal() (reason, message string) {
	ref, r := f.ByRequest, f.Request
	mismatch := func(format string, args ...any) (string, string) {
		return ReasonRequestMismatch, fmt.Sprintf("The access request %s is for ", ref.Name) + fmt.Sprintf(format, args...)
	}
	switch {
	case ref.Name == "":
		return "", ""
	case !f.Rules.Requests.Enabled:
		return ReasonRequestsOff, "It uses an access request, and requests.enabled is off in the operator's settings."
	case !r.IsHere:
		return mismatch("another cluster.")
	case r.Digest != ref.Digest:
		return ReasonRequestChanged, fmt.Sprintf("What was approved is not what the access request %s says.", ref.Name)
	case r.By != access.Person{Login: f.Owner.Login, UserID: f.Owner.UserID, Device: f.Owner.DeviceID}:
		return mismatch("%s on the device %s, and not for this user and device.", r.By.Login, r.By.Device)
	case !r.Binds.Equal(f.Binds):
		return mismatch("%s.", r.Binds)
	case f.Period > r.Period:
		return mismatch("%v, and not for %v.", r.Period, f.Period)
	case slices.ContainsFunc(r.Record, func(s string) bool { return !slices.Contains(f.Record, s) }):
		return mismatch("access of which %s is recorded.", strings.Join(r.Record, ", "))
	case r.IsDecided:
		return ReasonNotApproved, fmt.Sprintf("The access request %s was denied or cancelled.", ref.Name)
	}
	if message := f.notApproved(); message != "" {
		return ReasonNotApproved, message
	}
	switch u := r.Use; {
	case u == Use{}:
		return "", ""
	case u.SigninUID != f.UID || u.Signin != f.Name:
		return ReasonRequestUsed, fmt.Sprintf("Another sign-in has used the access request %s.", ref.Name)
	case u.Device != f.Owner.DeviceID:
		return mismatch("the device %s, and the device %s used it.", r.By.Device, u.Device)
	case !u.At.Equal(f.Created):
		return mismatch("a sign-in of %s, and this one is of %s.", u.At.UTC().Format(time.RFC3339), f.Created.UTC().Format(time.RFC3339))
	case u.Period <= 0 || u.Period > r.Period:
		return mismatch("%v, and its use for %v.", r.Period, u.Period)
	}
	return "", ""
}

// notApproved returns why the request lacks approvals, or "".
func (f Facts) notApproved() string {
	r := f.Request
	if r.BreakGlass {
		if !slices.ContainsFunc(f.Rules.Requests.BreakGlass, r.isListed) {
			return fmt.Sprintf("The operator's breakGlass does not list %s with these roles for %v.", r.By.Login, r.Period)
		}
		return ""
	}
	needed := r.Approvals
	if isBound := f.ServiceAccountUID != "" && f.isAccountIntact() && len(f.Bindings) > 0; !isBound { // a floor that is raised later ends nothing
		needed = max(needed, f.Rules.Requests.FloorOf(r.Binds))
	}
	if have := f.Rules.Requests.countApprovers(r); have < needed {
		return fmt.Sprintf("The access request %s needs %d approvals by other people, and has %d.", f.ByRequest.Name, needed, have)
	}
	return ""
}

// isListed reports whether the entry allows the break-glass use r. A login can be taken, so the user ID
// counts too.
func (r Request) isListed(entry BreakGlass) bool {
	return entry.UserID != "" && entry.UserID == r.By.UserID && strings.EqualFold(entry.Login, r.By.Login) && r.Period <= entry.Period &&
		!slices.ContainsFunc(r.Binds, func(b access.Bind) bool { return !slices.Contains(entry.Roles, b.Role) })
}

// countApprovers returns how many people other than the requester approved r as it is. Logins that
// belong to one person, also by way of a third login, count as one.
func (rules RequestRules) countApprovers(r Request) int {
	people := [][]access.Person{{r.By}} // each is one person; the requester is the first
	for _, a := range r.Approved {
		if a.Digest != r.Digest {
			continue
		}
		others, merged, isRequester := [][]access.Person{}, []access.Person{a.Person}, false
		for i, person := range people {
			if !slices.ContainsFunc(person, func(p access.Person) bool { return rules.Same(a.Person, p) }) {
				others = append(others, person)
				continue
			}
			merged, isRequester = append(merged, person...), isRequester || i == 0
		}
		if people = append(others, merged); isRequester {
			people = append([][]access.Person{merged}, others...)
		}
	}
	return len(people) - 1
}
