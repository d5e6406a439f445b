//go:build unix

// Package dashboard_test opens the dashboard in a real Chromium against the real HTTP API, service and store. It
// checks what people see, keyboard use, screen reader rules, and attacks. No part of the API is a fake.
package dashboard_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// A check is one line of the browser script's output.
type check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// PLANE-14, PLANE-15, PL-03, PL-04: every page, in both themes, small and large, with hostile names, 2,000 rows, a
// source that is down and a lost role.
func TestDashboard(t *testing.T) {
	node, chromium := needs(t)
	h := open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, node, "browser.mjs")
	cmd.Env = append(os.Environ(), "DASHBOARD="+h.url, "ACTS="+h.acts, "CHROMIUM="+chromium)
	cmd.WaitDelay = 10 * time.Second
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var c check
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Logf("%s", lines.Bytes())
			continue
		}
		ended = ended || c.Name == "end"
		t.Run(c.Name, func(t *testing.T) {
			if !c.OK {
				t.Error(c.Detail)
			} else if c.Detail != "" {
				t.Log(c.Detail)
			}
		})
	}
	if err := cmd.Wait(); err != nil || !ended {
		t.Errorf("the browser's script did not come to its end: %v\n%s", err, &errs)
	}
}

// PLANE-17: the committed bundle equals a build of the sources, byte for byte.
func TestBundleIsWhatIsBuilt(t *testing.T) {
	node, _ := needs(t)
	built := t.TempDir()
	cmd := exec.CommandContext(t.Context(), node, "node_modules/vite/bin/vite.js", "build", "--outDir", built, "--logLevel", "warn")
	cmd.Dir = "../../web"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want, got := files(t, built), files(t, "../../internal/plane/web/dist")
	delete(got, "source.sha256")
	for name, b := range want {
		if !bytes.Equal(b, got[name]) {
			t.Errorf("%s differs from the build of the sources. Run: make web", name)
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("%s is of another build. Run: make web", name)
		}
	}
}

// The types of the API in the sources are those of the OpenAPI document, and the sources handle them, also null.
func TestSourcesMatchTheAPI(t *testing.T) {
	needs(t)
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("SKIP dashboard: there is no npm. Run: make browser")
	}
	cmd := exec.CommandContext(t.Context(), npm, "run", "--silent", "check")
	cmd.Dir = "../../web"
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func files(t *testing.T, root string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		all[name], err = os.ReadFile(filepath.Join(root, name))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// needs returns Node and Chromium, or skips the test. `make browser` installs missing programs.
func needs(t *testing.T) (node, chromium string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("SKIP dashboard: there is no Node; it takes 20.19 or later, and then: make browser")
	}
	for _, of := range []string{"playwright-core", "axe-core", "vite", "openapi-typescript", "svelte-check"} {
		if _, err := os.Stat(filepath.Join("../../web/node_modules", of)); err != nil {
			t.Skipf("SKIP dashboard: web/node_modules has no %s. Run: make browser", of)
		}
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if chromium, err = exec.LookPath(name); err == nil {
			return node, chromium
		}
	}
	t.Skip("SKIP dashboard: there is no Chromium. Run: make browser")
	return "", ""
}
