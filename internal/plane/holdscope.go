package plane

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
)

// Scope is what a hold covers: everything, a forge, an organisation, a pool, or a pool of an organisation.
type Scope struct {
	All   bool   `json:"all,omitempty" doc:"all runners of the fleet"`
	Forge string `json:"forge,omitempty" doc:"all runners of a forge"`
	Org   string `json:"org,omitempty" doc:"all runners of an organisation, or with pool only that pool"`
	Pool  string `json:"pool,omitempty" doc:"a pool; without org: for all organisations"`
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// check returns an error for an invalid scope. Wildcards are not allowed (MC-05).
func (s Scope) check() error {
	n := 0
	for _, given := range []bool{s.All, s.Forge != "", s.Org != "" || s.Pool != ""} {
		if given {
			n++
		}
	}
	if n != 1 {
		return invalidField("scope", "The scope must have exactly one of all, forge, or org with or without pool.", `For one pool of one organisation: {"org": "acme", "pool": "gh-nix"}.`)
	}
	for field, name := range map[string]string{"forge": s.Forge, "org": s.Org, "pool": s.Pool} {
		if name != "" && !namePattern.MatchString(name) {
			return invalidField("scope", fmt.Sprintf("%.60q is not the name of a %s.", name, field), "Give one name. For all runners, use all: true.")
		}
	}
	return nil
}

// wide reports whether the scope covers more than one pool of one organisation.
func (s Scope) wide() bool { return s.Org == "" || s.Pool == "" }

// covers reports whether the scope covers p.
func (s Scope) covers(p Pool) bool {
	switch {
	case s.All:
		return true
	case s.Forge != "":
		return s.Forge == p.Forge
	}
	return (s.Org == "" || s.Org == p.OrgName) && (s.Pool == "" || s.Pool == p.Name)
}

// narrow returns the permit for this scope only. A scope of several organisations needs a role for all of them.
func (s Scope) narrow(p access.Permit) (access.Permit, error) {
	if s.Org != "" {
		return p.In(s.Org)
	}
	return p.InAll()
}

// String describes the scope for people.
func (s Scope) String() string {
	switch {
	case s.All:
		return "everything"
	case s.Forge != "":
		return "forge " + s.Forge
	case s.Pool == "":
		return "org " + s.Org
	case s.Org == "":
		return "pool " + s.Pool
	}
	return "pool " + s.Pool + " of " + s.Org
}

// phrase returns the phrase that the caller must type to confirm an action on the scope.
func (s Scope) phrase(verb string) string {
	if s.All {
		return verb + " ALL"
	}
	noun, name, _ := strings.Cut(s.String(), " ")
	return verb + " " + strings.ToUpper(noun) + " " + name
}

// slug returns the beginning of the hold's name.
func (s Scope) slug() string {
	switch {
	case s.All:
		return "all"
	case s.Forge != "":
		return "forge-" + s.Forge
	case s.Pool == "":
		return s.Org
	case s.Org == "":
		return "pool-" + s.Pool
	}
	return s.Org + "-" + s.Pool
}
