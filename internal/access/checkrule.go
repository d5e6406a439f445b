package access

import "fmt"

// CheckRule returns the grant of a rule of the tailnet policy, or why this server refuses the callers
// that the rule matches. It decides as Decide and Choose do, for a rule that no caller has yet.
func (p Permit) CheckRule(raw []byte) (Grant, error) {
	g, err := p.policy.grant(raw)
	if err != nil {
		return Grant{}, fmt.Errorf("the rule is invalid: %w", err)
	}
	if err := p.policy.check(g); err != nil {
		return Grant{}, err
	}
	return g, nil
}

// Capability returns the name of the capability that the server's rules have.
func (p Permit) Capability() string { return p.policy.Capability }
