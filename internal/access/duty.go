package access

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Duty is what somebody may do on the operator plane: one of four, each for the
// organisations that it was given for. Unlike the roles of sign-in, of which one
// is chosen, what several duties allow adds up.
type Duty struct {
	Name   DutyName
	Orgs   []string // names of enrollments, sorted; AllOrgs alone: all
	Source string   // where it comes from, for people: "grant", "owner of acme", "settings"
	tags   []Tag    // nodes that a grant admits though they are nobody's
}

// A DutyName is one of the names below.
type DutyName string

// The duties, by what they allow.
const (
	Viewer        DutyName = "viewer"
	Operator      DutyName = "operator"
	OrgAdmin      DutyName = "org-admin"
	PlatformAdmin DutyName = "platform-admin" // everywhere, whatever its orgs
)

// AllOrgs stands for every organisation.
const AllOrgs = "*"

// The verbs of the operator plane.
const (
	PlaneApp           Verb = "app.read"                    // the dashboard's own files, for people only
	PlaneSelf          Verb = "self.read"                   // as whom one is seen
	FleetRead          Verb = "fleet.read"                  // what belongs to an organisation, and what is known of sources
	LogsRead           Verb = "logs.read"                   // of what runs jobs: they may hold secrets
	MetricsRead        Verb = "metrics.read"                // numbers over time
	InfraRead          Verb = "infra.read"                  // clusters, tailnets, gateways, adapters
	SigninsRead        Verb = "signins.read"                // of people, oneself or all
	SigninsRevoke      Verb = "signins.revoke"              // as SigninsRead
	HoldsCreate        Verb = "holds.create"                // pause runners: of an organisation, or all
	HoldsLift          Verb = "holds.lift"                  // as HoldsCreate
	HoldsLiftWide      Verb = "holds.lift-wide"             // a hold of a forge or of everything: one's own, or anybody's
	HoldsStop          Verb = "holds.stop"                  // holds that end running jobs
	ConfigPropose      Verb = "config.propose"              // changes of the fleet's configuration: of an organisation's own, or of everything
	ConfigApprove      Verb = "config.approve"              // and of what others proposed
	EnrollmentApprove  Verb = "enrollment.approve"          // what touches more than one organisation's own
	EnrollmentDecline  Verb = "enrollment.decline"          // what was asked for, and nobody has approved
	EnrollmentRequest  Verb = "enrollment.request"          // that an organisation gets runners, and others than it has
	OffboardRequest    Verb = "enrollment.offboard-request" // that it has none any more
	EnrollmentOffboard Verb = "enrollment.offboard"         // and to do it
	RotateRequest      Verb = "credentials.rotate-request"  // that its credential is replaced
	CredentialsRotate  Verb = "credentials.rotate"          // and to do it
	ObserveRead        Verb = "observe.read"                // Prometheus and Grafana
	ObserveAdmin       Verb = "observe.admin"               // what changes them
	AuditRead          Verb = "audit.read"                  // entries of the record: one's own, and those about one's organisations
	AuditReadAll       Verb = "audit.read-all"              // the whole record, sign-ins too
)

// A reach is how far a duty carries a verb.
type reach int

const (
	never      reach = iota
	own              // to what is the caller's own
	orgs             // to the organisations that the duty was given for
	ownAndOrgs       // to what is the caller's own, and to the organisations that the duty was given for
	all              // no further than to all organisations: a duty for some does not carry it
	ownOrAll         // to what is the caller's own; a duty for all organisations, to everything
	always           // to everything
)

// reaches is who may do what on the operator plane (section 3.2 of its contract).
// What is not in it nobody may.
var reaches = map[Verb]map[DutyName]reach{
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
	HoldsLiftWide:      {Operator: own, OrgAdmin: own, PlatformAdmin: always}, // of those who have HoldsLift everywhere
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

// DutyVerbs are the verbs of the operator plane, sorted.
func DutyVerbs() []Verb { return slices.Sorted(maps.Keys(reaches)) }

// carries returns how far d carries v: never, own, orgs, ownAndOrgs or always.
func (d Duty) carries(v Verb) reach {
	r := reaches[v][d.Name]
	switch {
	case r > own && d.everywhere():
		return always
	case r == all:
		return never
	case r == ownOrAll:
		return own
	}
	return r
}

func (d Duty) everywhere() bool { return d.Name == PlatformAdmin || slices.Contains(d.Orgs, AllOrgs) }

// String is the duty as people say it: "operator@acme".
func (d Duty) String() string {
	if d.everywhere() {
		return string(d.Name) + "@" + AllOrgs
	}
	return string(d.Name) + "@" + strings.Join(d.Orgs, ",")
}

// maxOrgs bounds what one rule may name.
const maxOrgs = 200

// ParseDuty decodes one rule of the plane's capability, as strictly as ParseGrant.
func ParseDuty(raw []byte) (Duty, error) {
	d := Duty{Source: "grant"}
	seen, err := eachField(raw, d.set)
	if err != nil {
		return Duty{}, err
	}
	switch {
	case !seen["role"]:
		return Duty{}, fmt.Errorf(`"role" is missing`)
	case !seen["orgs"]:
		return Duty{}, fmt.Errorf(`"orgs" is missing`)
	}
	return d, nil
}

func (d *Duty) set(field string, dec *json.Decoder) error {
	value, err := dec.Token()
	if err != nil {
		return fmt.Errorf("%.60q: not JSON: %w", field, err)
	}
	switch field {
	case "role":
		s, _ := value.(string)
		if d.Name, err = ParseDutyName(s); err != nil {
			return fmt.Errorf(`"role": %w`, err)
		}
	case "orgs":
		names, err := list(value, dec)
		if err == nil {
			d.Orgs, err = ParseOrgs(names)
		}
		if err != nil {
			return fmt.Errorf(`"orgs": %w`, err)
		}
	case "tags":
		names, err := list(value, dec)
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

// ParseDutyName returns s as the name of a duty.
func ParseDutyName(s string) (DutyName, error) {
	switch n := DutyName(s); n {
	case Viewer, Operator, OrgAdmin, PlatformAdmin:
		return n, nil
	}
	return "", fmt.Errorf("%.60q is none of viewer, operator, org-admin, platform-admin", s)
}

// ParseOrgs checks names of organisations: at least one; AllOrgs stands alone.
func ParseOrgs(names []string) ([]string, error) {
	if len(names) == 0 || len(names) > maxOrgs {
		return nil, fmt.Errorf("%d organisations; 1 to %d may be named", len(names), maxOrgs)
	}
	if slices.Contains(names, AllOrgs) {
		if len(names) > 1 {
			return nil, fmt.Errorf(`"*" is all organisations; others beside it say nothing`)
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

// compareDuties orders duties for people: the widest first.
func compareDuties(a, b Duty) int {
	rank := []DutyName{PlatformAdmin, OrgAdmin, Operator, Viewer}
	return cmp.Or(cmp.Compare(slices.Index(rank, a.Name), slices.Index(rank, b.Name)), slices.Compare(a.Orgs, b.Orgs), cmp.Compare(a.Source, b.Source))
}
