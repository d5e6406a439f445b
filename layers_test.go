// Package tailplane enforces the rules of the repository as tests: which package may import which, which modules may
// be required, and how large the programs and the files may be.
package tailplane

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/tailplane/tailplane/"

// layers lists the folders of each layer; docs/decisions/layout.md has the reasons. A package may import its own
// folder, the layers in "may", and api. Each domain is a separate folder.
var layers = []struct{ name, folders, may string }{
	{"base", "internal/access internal/problem internal/util", "base"},
	{"foundation", "internal/audit internal/httpapi internal/identity internal/kube internal/settings internal/tailnet", "base foundation"},
	{"domain", "internal/accessproxy internal/apiproxy internal/fleet internal/gateway internal/gossip internal/inject internal/multicluster internal/podcreds internal/relay internal/requests internal/signin", "base foundation"},
	{"surface", "internal/cli internal/plane", "base foundation domain"},
	{"server", "internal/server", "base foundation domain surface"},
	{"cmd", "cmd", "server"},
	{"testkit", "test testkit", "base foundation domain surface server testkit"},
}

// exceptions lists the imports that the layers do not allow: the importer, and the folder that it may import.
var exceptions = []struct{ from, to string }{
	{"internal/multicluster", "internal/apiproxy"},         // the adapter is one front end of the proxy core
	{"internal/accessproxy", "internal/apiproxy"},          // the access proxy is the other one
	{"internal/requests", "internal/signin"},               // the use of a request is a sign-in
	{"internal/accessproxy", "internal/signin"},            // the access proxy acts with the caller's sign-in
	{"internal/multicluster/run", "internal/podcreds"},     // the wiring of mca
	{"internal/multicluster/run", "internal/inject"},       // mca reads the environment that the webhook writes
	{"internal/gateway/", "internal/relay/config"},         // the operator writes the relays' configuration
	{"internal/cli", "internal/accessproxy/connections"},   // tka calls the proxy, and must not link it
	{"internal/plane", "internal/accessproxy/connections"}, // the plane asks proxies, and must not link them
	{"internal/plane", "internal/accessproxy/recording"},   // the plane calls the recorder, and filters what it shows
	{"internal/cli", "internal/plane"},                     // tka calls the plane with its wire types
	{"internal/cli", "internal/accessproxy/recording"},     // tka calls the recorder with its wire types; it must not link the policy's language
	{"internal/plane", "internal/fleet/gitops"},            // tka links it, and must not link the Kubernetes types of fleet
	{"cmd/tka", "internal/cli"},
	{"cmd/mca", "internal/multicluster/run"},
}

// deep lists the packages that may import below a domain's root, because they watch and write the domains' objects.
var deep = []string{"internal/plane/kube", "internal/plane/git"}

// worlds maps each external system to the folders that may access it.
var worlds = map[string]string{
	"tailscale.com/":                   "internal/tailnet testkit",
	"sigs.k8s.io/controller-runtime":   "internal/kube internal/fleet/controller internal/gateway/controller internal/gossip/controller internal/inject/controller internal/plane/kube internal/requests/controller internal/signin/controller internal/server testkit",
	"github.com/envoyproxy/":           "internal/gateway/xds",
	"google.golang.org/grpc":           "internal/gateway/xds",
	"github.com/google/go-github/":     "internal/fleet/forge",
	"gitlab.com/gitlab-org/":           "internal/fleet/forge",
	"github.com/modelcontextprotocol/": "internal/plane/mcp",
	"cel.dev/cel-go/":                  "internal/accessproxy/policy",
	"github.com/spf13/cobra":           "internal/cli internal/multicluster/run cmd/tailplaned",
}

// pure lists folders that import only the standard library and packages of the product. Audit's exporter is not
// included.
const pure = "internal/access internal/audit internal/problem internal/util/accept internal/util/origin internal/util/profile internal/util/redact internal/util/sanitize internal/util/secret"

// within reports whether pkg is one of the folders or below one.
func within(pkg, folders string) bool {
	return slices.ContainsFunc(strings.Fields(folders), func(f string) bool { return pkg == f || strings.HasPrefix(pkg, f+"/") })
}

func layerOf(pkg string) string {
	for _, l := range layers {
		if within(pkg, l.folders) {
			return l.name
		}
	}
	return ""
}

// mayImport returns the reason why one package of the product must not import another, or "" if it may.
func mayImport(from, to string) string {
	i := slices.IndexFunc(layers, func(l struct{ name, folders, may string }) bool { return l.name == layerOf(from) })
	root := func(pkg string) string { return strings.Join(strings.SplitN(pkg+"//", "/", 3)[:2], "/") }
	switch {
	case i < 0:
		return "it is in no layer"
	case within(to, "api"), layers[i].name != "base" && root(from) == root(to):
		return ""
	case slices.ContainsFunc(exceptions, func(x struct{ from, to string }) bool {
		return strings.HasPrefix(from, x.from) && strings.HasPrefix(to, x.to)
	}):
		return ""
	case !slices.Contains(strings.Fields(layers[i].may), layerOf(to)):
		return layers[i].name + " may not import " + layerOf(to)
	case layers[i].name == "surface" && layerOf(to) == "domain" && root(to) != to && !within(from, strings.Join(deep, " ")):
		return "a surface may import the roots of domains only"
	}
	return ""
}

