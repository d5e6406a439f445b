package settings

import (
	"net/url"
	"path"
	"reflect"
	"slices"
	"strings"
	"time"
)

// GitOps configures the repository of the fleet's configuration. Without a repository, the plane
// cannot propose changes.
type GitOps struct {
	Forge      string `yaml:"forge,omitempty"` // github or gitlab
	URL        string `yaml:"url,omitempty"`   // URL of the forge, such as https://github.com
	APIURL     string `yaml:"apiURL,omitempty"`
	CAFile     string `yaml:"caFile,omitempty"`     // PEM, in addition to the system's
	Repository string `yaml:"repository,omitempty"` // owner/name, or the path of the project at GitLab
	Branch     string `yaml:"branch,omitempty"`     // the branch that is applied to the cluster
	// Format is the format of the objects in the repository: yaml (or empty) for Kubernetes
	// objects in YAML or JSON, or tfvars for variables of Tofu stacks.
	Format string `yaml:"format,omitempty"`
	// Path is the path of an object in the repository, for the format yaml. {kind} and {name}
	// are the object's kind and name. Without them, all objects are in one file.
	Path string `yaml:"path,omitempty"`
	// Stacks are the files and keys of objects in the format tfvars.
	Stacks []Stack `yaml:"stacks,omitempty"`
	// CredentialDir is a directory with one file for each key of the credential, such as a
	// mounted Secret: github_app_id and github_app_private_key, or github_token; for GitLab,
	// access_token. The credential needs only contents and pull requests of this repository.
	CredentialDir string `yaml:"credentialDir,omitempty"`
	// Logins maps the tailnet login of a person to that person's other names in commits:
	// logins at the forge, and mail addresses that differ from the tailnet login.
	Logins       map[string][]string `yaml:"logins,omitempty"`
	PollInterval Duration            `yaml:"lookEvery,omitempty"` // how often to poll open changes; 0: one minute
}

// A Stack is a file with variables of a Tofu stack, and the mapping from these variables to fields
// of the fleet's objects.
type Stack struct {
	Path  string   `yaml:"path"`            // ends with .tfvars
	Names []string `yaml:"names,omitempty"` // patterns of the names of its objects, such as gh-*; empty: all
	// Keys maps a kind and a field of its spec, such as scaling.max, to a place in the file: an
	// attribute, followed by keys of nested objects after dots. {name} is the object's name, and
	// {name_} is the name with underscores.
	Keys map[string]map[string]string `yaml:"keys"`
}

// The values of Format.
const (
	FormatYAML   = "yaml"
	FormatTfvars = "tfvars"
)

// Set reports whether there is a repository.
func (g GitOps) Set() bool { return g.Repository != "" }

func (g GitOps) validate(v *validation) {
	if reflect.ValueOf(g).IsZero() {
		return
	}
	v.failIf(g.Forge != "github" && g.Forge != "gitlab", "plane.gitops.forge: %q is neither github nor gitlab", g.Forge)
	for name, at := range map[string]string{"url": g.URL, "apiURL": g.APIURL} {
		u, err := url.Parse(at)
		v.failIf((at != "" || name == "url") && (err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && !loopback(u)),
			"plane.gitops.%s: it must be an https URL without a login", name)
	}
	if owner, name, ok := strings.Cut(g.Repository, "/"); !ok || owner == "" || name == "" || strings.ContainsAny(g.Repository, " ?#\\") || path.Clean(g.Repository) != g.Repository || strings.HasPrefix(g.Repository, "../") {
		v.fail("plane.gitops.repository: %q is not a path such as acme/fleet", g.Repository)
	}
	v.failIf(g.Branch == "" || strings.HasPrefix(g.Branch, "tailplane/"),
		"plane.gitops.branch: set the branch that is applied to the cluster; names that begin with tailplane/ are reserved for changes")
	switch ext := path.Ext(g.Path); {
	case g.Format != "" && g.Format != FormatYAML && g.Format != FormatTfvars:
		v.fail("plane.gitops.format: %q is neither yaml nor tfvars", g.Format)
	case g.Format == FormatTfvars && (len(g.Stacks) == 0 || g.Path != ""):
		v.fail("plane.gitops.stacks: the format tfvars needs stacks and no path")
	case g.Format == FormatTfvars:
	case len(g.Stacks) > 0:
		v.fail("plane.gitops.stacks: only the format tfvars uses stacks")
	case path.IsAbs(g.Path) || path.Clean(g.Path) != g.Path || strings.HasPrefix(g.Path, "..") || ext != ".yaml" && ext != ".yml" && ext != ".json":
		v.fail("plane.gitops.path: %q is not a path of a .yaml, .yml or .json file, such as fleet/{kind}/{name}.yaml", g.Path)
	}
	v.failIf(g.CredentialDir == "", "plane.gitops.credentialDir is empty: the plane needs a credential for the repository")
	for login, names := range g.Logins {
		v.failIf(login == "" || len(names) == 0 || slices.Contains(names, ""),
			"plane.gitops.logins: %q: set a login on the tailnet and the names of that person in commits", login)
	}
	v.failIf(g.PollInterval != 0 && time.Duration(g.PollInterval) < time.Second, "plane.gitops.lookEvery: %v is less than a second", g.PollInterval)
}

func loopback(u *url.URL) bool {
	h := u.Hostname()
	return u.Scheme == "http" && (h == "127.0.0.1" || h == "::1" || h == "localhost")
}
