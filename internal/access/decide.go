// Package access decides which caller may do which action, and until when. It enforces law 3: the
// order of the checks is the order of the code, and the default is to refuse.
//
// The package is pure. It opens no connection, reads no clock, and depends on the standard library
// and package problem only. Every rule can therefore be tested as a row of a table.
package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// MinPeriod is the shortest period that a server may grant. The API server rejects a TokenRequest
// of less than 600 seconds.
const MinPeriod = 10 * time.Minute

// A Policy is the limit that one server sets, whatever the tailnet grants.
type Policy struct {
	Capability string        // name of the capability, for messages
	Roles      []Role        // allow-list; a role outside it is never bound
	Min, Max   time.Duration // limits of the period of a sign-in
	Reserved   []string      // Tailplane's namespaces, which no grant may name
	Members    []Tag         // tags of the nodes that may gossip; empty: no node may
	Planes     []Tag         // tags of operator planes, which may list and cut all streams of the access proxy; empty: no node may
	Proxies    []Tag         // tags of the cluster's access proxies; empty: no sign-in begins on first use
	Requests   RequestPolicy // limits of access requests; zero: they are off

	// Issuers are the issuers whose tokens the server accepts, with the audience of the tokens for this
	// server, where a rule names none.
	Issuers map[string]string
}

// A Request is the request of a caller among the granted roles. Its zero value leaves the choice to
// the grants.
type Request struct {
	Role       Role // a granted role, several separated by commas, or the name of a rule
	Period     time.Duration
	Namespaces []string // narrows the granted namespaces; empty: no change
	Reason     string
}

// Decide reports whether c may do v, based on the grants that the tailnet attests. The checks
// follow section 2.1 of the sign-in contract: Funnel, no identity, expired node, foreign node,
// tagged node, no rule, invalid rule.
func Decide(c Caller, v Verb, pol Policy, now time.Time) (Permit, error) {
	if err := Admit(c); err != nil {
		return Permit{}, err
	}
	if c.Via != ViaTailnet { // only the tailnet itself is trusted for credentials
		return Permit{}, errNoIdentity()
	}
	p := Permit{caller: c, verb: v, policy: pol, at: now, until: now.Add(permitLife)}
	if isRequestVerb(v) {
		return p.decideRequest()
	}
	var err error
	switch {
	case v == GossipExchange:
		err = pol.admitMember(c)
	case v == SigninFirstUse || v == SigninUsage:
		err = pol.admitProxy(c)
	case (v == ConnectionsRead || v == ConnectionsCut) && c.isPlane(pol.Planes):
		p.plane = true
	default:
		if p.grants, err = pol.entitle(c); err != nil && pol.admitsByRequest(c, v) {
			p.standing, err = err, nil
		}
	}
	switch v {
	case GossipExchange, SigninFirstUse, SigninUsage, SigninLogin, SigninRead, SigninList, SigninRoles, PolicyCheck, ClusterInfo, ClusterMembers, APIRequest, ConnectionsRead, ConnectionsCut:
	case SigninKubeconfig: // a caller that lost its grant still gets in, so that its sign-in is ended
		if problem.CodeOf(err) != problem.BadCapability { // a typing error in the policy revokes nothing
			p.owner, err = err, nil
		}
	case SigninLogout, Whoami: // a caller may always end its sign-in and query its identity
		p.owner, err = err, nil
	default:
		err = noDecision(v)
	}
	if err != nil {
		return Permit{}, err
	}
	return p, nil
}

func noDecision(v Verb) error {
	return problem.New(problem.Internal, "internal error").WithCause(fmt.Errorf("no decision for the verb %q", v))
}

// admitMember rejects every caller except the servers of the same tailnet.
func (pol Policy) admitMember(c Caller) error {
	switch {
	case c.Shared:
		return problem.New(problem.ForeignNode, fmt.Sprintf("%s is shared from another tailnet, and gossip works within one tailnet only.", c.Device.Name),
			"Use the sign-in API instead.")
	case !c.hasOneOf(pol.Members):
		return problem.New(problem.NotAMember, fmt.Sprintf("%s is not a member of the gossip network of this server.", c.Device.Name),
			"Give the node one of the tags in gossip.tags.")
	}
	return nil
}

// isPlane reports whether c is the node of an operator plane of the same tailnet, by its tags. The plane decides which of its callers may do
// what.
func (c Caller) isPlane(tags []Tag) bool {
	return c.Via == ViaTailnet && !c.Shared && c.hasOneOf(tags)
}

