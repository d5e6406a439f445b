package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// The verbs of access requests.
const (
	RequestCreate  Verb = "request.create"
	RequestList    Verb = "request.list"
	RequestRead    Verb = "request.read"
	RequestApprove Verb = "request.approve"
	RequestDeny    Verb = "request.deny"
	RequestCancel  Verb = "request.cancel"
	RequestRevoke  Verb = "request.revoke"
	RequestUse     Verb = "request.use" // at a login with a request; no operation has it
)

// A RequestPolicy is the limit that one server sets for access requests. Its zero value turns them off.
type RequestPolicy struct {
	Enabled    bool
	Capability string       // name of the capability, for messages
	Floor      map[Role]int // least number of approvals; a role in it is given by an access request only, also with Enabled false
	SamePerson [][]Person   // accounts that belong to one person
}

// A Person is an account of the tailnet, and the device from which it acts.
type Person struct {
	Login, UserID, Device string
}

// PersonOf returns the person that c is. The login of a tagged node is its identity.
func PersonOf(c Caller) Person {
	return Person{Login: c.Identity(), UserID: c.UserID, Device: c.Device.ID}
}

// Same reports whether a and b are one person as far as the server can know: one login in any letter case, one user ID,
// one device, or two accounts that the settings join.
func (q RequestPolicy) Same(a, b Person) bool {
	return sameAccount(a, b) || a.Device != "" && a.Device == b.Device || slices.ContainsFunc(q.SamePerson, func(accounts []Person) bool {
		return slices.ContainsFunc(accounts, func(p Person) bool { return sameAccount(p, a) }) &&
			slices.ContainsFunc(accounts, func(p Person) bool { return sameAccount(p, b) })
	})
}

func sameAccount(a, b Person) bool {
	return a.Login != "" && strings.EqualFold(a.Login, b.Login) || a.UserID != "" && a.UserID == b.UserID
}

// FloorOf returns the highest floor of the roles.
func (q RequestPolicy) FloorOf(binds Binds) (least int) {
	for _, b := range binds {
		least = max(least, q.Floor[b.Role])
	}
	return least
}

// requireNoFloor rejects a standing grant of a role that has a floor.
func (pol Policy) requireNoFloor(g Grant) error {
	for _, b := range g.Binds {
		if n := pol.Requests.Floor[b.Role]; n > 0 {
			return problem.New(problem.ApprovalRequired, fmt.Sprintf("This server gives the role %q by an access request with %s only.", b.Role, problem.Plural(n, "approval")),
				fmt.Sprintf("Ask for it: tka request --role %s --reason \"why\"", b.Role))
		}
	}
	return nil
}

func errNotEnabled() error {
	return problem.New(problem.NotEnabled, "Access requests are off on this server.", "Ask an administrator of the server to set requests.enabled.")
}

// isRequestVerb reports whether only the capability for access requests decides about v.
func isRequestVerb(v Verb) bool {
	return slices.Contains([]Verb{RequestCreate, RequestList, RequestRead, RequestApprove, RequestDeny, RequestCancel, RequestRevoke, RequestUse}, v)
}

// decideRequest decides about a verb of access requests. The rules of the other capability do not matter.
func (p Permit) decideRequest() (Permit, error) {
	if !p.policy.Requests.Enabled {
		return Permit{}, errNotEnabled()
	}
	rules, err := p.policy.entitleRequests(p.caller)
	p.asking = &requestRules{rules, err}
	may := func(deciding bool) bool {
		return slices.ContainsFunc(rules, func(r RequestRule) bool { return (r.Approve != nil) == deciding })
	}
	switch {
	case err != nil:
	case p.verb == RequestCreate && !may(false):
		err = p.policy.noRequestRule(p.caller, "lets you ask")
	case (p.verb == RequestApprove || p.verb == RequestDeny) && !may(true):
		err = p.policy.noRequestRule(p.caller, "lets you decide about requests")
	}
	switch p.verb {
	case RequestCancel, RequestRevoke: // a requester may always end what they have
		p.owner, err = err, nil
	case RequestRead, RequestUse: // a stranger learns nothing, not even whether a request exists
		if problem.CodeOf(err) != problem.BadCapability {
			p.owner, err = err, nil
		}
	}
	return p, err
}

func (pol Policy) noRequestRule(c Caller, does string) error {
	return problem.New(problem.NoCapability, fmt.Sprintf("No rule of %s %s, %s.", pol.Requests.Capability, does, c.Identity()),
		fmt.Sprintf("Ask for a grant in the tailnet policy with \"app\": {%q: […]}.", pol.Requests.Capability))
}

// requestRules are the rules for access requests that admit a caller, or the reason to refuse the caller.
type requestRules struct {
	rules []RequestRule
	err   error
}

