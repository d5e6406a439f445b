package tailplane_test

// TB-02: the modules that each module of the tree may require. The product does not depend on the testbed's large
// modules, and every module resolves without the others.

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goMod is the part of `go mod edit -json` that the tests use.
type goMod struct {
	Module  struct{ Path string }
	Require []struct{ Path, Version string }
	Replace []struct {
		Old struct{ Path string }
		New struct{ Path, Version string }
	}
}

// goCommand runs the go command in a module's folder with the settings of every build of this tree. The test is
// skipped on a machine that cannot reach a module proxy and lacks a download.
func goCommand(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir, "GOWORK=off", "GOFLAGS=-mod=readonly")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		for _, sign := range []string{"dial tcp", "no such host", "module lookup disabled", "i/o timeout", "connection refused"} {
			if strings.Contains(errs.String(), sign) {
				t.Skipf("SKIP modules: go %s needs modules that are not downloaded: %s", strings.Join(args, " "), errs.String())
			}
		}
		t.Fatalf("go %s in %s: %v\n%s%s", strings.Join(args, " "), dir, err, &out, &errs)
	}
	return out.String()
}

func readModule(t *testing.T, dir string) goMod {
	t.Helper()
	var m goMod
	if err := json.Unmarshal([]byte(goCommand(t, dir, "mod", "edit", "-json")), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// modules returns the folders of all modules of the tree.
func modules(t *testing.T) []string {
	t.Helper()
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || d.Name() == "testdata") {
			return fs.SkipDir
		}
		if d.Name() == "go.mod" {
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// prometheus is the module that is not tidy: see docs/decisions/prometheus-for-tests.md.
const prometheus = "testbed/prometheus"

// heavy reports whether the product must not require a module.
func heavy(path string) bool {
	return path == "k8s.io/kubernetes" || strings.HasPrefix(path, "go.etcd.io/etcd/server")
}

// TB-02: the product's module has no replace directive, and links neither a cluster nor Envoy Gateway.
func TestProductModuleIsLight(t *testing.T) {
	m := readModule(t, ".")
	for _, r := range m.Replace {
		t.Errorf("go.mod replaces %s: whoever imports us would not get it", r.Old.Path)
	}
	for _, r := range m.Require {
		if heavy(r.Path) {
			t.Errorf("go.mod requires %s %s: it belongs into a nested module of testbed/", r.Path, r.Version)
		}
	}
	deps := strings.Fields(goCommand(t, ".", "list", "-deps", "-test", "-f", "{{.ImportPath}}", "./..."))
	if !slices.Contains(deps, m.Module.Path+"/testkit/buildcache") {
		t.Fatalf("go list does not show our own packages; it shows %d", len(deps))
	}
	const gateway = "github.com/envoyproxy/gateway"
	for _, d := range deps {
		d, _, _ = strings.Cut(d, " ") // a package compiled for a test has the test's name in brackets
		if heavy(d) || strings.HasPrefix(d, "k8s.io/kubernetes/") {
			t.Errorf("the product imports %s", d)
		}
		if strings.HasPrefix(d, gateway) && d != gateway+"/proto/extension" {
			t.Errorf("the product imports %s; of Envoy Gateway only proto/extension is allowed", d)
		}
	}
}

// TB-02: in every module the whole module graph loads, and go.mod and go.sum are the output of `go mod tidy`.
func TestModulesAreTidy(t *testing.T) {
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dirs := modules(t)
	if len(dirs) < 3 {
		t.Fatalf("found the modules %v; testbed and testbed/devcluster are missing", dirs)
	}
	for _, dir := range dirs {
		name, err := filepath.Rel(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(filepath.ToSlash(name), func(t *testing.T) {
			path := readModule(t, dir).Module.Path
			if want := strings.TrimSuffix("github.com/tailplane/tailplane/"+filepath.ToSlash(name), "/."); path != want {
				t.Errorf("it is called %s, want %s", path, want)
			}
			if all := goCommand(t, dir, "list", "-m", "all"); !strings.HasPrefix(all, path) {
				t.Errorf("go list -m all begins with %.80q", all)
			}
			if name == prometheus {
				// Tidy requires the SDKs of all clouds in which Prometheus can discover targets: 280 MB that are
				// never built, and some of it is not available. The modules that are built must be present.
				goCommand(t, dir, "list", "-deps", "-tags", "remove_all_sd", "github.com/prometheus/prometheus/cmd/prometheus")
				return
			}
			goCommand(t, dir, "mod", "tidy", "-diff")
		})
	}
}
