package signin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// MaxPolicyGrants is the number of grants of one PolicyRequest.
const MaxPolicyGrants = 50

// A PolicyRequest is a part of a tailnet policy that a server is to check.
type PolicyRequest struct {
	Grants []PolicyGrant `json:"grants" null:"never" doc:"at most 50; a longer policy needs several requests"`
}

// A PolicyGrant is a grant of a tailnet policy, with the capabilities of its app field.
type PolicyGrant struct {
	Dst []string                     `json:"dst" null:"never" doc:"destinations, as in the policy"`
	App map[string][]json.RawMessage `json:"app" doc:"rules of each capability, as in the policy"`
}

// AuditArgs returns the request's parameters for the audit log.
func (r PolicyRequest) AuditArgs() map[string]string {
	return map[string]string{"grants": fmt.Sprint(len(r.Grants))}
}

// A PolicyCheck says which rules the server would refuse.
type PolicyCheck struct {
	Capability string          `json:"capability" doc:"name of the capability whose rules the server reads; it ignores all others"`
	Checked    int             `json:"checked" doc:"how many rules of the request are for this server"`
	Problems   []PolicyProblem `json:"problems" null:"never"`
}

// A PolicyProblem is a rule that the server would refuse.
type PolicyProblem struct {
	Grant   int    `json:"grant" doc:"index in the request"`
	Rule    int    `json:"rule" doc:"index among the rules of the capability in that grant"`
	Message string `json:"message" doc:"one sentence"`
}

// checkPolicy checks rules of a tailnet policy before they are in force. It changes nothing.
func (d *Service) checkPolicy(ctx context.Context, p access.Permit, req PolicyRequest) (PolicyCheck, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.PolicyCheck, d.Now()); err != nil {
		return PolicyCheck{}, err
	}
	return req.Check(p.Capability(), d.Tags, func(rule []byte) (string, error) { return d.checkRule(ctx, p, rule) })
}

// Check calls refusal for each rule of the capability in a grant that can be for a server with the tags. It returns the rules for which
// refusal returns a sentence. Errors: bad_request if there are more than MaxPolicyGrants, and the first one of refusal.
func (r PolicyRequest) Check(capability string, tags []string, refusal func(rule []byte) (string, error)) (PolicyCheck, error) {
	if len(r.Grants) > MaxPolicyGrants {
		return PolicyCheck{}, problem.New(problem.BadRequest, fmt.Sprintf("The request has %d grants, more than %d.", len(r.Grants), MaxPolicyGrants), "Send several requests.")
	}
	out := PolicyCheck{Capability: capability, Problems: []PolicyProblem{}}
	for i, grant := range r.Grants {
		if !isDestination(grant.Dst, tags) {
			continue
		}
		for j, rule := range grant.App[capability] {
			out.Checked++
			why, err := refusal(rule)
			if err != nil {
				return PolicyCheck{}, err
			}
			if why != "" {
				out.Problems = append(out.Problems, PolicyProblem{i, j, why})
			}
		}
	}
	return out, nil
}

// checkRule returns why the server would refuse a rule, or "".
func (d *Service) checkRule(ctx context.Context, p access.Permit, raw []byte) (refusal string, err error) {
	g, err := p.CheckRule(raw)
	if err != nil {
		return sentence(err), nil
	}
	check, err := d.checkClusterWide(ctx, g.Binds, false)
	if check.refusal != nil {
		return check.refusal.Message, nil
	}
	return "", err
}

// sentence returns the message of an error as a sentence.
func sentence(err error) string {
	if refused, is := errors.AsType[*problem.Error](err); is {
		return refused.Message
	}
	return strings.ToUpper(err.Error()[:1]) + err.Error()[1:] + "."
}

// isDestination reports whether a grant with these destinations can be for a server with the tags. Only a grant
// for other tags is certainly not: the server does not know in which groups of hosts it is.
func isDestination(dst, tags []string) bool {
	return len(tags) == 0 || slices.ContainsFunc(dst, func(s string) bool { return !strings.HasPrefix(s, "tag:") || slices.Contains(tags, s) })
}