// TestLayers checks the import rules for every package of the product.
func TestLayers(t *testing.T) {
	used := map[string]bool{}
	for _, p := range list(t) {
		from, ours := strings.CutPrefix(p.ImportPath, module)
		if !ours || within(from, "api") || len(p.GoFiles) == 0 {
			continue
		}
		for _, imported := range p.Imports {
			if to, ok := strings.CutPrefix(imported, module); ok {
				if why := mayImport(from, to); why != "" {
					t.Errorf("%s imports %s: %s", from, to, why)
				}
				for _, x := range exceptions {
					used[x.from+" "+x.to] = used[x.from+" "+x.to] || strings.HasPrefix(from, x.from) && strings.HasPrefix(to, x.to)
				}
				continue
			}
			if host, _, _ := strings.Cut(imported, "/"); strings.Contains(host, ".") && within(from, pure) && from != "internal/audit/otlp" {
				t.Errorf("%s imports %s; it may import the standard library only", from, imported)
			}
			for world, folders := range worlds {
				if strings.HasPrefix(imported+"/", strings.TrimSuffix(world, "/")+"/") && !within(from, folders) {
					t.Errorf("%s imports %s; only %s may", from, imported, folders)
				}
			}
		}
	}
	for _, x := range exceptions {
		if !used[x.from+" "+x.to] {
			t.Errorf("no package uses the exception %s -> %s", x.from, x.to)
		}
	}
}

// TestMayImport checks that each rule refuses a violation.
func TestMayImport(t *testing.T) {
	for _, x := range []struct {
		from, to string
		allowed  bool
	}{
		{"internal/access", "internal/problem", true},
		{"internal/access", "internal/audit", false},
		{"internal/audit", "internal/access", true},
		{"internal/audit", "internal/signin", false},
		{"internal/signin/controller", "internal/signin", true},
		{"internal/signin", "internal/gossip", false},
		{"internal/signin", "internal/plane", false},
		{"internal/gateway/controller", "internal/relay/config", true},
		{"internal/relay", "internal/gateway", false},
		{"internal/plane", "internal/fleet", true},
		{"internal/plane", "internal/fleet/arc", false},
		{"internal/apiproxy", "internal/multicluster", false},
		{"internal/multicluster", "internal/podcreds", false},
		{"cmd/tka", "internal/server", true},
		{"cmd/tka", "internal/signin", false},
		{"internal/plane/kube", "internal/fleet/arc", true},
		{"internal/fleet", "internal/plane", false},
		{"internal/plane", "cmd/tailplaned", false},
		{"internal/kube", "testkit/kubetest", false},
		{"testkit/kubetest", "internal/kube", true},
		{"internal/new", "internal/kube", false},
		{"internal/signin", "api/v1alpha1", true},
	} {
		if why := mayImport(x.from, x.to); (why == "") != x.allowed {
			t.Errorf("%s imports %s: allowed %t, want %t (%s)", x.from, x.to, why == "", x.allowed, why)
		}
	}
}

// kubeconfigCodec is clientcmd's decoder of kubeconfigs.
const kubeconfigCodec = "k8s.io/client-go/tools/clientcmd/api/latest"

// TestSmallPrograms limits the packages in the programs that run on people's machines and in their pods. The only
// part of Kubernetes that tka links is the decoder of kubeconfigs with its dependencies.
func TestSmallPrograms(t *testing.T) {
	codec := deps(t, kubeconfigCodec)
	for program, banned := range map[string][]string{
		"tka": {"tailscale.com/", "k8s.io/api/", "k8s.io/client-go/kubernetes", "k8s.io/client-go/rest", "k8s.io/client-go/transport", "sigs.k8s.io/controller-runtime", "google.golang.org/grpc"},
		"mca": {"tailscale.com/", "k8s.io/client-go", "k8s.io/api/", "k8s.io/apimachinery/pkg/apis/meta/v1", "sigs.k8s.io/controller-runtime", "google.golang.org/grpc"},
	} {
		for _, dep := range deps(t, "./cmd/"+program) {
			if slices.ContainsFunc(banned, func(b string) bool { return strings.HasPrefix(dep, b) }) {
				t.Errorf("%s links %s", program, dep)
			}
			kubernetes := strings.HasPrefix(dep, "k8s.io/") || strings.HasPrefix(dep, "sigs.k8s.io/")
			if program == "tka" && kubernetes && !slices.Contains(codec, dep) {
				t.Errorf("tka links %s, which %s does not need", dep, kubeconfigCodec)
			}
		}
	}
}

// deps returns the packages that a package links.
func deps(t *testing.T, of string) []string {
	t.Helper()
	out, err := exec.Command("go", "list", "-deps", of).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}

// TestNames forbids packages with generic names, which collect unrelated code.
func TestNames(t *testing.T) {
	for _, p := range list(t) {
		switch path.Base(p.ImportPath) {
		case "base", "common", "core", "helper", "helpers", "interfaces", "misc", "models", "pkg", "shared", "types", "util", "utils":
			t.Errorf("%s: name a package for what it provides", p.ImportPath)
		}
		for _, f := range p.GoFiles {
			switch {
			case f == "types.go":
				t.Errorf("f = %q; %s", f, p.ImportPath)
			case f == "helpers.go":
				t.Errorf("f = %q; %s", f, p.ImportPath)
			case f == "util.go":
				t.Errorf("f = %q; %s", f, p.ImportPath)
			case f == "utils.go":
				t.Errorf("f = %q; %s", f, p.ImportPath)
			}
		}
		if p.Doc == "" && len(p.GoFiles) > 0 {
			t.Errorf("%s: no package comment", p.ImportPath)
		}
	}
}

type pkg struct {
	ImportPath, Name, Doc string
	Imports, GoFiles      []string
}

func list(t *testing.T) (ps []pkg) {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Name,Doc,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return ps
		} else if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, p)
	}
}
