//go:build linux

package gateway

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/testkit/buildcache"
)

// envoyVersion is the Envoy version that testdata configures in Envoy Gateway, and the version in the build cache.
const envoyVersion = "1.39.3"

// A fileGateway is Envoy Gateway with the file provider, which runs the proxy itself.
type fileGateway struct {
	*process
	resources string // folder of the resources
	certs     string // folder of a proxy's certificates
	envoy     string // version of the real Envoy, or "" if a placeholder process runs instead
}

// startFileGateway starts Envoy Gateway on the resources of testdata. The configuration is the one that `tailplaned
// gateway envoy-config` prints for a server at this address.
func startFileGateway(t testing.TB, server xds.Address, lean bool) *fileGateway {
	t.Helper()
	dir := t.TempDir()
	g := &fileGateway{resources: filepath.Join(dir, "resources"), certs: filepath.Join(dir, "home", "config", "certs", "envoy")}
	if err := os.CopyFS(g.resources, os.DirFS("testdata/file")); err != nil {
		t.Fatal(err)
	}
	config, err := xds.Config(xds.ConfigOptions{Provider: xds.File, Server: server, Lean: lean, MaxMessage: 64 << 20,
		Resources: g.resources, Home: filepath.Join(dir, "home")})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "envoy-gateway.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	g.placeEnvoy(t, filepath.Join(dir, "home", "data", "envoy-versions", envoyVersion, "bin", "envoy"))
	run(t, nil, "envoy-gateway", "certgen", "--local", "--config-home", filepath.Join(dir, "home", "config"))
	g.process = start(t, nil, "envoy-gateway", "server", "-c", file)
	return g
}

// placeEnvoy puts the proxy where Envoy Gateway looks before it downloads one. It uses a real Envoy if available.
func (g *fileGateway) placeEnvoy(t testing.TB, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	bin, err := buildcache.Lookup("envoy")
	if err == nil {
		if err := os.Symlink(bin, path); err != nil {
			t.Fatal(err)
		}
		// such as "envoy  version: <hash>/1.39.3/Clean/RELEASE/BoringSSL"
		_, version, _ := strings.Cut(run(t, nil, "envoy", "--version"), "version: ")
		if parts := strings.Split(version, "/"); len(parts) > 1 {
			g.envoy = parts[1]
		}
		return
	}
	if _, unavailable := errors.AsType[*buildcache.UnavailableError](err); !unavailable {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec sleep 1000000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// put creates or replaces a file of resources in one step. Each event makes Envoy Gateway reload all files.
func (g *fileGateway) put(t testing.TB, name, text string) {
	t.Helper()
	hidden := filepath.Join(g.resources, "."+name)
	if err := os.WriteFile(hidden, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, filepath.Join(g.resources, name)); err != nil {
		t.Fatal(err)
	}
}
