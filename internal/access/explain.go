package access

import (
	"fmt"
	"slices"

	"github.com/tailplane/tailplane/internal/problem"
)

// An Explanation shows how a server sees a caller. It includes the decision that a sign-in without
// any wish would get now.
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
			if err := p.policy.allow(g); err != nil {
				r.Problem = problem.From(err).Message
			} else if _, _, err := p.policy.period(g, 0); err != nil {
				r.Problem = problem.From(err).Message
			}
		}
		e.Rules = append(e.Rules, r)
	}
	login, err := Decide(p.caller, SigninLogin, p.policy, p.at)
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
