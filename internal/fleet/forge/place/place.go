// Package place is what runners at GitHub are registered for: an organisation, an
// enterprise or a repository. It keeps law 10: what becomes part of a path was
// checked before, and leads to nobody else's.
package place

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// A Kind is which of the three a place is.
type Kind int

// The kinds.
const (
	Org Kind = iota
	Repository
	Enterprise
)

// A Place is one of them.
type Place struct {
	Kind  Kind
	Owner string // the organisation, the enterprise, or whose the repository is
	Name  string // of a repository
}

// What GitHub lets names be. They stand in paths as they are.
var (
	ownerForm      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)
	repositoryForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

func isOwner(s string) bool      { return ownerForm.MatchString(s) }
func isRepository(s string) bool { return repositoryForm.MatchString(s) && strings.Trim(s, ".") != "" }

// Parse reads the URL of a place, which must be on the forge.
func Parse(web, u *url.URL) (Place, error) {
	below, ok := strings.CutPrefix(u.Path, web.Path+"/")
	if u.Scheme != web.Scheme || !strings.EqualFold(u.Host, web.Host) || !ok {
		return Place{}, fmt.Errorf("%q is not below %q", u, web)
	}
	parts := strings.Split(below, "/")
	switch {
	case len(parts) == 1 && isOwner(parts[0]) && parts[0] != "enterprises":
		return Place{Kind: Org, Owner: parts[0]}, nil
	case len(parts) == 2 && parts[0] == "enterprises" && isOwner(parts[1]):
		return Place{Kind: Enterprise, Owner: parts[1]}, nil
	case len(parts) == 2 && parts[0] != "enterprises" && isOwner(parts[0]) && isRepository(parts[1]):
		return Place{Kind: Repository, Owner: parts[0], Name: parts[1]}, nil
	}
	return Place{}, fmt.Errorf("%q is the URL of no organisation, enterprise or repository", u)
}

// Root is where the API has what belongs to the place.
func (p Place) Root() string {
	switch p.Kind {
	case Repository:
		return "/repos/" + p.Owner + "/" + p.Name
	case Enterprise:
		return "/enterprises/" + p.Owner
	}
	return "/orgs/" + p.Owner
}

func (p Place) String() string {
	if p.Kind == Repository {
		return p.Owner + "/" + p.Name
	}
	return p.Owner
}

// Owns reports whether a repository, owner/name, can be one of the place's. Of an
// enterprise it may have any owner.
func (p Place) Owns(repository string) bool {
	owner, name, ok := strings.Cut(repository, "/")
	return ok && isOwner(owner) && isRepository(name) &&
		(p.Kind == Enterprise || strings.EqualFold(owner, p.Owner)) &&
		(p.Kind != Repository || strings.EqualFold(name, p.Name))
}

// API is where the API of a GitHub is that people find at web.
func API(web *url.URL) string {
	switch host := strings.ToLower(web.Host); {
	case host == "github.com" || host == "www.github.com":
		return "https://api.github.com"
	case strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	}
	return web.String() + "/api/v3" // a GitHub Enterprise Server
}
