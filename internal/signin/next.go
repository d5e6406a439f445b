package signin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// Reasons of a sign-in's Ready condition. The set is closed: docs list it, and
// dashboards may branch on it.
const (
	ReasonProvisioned            = "Provisioned"
	ReasonPending                = "Pending"
	ReasonRoleNotAllowed         = "RoleNotAllowed"
	ReasonRoleNotFound           = "RoleNotFound"
	ReasonNoNamespace            = "NoNamespace"
	ReasonNameTaken              = "NameTaken"
	ReasonBadPeriod              = "BadPeriod"
	ReasonClockSkew              = "ClockSkew"
	ReasonAdmissionPolicyMissing = "AdmissionPolicyMissing"
	ReasonForbidden              = "Forbidden"
	ReasonAPIServerError         = "ApiServerError"
	ReasonExpired                = "Expired"
	ReasonEnding                 = "Ending"
)

// maxAhead is how far the time of asking may lie in the future: the clocks of
// the access server and the operator may differ by this much.
const maxAhead = time.Minute

// Rules are what the operator of one cluster does, whatever a stored sign-in
// asks for: its writer is not trusted (law 5).
type Rules struct {
	Roles       []access.Role // allow-list
	Min, Max    time.Duration // bounds of a period
	MaxLife     time.Duration // from creation on, over all extensions; 0: no bound
	KeepExpired time.Duration // how long an expired sign-in stays to be read
	Reserved    []string      // namespaces in which nothing is ever bound: ours

	// RequireAdmissionPolicy refuses to provision while nothing in the cluster
	// keeps strangers from writing sign-ins.
	RequireAdmissionPolicy bool

	// Recheck is how soon to look again at what cannot be watched: the role
	// and the admission policy.
	Recheck time.Duration
}

// An Account is the ServiceAccount of the sign-in's name.
type Account struct {
	UID      string
	Owner    string // UID of the sign-in that controls it
	Signin   string // UID of the sign-in that its labels name; "" when it does not carry ours
	Deleting bool
}

// A Binding gives a ServiceAccount a role, in one namespace or everywhere.
type Binding struct {
	Namespace string // "": the whole cluster
	Name      string
	UID       string      // "" for one that is to be made
	Role      access.Role // "" when it does not refer to a ClusterRole
	Account   string      // its only subject; "" when it has others
	Signin    string      // UID of the sign-in that its labels name
}

// BindingName is the name of every binding of the sign-in called name.
func BindingName(name string) string { return "tailplane-" + name }

// Facts are everything that Next looks at: the sign-in as it is stored, what
// exists for it, and the rules.
type Facts struct {
	Signin
	ExpiredAt time.Time // when it was found to be over; zero: it was not
	Held      bool      // our finalizer is on it

	Account    *Account  // nil: there is none
	Bindings   []Binding // under its name or with its UID
	RoleExists bool
	Existing   []string // those of its namespaces that the cluster has
	PolicyOn   bool     // the admission policy is in force

	Rules Rules
}

// A Deed names a step, for the record.
type Deed string

// The deeds.
const (
	Keep      Deed = "keep"      // all is as wished
	Provision Deed = "provision" // make what gives access
	Replace   Deed = "replace"   // the same, and remove what a dead sign-in left
	Extend    Deed = "extend"    // another end
	Correct   Deed = "correct"   // somebody changed what was made
	Refuse    Deed = "refuse"    // it will not be provisioned
	Expire    Deed = "expire"    // write down that it is over
	Clear     Deed = "clear"     // take down what is left of one that is over
	Remove    Deed = "remove"    // delete one that was over long enough
	End       Deed = "end"       // delete one whose account somebody took away
	Revoke    Deed = "revoke"    // take down one that is being deleted
)

// A Step is what to do next, in the order of its fields: rights go before the
// account, and both before the sign-in; what is made is reported after it was
// made. Each part may have been done before: the outcome is the same.
type Step struct {
	Deed    Deed
	Unbind  []Binding // to delete
	Drop    *Account  // to delete
	Make    bool      // an account
	Bind    []Binding // to create
	Report  Report    // to be stored, if it differs
	Release bool      // take our finalizer off
	Delete  bool      // delete the sign-in itself
}

// Destroys reports whether the step takes something away. What it rests on must
// be read from the API server itself, not from a cache (law 7).
func (s Step) Destroys() bool {
	return len(s.Unbind) > 0 || s.Drop != nil || s.Release || s.Delete
}

// A Report is what the operator says about a sign-in.
type Report struct {
	Phase             Phase
	Reason            string
	Message           string
	ValidUntil        time.Time // zero: nothing was provisioned
	Role              access.Role
	Namespaces        []string
	MissingNamespaces []string
	ServiceAccount    string
	ServiceAccountUID string // "": that of the account that the step makes
	Generation        int64
}

