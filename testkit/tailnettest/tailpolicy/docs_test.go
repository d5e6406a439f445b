package tailpolicy

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var hujsonBlock = regexp.MustCompile("(?ms)^[ \t]*```hujson[^\n]*\n(.*?)^[ \t]*```")

// TB-05: every example policy of this repository compiles, and those of the documentation also in the dialect of Headscale. These are the files *.hujson, and the blocks in Markdown
// between ```hujson and ```. So each block must be a complete policy, with the tags and groups that it uses.
func TestExamplePolicies(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..", "..")
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	examples := 0
	check := func(path, text string) {
		examples++
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: %v\n%s", path, err, text)
		}
		if _, err := ParseHeadscale(text); err != nil && filepath.Ext(path) == ".md" {
			t.Errorf("%s, on Headscale: %v\n%s", path, err, text)
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		ext := filepath.Ext(path)
		if ext != ".hujson" && ext != ".md" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if ext == ".hujson" {
			check(path, string(b))
		}
		for _, m := range hujsonBlock.FindAllStringSubmatch(string(b), -1) {
			check(path, m[1])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if examples == 0 {
		t.Error("no example was found, not even the testbed's own")
	}
	t.Logf("%d example policies compile", examples)
}