// entitle returns the grants that admit c, or the reason to refuse c.
func (pol Policy) entitle(c Caller) ([]Grant, error) {
	grants, bad := pol.parse(c)
	any := func(f func(Grant) bool) bool { return slices.ContainsFunc(grants, f) }
	switch {
	case c.Shared && !any(func(g Grant) bool { return g.AllowShared }):
		return nil, problem.New(problem.ForeignNode,
			fmt.Sprintf("%s is shared from another tailnet, and no grant admits shared devices.", c.Device.Name),
			fmt.Sprintf("Ask for a rule of %s with \"allowShared\": true.", pol.Capability))
	case c.Tagged() && !any(func(g Grant) bool { return g.AllowTagged }):
		return nil, problem.New(problem.TaggedNode,
			fmt.Sprintf("%s is a tagged node (%s); requests can only originate from users.", c.Device.Name, strings.Join(c.TagNames(), ", ")),
			"Sign in from a device that belongs to a person.",
			fmt.Sprintf("For automation, ask for a rule of %s with \"allowTagged\": true.", pol.Capability))
	case len(c.Rules) == 0:
		return nil, problem.New(problem.NoCapability,
			fmt.Sprintf("%s has no %s grant for this server.", c.Identity(), pol.Capability),
			fmt.Sprintf("Ask for a grant in the tailnet policy with \"app\": {%q: [{\"role\": %q, \"period\": \"8h\"}]}.", pol.Capability, pol.example()))
	case bad != nil:
		return nil, bad
	}
	return slices.DeleteFunc(grants, func(g Grant) bool { return !g.admits(c) }), nil
}

// parse decodes the rules of c and merges identical ones. The error names the first invalid rule.
// The valid grants are returned together with the error.
func (pol Policy) parse(c Caller) (grants []Grant, bad error) {
	invalid := func(i int, err error) {
		if bad == nil {
			bad = problem.New(problem.BadCapability,
				fmt.Sprintf("Rule %d of %s that matches %s is invalid: %v.", i+1, pol.Capability, c.Identity(), err),
				"Ask an administrator of the tailnet to correct that rule.")
		}
	}
	if len(c.Rules) > maxRules {
		invalid(maxRules, fmt.Errorf("%d rules match, more than %d", len(c.Rules), maxRules))
		return nil, bad
	}
	for i, raw := range c.Rules {
		g, err := pol.grant(raw)
		if err != nil {
			invalid(i, err)
			continue
		}
		if j := slices.IndexFunc(grants, g.same); j >= 0 {
			grants[j].AllowTagged = grants[j].AllowTagged || g.AllowTagged
			grants[j].AllowShared = grants[j].AllowShared || g.AllowShared
			grants[j].ReasonRequired = grants[j].ReasonRequired && g.ReasonRequired
			continue
		}
		grants = append(grants, g)
	}
	return grants, bad
}

// grant decodes one rule and checks it against the reserved namespaces.
func (pol Policy) grant(raw []byte) (Grant, error) {
	g, err := ParseGrant(raw)
	if err != nil {
		return g, err
	}
	for _, b := range g.Binds {
		for _, ns := range b.Namespaces {
			if slices.Contains(pol.Reserved, ns) {
				return g, fmt.Errorf(`"namespaces": %q is reserved for Tailplane`, ns)
			}
		}
	}
	return g, nil
}

// Choose narrows a sign-in permit to one rule: the requested one, or the one of highest priority.
// It never merges grants and never picks by order.
func (p Permit) Choose(w Request) (Permit, error) {
	if p.verb != SigninLogin {
		return Permit{}, problem.New(problem.Internal, "internal error").WithCause(permitMismatch{p.verb, SigninLogin})
	}
	if p.standing != nil {
		return Permit{}, p.standing
	}
	g, err := p.pick(w.Role)
	if err != nil {
		return Permit{}, err
	}
	binds, err := p.policy.narrow(g, w.Namespaces)
	if err != nil {
		return Permit{}, err
	}
	if err := cmp.Or(p.policy.allow(g), p.policy.requireNoFloor(g)); err != nil {
		return Permit{}, err
	}
	period, clamped, err := p.policy.period(g, w.Period)
	if err != nil {
		return Permit{}, err
	}
	if g.ReasonRequired && w.Reason == "" {
		return Permit{}, problem.New(problem.ReasonRequired, fmt.Sprintf("The rule for the role %q requires a reason.", g.Binds.Role()),
			fmt.Sprintf("Give one: tka login --role %s --reason \"why\"", g.choice()))
	}
	p.rule, p.record, p.binds, p.period, p.clamped, p.claims = g.Name, g.Record, binds, period, clamped, p.claimsFor(g)
	p.until, p.idle = p.at.Add(period), g.Idle
	return p, nil
}