func (r Report) same(o Report) bool {
	return r.Phase == o.Phase && r.Reason == o.Reason && r.Message == o.Message && r.ValidUntil.Equal(o.ValidUntil) &&
		r.Role == o.Role && slices.Equal(r.Namespaces, o.Namespaces) && slices.Equal(r.MissingNamespaces, o.MissingNamespaces) &&
		r.ServiceAccount == o.ServiceAccount && r.ServiceAccountUID == o.ServiceAccountUID && r.Generation == o.Generation
}

// End is when the sign-in is over. It comes from stored times only, so that no
// retry and no restart moves it, and it lies on a whole second, because that is
// what a stored time can hold.
func (f Facts) End() time.Time {
	end := f.AskedAt.Add(f.Period)
	if f.Rules.MaxLife > 0 {
		if last := f.Created.Add(f.Rules.MaxLife); last.Before(end) {
			end = last
		}
	}
	return end.Truncate(time.Second)
}

// Next returns what to do about a sign-in at now, and when to look again. The
// zero time means that nothing is to be expected: a sign-in that gives access
// always has a time. A time that is not after now means: at once.
func Next(f Facts, now time.Time) (Step, time.Time) {
	end := f.End()
	switch {
	case f.Deleting:
		return f.revoke(), time.Time{}
	case !f.ExpiredAt.IsZero():
		return f.clear(now)
	case !now.Before(end):
		r := f.reported()
		r.Phase, r.Reason, r.Message = PhaseExpired, ReasonExpired, "It ended at "+end.UTC().Format(time.RFC3339)+"."
		r.ValidUntil, r.Generation = end, f.Generation
		return Step{Deed: Expire, Report: r}, now
	}
	if reason, message, again := f.refusal(now); reason != "" {
		return f.refuse(reason, message), earliest(end, again)
	}
	if f.ServiceAccountUID != "" && !f.intact() {
		return Step{Deed: End, Report: f.reported(), Delete: true}, now
	}
	return f.provision(end), end
}

// revoke takes down a sign-in that is being deleted. Its report is written only
// if somebody else's finalizer keeps it after ours is gone.
func (f Facts) revoke() Step {
	step := f.takeDown(Step{Deed: Revoke, Report: f.reported(), Release: f.Held})
	if !f.Held {
		step.Report = f.nothing(PhaseEnding, ReasonEnding, "It is being deleted.")
		step.Report.ValidUntil = f.ValidUntil
		if !step.Destroys() && step.Report.same(f.reported()) {
			step.Deed = Keep
		}
	}
	return step
}

// clear takes down what is left of an expired sign-in, and deletes it in the end.
func (f Facts) clear(now time.Time) (Step, time.Time) {
	due := f.ExpiredAt.Add(f.Rules.KeepExpired)
	r := f.nothing(PhaseExpired, ReasonExpired, f.Message)
	r.ValidUntil = f.ValidUntil
	step := f.takeDown(Step{Deed: Clear, Report: r, Release: f.Held})
	if step.Destroys() || !r.same(f.reported()) {
		return step, due
	}
	if now.Before(due) {
		return Step{Deed: Keep, Report: r}, due
	}
	return Step{Deed: Remove, Report: r, Delete: true}, time.Time{}
}

// refuse takes down what exists and says why.
func (f Facts) refuse(reason, message string) Step {
	step := f.takeDown(Step{Deed: Refuse, Report: f.nothing(PhaseRefused, reason, message)})
	if !step.Destroys() && step.Report.same(f.reported()) {
		step.Deed = Keep
	}
	return step
}

// takeDown adds to a step the end of all that gives access. Somebody else's
// ServiceAccount is left alone.
func (f Facts) takeDown(step Step) Step {
	step.Unbind = f.Bindings
	if f.Account != nil && f.ours() {
		step.Drop = f.Account
	}
	return step
}

// ours reports whether the account was made by us, for this or an earlier sign-in.
func (f Facts) ours() bool {
	return f.Account.Owner == f.UID || f.Account.Signin != "" || f.Account.UID == f.ServiceAccountUID
}

// intact reports whether the account is still the one that was made.
func (f Facts) intact() bool {
	return f.Account != nil && f.Account.UID == f.ServiceAccountUID && f.Account.Owner == f.UID && !f.Account.Deleting
}

