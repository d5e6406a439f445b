package signin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// Reasons of the Ready condition of a sign-in. The set is closed: the documentation lists it, and
// dashboards may depend on it.
const (
	ReasonProvisioned            = "Provisioned"            // the roles are bound
	ReasonPending                = "Pending"                // the operator has not provisioned the sign-in yet
	ReasonRoleNotAllowed         = "RoleNotAllowed"         // signin.roles does not list a role
	ReasonRoleNotFound           = "RoleNotFound"           // the cluster has no such ClusterRole
	ReasonRoleNeedsNamespaces    = "RoleNeedsNamespaces"    // a role reaches every ServiceAccount, and signin.clusterWide does not list it
	ReasonNoNamespace            = "NoNamespace"            // none of the namespaces exists
	ReasonTooManyNamespaces      = "TooManyNamespaces"      // the labels select more namespaces than a sign-in may have
	ReasonFirstUseOff            = "FirstUseOff"            // it began on first use after a logout or a revoke; only a login begins one then
	ReasonNameTaken              = "NameTaken"              // another object has the name of the ServiceAccount or of a binding
	ReasonBadPeriod              = "BadPeriod"              // the period is out of the bounds of signin.period
	ReasonClockSkew              = "ClockSkew"              // the sign-in was requested in the future: the clocks of the servers differ
	ReasonAdmissionPolicyMissing = "AdmissionPolicyMissing" // an admission policy or its binding is missing or not in force
	ReasonForbidden              = "Forbidden"              // the API server refuses a request of the operator
	ReasonAPIServerError         = "ApiServerError"         // a request to the API server failed; the operator tries again
	ReasonExpired                = "Expired"                // the sign-in reached its end
	ReasonEnding                 = "Ending"                 // the operator is removing the access
	ReasonApprovalRequired       = "ApprovalRequired"       // requests.floor has a role, so it needs an access request
	ReasonRequestsOff            = "RequestsOff"            // it uses an access request, and they are off
	ReasonNotUsed                = "NotUsed"                // its access request does not name it as its use yet
	ReasonRequestUsed            = "RequestUsed"            // another sign-in has used its access request
	ReasonRequestGone            = "RequestGone"            // its access request does not exist
	ReasonRequestRevoked         = "RequestRevoked"         // somebody revoked its access request
	ReasonRequestChanged         = "RequestChanged"         // what was approved is not what its access request says
	ReasonRequestMismatch        = "RequestMismatch"        // it gives something else than its access request, or to somebody else
	ReasonNotApproved            = "NotApproved"            // too few people have approved its access request
)

// maxClockSkew is how far AskedAt may be in the future. The clocks of the access server and the
// operator may differ by this much.
const maxClockSkew = time.Minute

// Rules are the limits of the operator of one cluster. They apply to every stored sign-in, because
// the operator does not trust the writer (law 5).
type Rules struct {
	Roles       []access.Role // allow-list of roles
	Min, Max    time.Duration // limits of the period
	MaxLife     time.Duration // maximum lifetime since creation, including extensions; 0: no limit
	KeepExpired time.Duration // how long an expired sign-in remains readable
	Reserved    []string      // Tailplane's namespaces, in which the operator binds nothing
	ClusterWide ClusterWide   // roles that may be bound in the whole cluster although they reach every ServiceAccount
	Requests    RequestRules  // access requests

	// RequireAdmissionPolicy refuses to provision while the cluster has no admission policy that
	// restricts who may write sign-ins.
	RequireAdmissionPolicy bool

	// Recheck is how long the operator waits before it checks again what it cannot watch: the role
	// and the admission policy.
	Recheck time.Duration
}

// An Account is the ServiceAccount with the name of the sign-in.
type Account struct {
	UID      string
	Owner    string // UID of the sign-in that controls it
	Signin   string // UID of the sign-in in its labels; "" unless it carries all labels of Tailplane
	Deleting bool
}

// A Binding gives a ServiceAccount a role, in one namespace or in the whole cluster.
type Binding struct {
	Namespace string // "": the whole cluster
	Name      string
	UID       string      // "" for a binding that is not created yet
	Role      access.Role // "" if it does not refer to a ClusterRole
	Account   string      // its only subject; "" if its subjects are different
	Signin    string      // UID of the sign-in in its labels
}

// BindingName returns the name of the bindings of the first role of the sign-in called name.
func BindingName(name string) string { return "tailplane-" + name }

