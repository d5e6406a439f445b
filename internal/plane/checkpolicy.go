package plane

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// CheckPolicy is the operation of access servers for the plane's own capability.
var CheckPolicy = httpapi.Op[signin.PolicyRequest, Envelope[signin.PolicyCheck]]{
	Pattern: "POST " + Base + "/check-policy", Verb: access.PlanePolicyCheck,
	Doc: "Check rules of a tailnet policy before they are in force: which ones would the plane refuse? Available to every caller with a role.",
	Example: signin.PolicyRequest{Grants: []signin.PolicyGrant{{Dst: []string{"tag:tailplane"}, App: map[string][]json.RawMessage{
		"tailplane.dev/cap/plane": {json.RawMessage(`{"role":"viewer","orgs":["*"]}`), json.RawMessage(`{"role":"viewer","org":"acme"}`)},
	}}}},
	Responses: []Envelope[signin.PolicyCheck]{newExample("PolicyCheck", signin.PolicyCheck{Capability: "tailplane.dev/cap/plane", Checked: 2, Problems: []signin.PolicyProblem{
		{Rule: 1, Message: `The rule is invalid: "org" is not a field of a rule.`},
	}})},
	Refusals: append([]problem.Code{problem.MediaType, problem.TooLarge}, refusalsWithoutRole...),
}

// checkPolicy checks rules of a tailnet policy. It changes nothing.
func (d *Service) checkPolicy(_ context.Context, _ access.Permit, req signin.PolicyRequest) (Envelope[signin.PolicyCheck], error) {
	out, err := req.Check(d.Capability, d.Tags, func(rule []byte) (string, error) {
		if _, err := access.ParsePlaneRole(rule); err != nil {
			return fmt.Sprintf("The rule is invalid: %v.", err), nil
		}
		return "", nil
	})
	if err != nil {
		return Envelope[signin.PolicyCheck]{}, err
	}
	return newEnvelope(d, "PolicyCheck", out, d.Store.Revision(), nil), nil
}
