package access

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
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
	PlanePolicyCheck   Verb = "plane-policy.check"          // check rules of a tailnet policy before they are in force
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

// The verbs of a recorder, which the roles of the operator plane give.
const (
	RecordingsList Verb = "recordings.list" // recordings: those of the caller's own sessions, or all
	RecordingsRead Verb = "recordings.read" // same scope as RecordingsList
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
	PlanePolicyCheck:   {Viewer: always, Operator: always, OrgAdmin: always, PlatformAdmin: always},
	FleetRead:          {Viewer: orgs, Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	LogsRead:           {Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	MetricsRead:        {Viewer: orgs, Operator: orgs, OrgAdmin: orgs, PlatformAdmin: always},
	InfraRead:          {Viewer: all, Operator: all, OrgAdmin: all, PlatformAdmin: always},
	SigninsRead:        {Viewer: ownOrAll, Operator: ownOrAll, OrgAdmin: ownOrAll, PlatformAdmin: always},
	SigninsRevoke:      {Viewer: own, Operator: ownOrAll, OrgAdmin: own, PlatformAdmin: always},
	ConnectionsRead:    {Viewer: ownOrAll, Operator: ownOrAll, OrgAdmin: ownOrAll, PlatformAdmin: always},
	ConnectionsCut:     {Viewer: own, Operator: ownOrAll, OrgAdmin: own, PlatformAdmin: always}, // like SigninsRevoke
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
	// Recordings show what people see and may contain secrets, so only a platform-admin reads those of others.
	RecordingsList: {Viewer: own, Operator: own, OrgAdmin: own, PlatformAdmin: always},
	RecordingsRead: {Viewer: own, Operator: own, OrgAdmin: own, PlatformAdmin: always},
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

// A PlanePolicy defines the sources of roles on the operator plane. A caller's roles are the union
// of the tailnet's grants, the owners and members of organisations, and the settings.
type PlanePolicy struct {
	Capability string // name of the capability
	Contact    string // contact for callers without a role
	Tag        string // tag of the plane's node, for the example grant in messages; "": unknown
	Orgs       []Org
	Settings   []Holder
	Planes     []Tag // at a recorder: tags of operator planes, which may list and read all recordings; empty: no node may
	// EmailDomains are the domains that may be used as "*@domain" among owners and members.
	EmailDomains []string
}

// An Org is an organisation with its owners and members. Each entry is an exact login or
// "*@domain".
type Org struct {
	Name            string
	Owners, Members []string
}

// A Holder is a person with a role from the settings.
type Holder struct {
	Login  Login
	UserID string // ID of the person's user; "": any user with the login
	Role   PlaneRole
}

// is reports whether c is the person. Logins of other tailnets are not compared, and without a user ID only plain mail addresses are.
func (h Holder) is(c Caller) bool {
	if c.Tagged() || c.Shared || lowerASCII(string(h.Login)) != lowerASCII(string(c.Login)) {
		return false
	}
	if h.UserID != "" {
		return h.UserID == c.UserID
	}
	return hasPlainMail(c)
}

// ParseEmailDomain checks a domain whose users may all be admitted. It rejects domains where any
// person can get a login.
func ParseEmailDomain(s string) (string, error) {
	public := []string{"gmail.com", "googlemail.com", "outlook.com", "hotmail.com", "live.com", "yahoo.com", "icloud.com", "me.com", "proton.me", "protonmail.com",
		"gmx.net", "gmx.de", "web.de", "aol.com", "mail.ru", "qq.com", "163.com", "github", "passkey", "gitlab", "google", "apple", "microsoft"}
	d := lowerASCII(s)
	switch {
	case !strings.Contains(d, ".") && !slices.Contains(public, d), len(d) > 253, strings.ContainsAny(d, "@*/ "), !isASCII(d):
		return "", fmt.Errorf("%.60q is not a domain", s)
	case slices.Contains(public, d):
		return "", fmt.Errorf("%s is a public domain: anyone can have a login there", d)
	}
	return d, nil
}

// DecidePlane reports whether c may use v on the operator plane. The organisation and the owner are
// checked later: see In and Everywhere.
func DecidePlane(c Caller, v Verb, pol PlanePolicy, now time.Time) (Permit, error) {
	if err := Admit(c); err != nil {
		return Permit{}, err
	}
	if (v == RecordingsList || v == RecordingsRead) && c.isPlane(pol.Planes) {
		return Permit{caller: c, verb: v, plane: true, at: now, until: now.Add(permitLife)}, nil
	}
	roles, faults := pol.rolesOf(c)
	p := Permit{caller: c, verb: v, planeRoles: roles, faults: faults, at: now, until: now.Add(permitLife)}
	switch {
	case c.Tagged() && (v == PlaneApp || len(roles) == 0):
		return Permit{}, problem.New(problem.TaggedNode, fmt.Sprintf("%s is a tagged node (%s) and does not belong to a person.", c.Device.Name, strings.Join(c.TagNames(), ", ")),
			"Use a device that belongs to a person.", fmt.Sprintf("For automation, ask for a rule of %s with \"tags\": [%q]; it gives access to /api and /mcp.", pol.Capability, c.Tags[0]))
	case len(roles) == 0 && len(faults) > 0:
		return Permit{}, problem.New(problem.BadCapability, fmt.Sprintf("No rule of %s that matches %s is valid. %s", pol.Capability, c.Identity(), faults[0]),
			"Ask an administrator of the tailnet to correct that rule.")
	case len(roles) == 0:
		refused := problem.New(problem.NotAuthorized, fmt.Sprintf("You are on the tailnet as %s, but have no role here.", c.Identity()), pol.advice()...)
		refused.Seen = &problem.Seen{Login: string(c.Login), Node: c.Device.Name, Via: string(c.Via)}
		return Permit{}, refused
	case verbScopes[v] == nil:
		return Permit{}, noDecision(v)
	case p.widestScope() == never:
		return Permit{}, p.forbidden("")
	}
	return p, nil
}

// advice tells a caller without a role what to do.
func (pol PlanePolicy) advice() []string {
	rule := fmt.Sprintf("A grant that would give you read access: {\"src\": [\"YOU\"], \"dst\": [%q], \"ip\": [\"tcp:443\"], \"app\": {%q: [{\"role\": \"viewer\", \"orgs\": [\"*\"]}]}}",
		cmp.Or(pol.Tag, "THIS SERVER'S TAG"), pol.Capability)
	if pol.Contact == "" {
		return []string{"Ask an administrator of the tailnet for a role.", rule}
	}
	return []string{"Ask for a role: " + pol.Contact, rule}
}

// rolesOf returns the roles of c, the widest first, and the errors of matching rules.
func (pol PlanePolicy) rolesOf(c Caller) (roles []PlaneRole, faults []string) {
	if len(c.Rules) > maxRules {
		faults = append(faults, fmt.Sprintf("%d rules of %s match, more than %d. All of them are ignored.", len(c.Rules), pol.Capability, maxRules))
	} else {
		for i, raw := range c.Rules {
			d, err := ParsePlaneRole(raw)
			switch {
			case err != nil:
				faults = append(faults, fmt.Sprintf("Rule %d of %s is invalid: %v.", i+1, pol.Capability, err))
			case !c.Tagged() || c.hasOneOf(d.tags):
				roles = append(roles, d)
			}
		}
	}
	if hasPlainMail(c) {
		for _, o := range pol.Orgs {
			if pol.matchesAny(c.Login, o.Owners) {
				roles = append(roles, PlaneRole{Name: OrgAdmin, Orgs: []string{o.Name}, Source: "owner of " + o.Name})
			}
			if pol.matchesAny(c.Login, o.Members) {
				roles = append(roles, PlaneRole{Name: Operator, Orgs: []string{o.Name}, Source: "member of " + o.Name})
			}
		}
	}
	for _, h := range pol.Settings {
		if h.is(c) {
			h.Role.Source = "settings"
			roles = append(roles, h.Role)
		}
	}
	slices.SortFunc(roles, comparePlaneRoles)
	return slices.CompactFunc(roles, func(a, b PlaneRole) bool { return comparePlaneRoles(a, b) == 0 }), faults
}

// hasPlainMail reports whether the caller's login can be compared with lists of mail addresses. Logins
// with non-ASCII characters and callers from other tailnets cannot.
func hasPlainMail(c Caller) bool {
	return !c.Tagged() && !c.Shared && strings.Count(string(c.Login), "@") == 1 && isASCII(string(c.Login))
}

func (pol PlanePolicy) matchesAny(l Login, entries []string) bool {
	login := lowerASCII(string(l))
	_, domain, _ := strings.Cut(login, "@")
	return slices.ContainsFunc(entries, func(e string) bool {
		e = lowerASCII(e)
		if d, ok := strings.CutPrefix(e, "*@"); ok {
			return d == domain && slices.Contains(pol.EmailDomains, d)
		}
		return e == login
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > 0x7e || r < 0x21 })
}

// lowerASCII lowers A to Z only, so that no other letter becomes one of these.
func lowerASCII(s string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, s)
}

// widestScope returns the widest scope that any role gives the permit's verb.
func (p Permit) widestScope() (w scope) {
	for _, d := range p.planeRoles {
		w = max(w, d.scopeOf(p.verb))
	}
	return w
}

// PlaneRoles returns the caller's roles on the operator plane, the widest first.
func (p Permit) PlaneRoles() []PlaneRole { return slices.Clone(p.planeRoles) }

// Faults returns sentences about rules that match the caller but are invalid.
func (p Permit) Faults() []string { return slices.Clone(p.faults) }

// Everywhere reports whether the permit covers everything, for all organisations and owners.
func (p Permit) Everywhere() bool { return p.verb != "" && p.widestScope() == always }

// CanSee reports whether the permit's verb covers the objects of org. Objects of the whole
// installation have org "" and require the scope of all organisations.
func (p Permit) CanSee(org string) bool {
	return p.verb != "" && slices.ContainsFunc(p.planeRoles, func(d PlaneRole) bool { return d.isGrantedIn(p.verb, org) })
}

func (d PlaneRole) isGrantedIn(v Verb, org string) bool {
	r := d.scopeOf(v)
	return r == always || (r == orgs || r == ownAndOrgs) && org != "" && slices.Contains(d.Orgs, org)
}

// In narrows the permit to the objects of org. If the caller may not even read them, In returns
// not_found. If the caller may read but not change them, the error names the missing right.
func (p Permit) In(org string) (Permit, error) {
	if p.CanSee(org) {
		p.org = org
		return p, nil
	}
	if !slices.ContainsFunc(p.planeRoles, func(d PlaneRole) bool { return d.isGrantedIn(FleetRead, org) }) {
		return Permit{}, problem.New(problem.NotFound, "The object does not exist, or you may not see it.")
	}
	return Permit{}, p.forbidden(org)
}

// InAll returns the permit if it covers all organisations. Otherwise it returns an error that names
// the missing right.
func (p Permit) InAll() (Permit, error) {
	if !p.Everywhere() {
		return Permit{}, p.forbidden("")
	}
	return p, nil
}

// Org returns the organisation that In narrowed the permit to, or "" before.
func (p Permit) Org() string { return p.org }

func (p Permit) forbidden(org string) error {
	refused := problem.New(problem.Forbidden, "Your role does not allow this action.", "Ask for a role that allows it.")
	refused.Needed = &problem.Need{Verb: string(p.verb), Org: org}
	for _, d := range p.planeRoles {
		refused.Have = append(refused.Have, d.String())
	}
	return refused
}

// Verbs returns the caller's verbs by organisation, each list sorted. AllOrgs lists verbs for
// everything, and "own" lists verbs for the caller's own objects.
func (p Permit) Verbs() map[string][]Verb {
	out := map[string][]Verb{}
	add := func(where string, v Verb) {
		if !slices.Contains(out[where], v) {
			out[where] = append(out[where], v)
		}
	}
	for _, v := range PlaneVerbs() {
		for _, d := range p.planeRoles {
			r := d.scopeOf(v)
			if r == always {
				add(AllOrgs, v)
			}
			if r == orgs || r == ownAndOrgs {
				for _, o := range d.Orgs {
					add(o, v)
				}
			}
			if r == own || r == ownAndOrgs {
				add("own", v)
			}
		}
	}
	return out
}
