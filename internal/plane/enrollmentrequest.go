package plane

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
)

// RequestRequest asks for runners of an organisation.
type RequestRequest struct {
	Org       Text            `json:"org" doc:"the organisation's name in Tailplane: a DNS label of at most 40 characters"`
	Forge     Text            `json:"forge" doc:"the organisation's forge"`
	ConfigURL Text            `json:"configURL,omitempty" doc:"URL of the organisation or group at the forge; default: the forge's URL and the name"`
	Isolation Text            `json:"isolation,omitempty" enum:"None,Namespace,Node" doc:"isolation from other organisations' runners (default None)"`
	Pools     []Use           `json:"pools" doc:"the pools to use"`
	Owners    []Text          `json:"owners,omitempty" doc:"full logins of the administrators"`
	Members   []Text          `json:"members,omitempty" doc:"full logins of the members; *@example.com matches the whole domain"`
	Secret    Text            `json:"secretName,omitempty" doc:"the Secret with its credential, in the fleet's namespace (default ORG-credential)"`
	More      json.RawMessage `json:"more,omitempty" doc:"further fields of a RunnerEnrollment's spec, such as quota, network and placement"`
	Reason    Reason          `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun    Flag            `json:"-" query:"dryRun" doc:"show the result, and change nothing"`
	Key       IdempotencyKey  `json:"-" header:"Idempotency-Key" doc:"a request with the same key returns what the first one made"`
}

// Use is one pool that an organisation will use.
type Use struct {
	Name         Text   `json:"name"`
	Type         Text   `json:"type,omitempty" enum:"Shared,Dedicated,OrgPlusUser" doc:"default Shared"`
	Max          *int   `json:"max,omitempty" doc:"maximum number of runners, if less than the pool's max"`
	Repositories []Text `json:"repositories,omitempty" doc:"with OrgPlusUser: repositories whose jobs may use it, as owner/name"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r RequestRequest) AuditArgs() map[string]string {
	var pools []string
	for _, u := range r.Pools {
		pools = append(pools, string(u.Name))
	}
	return r.DryRun.addAuditArg(map[string]string{"org": string(r.Org), "forge": string(r.Forge), "pools": strings.Join(pools, ","), "reason": string(r.Reason)})
}

// requestEnrollment requests a new enrollment.
func (d *EnrollmentService) requestEnrollment(ctx context.Context, p access.Permit, req RequestRequest) (Answer, error) {
	c := EnrollmentChange{Action: ActionRequest, Org: string(req.Org), Reason: req.Reason, DryRun: req.DryRun, Key: req.Key}
	p, err := c.narrow(p)
	if err == nil {
		c.Spec, err = d.enrollmentSpec(req)
	}
	if err != nil {
		return Answer{}, err
	}
	return d.apply(ctx, p, c)
}

// enrollmentSpec returns the request as a RunnerEnrollment spec. The API server validates it.
func (d *EnrollmentService) enrollmentSpec(r RequestRequest) (json.RawMessage, error) {
	if _, err := gitops.ParseRef(enrollmentKind, string(r.Org)); err != nil {
		return nil, invalidField("org", fmt.Sprintf("%.60q is not a valid name.", string(r.Org)), "Use a DNS label of at most 40 characters.")
	}
	if len(r.Pools) == 0 {
		return nil, invalidField("pools", "An organisation must use at least one pool.", "Name the pools to use.")
	}
	spec, err := parseObject("more", r.More)
	if err != nil {
		return nil, err
	}
	forge, err := d.findForge(string(r.Forge))
	if err != nil {
		return nil, err
	}
	credentials, _ := spec["credentials"].(map[string]any)
	if credentials == nil {
		credentials = map[string]any{}
	}
	credentials["secretName"] = cmp.Or(string(r.Secret), string(r.Org)+"-credential")
	spec["forge"], spec["credentials"], spec["pools"] = string(r.Forge), credentials, r.Pools
	spec["configURL"] = cmp.Or(string(r.ConfigURL), strings.TrimSuffix(forge.URL, "/")+"/"+string(r.Org))
	spec["isolation"] = cmp.Or(string(r.Isolation), "None")
	if len(r.Owners) > 0 {
		spec["owners"] = r.Owners
	}
	if len(r.Members) > 0 {
		spec["members"] = r.Members
	}
	return json.Marshal(spec)
}

// findForge returns the organisation's forge. It does not check whether the caller may see the forge, because a caller with no organisation
// there cannot.
func (d *EnrollmentService) findForge(name string) (Forge, error) {
	o, found := d.Plane.Store.Get(KindForge, name)
	f, _ := o.(Forge)
	switch {
	case found:
		return f, nil
	case !d.Plane.Store.List(KindForge).Known:
		return f, problem.New(problem.Unavailable, "The forges are not known yet.", "Try again in a moment. If it fails again, check the plane's sources.")
	}
	return f, invalidField("forge", fmt.Sprintf("The forge %.60q does not exist.", name), "Ask a platform-admin for the names of the forges.")
}

// parseObject decodes spec fields from a caller. It rejects the approval field.
func parseObject(field string, text json.RawMessage) (map[string]any, error) {
	out := map[string]any{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &out); err != nil || out == nil {
			return nil, invalidField(field, "The value is not a JSON object.", "Send fields of the spec of a RunnerEnrollment.")
		}
	}
	if _, found := out["approval"]; found {
		return nil, invalidField(field, "A request cannot set the approval.", "Approve the enrollment instead.")
	}
	return out, nil
}