// meant returns the grants that the request names, or else those that give its role among others.
func meant(grants []Grant, request Role) []Grant {
	among := slices.DeleteFunc(slices.Clone(grants), func(g Grant) bool { return request != "" && !g.isMeantBy(request) })
	if len(among) == 0 {
		among = slices.DeleteFunc(slices.Clone(grants), func(g Grant) bool { return !g.Binds.contain(request) })
	}
	return among
}

// pick returns the one grant to use: the grant of highest priority, among those that the request
// means if it is set, and whose token the caller has.
func (p Permit) pick(request Role) (Grant, error) {
	among := meant(p.fitting(), request)
	if len(among) == 0 {
		if others := meant(p.grants, request); len(others) > 0 {
			return Grant{}, p.tokenRefusal(others)
		}
		refused := problem.New(problem.RoleNotGranted, fmt.Sprintf("The role %.300q is not granted to %s.", request, p.caller.Identity()),
			"Request one of the granted roles, or omit the role.")
		refused.Choices = choicesOf(p.grants)
		return Grant{}, refused
	}
	top := slices.MaxFunc(among, func(a, b Grant) int { return cmp.Compare(a.Priority, b.Priority) }).Priority
	among = withoutTwins(slices.DeleteFunc(among, func(g Grant) bool { return g.Priority != top }))
	if len(among) > 1 {
		refused := problem.New(problem.AmbiguousRole,
			fmt.Sprintf("%s of priority %d match, so the server cannot choose a role.", problem.Plural(len(among), "rule"), top),
			"Name a role, or a rule that has a name: tka login --role ROLE", "Or set different priorities for the rules in the tailnet policy.")
		refused.Choices = choicesOf(among)
		return Grant{}, refused
	}
	return among[0], nil
}

// narrow returns the roles of g, limited to the namespaces of the request. A role without any of the
// namespaces is left out. Which namespaces a selector selects is known only in the cluster, so the
// operator checks those.
func (pol Policy) narrow(g Grant, request []string) (Binds, error) {
	if len(request) == 0 {
		return g.Binds, nil
	}
	request, err := ParseNamespaces(request)
	if err != nil {
		return nil, problem.New(problem.BadRequest, fmt.Sprintf("The namespaces of the request are invalid: %v.", err), "Use the names of namespaces in the cluster.")
	}
	if len(request)*len(g.Binds) > maxNamespaces {
		return nil, problem.New(problem.BadRequest, fmt.Sprintf("%s for %s: one sign-in has at most %d role bindings.",
			problem.Plural(len(request), "namespace"), problem.Plural(len(g.Binds), "role"), maxNamespaces), "Name fewer namespaces.")
	}
	for _, ns := range request {
		if slices.Contains(pol.Reserved, ns) || !slices.ContainsFunc(g.Binds, func(b Bind) bool { return b.includes(ns) }) {
			refused := problem.New(problem.RoleNotGranted, fmt.Sprintf("The role %q is not granted in the namespace %q.", g.Binds.Role(), ns),
				"Omit the namespace, or ask for a grant that includes it.")
			refused.Choices = choicesOf([]Grant{g})
			return nil, refused
		}
	}
	var out Binds
	for _, b := range g.Binds {
		if b.Namespaces = slices.DeleteFunc(slices.Clone(request), func(ns string) bool { return !b.includes(ns) }); len(b.Namespaces) > 0 {
			out = append(out, b)
		}
	}
	return out, nil
}

// allow rejects a rule with a role that is not on the server's allow-list, or with another issuer of tokens.
func (pol Policy) allow(g Grant) error {
	for _, b := range g.Binds {
		if !slices.Contains(pol.Roles, b.Role) {
			return problem.New(problem.RoleNotAllowed, fmt.Sprintf("This server does not grant the role %q.", b.Role),
				"Ask an administrator of this server to add it to signin.roles.")
		}
	}
	if g.Token == nil {
		return nil
	}
	if _, known := pol.Issuers[g.Token.Issuer]; !known {
		return problem.New(problem.TokenRefused, fmt.Sprintf("This server does not accept tokens of %s.", g.Token.Issuer),
			"Ask an administrator of this server to add the issuer to signin.oidc.issuers.")
	}
	return nil
}