// requestRules returns the rules for access requests that admit the caller, or the reason to refuse the caller. The rules are shared: callers
// must not change them.
func (p Permit) requestRules() ([]RequestRule, error) {
	if p.asking != nil {
		return p.asking.rules, p.asking.err
	}
	return p.policy.entitleRequests(p.caller)
}

// entitleRequests returns the rules for access requests that admit c, or the reason to refuse c.
func (pol Policy) entitleRequests(c Caller) (rules []RequestRule, err error) {
	if c.Shared {
		return nil, problem.New(problem.ForeignNode, fmt.Sprintf("%s is shared from another tailnet, and access requests are for this one only.", c.Device.Name),
			"Use a device of the tailnet of this server.")
	}
	if len(c.RequestRules) == 0 {
		return nil, pol.noRequestRule(c, "matches")
	}
	if n := len(c.RequestRules); n > maxRules {
		return nil, pol.badRequestRule(c, maxRules, fmt.Errorf("%d rules match, more than %d", n, maxRules))
	}
	for i, raw := range c.RequestRules {
		r, err := pol.requestRule(raw)
		if err != nil {
			return nil, pol.badRequestRule(c, i, err)
		}
		if !c.Tagged() || r.Approve == nil && r.AllowTagged {
			rules = append(rules, r)
		}
	}
	if len(rules) == 0 {
		return nil, problem.New(problem.TaggedNode, fmt.Sprintf("%s is a tagged node (%s): only people decide about requests, and no rule lets it ask.", c.Device.Name, strings.Join(c.TagNames(), ", ")),
			fmt.Sprintf("For automation, ask for a rule of %s with \"allowTagged\": true.", pol.Requests.Capability))
	}
	return rules, nil
}

func (pol Policy) badRequestRule(c Caller, i int, err error) error {
	return problem.New(problem.BadCapability, fmt.Sprintf("Rule %d of %s that matches %s is invalid: %v.", i+1, pol.Requests.Capability, c.Identity(), err),
		"Ask an administrator of the tailnet to correct that rule.")
}

// admitsByRequest reports whether v is open to callers who may ask for access, although no standing rule admits them: to
// use what they were given.
func (pol Policy) admitsByRequest(c Caller, v Verb) bool {
	switch v {
	case SigninLogin, SigninRead, SigninList, SigninKubeconfig, ClusterInfo, APIRequest, ConnectionsRead, ConnectionsCut:
	default:
		return false
	}
	if !pol.Requests.Enabled {
		return false
	}
	rules, err := pol.entitleRequests(c)
	isOpen := v == ClusterInfo // people who decide learn which cluster it is
	return err == nil && slices.ContainsFunc(rules, func(r RequestRule) bool { return isOpen || r.Approve == nil })
}

// Standing returns why no standing rule admits the caller, or nil.
func (p Permit) Standing() error { return cmp.Or(p.standing, p.owner) }

// An Ask is what a caller may ask for: the terms of one rule, with the server's limits.
type Ask struct {
	Rule      string // name of the rule, or ""
	Binds     Binds
	Period    time.Duration
	Approvals int // the most of the rule's and of the floor of each role
	Record    []string
}

// Ask narrows a permit to ask to one rule, as Choose does for a sign-in.
func (p Permit) Ask(w Request) (Ask, error) {
	if err := p.Require(RequestCreate, p.at); err != nil {
		return Ask{}, err
	}
	r, err := p.pickRequestRule(w.Role)
	if err != nil {
		return Ask{}, err
	}
	a := Ask{Rule: r.Name, Approvals: max(r.Approvals, p.policy.Requests.FloorOf(r.Binds))}
	if a.Binds, err = p.policy.narrow(r.Grant, w.Namespaces); err != nil {
		return Ask{}, err
	}
	if err := p.policy.allow(r.Grant); err != nil {
		return Ask{}, err
	}
	if a.Period, _, err = p.policy.period(r.Grant, w.Period); err != nil {
		return Ask{}, err
	}
	if w.Reason == "" {
		return Ask{}, problem.New(problem.ReasonRequired, "An access request needs a reason.", fmt.Sprintf("Give one: tka request --role %s --reason \"why\"", r.choice()))
	}
	a.Approvals = max(r.Approvals, p.policy.Requests.FloorOf(a.Binds))
	a.Record = p.recordOfRequest(a.Binds, r.Record)
	return a, nil
}