// BindingNames returns the names of the bindings of the sign-in called name, one for each role. A
// further role adds six hexadecimal digits of its hash, because a role cannot be a part of a name.
func BindingNames(name string, binds access.Binds) []string {
	names := make([]string, len(binds))
	for i, b := range binds {
		if names[i] = BindingName(name); i > 0 {
			sum := sha256.Sum256([]byte(b.Role))
			names[i] += "-" + hex.EncodeToString(sum[:3])
		}
	}
	return names
}

// Facts are the input of Next: the stored sign-in, the objects that exist for it, and the rules.
type Facts struct {
	Signin
	ExpiredAt    time.Time // when the operator recorded the expiry; zero if it did not
	HasFinalizer bool      // the sign-in has Tailplane's finalizer

	Account      *Account  // nil if there is none
	Bindings     []Binding // bindings with one of its names or its UID
	Roles        map[access.Role]ClusterRole
	Existing     []string                     // the named namespaces that exist in the cluster
	Selected     map[access.Selector][]string // the namespaces that each selector selects, sorted
	PolicyActive bool                         // the admission policy is in force
	FirstUseOff  bool                         // first use is off for its owner; known only before it is bound

	Request             Request // the one of ByRequest; the zero value without one
	RequestPolicyActive bool    // the admission policy for access requests is in force

	Rules Rules
}

// A ClusterRole is what Next needs to know about a role. The zero value is a role that does not exist.
type ClusterRole struct {
	Exists  bool
	Reaches string // result of ReachesAccounts for its rules
}

// maxBindings is the maximum number of bindings of one sign-in. Selectors can select any number of
// namespaces.
const maxBindings = 50

// An Action is the name of a step, for logs and events.
type Action string

// The steps.
const (
	Keep      Action = "keep"      // nothing to change
	Provision Action = "provision" // create the objects that give access
	Replace   Action = "replace"   // like Provision, and also remove objects of an earlier sign-in
	Extend    Action = "extend"    // change the end time
	Warn      Action = "warn"      // report something about a sign-in whose access does not change
	Correct   Action = "correct"   // repair bindings that another writer changed
	Refuse    Action = "refuse"    // do not provision the sign-in
	Expire    Action = "expire"    // record that the sign-in expired
	Clear     Action = "clear"     // remove the objects of an expired sign-in
	Remove    Action = "remove"    // delete a sign-in whose retention is over
	End       Action = "end"       // delete a sign-in whose account was deleted or replaced
	Revoke    Action = "revoke"    // remove the objects of a sign-in that is being deleted
	Wait      Action = "wait"      // report that the access request does not name the sign-in as its use yet
	Withdraw  Action = "withdraw"  // remove the objects of a sign-in without a valid access request, and delete it
)

// A Step is the next work on a sign-in. The operator executes the fields in order: it deletes
// bindings before the account, and both before the sign-in. It reports an object only after it
// created it. Each part is idempotent.
type Step struct {
	Action          Action
	DeleteBindings  []Binding // bindings to delete
	DeleteAccount   *Account  // account to delete
	CreateAccount   bool      // create an account
	CreateBindings  []Binding // bindings to create
	Report          Report    // written to the status if it differs
	TurnFirstUseOff bool      // record that first use is off for its owner, before the finalizer is removed
	RemoveFinalizer bool      // remove Tailplane's finalizer
	DeleteSignin    bool      // delete the sign-in
}

// IsDestructive reports whether the step removes anything. The facts for such a step must come from the
// API server and not from a cache (law 7).
func (s Step) IsDestructive() bool {
	return len(s.DeleteBindings) > 0 || s.DeleteAccount != nil || s.RemoveFinalizer || s.DeleteSignin
}

// Gives reports whether the step gives access that was not there.
func (s Step) Gives() bool { return s.CreateAccount || len(s.CreateBindings) > 0 }

func equalReports(a, b Report) bool {
	return a.Phase == b.Phase && a.Reason == b.Reason && a.Message == b.Message && a.ValidUntil.Equal(b.ValidUntil) &&
		a.Bound.Equal(b.Bound) && slices.Equal(a.MissingNamespaces, b.MissingNamespaces) &&
		a.ServiceAccount == b.ServiceAccount && a.ServiceAccountUID == b.ServiceAccountUID && a.ObservedGeneration == b.ObservedGeneration
}

