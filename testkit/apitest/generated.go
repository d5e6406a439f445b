// Package apitest keeps what is made of the definitions of our kinds as they
// are today: the generator's files and the reference's pages. It keeps the law
// that what is committed is what the sources say; only tests use it.
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

// update is a flag of every test of a package of kinds: go generate gives it.
var update = flag.Bool("update", false, "write the page of the reference")

// Generated checks that the committed deepcopy functions and definitions of a
// group are what the generator makes of the types in the working directory. Root
// is the way from there to the repository's root.
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
		t.Fatalf("the generator made %v, %v; want the deepcopy functions and at least one definition", made, err)
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
			t.Errorf("%s is not what the generator makes (%v); run: go generate ./api/...", filepath.Base(file), err)
		}
	}
	for _, file := range Definitions(t, root, group) {
		if _, err := os.Stat(filepath.Join(dir, filepath.Base(file))); err != nil {
			t.Errorf("%s is committed, and the generator does not make it any more", filepath.Base(file))
		}
	}
}

// Definitions are the files with the committed definitions of a group, by name.
func Definitions(t *testing.T, root, group string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "deploy/crds", group+"_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("definitions of %s: %v, %v", group, files, err)
	}
	return files
}

// Page checks that a page of the reference says text, or writes it with -update.
func Page(t *testing.T, page, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have, err := os.ReadFile(page); err != nil || string(have) != text {
		t.Errorf("%s is not what the definitions say (%v); run: go generate ./api/...", filepath.Base(page), err)
	}
}

// oneLine is a description without its line breaks.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// cell is a text as it may stand in a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
