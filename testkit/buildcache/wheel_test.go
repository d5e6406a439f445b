package buildcache

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newWheel returns a cache with one program. Its wheel is next to the source tree and contains a shell script with a
// version.
func newWheel(t *testing.T, hash string) *Cache {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range map[string]string{
		"tiny/__init__.py":                  "from pathlib import Path\n\ndef get_envoy_path():\n    return Path(__file__).parent / 'tiny'\n",
		"tiny/tiny":                         "#!/bin/sh\necho tiny \"$@\"\n",
		"tiny_wheel-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"tiny_wheel-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-wheel\nVersion: 1.0\n",
		"tiny_wheel-1.0.dist-info/RECORD":   "",
	} {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	const file = "tiny_wheel-1.0-py3-none-any.whl"
	put(t, root, file, b.String())
	if hash == "" {
		hash = fmt.Sprintf("%x", sha256.Sum256(b.Bytes()))
	}
	put(t, root, "requirements.txt", fmt.Sprintf("tiny-wheel @ file://%s --hash=sha256:%s\n", filepath.Join(root, file), hash))
	return &Cache{Dir: filepath.Join(t.TempDir(), "bin"), Root: root, Log: io.Discard, Programs: map[string]Program{
		"tiny": {Wheel: &Wheel{Requirements: "requirements.txt", Module: "tiny"}, Override: "TINY_BIN", Takes: "a second"},
	}}
}

// needsVenv skips the test if Python cannot create a virtual environment with pip.
func needsVenv(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "python3", "-c", "import ensurepip, venv").CombinedOutput(); err != nil {
		t.Skipf("SKIP wheel: no virtual environments here: %v: %s", err, bytes.TrimSpace(out))
	}
}

// A wheel's binary is kept under a key of the requirements. The virtual environment is removed.
func TestWheel(t *testing.T) {
	needsVenv(t)
	c := newWheel(t, "")
	var log bytes.Buffer
	c.Log = &log
	path, err := c.Build(t.Context(), "tiny")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), path, "says").CombinedOutput(); err != nil || string(out) != "tiny says\n" {
		t.Errorf("the output of the binary is %q, %v", out, err)
	}
	if !strings.Contains(log.String(), "tiny: installing") || !strings.Contains(log.String(), "tiny: installed in") {
		t.Errorf("the log is %q", &log)
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if found, err := c.Lookup("tiny"); err != nil || found != path {
		t.Errorf("look-up: %q, %v", found, err)
	}
	put(t, c.Root, "requirements.txt", "tiny-wheel==2\n")
	if _, err := c.Lookup("tiny"); err == nil {
		t.Error("the old binary was found for other requirements")
	}
}

// A wheel with a wrong hash is not installed. Later lookups get the reason, and the next attempt can succeed.
func TestWheelUnavailable(t *testing.T) {
	needsVenv(t)
	c := newWheel(t, strings.Repeat("0", 64))
	_, err := c.Build(t.Context(), "tiny")
	e, ok := errors.AsType[*UnavailableError](err)
	if !ok || e.Name != "tiny" {
		t.Fatalf("a wheel of another hash: %v, want an UnavailableError", err)
	}
	_, again := c.Lookup("tiny")
	if found, ok := errors.AsType[*UnavailableError](again); !ok || found.Reason != e.Reason {
		t.Errorf("look-up: %v, want the reason %q", again, e.Reason)
	}
	requirements, err := os.ReadFile(filepath.Join(newWheel(t, "").Root, "requirements.txt"))
	if err != nil {
		t.Fatal(err)
	}
	put(t, c.Root, "requirements.txt", string(requirements))
	if _, err := c.Build(t.Context(), "tiny"); err != nil {
		t.Error("the next try:", err)
	}
	if left := leftovers(t, c); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An interrupted build does not mark the program as unavailable.
func TestWheelInterrupted(t *testing.T) {
	c := newWheel(t, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Build(ctx, "tiny"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := c.Lookup("tiny"); err == nil {
		t.Error("found it")
	} else if _, ok := errors.AsType[*UnavailableError](err); ok {
		t.Errorf("an interrupted build was noted: %v", err)
	}
}

// The environment variable names another binary, which is used without checks.
func TestOverride(t *testing.T) {
	c := newWheel(t, "")
	t.Setenv("TINY_BIN", "/opt/tiny")
	if path, err := c.Lookup("tiny"); err != nil || path != "/opt/tiny" {
		t.Errorf("look-up: %q, %v", path, err)
	}
	if path, err := c.Build(t.Context(), "tiny"); err != nil || path != "/opt/tiny" {
		t.Errorf("build: %q, %v", path, err)
	}
}
