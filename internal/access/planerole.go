package access

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A PlaneRole is a role on the operator plane, for a set of organisations. A caller can have several,
// and their rights add up. A sign-in, in contrast, uses exactly one role.
type PlaneRole struct {
	Name   PlaneRoleName
	Orgs   []string // names of enrollments, sorted; AllOrgs alone means all
	Source string   // where the role comes from, for people: "grant", "owner of acme", "settings"
	tags   []Tag    // tagged nodes that a grant admits although they belong to no person
}

// A PlaneRoleName is the name of a role on the operator plane.
type PlaneRoleName string

// The roles, from the fewest rights to the most.
const (
	Viewer        PlaneRoleName = "viewer"
	Operator      PlaneRoleName = "operator"
	OrgAdmin      PlaneRoleName = "org-admin"
	PlatformAdmin PlaneRoleName = "platform-admin" // all organisations, whatever Orgs is
)

// AllOrgs stands for all organisations.
const AllOrgs = "*"

// The verbs of the operator plane.
const (
	PlaneApp           Verb = "app.read"                    // the files of the dashboard; for people only
	PlaneSelf          Verb = "self.read"                   // the caller's own identity
	FleetRead          Verb = "fleet.read"                  // the objects of an organisation, and the known state of their sources
	LogsRead           Verb = "logs.read"                   // logs of job runners; they may contain secrets
	MetricsRead        Verb = "metrics.read"                // time series
	InfraRead          Verb = "infra.read"                  // clusters, tailnets, gateways, adapters
	SigninsRead        Verb = "signins.read"                // sign-ins: the caller's, or all
	SigninsRevoke      Verb = "signins.revoke"              // same scope as SigninsRead
	HoldsCreate        Verb = "holds.create"                // pause runners, of an organisation or all
	HoldsLift          Verb = "holds.lift"                  // same scope as HoldsCreate
	HoldsLiftWide      Verb = "holds.lift-wide"             // holds on a forge or on everything: the caller's, or all
	HoldsStop          Verb = "holds.stop"                  // holds that stop running jobs
	ConfigPropose      Verb = "config.propose"              // propose changes to the fleet configuration, of an organisation or all
	ConfigApprove      Verb = "config.approve"              // approve proposals of other people
	EnrollmentApprove  Verb = "enrollment.approve"          // approve requests that affect more than one organisation
	EnrollmentDecline  Verb = "enrollment.decline"          // decline a request that is not yet approved
	EnrollmentRequest  Verb = "enrollment.request"          // request runners for an organisation, or different runners
	OffboardRequest    Verb = "enrollment.offboard-request" // request that an organisation is offboarded
	EnrollmentOffboard Verb = "enrollment.offboard"         // offboard an organisation
	RotateRequest      Verb = "credentials.rotate-request"  // request a new credential for an organisation
	CredentialsRotate  Verb = "credentials.rotate"          // replace the credential
	ObserveRead        Verb = "observe.read"                // Prometheus and Grafana
	ObserveAdmin       Verb = "observe.admin"               // change Prometheus and Grafana
	AuditRead          Verb = "audit.read"                  // audit entries of the caller, and about the caller's organisations
	AuditReadAll       Verb = "audit.read-all"              // the whole audit log, including sign-ins
)

// A scope is the scope of a verb for one role.
type scope int

const (
	never      scope = iota
	own              // objects of the caller
	orgs             // the organisations of the role
	ownAndOrgs       // objects of the caller and the organisations of the role
	all              // everything, but only if the role is for all organisations
	ownOrAll         // objects of the caller, or everything if the role is for all organisations
	always           // everything
)

