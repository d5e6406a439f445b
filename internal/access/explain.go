package access

import (
	"fmt"
	"slices"

	"github.com/tailplane/tailplane/internal/problem"
)

// An Explanation is what a server sees of a caller and what it would decide if
// the caller signed in now and wished for nothing in particular.
type Explanation struct {
	Rules []ExplainedRule // in the order of the tailnet's policy, one for each rule that matched
	// Refused is why a sign-in would be refused, a problem; nil: it would not be.
	Refused error
	// Permit is the one that a sign-in would be made with, when it is not refused.
	Permit Permit
}

// An ExplainedRule is one rule of the policy and what becomes of it.
type ExplainedRule struct {
	Grant          // as far as it could be read
	Chosen  bool   // it is the one that a sign-in uses
	Problem string // why it cannot be used, a sentence; "" when it could
}

// Explain says how the decision about a sign-in of the permit's caller comes
// about. It asks Decide and Choose themselves, so it cannot say otherwise than
// they do.
func (p Permit) Explain() Explanation {
	e := Explanation{Rules: make([]ExplainedRule, 0, len(p.caller.Rules))}
	for _, raw := range p.caller.Rules[:min(len(p.caller.Rules), maxRules)] {
		g, err := p.policy.grant(raw)
		r := ExplainedRule{Grant: g}
		switch {
		case err != nil:
			r = ExplainedRule{Problem: fmt.Sprintf("The rule is invalid: %v.", err)}
		case p.caller.Shared && !g.AllowShared:
			r.Problem = "The rule does not admit devices that are shared in from another tailnet."
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
		e.Permit, err = login.Choose(Wish{})
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
