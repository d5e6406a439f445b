package forge

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// A scopeKind is the kind of a place.
type scopeKind int

// The kinds.
const (
	orgScope scopeKind = iota
	repositoryScope
	enterpriseScope
)

// A scope is an organisation, a repository or an enterprise at GitHub.
type scope struct {
	kind  scopeKind
	Owner string // the organisation, the enterprise, or the owner of the repository
	Name  string // of a repository
}

// Names that GitHub permits. They need no escaping in paths.
var (
	ownerForm      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)
	repositoryForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

func isOwner(s string) bool      { return ownerForm.MatchString(s) }
func isRepository(s string) bool { return repositoryForm.MatchString(s) && strings.Trim(s, ".") != "" }

// parseScope parses the URL of a place, which must be on the forge.
func parseScope(web, u *url.URL) (scope, error) {
	below, ok := strings.CutPrefix(u.Path, web.Path+"/")
	if u.Scheme != web.Scheme || !strings.EqualFold(u.Host, web.Host) || !ok {
		return scope{}, fmt.Errorf("%q is not below %q", u, web)
	}
	parts := strings.Split(below, "/")
	switch {
	case len(parts) == 1 && isOwner(parts[0]) && parts[0] != "enterprises":
		return scope{kind: orgScope, Owner: parts[0]}, nil
	case len(parts) == 2 && parts[0] == "enterprises" && isOwner(parts[1]):
		return scope{kind: enterpriseScope, Owner: parts[1]}, nil
	case len(parts) == 2 && parts[0] != "enterprises" && isOwner(parts[0]) && isRepository(parts[1]):
		return scope{kind: repositoryScope, Owner: parts[0], Name: parts[1]}, nil
	}
	return scope{}, fmt.Errorf("%q is not the URL of an organisation, enterprise or repository", u)
}

// root returns the API path of the place.
func (p scope) root() string {
	switch p.kind {
	case repositoryScope:
		return "/repos/" + p.Owner + "/" + p.Name
	case enterpriseScope:
		return "/enterprises/" + p.Owner
	}
	return "/orgs/" + p.Owner
}

func (p scope) String() string {
	if p.kind == repositoryScope {
		return p.Owner + "/" + p.Name
	}
	return p.Owner
}

// owns reports whether a repository (owner/name) can belong to the place. Repositories of an
// enterprise may have any owner.
func (p scope) owns(repository string) bool {
	owner, name, ok := strings.Cut(repository, "/")
	return ok && isOwner(owner) && isRepository(name) &&
		(p.kind == enterpriseScope || strings.EqualFold(owner, p.Owner)) &&
		(p.kind != repositoryScope || strings.EqualFold(name, p.Name))
}

// githubAPI returns the API URL of the GitHub server with the web address web.
func githubAPI(web *url.URL) string {
	switch host := strings.ToLower(web.Host); {
	case host == "github.com" || host == "www.github.com":
		return "https://api.github.com"
	case strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	}
	return web.String() + "/api/v3" // GitHub Enterprise Server
}