// Next returns the next step for a sign-in at now, and the time of the next check. The zero time
// means that no check is needed; a sign-in that gives access always has a time. A time that is not
// after now means at once.
func Next(f Facts, now time.Time) (Step, time.Time) {
	end := f.end()
	if f.isFrozen() && f.ValidUntil.Before(end) {
		end = f.ValidUntil
	}
	switch {
	case f.Deleting:
		return f.revoke(), time.Time{}
	case !f.ExpiredAt.IsZero():
		return f.clear(now)
	}
	if reason, message := f.withdrawal(now); reason != "" {
		return f.withdraw(reason, message), time.Time{}
	}
	if !now.Before(end) {
		r := f.Report
		r.Phase, r.Reason, r.Message = PhaseExpired, ReasonExpired, "It ended at "+end.UTC().Format(time.RFC3339)+"."
		r.ValidUntil, r.ObservedGeneration = end, f.Generation
		return Step{Action: Expire, Report: r}, now
	}
	if reason, message, again := f.refusal(now); reason != "" {
		return f.refuse(reason, message), retry.Earliest(end, again)
	}
	if f.isUnused() {
		return f.wait(), end
	}
	if f.ServiceAccountUID != "" && !f.isAccountIntact() {
		return Step{Action: End, Report: f.Report, DeleteSignin: true}, now
	}
	return f.provision(end), end
}

// revoke removes the objects of a sign-in that is being deleted. It writes a report only if another
// finalizer keeps the sign-in after Tailplane's finalizer is gone.
func (f Facts) revoke() Step {
	step := f.deprovision(Step{Action: Revoke, Report: f.Report, RemoveFinalizer: f.HasFinalizer})
	step.TurnFirstUseOff = f.HasFinalizer && f.Owner.mayBeginOnUse() && f.ExpiredAt.IsZero() && !f.KeepsFirstUse()
	if !f.HasFinalizer {
		step.Report = f.unboundReport(PhaseEnding, ReasonEnding, "It is being deleted.")
		step.Report.ValidUntil = f.ValidUntil
		if !step.IsDestructive() && equalReports(step.Report, f.Report) {
			step.Action = Keep
		}
	}
	return step
}

// clear removes the objects of an expired sign-in, and deletes it after KeepExpired.
func (f Facts) clear(now time.Time) (Step, time.Time) {
	due := f.ExpiredAt.Add(f.Rules.KeepExpired)
	r := f.unboundReport(PhaseExpired, ReasonExpired, f.Message)
	r.ValidUntil = f.ValidUntil
	step := f.deprovision(Step{Action: Clear, Report: r, RemoveFinalizer: f.HasFinalizer})
	if step.IsDestructive() || !equalReports(r, f.Report) {
		return step, due
	}
	if now.Before(due) {
		return Step{Action: Keep, Report: r}, due
	}
	return Step{Action: Remove, Report: r, DeleteSignin: true}, time.Time{}
}

// refuse removes the existing objects and reports the reason.
func (f Facts) refuse(reason, message string) Step {
	step := f.deprovision(Step{Action: Refuse, Report: f.unboundReport(PhaseRefused, reason, message)})
	if !step.IsDestructive() && equalReports(step.Report, f.Report) {
		step.Action = Keep
	}
	return step
}

// deprovision adds the removal of everything that gives access to a step. It does not touch a
// ServiceAccount that Tailplane did not create.
func (f Facts) deprovision(step Step) Step {
	step.DeleteBindings = f.Bindings
	if f.Account != nil && f.createdByUs() {
		step.DeleteAccount = f.Account
	}
	return step
}

// createdByUs reports whether Tailplane created the account, for this sign-in or an earlier one.
func (f Facts) createdByUs() bool {
	return f.Account.Owner == f.UID || f.Account.Signin != "" || f.Account.UID == f.ServiceAccountUID
}

// isAccountIntact reports whether the account is still the one that was created.
func (f Facts) isAccountIntact() bool {
	return f.Account != nil && f.Account.UID == f.ServiceAccountUID && f.Account.Owner == f.UID && !f.Account.Deleting
}

