package v1alpha1

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The committed deepcopy functions and CRDs are what the generator makes of the
// types today.
func TestGeneratedFilesAreFresh(t *testing.T) {
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("SKIP generated files: no go command in PATH")
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), goTool, "tool", "-modfile=../../../tools.mod", "controller-gen", "object", "crd", "paths=.",
		"output:object:dir="+dir, "output:crd:artifacts:config="+dir).CombinedOutput()
	if err != nil {
		t.Fatalf("controller-gen: %v\n%s", err, out)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(made) < 2 {
		t.Fatalf("the generator made %v, %v; want the deepcopy functions and at least one CRD", made, err)
	}
	for _, file := range made {
		name := filepath.Base(file)
		committed := name
		if filepath.Ext(name) == ".yaml" {
			committed = filepath.Join("../../../deploy/crds", name)
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(committed)
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(have, want) {
			t.Errorf("%s is not what the generator makes; run: go generate ./api/...", name)
		}
	}
	crds, err := filepath.Glob("../../../deploy/crds/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range crds {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		if head := filepath.Base(file); len(head) > len(Group) && head[:len(Group)] == Group {
			if _, err := os.Stat(filepath.Join(dir, head)); err != nil {
				t.Errorf("%s is committed, and the generator does not make it any more", head)
			}
		}
	}
}
