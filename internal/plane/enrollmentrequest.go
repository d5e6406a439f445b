package plane

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
)

// RequestRequest asks for runners of an organisation.
type RequestRequest struct {
	Org       Text            `json:"org" doc:"its name here, everywhere: a DNS label of at most 40 characters"`
	Forge     Text            `json:"forge" doc:"where it is"`
	ConfigURL Text            `json:"configURL,omitempty" doc:"of the organisation or group at the forge; without it, the forge's URL and the name"`
	Isolation Text            `json:"isolation,omitempty" enum:"None,Namespace,Node" doc:"what keeps its runners apart from those of others; None without it"`
	Pools     []Use           `json:"pools" doc:"the pools that it is to use"`
	Owners    []Text          `json:"owners,omitempty" doc:"full logins of who administers it here"`
	Members   []Text          `json:"members,omitempty" doc:"full logins of who belongs to it; *@example.com is everybody there"`
	Secret    Text            `json:"secretName,omitempty" doc:"the Secret of its credential, in the fleet's namespace; ORG-credential without it"`
	More      json.RawMessage `json:"more,omitempty" doc:"further fields of a RunnerEnrollment's spec, such as quota, network and placement"`
	Reason    Reason          `json:"reason" doc:"why, 1 to 500 characters"`
	DryRun    Flag            `json:"-" query:"dryRun" doc:"show what it would become, and change nothing"`
	Key       IdempotencyKey  `json:"-" header:"Idempotency-Key" doc:"a request with the key of an earlier one finds what that one made"`
}

// Use is one pool that an organisation will use.
type Use struct {
	Name         Text   `json:"name"`
	Type         Text   `json:"type,omitempty" enum:"Shared,Dedicated,OrgPlusUser" doc:"Shared without it"`
	Max          *int   `json:"max,omitempty" doc:"how many runners it has at most, if that is less than the pool's own max"`
	Repositories []Text `json:"repositories,omitempty" doc:"with OrgPlusUser: whose jobs may use it, as owner/name"`
}

// AuditArgs returns the arguments of the request for the audit log.
func (r RequestRequest) AuditArgs() map[string]string {
	var pools []string
	for _, u := range r.Pools {
		pools = append(pools, string(u.Name))
	}
	return r.DryRun.addAuditArg(map[string]string{"org": string(r.Org), "forge": string(r.Forge), "pools": strings.Join(pools, ","), "reason": string(r.Reason)})
}

// requestEnrollment asks for runners of an organisation that has none.
func (d *EnrollmentService) requestEnrollment(ctx context.Context, p access.Permit, req RequestRequest) (Answer, error) {
	p, err := narrowPermit(p, string(req.Org), req.Reason)
	if err != nil {
		return Answer{}, err
	}
	spec, err := d.enrollmentSpec(req)
	if err != nil {
		return Answer{}, err
	}
	if d.Writer == nil {
		return d.propose(ctx, p, Edit{Spec: spec}, "Enroll "+p.Org(), req.Reason, req.Key, bool(req.DryRun))
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{p.Caller().Identity(), string(req.Key), string(req.Reason), string(spec)}, "\x00")))
	e, created, err := d.Writer.Create(ctx, p, spec, hex.EncodeToString(sum[:]), bool(req.DryRun))
	switch {
	case err != nil:
		return Answer{}, err
	case !created:
		return d.writtenOutcome(p, e, OutcomeNothing, false), nil
	}
	return d.writtenOutcome(p, e, OutcomeWritten, bool(req.DryRun)), nil
}

// enrollmentSpec returns the request as a RunnerEnrollment spec. The API server validates it.
func (d *EnrollmentService) enrollmentSpec(r RequestRequest) (json.RawMessage, error) {
	if _, err := gitops.ParseRef(outcomeKind, string(r.Org)); err != nil {
		return nil, invalidField("org", fmt.Sprintf("%.60q is no name.", string(r.Org)), "A DNS label of at most 40 characters is one.")
	}
	if len(r.Pools) == 0 {
		return nil, invalidField("pools", "An organisation uses at least one pool.", "Name those that it is to use.")
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
		return f, problem.New(problem.Unavailable, "It is not known yet which forges there are.", "Try again in a moment; the sources of the plane say what is wrong.")
	}
	return f, invalidField("forge", fmt.Sprintf("There is no forge %.60q.", name), "Ask those who run the platform which there are.")
}

// parseObject decodes spec fields from a caller. It rejects the approval field.
func parseObject(field string, text json.RawMessage) (map[string]any, error) {
	out := map[string]any{}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &out); err != nil || out == nil {
			return nil, invalidField(field, "It is not a JSON object.", "Give fields of the spec of a RunnerEnrollment.")
		}
	}
	if _, found := out["approval"]; found {
		return nil, invalidField(field, "The approval is no field that can be asked for.", "Approve it instead.")
	}
	return out, nil
}
