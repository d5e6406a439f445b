// Package apitest tests that the files generated from the API types are current: deepcopy functions, CRDs and
// reference pages. The committed files must match the sources. Only tests use it.
package apitest

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// update is a flag of every test of an API package; go generate sets it.
var update = flag.Bool("update", false, "write the page of the reference")

// Generated checks that the committed deepcopy functions and CRDs of a group match the generator's output for the
// types in the working directory. root is the relative path from there to the root of the repository.
func Generated(t *testing.T, root, group string) {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("SKIP generated files: no go command in PATH")
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), goTool, "tool", "-modfile="+filepath.Join(root, "tools.mod"), "controller-gen", "object", "crd", "paths=.",
		"output:object:dir="+dir, "output:crd:artifacts:config="+dir).CombinedOutput()
	if err != nil {
		t.Fatalf("controller-gen: %v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(made) < 2 {
		t.Fatalf("the generator wrote %v, %v; want the deepcopy functions and at least one definition", made, err)
	}
	for _, file := range made {
		committed := filepath.Base(file)
		if filepath.Ext(file) == ".yaml" {
			committed = filepath.Join(root, "deploy/crds", committed)
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if have, err := os.ReadFile(committed); err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s differs from the generator's output (%v); run: go generate ./api/...", filepath.Base(file), err)
		}
	}
	for _, file := range Definitions(t, root, group) {
		if _, err := os.Stat(filepath.Join(dir, filepath.Base(file))); err != nil {
			t.Errorf("%s is committed, but the generator no longer writes it", filepath.Base(file))
		}
	}
}

// Definitions returns the names of the files with the committed CRDs of a group, sorted.
func Definitions(t *testing.T, root, group string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "deploy/crds", group+"_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("definitions of %s: %v, %v", group, files, err)
	}
	return files
}

// Page checks that a reference page equals text, or writes it with -update.
func Page(t *testing.T, page, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile(page); err != nil || string(have) != text {
		t.Errorf("%s differs from the definitions (%v); run: go generate ./api/...", filepath.Base(page), err)
	}
}

// oneLine returns s without its line breaks.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cell escapes s for a table cell.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