// refusal returns why the sign-in cannot be provisioned, and when that may change if not
// by an event; or "".
func (f Facts) refusal(now time.Time) (reason, message string, again time.Time) {
	r := f.Rules
	switch {
	case f.Owner.Name() != f.Name:
		return ReasonNameTaken, "The name is not the one of this user and device, so the access server did not write this sign-in.", time.Time{}
	case f.AskedAt.Sub(now) > maxAhead:
		return ReasonClockSkew, fmt.Sprintf("It was asked for more than %v in the future: the clocks of the access server and the operator differ.", maxAhead), f.AskedAt.Add(-maxAhead)
	case f.Period < r.Min || f.Period > r.Max:
		return ReasonBadPeriod, fmt.Sprintf("The period of %v is not between %v and %v.", f.Period, r.Min, r.Max), time.Time{}
	case !slices.Contains(r.Roles, f.Role):
		return ReasonRoleNotAllowed, fmt.Sprintf("The role %q is not on the operator's list.", f.Role), time.Time{}
	}
	for _, ns := range f.Namespaces {
		if slices.Contains(r.Reserved, ns) {
			return ReasonRoleNotAllowed, fmt.Sprintf("Nothing is bound in the namespace %s: it is Tailplane's own.", ns), time.Time{}
		}
	}
	there, _ := f.present()
	switch {
	case r.RequireAdmissionPolicy && !f.PolicyOn:
		return ReasonAdmissionPolicyMissing, "The admission policy that lets only the access server write sign-ins is not in force.", now.Add(r.Recheck)
	case !f.RoleExists:
		return ReasonRoleNotFound, fmt.Sprintf("The cluster has no ClusterRole %q.", f.Role), now.Add(r.Recheck)
	case len(f.Namespaces) > 0 && len(there) == 0:
		return ReasonNoNamespace, "The cluster has none of the namespaces " + strings.Join(f.Namespaces, ", ") + ".", time.Time{}
	case f.Account != nil && f.ServiceAccountUID == "" && !f.ours():
		return ReasonNameTaken, "There is a ServiceAccount of this name that Tailplane did not make; it is not adopted.", time.Time{}
	}
	return "", "", time.Time{}
}

// present divides the wished namespaces into those that the cluster has and the rest.
func (f Facts) present() (there, missing []string) {
	for _, ns := range f.Namespaces {
		if slices.Contains(f.Existing, ns) {
			there = append(there, ns)
		} else {
			missing = append(missing, ns)
		}
	}
	return there, missing
}

// provision makes what is missing and removes what is wrong.
func (f Facts) provision(end time.Time) Step {
	r := Report{Phase: PhaseReady, Reason: ReasonProvisioned, ValidUntil: end, Role: f.Role, ServiceAccount: f.Name, Generation: f.Generation}
	where := "in the whole cluster"
	places := []string{""}
	if len(f.Namespaces) > 0 {
		places, r.MissingNamespaces = f.present()
		where = "in " + strings.Join(places, ", ")
		r.Namespaces = places
	}
	r.Message = fmt.Sprintf("The role %s is bound %s.", f.Role, where)
	step := Step{Deed: Keep}
	switch {
	case f.Account == nil:
		step.Make = true
	case f.Account.Owner != f.UID, f.Account.Deleting:
		step.Deed, step.Drop, step.Make = Replace, f.Account, true
	default:
		r.ServiceAccountUID = f.Account.UID
	}
	var right []string
	for _, b := range f.Bindings {
		want := Binding{b.Namespace, BindingName(f.Name), b.UID, f.Role, f.Name, f.UID}
		if b == want && slices.Contains(places, b.Namespace) && !slices.Contains(right, b.Namespace) {
			right = append(right, b.Namespace)
			continue
		}
		step.Unbind = append(step.Unbind, b)
		if b.Signin != "" && b.Signin != f.UID {
			step.Deed = Replace
		}
	}
	for _, ns := range places {
		if !slices.Contains(right, ns) {
			step.Bind = append(step.Bind, Binding{ns, BindingName(f.Name), "", f.Role, f.Name, f.UID})
		}
	}
	step.Report = r
	switch {
	case step.Deed == Replace:
	case f.Phase != PhaseReady, step.Make, !slices.Equal(r.Namespaces, f.BoundNamespaces):
		step.Deed = Provision
	case len(step.Unbind) > 0 || len(step.Bind) > 0:
		step.Deed = Correct
	case !r.same(f.reported()):
		step.Deed = Extend
	}
	return step
}

// Failed is what to report when a step could not be carried out. It never says
// that something is ready, and never that something is gone.
func Failed(f Facts, step Step, reason, message string) Report {
	r := f.reported()
	r.Generation = f.Generation
	switch step.Deed {
	case Refuse:
		r.Phase, r.Reason, r.Message = PhaseRefused, step.Report.Reason, step.Report.Message
	case Revoke, End:
		r.Phase, r.Reason, r.Message = PhaseEnding, reason, message
	case Expire, Clear, Remove:
		return f.reported() // that it is over is all there is to say
	default:
		r.Phase, r.Reason, r.Message = PhasePending, reason, message
	}
	return r
}

// reported is what is stored as the operator's report now.
func (f Facts) reported() Report {
	return Report{f.Phase, f.Reason, f.Message, f.ValidUntil, f.BoundRole, f.BoundNamespaces, f.MissingNamespaces,
		f.ServiceAccount, f.ServiceAccountUID, f.ObservedGeneration}
}

// nothing reports that nothing is bound.
func (f Facts) nothing(phase Phase, reason, message string) Report {
	return Report{Phase: phase, Reason: reason, Message: message, Generation: f.Generation}
}

// earliest returns the earlier of two times, where the zero time is none.
func earliest(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}