// refusal returns why the sign-in cannot be provisioned, or "". again is when to check again if no
// event announces the change.
func (f Facts) refusal(now time.Time) (reason, message string, again time.Time) {
	r := f.Rules
	badSession := f.checkSession()
	switch {
	case badSession != nil:
		return ReasonNameTaken, fmt.Sprintf("The access server did not write this sign-in: %v.", badSession), time.Time{}
	case f.Owner.Name() != f.Name:
		return ReasonNameTaken, "The name does not match this user, device and session, so the access server did not write this sign-in.", time.Time{}
	case f.AskedAt.Sub(now) > maxClockSkew:
		return ReasonClockSkew, fmt.Sprintf("The time of the request is more than %v in the future: the clocks of the access server and the operator differ.", maxClockSkew), f.AskedAt.Add(-maxClockSkew)
	case f.Period < r.Min || f.Period > r.Max:
		return ReasonBadPeriod, fmt.Sprintf("The period of %v is not between %v and %v.", f.Period, r.Min, r.Max), time.Time{}
	}
	if invalid := f.invalidBinds(); invalid != "" {
		return ReasonRoleNotAllowed, invalid, time.Time{}
	}
	if reason, message := f.requestRefusal(); reason != "" {
		return reason, message, time.Time{}
	}
	if f.OnUse && f.FirstUseOff {
		return ReasonFirstUseOff, "After a logout or a revoke, only a login begins a sign-in on this device: tka login.", time.Time{}
	}
	desired, _ := f.desired()
	absent := slices.IndexFunc(f.Binds, func(b access.Bind) bool { return !f.Roles[b.Role].Exists })
	switch {
	case r.RequireAdmissionPolicy && !f.PolicyActive:
		return ReasonAdmissionPolicyMissing, "The admission policy that restricts writing sign-ins to the access server is not active.", now.Add(r.Recheck)
	case f.ByRequest.Name != "" && r.RequireAdmissionPolicy && !f.RequestPolicyActive:
		return ReasonAdmissionPolicyMissing, "The admission policy that restricts writing access requests to the access server is not active.", now.Add(r.Recheck)
	case absent >= 0:
		return ReasonRoleNotFound, fmt.Sprintf("The cluster has no ClusterRole %q.", f.Binds[absent].Role), now.Add(r.Recheck)
	case f.isHeld() && !f.isFrozen():
		reason, message = f.hold()
		return reason, message, now.Add(r.Recheck)
	case len(desired) > maxBindings:
		return ReasonTooManyNamespaces, fmt.Sprintf("It needs %d role bindings, more than %d: the selectors select too many namespaces.", len(desired), maxBindings), time.Time{}
	case len(desired) == 0:
		return ReasonNoNamespace, f.noNamespace(), time.Time{}
	case f.Account != nil && f.ServiceAccountUID == "" && !f.createdByUs():
		return ReasonNameTaken, "A ServiceAccount of this name exists that Tailplane did not create. Tailplane does not use it.", time.Time{}
	}
	return "", "", time.Time{}
}

// invalidBinds returns why the requested roles or namespaces are invalid, or "". The writer of the
// sign-in is not trusted.
func (f Facts) invalidBinds() string {
	for _, b := range f.Binds {
		if !slices.Contains(f.Rules.Roles, b.Role) {
			return fmt.Sprintf("The operator's signin.roles does not list the role %q.", b.Role)
		}
		if _, err := access.ParseSelector(string(b.Selector)); b.Selector != "" && err != nil {
			return fmt.Sprintf("The selector of the role %q is invalid: %v.", b.Role, err)
		}
		for _, ns := range b.Namespaces {
			if slices.Contains(f.Rules.Reserved, ns) {
				return fmt.Sprintf("The namespace %s is reserved for Tailplane, so no role is bound there.", ns)
			}
		}
	}
	if err := f.Binds.Validate(); err != nil {
		return fmt.Sprintf("The roles are invalid: %v.", err)
	}
	names := BindingNames(f.Name, f.Binds)
	if slices.Sort(names); len(slices.Compact(names)) < len(f.Binds) {
		return "Two of its roles have the same hash, so their bindings would have the same name."
	}
	return ""
}

// places returns the namespaces in which b applies now, and the named ones in which it does not. ""
// is the whole cluster. A selector selects no reserved namespace.
func (f Facts) places(b access.Bind) (there, missing []string) {
	if b.IsClusterWide() {
		return []string{""}, nil
	}
	candidates, available := b.Namespaces, f.Existing
	if b.Selector != "" {
		available = slices.DeleteFunc(slices.Clone(f.Selected[b.Selector]), func(ns string) bool { return slices.Contains(f.Rules.Reserved, ns) })
		if len(candidates) == 0 {
			return available, nil
		}
	}
	for _, ns := range candidates {
		if slices.Contains(available, ns) {
			there = append(there, ns)
		} else {
			missing = append(missing, ns)
		}
	}
	return there, missing
}

// desired returns the bindings that the sign-in should have, without UIDs, and the named namespaces
// that get none for one of the roles.
func (f Facts) desired() (bindings []Binding, missing []string) {
	for i, name := range BindingNames(f.Name, f.Binds) {
		there, absent := f.places(f.Binds[i])
		for _, ns := range there {
			bindings = append(bindings, Binding{ns, name, "", f.Binds[i].Role, f.Name, f.UID})
		}
		missing = append(missing, absent...)
	}
	slices.Sort(missing)
	return bindings, slices.Compact(missing)
}