// verbScopes is the permission matrix of the operator plane (section 3.2 of its contract). No role has
// a verb that is not listed here.
var verbScopes = map[Verb]map[PlaneRoleName]scope{
	PlaneApp:           {Viewer: always, Operator: always, OrgAdmin: always, PlatformAdmin: always},
	PlaneSelf:          {Viewer: always, Operator: always, OrgAdmin: always, PlatformAdmin: always},
	FleetRead:          {Viewer: orgs, Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	LogsRead:           {Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	MetricsRead:        {Viewer: orgs, Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	InfraRead:          {Viewer: all, Operator: all, OrgAdmin: all, PlatformAdmin: always},
	SigninsRead:        {Viewer: ownOrAll, Operator: ownOrAll, OrgAdmin: ownOrAll, PlatformAdmin: always},
	SigninsRevoke:      {Viewer: own, Operator: ownOrAll, OrgAdmin: own, PlatformAdmin: always},
	HoldsCreate:        {Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	HoldsLift:          {Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	HoldsLiftWide:      {Operator: own, OrgAdmin: own, PlatformAdmin: always}, // only for roles that have HoldsLift for all organisations
	HoldsStop:          {OrgAdmin: orgs, PlatformAdmin: always},
	ConfigPropose:      {Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	ConfigApprove:      {OrgAdmin: orgs, PlatformAdmin: always},
	EnrollmentApprove:  {PlatformAdmin: always},
	EnrollmentDecline:  {PlatformAdmin: always},
	EnrollmentRequest:  {OrgAdmin: orgs, PlatformAdmin: always},
	OffboardRequest:    {OrgAdmin: orgs, PlatformAdmin: always},
	EnrollmentOffboard: {PlatformAdmin: always},
	RotateRequest:      {OrgAdmin: orgs, PlatformAdmin: always},
	CredentialsRotate:  {PlatformAdmin: always},
	ObserveRead:        {Viewer: all, Operator: all, OrgAdmin: all, PlatformAdmin: always},
	ObserveAdmin:       {PlatformAdmin: always},
	AuditRead:          {Viewer: own, Operator: own, OrgAdmin: ownAndOrgs, PlatformAdmin: always},
	AuditReadAll:       {PlatformAdmin: always},
}

// PlaneVerbs returns the verbs of the operator plane, sorted.
func PlaneVerbs() []Verb { return slices.Sorted(maps.Keys(verbScopes)) }

// scopeOf returns the scope of v for d: never, own, orgs, ownAndOrgs or always.
func (d PlaneRole) scopeOf(v Verb) scope {
	r := verbScopes[v][d.Name]
	switch {
	case r > own && d.coversAllOrgs():
		return always
	case r == all:
		return never
	case r == ownOrAll:
		return own
	}
	return r
}

func (d PlaneRole) coversAllOrgs() bool {
	return d.Name == PlatformAdmin || slices.Contains(d.Orgs, AllOrgs)
}

// String returns the role and its organisations, such as "operator@acme".
func (d PlaneRole) String() string {
	if d.coversAllOrgs() {
		return string(d.Name) + "@" + AllOrgs
	}
	return string(d.Name) + "@" + strings.Join(d.Orgs, ",")
}

// maxOrgs is the maximum number of organisations in one rule.
const maxOrgs = 200

// ParsePlaneRole decodes one rule of the plane's capability. It is as strict as ParseGrant.
func ParsePlaneRole(raw []byte) (PlaneRole, error) {
	d := PlaneRole{Source: "grant"}
	if err := eachField(raw, d.set, "role", "orgs"); err != nil {
		return PlaneRole{}, err
	}
	return d, nil
}

func (d *PlaneRole) set(field string, value json.Token, dec *json.Decoder) (err error) {
	switch field {
	case "role":
		s, _ := value.(string)
		if d.Name, err = ParsePlaneRoleName(s); err != nil {
			return fmt.Errorf(`"role": %w`, err)
		}
	case "orgs":
		names, err := decodeList(value, dec)
		if err == nil {
			d.Orgs, err = ParseOrgs(names)
		}
		if err != nil {
			return fmt.Errorf(`"orgs": %w`, err)
		}
	case "tags":
		names, err := decodeList(value, dec)
		if err != nil {
			return fmt.Errorf(`"tags": %w`, err)
		}
		for _, n := range names {
			if !strings.HasPrefix(n, "tag:") {
				return fmt.Errorf(`"tags": %.60q does not begin with "tag:"`, n)
			}
			d.tags = append(d.tags, Tag(n))
		}
	default:
		return fmt.Errorf("%.60q is not a field of a rule", field)
	}
	return nil
}

// ParsePlaneRoleName returns s as a PlaneRoleName.
func ParsePlaneRoleName(s string) (PlaneRoleName, error) {
	switch n := PlaneRoleName(s); n {
	case Viewer, Operator, OrgAdmin, PlatformAdmin:
		return n, nil
	}
	return "", fmt.Errorf("%.60q is not one of viewer, operator, org-admin, platform-admin", s)
}

// ParseOrgs checks the names of organisations. At least one is required, and AllOrgs must be the
// only one.
func ParseOrgs(names []string) ([]string, error) {
	if len(names) == 0 || len(names) > maxOrgs {
		return nil, fmt.Errorf("%d organisations; a rule must list 1 to %d", len(names), maxOrgs)
	}
	if slices.Contains(names, AllOrgs) {
		if len(names) > 1 {
			return nil, fmt.Errorf(`"*" means all organisations; do not list others with it`)
		}
		return []string{AllOrgs}, nil
	}
	for _, n := range names {
		if len(n) > 40 || !labelForm.MatchString(n) {
			return nil, fmt.Errorf("%.60q is not the name of an enrollment", n)
		}
	}
	out := slices.Sorted(slices.Values(names))
	return slices.Compact(out), nil
}

// comparePlaneRoles orders roles for display, the widest first.
func comparePlaneRoles(a, b PlaneRole) int {
	rank := []PlaneRoleName{PlatformAdmin, OrgAdmin, Operator, Viewer}
	return cmp.Or(cmp.Compare(slices.Index(rank, a.Name), slices.Index(rank, b.Name)), slices.Compare(a.Orgs, b.Orgs), cmp.Compare(a.Source, b.Source))
}
