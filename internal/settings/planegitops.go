package settings

import (
	"errors"
	"fmt"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"
)

// GitOps is the repository in which the fleet's configuration is kept. Without a
// repository nobody proposes changes by the plane.
type GitOps struct {
	Forge      string `yaml:"forge,omitempty"` // github or gitlab
	URL        string `yaml:"url,omitempty"`   // of the forge, such as https://github.com
	APIURL     string `yaml:"apiURL,omitempty"`
	CAFile     string `yaml:"caFile,omitempty"`     // PEM, beside the system's
	Repository string `yaml:"repository,omitempty"` // owner/name, or GitLab's path of the project
	Branch     string `yaml:"branch,omitempty"`     // that is applied to the cluster
	// Format is how objects are kept: yaml (or empty), as Kubernetes has them, JSON too;
	// tfvars, as variables of Tofu stacks.
	Format string `yaml:"format,omitempty"`
	// Path is where an object is in it, in the format yaml: {kind} and {name} stand for the
	// object's; without them all are in one file.
	Path string `yaml:"path,omitempty"`
	// Stacks are where objects are in the format tfvars, and by which keys.
	Stacks []Stack `yaml:"stacks,omitempty"`
	// CredentialDir has the keys of a credential as files, as a mounted Secret has:
	// github_app_id and github_app_private_key, or github_token; access_token for GitLab.
	// It needs contents and pull requests of this repository only.
	CredentialDir string `yaml:"credentialDir,omitempty"`
	// Logins are the other names that people have in commits, by their login on the
	// tailnet: logins at the forge, and addresses that are not the login.
	Logins    map[string][]string `yaml:"logins,omitempty"`
	LookEvery Duration            `yaml:"lookEvery,omitempty"` // at open changes; 0: a minute
}

// A Stack is a file with variables of a Tofu stack, and which of them stand for what of
// the fleet's objects.
type Stack struct {
	Path  string   `yaml:"path"`            // ends with .tfvars
	Names []string `yaml:"names,omitempty"` // of objects that are in it, as patterns such as gh-*; none: all
	// Keys say, by kind and by field of its spec (scaling.max), where in the file it is:
	// an attribute, and after dots keys of objects in it. {name} is the object's name,
	// {name_} the same with underscores.
	Keys map[string]map[string]string `yaml:"keys"`
}

// What Format may be.
const (
	FormatYAML   = "yaml"
	FormatTfvars = "tfvars"
)

// Set reports whether there is a repository.
func (g GitOps) Set() bool { return g.Repository != "" }

func (g GitOps) validate() (errs []error) {
	if reflect.ValueOf(g).IsZero() {
		return nil
	}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("plane.gitops."+format, args...)) }
	if g.Forge != "github" && g.Forge != "gitlab" {
		bad("forge: %q is neither github nor gitlab", g.Forge)
	}
	for name, at := range map[string]string{"url": g.URL, "apiURL": g.APIURL} {
		if u, err := url.Parse(at); (at != "" || name == "url") && (err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && !loopback(u)) {
			bad("%s: it is not an https URL without a login in it", name)
		}
	}
	if owner, name, ok := strings.Cut(g.Repository, "/"); !ok || owner == "" || name == "" || strings.ContainsAny(g.Repository, " ?#\\") || path.Clean(g.Repository) != g.Repository || strings.HasPrefix(g.Repository, "../") {
		bad("repository: %q is not a path such as acme/fleet", g.Repository)
	}
	if g.Branch == "" || strings.HasPrefix(g.Branch, "tailplane/") {
		bad("branch: name the branch that is applied; those that begin with tailplane/ are the changes'")
	}
	switch ext := path.Ext(g.Path); {
	case g.Format != "" && g.Format != FormatYAML && g.Format != FormatTfvars:
		bad("format: %q is neither yaml nor tfvars", g.Format)
	case g.Format == FormatTfvars && (len(g.Stacks) == 0 || g.Path != ""):
		bad("stacks: the format tfvars takes them, and no path")
	case g.Format == FormatTfvars:
	case len(g.Stacks) > 0:
		bad("stacks: they are for the format tfvars")
	case path.IsAbs(g.Path) || path.Clean(g.Path) != g.Path || strings.HasPrefix(g.Path, "..") || ext != ".yaml" && ext != ".yml" && ext != ".json":
		bad("path: %q is not a path of a .yaml, .yml or .json file, such as fleet/{kind}/{name}.yaml", g.Path)
	}
	if g.CredentialDir == "" {
		errs = append(errs, errors.New("plane.gitops.credentialDir is empty: the plane needs a credential for that repository"))
	}
	for login, names := range g.Logins {
		if login == "" || len(names) == 0 || slices.Contains(names, "") {
			bad("logins: %q: name somebody's login on the tailnet, and their names in commits", login)
		}
	}
	if every := time.Duration(g.LookEvery); every != 0 && every < time.Second {
		bad("lookEvery: %v is less than a second", every)
	}
	return errs
}

func loopback(u *url.URL) bool {
	h := u.Hostname()
	return u.Scheme == "http" && (h == "127.0.0.1" || h == "::1" || h == "localhost")
}
