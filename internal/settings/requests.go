package settings

import (
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// Requests configures access requests. The access servers, the operator and the access proxies of a cluster need the same.
type Requests struct {
	Enabled            bool     `yaml:"enabled"`
	Capability         string   `yaml:"capability"` // in the tailnet policy
	PendingFor         Duration `yaml:"pendingFor"` // how long a request waits for approvals
	UseWithin          Duration `yaml:"useWithin"`  // how long an approved request waits for its use
	Keep               Duration `yaml:"keep"`       // how long the operator keeps a request whose state is final
	MaxPendingPerLogin int      `yaml:"maxPendingPerLogin"`
	MaxPending         int      `yaml:"maxPending"`
	MaxAskedPerDay     int      `yaml:"maxAskedPerDay"` // by one login, or by the nodes with the same tags
	MaxKept            int      `yaml:"maxKept"`
	MaxNetmapAge       Duration `yaml:"maxNetmapAge"` // older answers of the tailnet are no evidence for granting

	Floor      map[string]int    `yaml:"floor,omitempty"`      // least approvals of a role, which no rule of the tailnet policy then gives at once. Holds also if enabled is false
	SamePerson [][]RequestPerson `yaml:"samePerson,omitempty"` // accounts that belong to one person, who cannot approve their own requests with them
}

// A RequestPerson is an account in the tailnet.
type RequestPerson struct {
	Login  string `yaml:"login"`
	UserID string `yaml:"userID"`
}

func defaultRequests() Requests {
	return Requests{Capability: "tailplane.dev/cap/requests", PendingFor: Duration(8 * time.Hour), UseWithin: Duration(time.Hour), Keep: Duration(720 * time.Hour),
		MaxPendingPerLogin: 5, MaxPending: 500, MaxAskedPerDay: 50, MaxKept: 5000, MaxNetmapAge: Duration(15 * time.Minute)}
}

const (
	maxRequestWait = 24 * time.Hour // as in the schema of TkaRequest
	maxFloor       = 5
)

func (f File) validateRequests(v *validation) {
	r := f.Requests
	for name, d := range map[string]Duration{"pendingFor": r.PendingFor, "useWithin": r.UseWithin} {
		v.failIf(!d.isBetween(time.Minute, maxRequestWait), "requests.%s: %v is not between 1m and 24h", name, d)
	}
	v.failIf(!r.Keep.isBetween(time.Hour, 10*8760*time.Hour), "requests.keep: %v is not between 1h and 87600h", r.Keep)
	v.failIf(!r.MaxNetmapAge.isBetween(time.Minute, maxRequestWait), "requests.maxNetmapAge: %v is not between 1m and 24h", r.MaxNetmapAge)
	for name, n := range map[string]int{"maxPendingPerLogin": r.MaxPendingPerLogin, "maxPending": r.MaxPending, "maxAskedPerDay": r.MaxAskedPerDay, "maxKept": r.MaxKept} {
		v.failIf(n < 1, "requests.%s: %d is less than 1", name, n)
	}
	v.failIf(!strings.Contains(r.Capability, "/") || strings.ContainsAny(r.Capability, " \t\n"), "requests.capability: %q is not the name of a capability such as tailplane.dev/cap/requests", r.Capability)
	v.failIf(r.Capability == f.Signin.Capability, "requests.capability and signin.capability are both %q: a rule to ask would give access at once", r.Capability)
	for role, n := range r.Floor {
		v.failIf(!slices.Contains(f.Signin.Roles, role), "requests.floor: signin.roles does not list %q", role)
		v.failIf(n < 1 || n > maxFloor, "requests.floor: %s: %d is not between 1 and %d", role, n, maxFloor)
	}
	for _, accounts := range r.SamePerson {
		v.failIf(len(accounts) < 2, "requests.samePerson: an entry joins at least two accounts")
		for _, a := range accounts {
			_, err := access.ParseLogin(a.Login)
			v.failIf(err != nil, "requests.samePerson: %w", err)
			v.failIf(a.UserID == "", "requests.samePerson: %s has no userID: another person can take a login", a.Login)
		}
	}
	v.failIf((r.Enabled || len(r.Floor) > 0) && !f.Signin.RequireAdmissionPolicy,
		"requests.enabled and requests.floor need signin.requireAdmissionPolicy: without the policy, every client that can write a TkaRequest can approve it")
}

// policy returns the limits for access.Decide.
func (r Requests) policy() access.RequestPolicy {
	p := access.RequestPolicy{Enabled: r.Enabled, Capability: r.Capability}
	for role, n := range r.Floor {
		if p.Floor == nil {
			p.Floor = map[access.Role]int{}
		}
		p.Floor[access.Role(role)] = n
	}
	for _, accounts := range r.SamePerson {
		var person []access.Person
		for _, a := range accounts {
			person = append(person, access.Person{Login: a.Login, UserID: a.UserID})
		}
		p.SamePerson = append(p.SamePerson, person)
	}
	return p
}

// RequestCapability returns the capability of the rules for access requests, or "" if they are off.
func (f File) RequestCapability() string {
	if !f.Requests.Enabled {
		return ""
	}
	return f.Requests.Capability
}