func (pol Policy) period(g Grant, request time.Duration) (period time.Duration, clamped bool, err error) {
	if g.Period < pol.Min {
		return 0, false, problem.New(problem.PeriodOutOfBounds,
			fmt.Sprintf("The rule for the role %q grants %v, but this server's shortest period is %v.", g.Binds.Role(), g.Period, pol.Min),
			fmt.Sprintf("Ask an administrator of the tailnet to grant at least %v.", pol.Min))
	}
	period = min(g.Period, pol.Max)
	clamped = period < g.Period
	if request == 0 {
		return period, clamped, nil
	}
	if request < pol.Min || request > period {
		return 0, false, problem.New(problem.PeriodOutOfBounds,
			fmt.Sprintf("The requested period %v is not between %v and %v, the limits for the role %q.", request, pol.Min, period, g.Binds.Role()),
			"Request a period within these limits, or omit it.")
	}
	return request, false, nil
}

func choicesOf(grants []Grant) []problem.Choice {
	out := make([]problem.Choice, 0, len(grants))
	for _, g := range grants {
		c := problem.Choice{Rule: g.Name, Role: string(g.Binds.Role()), Namespaces: g.Binds.Namespaces(), Period: g.Period.String()}
		if !g.Binds.IsSimple() {
			c.Where = g.Binds.String()
		}
		out = append(out, c)
	}
	return out
}

func (pol Policy) example() Role {
	if len(pol.Roles) > 0 {
		return pol.Roles[0]
	}
	return "view"
}

// An Explanation shows how a server sees a caller. It includes the decision that a sign-in without
// any request would get now.
type Explanation struct {
	Rules []ExplainedRule // the matching rules, in the order of the tailnet policy
	// Refused is the problem that a sign-in would be refused with, or nil.
	Refused error
	// Permit is the permit that a sign-in would get, if Refused is nil.
	Permit Permit
}

// An ExplainedRule is one rule of the policy and its effect.
type ExplainedRule struct {
	Grant          // as far as it could be parsed
	Chosen  bool   // a sign-in would use this rule
	Problem string // why the rule cannot be used, as a sentence; "" if it can
}

// check returns why the server lets no caller use the grant, or nil.
func (pol Policy) check(g Grant) error {
	if err := cmp.Or(pol.allow(g), pol.requireNoFloor(g)); err != nil {
		return err
	}
	_, _, err := pol.period(g, 0)
	return err
}

// Explain returns how the server decides about a sign-in of the permit's caller. It calls Decide
// and Choose, so it cannot differ from them.
func (p Permit) Explain() Explanation {
	e := Explanation{Rules: make([]ExplainedRule, 0, len(p.caller.Rules))}
	for _, raw := range p.caller.Rules[:min(len(p.caller.Rules), maxRules)] {
		g, err := p.policy.grant(raw)
		r := ExplainedRule{Grant: g}
		switch {
		case err != nil:
			r = ExplainedRule{Problem: fmt.Sprintf("The rule is invalid: %v.", err)}
		case p.caller.Shared && !g.AllowShared:
			r.Problem = "The rule does not admit devices that are shared from another tailnet."
		case p.caller.Tagged() && !g.AllowTagged:
			r.Problem = "The rule does not admit tagged nodes."
		default:
			if err := p.policy.check(g); err != nil {
				r.Problem = problem.From(err).Message
			} else if !p.policy.fits(g, p.token) {
				r.Problem = problem.From(p.tokenRefusal([]Grant{g})).Message
			}
		}
		e.Rules = append(e.Rules, r)
	}
	login, err := Decide(p.caller, SigninLogin, p.policy, p.at)
	login.token = p.token
	if err == nil {
		e.Permit, err = login.Choose(Request{})
	}
	e.Refused = err
	if err != nil {
		return e
	}
	if chosen, err := login.pick(""); err == nil {
		if i := slices.IndexFunc(e.Rules, func(r ExplainedRule) bool { return r.Problem == "" && r.same(chosen) }); i >= 0 {
			e.Rules[i].Chosen = true
		}
	}
	return e
}