// pickRequestRule returns the one rule that the wish means. Rules that differ in nothing but the approvals count as one,
// with the fewest approvals.
func (p Permit) pickRequestRule(wish Role) (RequestRule, error) {
	rules, err := p.asks()
	if err != nil {
		return RequestRule{}, err
	}
	grants := make([]Grant, len(rules))
	for i, r := range rules {
		grants[i] = r.Grant
	}
	among := meant(grants, wish)
	if len(among) == 0 {
		refused := problem.New(problem.RoleNotGranted, fmt.Sprintf("No rule lets %s ask for the role %.300q.", p.caller.Identity(), wish), "Ask for one of the roles of your rules.")
		refused.Choices = choicesOf(grants)
		return RequestRule{}, refused
	}
	if slices.ContainsFunc(among, func(g Grant) bool { return !g.same(among[0]) }) {
		refused := problem.New(problem.AmbiguousRole, fmt.Sprintf("%s match, so the server cannot choose one.", problem.Plural(len(among), "rule")),
			"Name a role, or a rule that has a name: tka request --role ROLE")
		refused.Choices = choicesOf(among)
		return RequestRule{}, refused
	}
	rules = slices.DeleteFunc(rules, func(r RequestRule) bool { return !r.same(among[0]) })
	return slices.MinFunc(rules, func(a, b RequestRule) int { return cmp.Compare(a.Approvals, b.Approvals) }), nil
}

// asks returns the rules that let the caller ask.
func (p Permit) asks() ([]RequestRule, error) {
	rules, err := p.requestRules()
	return slices.DeleteFunc(slices.Clone(rules), func(r RequestRule) bool { return r.Approve != nil }), err
}

// recordOfRequest returns the streams of a request that must be recorded: those of its rule, and those of every standing
// rule of the caller that applies in one of its namespaces. An elevation must not be the way around a recording.
func (p Permit) recordOfRequest(binds Binds, record []string) []string {
	standing, _ := p.policy.parse(p.caller)
	for _, g := range standing {
		if g.admits(p.caller) && g.Binds.meet(binds) {
			record = MergeRecord(record, g.Record)
		}
	}
	return MergeRecord(record, nil)
}

// meet reports whether a role of bs and one of others may apply in the same namespace.
func (bs Binds) meet(others Binds) bool {
	return slices.ContainsFunc(bs, func(b Bind) bool {
		return slices.ContainsFunc(others, func(o Bind) bool {
			return len(b.Namespaces) == 0 || len(o.Namespaces) == 0 || slices.ContainsFunc(b.Namespaces, o.includes)
		})
	})
}

// TermsNow returns what the caller's rules say now about a request that has these roles. ok is false if no rule covers
// all of them, or if the server no longer gives one of them. Of several rules the fewest approvals and the longest period
// count. An error means that the rules cannot be judged; it is no evidence that the caller lost one.
func (p Permit) TermsNow(binds Binds) (terms Ask, ok bool, err error) {
	rules, err := p.asks()
	switch {
	case problem.CodeOf(err) == problem.BadCapability:
		return Ask{}, false, err
	case err != nil, slices.ContainsFunc(binds, func(b Bind) bool { return !slices.Contains(p.policy.Roles, b.Role) }):
		return Ask{}, false, nil
	}
	for _, r := range rules {
		if !r.Binds.cover(binds) {
			continue
		}
		if period := min(r.Period, p.policy.Max); !ok {
			terms = Ask{Rule: r.Name, Binds: binds, Period: period, Approvals: r.Approvals, Record: r.Record}
		} else {
			terms.Period, terms.Approvals, terms.Record = max(terms.Period, period), min(terms.Approvals, r.Approvals), MergeRecord(terms.Record, r.Record)
		}
		ok = true
	}
	terms.Record = p.recordOfRequest(binds, terms.Record)
	return terms, ok, nil
}

// MayDecide returns why the caller may not decide about a request of a person for these roles, or nil. The code of the
// refusal is self_approval if the caller is that person.
func (p Permit) MayDecide(of Person, binds Binds) error {
	rules, err := p.requestRules()
	if err != nil {
		return err
	}
	if p.caller.Tagged() || !slices.ContainsFunc(rules, func(r RequestRule) bool { return r.covers(binds) }) {
		return problem.New(problem.NoCapability, fmt.Sprintf("No rule of %s lets %s decide about %s.", p.policy.Requests.Capability, p.caller.Identity(), binds),
			"One rule must cover every role of the request.")
	}
	if p.caller.Router { // what comes from it may come from the requester's other device
		return problem.New(problem.SubnetRouter,
			fmt.Sprintf("The device %s has routes besides its own addresses, so a decision from it may come from another device.", p.caller.Device.Name),
			"Decide from a device that is no subnet router and no exit node.")
	}
	if p.policy.Requests.Same(PersonOf(p.caller), of) {
		return problem.New(problem.SelfApproval, "The requester decides about no own request, with any login or device.", "Ask another person.")
	}
	return nil
}

// Requests returns the server's limits for access requests.
func (p Permit) Requests() RequestPolicy { return p.policy.Requests }

// MinPeriod returns the shortest period that the server gives.
func (p Permit) MinPeriod() time.Duration { return p.policy.Min }
