package linediff

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// FLEET-15, PLANE-11: a diff of a file of objects is git's own, byte for byte, for
// values that change, keys, list items and objects that come and go.
func TestGit(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Skip("SKIP git: it is not here")
	}
	dir := t.TempDir()
	gits := func(old, updated []byte) string {
		for name, text := range map[string][]byte{"a": old, "b": updated} {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
			if text == nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, name, "fleet.yaml"), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), git, "-c", "core.abbrev=7", "diff", "--no-index", "--no-prefix", "--no-color", "a", "b")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.Output()
		if e, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || e.ExitCode() != 1) {
			t.Fatal(err)
		}
		// Of a file that comes or goes git says its only name twice.
		first, rest, _ := strings.Cut(string(out), "\n")
		if old == nil || updated == nil {
			first = "diff --git a/fleet.yaml b/fleet.yaml"
		}
		if len(out) == 0 {
			return ""
		}
		return first + "\n" + rest
	}
	r := rand.New(rand.NewPCG(1, 15))
	same := 0
	for n := range 200 {
		old := objects(r, 1+r.IntN(5))
		updated := slices.Clone(old)
		for range 1 + r.IntN(3) {
			updated = edit(r, updated)
		}
		was, is := []byte(strings.Join(old, "")), []byte(strings.Join(updated, ""))
		switch n {
		case 0:
			was = nil
		case 1:
			is = nil
		case 2:
			is = was
		case 3:
			is = bytes.TrimSuffix(is, []byte("\n"))
		}
		if got, want := Git("fleet.yaml", was, is), gits(was, is); got != want {
			t.Errorf("%d: is\n%s\nwant\n%s", n, got, want)
		} else if got != "" {
			same++
		}
	}
	if same < 190 {
		t.Errorf("%d diffs", same)
	}
}

// objects are the lines of a file as people keep them.
func objects(r *rand.Rand, n int) (all []string) {
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)+"\n") }
	add("# Runners of our organisations.")
	for i := range n {
		add("---")
		add("apiVersion: tailplane.dev/v1alpha1")
		add("kind: RunnerPool")
		add("metadata:")
		add("  name: pool-%d", i)
		add("spec:")
		add("  forge: github # ours")
		add("  runsOn:")
		for j := range 1 + r.IntN(3) {
			add("    - label-%d", j)
		}
		add("  scaling:")
		add("    min: 0")
		add("    max: %d", 1+r.IntN(9))
		if r.IntN(2) == 0 {
			add("")
			add("  # what it runs in")
			add("  image: registry.example/runner:%d", r.IntN(9))
		}
	}
	return all
}

// edit changes one thing.
func edit(r *rand.Rand, text []string) []string {
	if len(text) < 3 {
		return append(slices.Clone(text), "---\n")
	}
	at := 1 + r.IntN(len(text)-1)
	line := text[at]
	in := line[:len(line)-len(strings.TrimLeft(line, " "))]
	switch r.IntN(4) {
	case 0: // a value
		return slices.Replace(slices.Clone(text), at, at+1, strings.TrimSuffix(line, "\n")+"0\n")
	case 1: // a key or an item goes
		return slices.Delete(slices.Clone(text), at, at+1)
	case 2: // one comes
		if strings.HasPrefix(line[len(in):], "- ") {
			return slices.Insert(slices.Clone(text), at, fmt.Sprintf("%s- new-%d\n", in, r.IntN(100)))
		}
		return slices.Insert(slices.Clone(text), at, fmt.Sprintf("%snew%d: true\n", in, r.IntN(100)))
	}
	// An object comes, at the end, or the one that is there goes.
	from := at
	for from > 0 && text[from] != "---\n" {
		from--
	}
	to := at + 1
	for to < len(text) && text[to] != "---\n" {
		to++
	}
	if from > 0 && r.IntN(2) == 0 {
		return slices.Delete(slices.Clone(text), from, to)
	}
	return append(slices.Clone(text), "---\n", "apiVersion: tailplane.dev/v1alpha1\n", "kind: RunnerPool\n", "metadata:\n", "  name: another\n", "spec:\n", "  forge: github\n")
}