// noNamespace returns the sentence for a sign-in none of whose roles applies anywhere.
func (f Facts) noNamespace() string {
	if names := f.Binds.Namespaces(); names != nil && f.Binds.IsSimple() {
		return "The cluster has none of the namespaces " + strings.Join(names, ", ") + "."
	}
	return fmt.Sprintf("The cluster has no namespace for it: %s.", f.Binds)
}

// readyReport returns the report of a provisioned sign-in.
func (f Facts) readyReport(end time.Time) Report {
	r := Report{Phase: PhaseReady, Reason: ReasonProvisioned, ValidUntil: end, ServiceAccount: f.Name, ObservedGeneration: f.Generation}
	var warnings []string
	for _, b := range f.Binds {
		there, _ := f.places(b)
		switch {
		case b.IsClusterWide():
			r.Bound = append(r.Bound, access.Bind{Role: b.Role})
			if warning := f.Rules.ClusterWide.Warning(b.Role, f.Roles[b.Role].Reaches); warning != "" {
				warnings = append(warnings, warning)
			}
		case len(there) > 0:
			r.Bound = append(r.Bound, access.Bind{Role: b.Role, Namespaces: there})
		}
	}
	_, r.MissingNamespaces = f.desired()
	var texts []string
	for _, b := range r.Bound {
		texts = append(texts, fmt.Sprintf("The role %s is bound %s.", b.Role, b.Where()))
	}
	r.Message = strings.Join(append(texts, warnings...), " ")
	if f.isFrozen() {
		reason, message := f.hold()
		r.Reason = reason
		r.Message += " " + message + " The sign-in keeps its access until its end, and nothing extends it."
	}
	return r
}

// provision creates missing objects and removes wrong ones.
func (f Facts) provision(end time.Time) Step {
	r := f.readyReport(end)
	step := Step{Action: Keep}
	switch {
	case f.Account == nil:
		step.CreateAccount = true
	case f.Account.Owner != f.UID, f.Account.Deleting:
		step.Action, step.DeleteAccount, step.CreateAccount = Replace, f.Account, true
	default:
		r.ServiceAccountUID = f.Account.UID
	}
	missing, _ := f.desired()
	for _, b := range f.Bindings {
		i := slices.IndexFunc(missing, func(want Binding) bool { want.UID = b.UID; return b == want })
		if i >= 0 {
			missing = slices.Delete(missing, i, i+1)
			continue
		}
		step.DeleteBindings = append(step.DeleteBindings, b)
		if b.Signin != "" && b.Signin != f.UID {
			step.Action = Replace
		}
	}
	if len(missing) > 0 {
		step.CreateBindings = missing
	}
	step.Report = r
	switch {
	case step.Action == Replace:
	case f.Phase != PhaseReady, step.CreateAccount, !r.Bound.Equal(f.Bound):
		step.Action = Provision
	case len(step.DeleteBindings) > 0 || len(step.CreateBindings) > 0:
		step.Action = Correct
	case isNews(r, f.Report):
		step.Action = Warn
	case !equalReports(r, f.Report):
		step.Action = Extend
	}
	return step
}

// isNews reports whether the new report says something else about a sign-in that ends as before.
func isNews(now, before Report) bool {
	return now.ValidUntil.Equal(before.ValidUntil) && (now.Message != before.Message || now.Reason != before.Reason)
}

// Failed returns the report for a step that failed. It never reports a sign-in as ready or gone
// because of the failed step.
func Failed(f Facts, step Step, reason, message string) Report {
	r := f.Report
	r.ObservedGeneration = f.Generation
	switch step.Action {
	case Refuse:
		r.Phase, r.Reason, r.Message = PhaseRefused, step.Report.Reason, step.Report.Message
	case Revoke, End, Withdraw:
		r.Phase, r.Reason, r.Message = PhaseEnding, reason, message
	case Expire, Clear, Remove:
		return f.Report // the report already says that it expired
	default:
		r.Phase, r.Reason, r.Message = PhasePending, reason, message
	}
	return r
}

// unboundReport returns a report without a bound role.
func (f Facts) unboundReport(phase Phase, reason, message string) Report {
	return Report{Phase: phase, Reason: reason, Message: message, ObservedGeneration: f.Generation}
}
