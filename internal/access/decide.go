// Package access decides who may do what, and until when. It keeps law 3: the
// order of refusal is the code's order, and refusal is the default branch.
//
// It is pure: it opens no connection, reads no clock and imports the standard
// library only, so that every rule in it can be tested as a row of a table.
package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// MinPeriod is the shortest period that any server may grant: the API server
// refuses a TokenRequest under 600 seconds.
const MinPeriod = 10 * time.Minute

// A Policy is what one server allows, whatever the tailnet grants.
type Policy struct {
	Capability string        // name of the capability, for sentences
	Roles      []Role        // allow-list; a role that is not in it is never bound
	Min, Max   time.Duration // bounds of a sign-in's period
	Reserved   []string      // namespaces that no grant may name: ours
	Members    []Tag         // a node with one of these may gossip; none: nobody may
}

// A Wish is what a caller asks for among what is granted. Its zero value leaves
// the choice to the grants.
type Wish struct {
	Role       Role
	Period     time.Duration
	Namespaces []string // narrows
}

// Decide says whether c may ask for v, on the grants that the tailnet vouches
// for. The rows are those of section 2.1 of the sign-in contract: Funnel, no
// identity, expired node, foreign node, tagged node, no rule, invalid rule.
func Decide(c Caller, v Verb, pol Policy, now time.Time) (Permit, error) {
	if err := Admit(c); err != nil {
		return Permit{}, err
	}
	if c.Via != ViaTailnet { // another's word is no credential's worth
		return Permit{}, nobody()
	}
	if v == GossipExchange {
		if err := pol.admitMember(c); err != nil {
			return Permit{}, err
		}
		return Permit{caller: c, verb: v, policy: pol, at: now, until: now.Add(visitLife)}, nil
	}
	grants, err := pol.entitle(c)
	p := Permit{caller: c, verb: v, policy: pol, grants: grants, at: now, until: now.Add(visitLife)}
	switch v {
	case SigninLogin, SigninRead, ClusterInfo, ClusterMembers:
		if err != nil {
			return Permit{}, err
		}
		return p, nil
	case SigninKubeconfig: // whoever has lost the grant comes in once more, to have the sign-in ended
		if problem.CodeOf(err) == problem.BadCapability {
			return Permit{}, err // a typing error in the policy withdraws nothing
		}
		p.owner = err
		return p, nil
	case SigninLogout, Whoami: // ending is always allowed, and so is asking what one is seen as
		p.owner = err
		return p, nil
	}
	return Permit{}, problem.New(problem.Internal, "internal error").Because(fmt.Errorf("nobody decided about the verb %q", v))
}

// admitMember refuses everybody but the servers of our own tailnet.
func (pol Policy) admitMember(c Caller) error {
	switch {
	case c.Shared:
		return problem.New(problem.ForeignNode, fmt.Sprintf("%s is shared in from another tailnet, and gossip stays within one.", c.Device.Name),
			"Sign in over the API instead.")
	case !slices.ContainsFunc(c.Tags, func(t Tag) bool { return slices.Contains(pol.Members, t) }):
		return problem.New(problem.NotAMember, fmt.Sprintf("%s is not one of the servers that find each other here.", c.Device.Name),
			"Give the server's node one of the tags of gossip.tags.")
	}
	return nil
}

