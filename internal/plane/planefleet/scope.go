package planefleet

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
)

// A Scope is what a hold holds: everything, a forge, an organisation, a pool, or a
// pool of an organisation.
type Scope struct {
	All   bool   `json:"all,omitempty" doc:"every runner of the fleet"`
	Forge string `json:"forge,omitempty" doc:"all of a forge"`
	Org   string `json:"org,omitempty" doc:"all of an organisation, or with pool that one"`
	Pool  string `json:"pool,omitempty" doc:"a pool; without org: of all organisations"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$`)

// check refuses what is no scope. No sign stands for several names (MC-05).
func (s Scope) check() error {
	n := 0
	for _, given := range []bool{s.All, s.Forge != "", s.Org != "" || s.Pool != ""} {
		if given {
			n++
		}
	}
	if n != 1 {
		return plane.Invalid("scope", "Exactly one of all, forge, and org with or without pool says what is held.", `For one pool of one organisation: {"org": "acme", "pool": "gh-nix"}.`)
	}
	for field, name := range map[string]string{"forge": s.Forge, "org": s.Org, "pool": s.Pool} {
		if name != "" && !nameForm.MatchString(name) {
			return plane.Invalid("scope", fmt.Sprintf("%.60q is not the name of a %s.", name, field), "Give one name; everything is all: true.")
		}
	}
	return nil
}

// wide is whether it is more than one pool of one organisation.
func (s Scope) wide() bool { return s.Org == "" || s.Pool == "" }

// Holds is whether it is about runners.
func (s Scope) Holds(p Pool) bool {
	switch {
	case s.All:
		return true
	case s.Forge != "":
		return s.Forge == p.Forge
	}
	return (s.Org == "" || s.Org == p.OrgName) && (s.Pool == "" || s.Pool == p.Name)
}

// permitted narrows a permit to the scope: to an organisation's own people, and to
// whose role is for all where it is about several.
func (s Scope) permitted(p access.Permit) (access.Permit, error) {
	if s.Org != "" {
		return p.In(s.Org)
	}
	return p.InAll()
}

// String is what is held, as people say it.
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

// phrase is what is to be typed for what goes far.
func (s Scope) phrase(verb string) string {
	if s.All {
		return verb + " ALL"
	}
	noun, name, _ := strings.Cut(s.String(), " ")
	return verb + " " + strings.ToUpper(noun) + " " + name
}

// slug begins the name of a hold.
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