// entitle returns the grants that admit c, or the refusal.
func (pol Policy) entitle(c Caller) ([]Grant, error) {
	grants, bad := pol.parse(c)
	any := func(f func(Grant) bool) bool { return slices.ContainsFunc(grants, f) }
	switch {
	case c.Shared && !any(func(g Grant) bool { return g.AllowShared }):
		return nil, problem.New(problem.ForeignNode,
			fmt.Sprintf("%s is shared in from another tailnet, and no grant admits shared devices.", c.Device.Name),
			fmt.Sprintf("Ask for a rule of %s with \"allowShared\": true.", pol.Capability))
	case c.Tagged() && !any(func(g Grant) bool { return g.AllowTagged }):
		return nil, problem.New(problem.TaggedNode,
			fmt.Sprintf("%s is a tagged node (%s); requests can only originate from users.", c.Device.Name, joinTags(c.Tags)),
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

// parse decodes c's rules; identical ones collapse to one. The error names the
// first invalid rule; the valid ones are returned beside it.
func (pol Policy) parse(c Caller) (grants []Grant, bad error) {
	invalid := func(i int, err error) {
		if bad == nil {
			bad = problem.New(problem.BadCapability,
				fmt.Sprintf("Rule %d of %s that matches %s is invalid: %v.", i+1, pol.Capability, c.Identity(), err),
				"Ask whoever keeps the tailnet policy to mend that rule.")
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
			continue
		}
		grants = append(grants, g)
	}
	return grants, bad
}

// grant decodes one rule and holds it against what the server reserves.
func (pol Policy) grant(raw []byte) (Grant, error) {
	g, err := ParseGrant(raw)
	if err != nil {
		return g, err
	}
	for _, ns := range g.Namespaces {
		if slices.Contains(pol.Reserved, ns) {
			return g, fmt.Errorf(`"namespaces": %q is Tailplane's own`, ns)
		}
	}
	return g, nil
}

// Choose narrows a permit to sign in down to one role: the wished one, else the
// one of highest priority. It never joins grants and never takes "the first".
func (p Permit) Choose(w Wish) (Permit, error) {
	if p.verb != SigninLogin {
		return Permit{}, problem.New(problem.Internal, "internal error").Because(permitMismatch{p.verb, SigninLogin})
	}
	g, err := p.pick(w.Role)
	if err != nil {
		return Permit{}, err
	}
	namespaces, err := narrow(g, w.Namespaces, p.policy.Reserved)
	if err != nil {
		return Permit{}, err
	}
	if err := p.policy.allow(g); err != nil {
		return Permit{}, err
	}
	period, clamped, err := p.policy.period(g, w.Period)
	if err != nil {
		return Permit{}, err
	}
	p.role, p.namespaces, p.period, p.clamped = g.Role, namespaces, period, clamped
	p.until = p.at.Add(period)
	return p, nil
}

// pick returns the one grant to use: of the wished role, if there is one, that
// of highest priority.
func (p Permit) pick(wish Role) (Grant, error) {
	among := slices.DeleteFunc(slices.Clone(p.grants), func(g Grant) bool { return wish != "" && g.Role != wish })
	if len(among) == 0 {
		refused := problem.New(problem.RoleNotGranted, fmt.Sprintf("The role %q is not granted to %s.", wish, p.caller.Identity()),
			"Ask for one of the granted roles, or leave the role out.")
		refused.Choices = choices(p.grants)
		return Grant{}, refused
	}
	top := slices.MaxFunc(among, func(a, b Grant) int { return cmp.Compare(a.Priority, b.Priority) }).Priority
	among = slices.DeleteFunc(among, func(g Grant) bool { return g.Priority != top })
	if len(among) > 1 {
		refused := problem.New(problem.AmbiguousRole,
			fmt.Sprintf("%s of priority %d match, and nothing says which to use.", problem.Plural(len(among), "rule"), top),
			"Name a role: tka login --role ROLE", "Or give the rules different priorities in the tailnet policy.")
		refused.Choices = choices(among)
		return Grant{}, refused
	}
	return among[0], nil
}

func narrow(g Grant, wish, reserved []string) ([]string, error) {
	if len(wish) == 0 {
		return g.Namespaces, nil
	}
	wish, err := ParseNamespaces(wish)
	if err != nil {
		return nil, problem.New(problem.BadRequest, fmt.Sprintf("The request names %v.", err), "Name namespaces as the cluster has them.")
	}
	for _, ns := range wish {
		if slices.Contains(reserved, ns) || len(g.Namespaces) > 0 && !slices.Contains(g.Namespaces, ns) {
			refused := problem.New(problem.RoleNotGranted, fmt.Sprintf("The role %q is not granted in the namespace %q.", g.Role, ns),
				"Leave the namespace out, or ask for a grant that names it.")
			refused.Choices = choices([]Grant{g})
			return nil, refused
		}
	}
	return wish, nil
}

// allow refuses a role that the server does not give out.
func (pol Policy) allow(g Grant) error {
	if slices.Contains(pol.Roles, g.Role) {
		return nil
	}
	return problem.New(problem.RoleNotAllowed, fmt.Sprintf("This server does not give out the role %q.", g.Role),
		"Ask whoever runs the server to add it to signin.roles.")
}

func (pol Policy) period(g Grant, wish time.Duration) (period time.Duration, clamped bool, err error) {
	if g.Period < pol.Min {
		return 0, false, problem.New(problem.PeriodOutOfBounds,
			fmt.Sprintf("The rule for the role %q grants %v, and this server's shortest period is %v.", g.Role, g.Period, pol.Min),
			fmt.Sprintf("Ask whoever keeps the tailnet policy to grant at least %v.", pol.Min))
	}
	period = min(g.Period, pol.Max)
	clamped = period < g.Period
	if wish == 0 {
		return period, clamped, nil
	}
	if wish < pol.Min || wish > period {
		return 0, false, problem.New(problem.PeriodOutOfBounds,
			fmt.Sprintf("A period of %v was asked for; between %v and %v can be had for the role %q.", wish, pol.Min, period, g.Role),
			"Ask for a period within these bounds, or leave it out.")
	}
	return wish, false, nil
}

func choices(grants []Grant) []problem.Choice {
	out := make([]problem.Choice, 0, len(grants))
	for _, g := range grants {
		out = append(out, problem.Choice{Role: string(g.Role), Namespaces: g.Namespaces, Period: g.Period.String()})
	}
	return out
}

func (pol Policy) example() Role {
	if len(pol.Roles) > 0 {
		return pol.Roles[0]
	}
	return "view"
}

func joinTags(tags []Tag) string {
	var s []string
	for _, t := range tags {
		s = append(s, string(t))
	}
	return strings.Join(s, ", ")
}
