package tailplane_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// GTW-39: each defect of the track record names tests, and these tests exist.
func TestTrackRecord(t *testing.T) {
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	have := map[string][]string{} // folders by the name of a test in them
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(b, -1) {
			have[string(m[1])] = append(have[string(m[1])], filepath.ToSlash(filepath.Dir(path)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile("docs/track-record.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`(?:([\\w/]+)\\.)?((?:Test|Fuzz)\\w+)[^`]*`")
	rows := 0
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(line, -1) {
			rows++
			folder, name := m[1], m[2]
			found := false
			for _, in := range have[name] {
				found = found || folder == "" || in == folder || strings.HasSuffix(in, "/"+folder)
			}
			if !found {
				t.Errorf("%s names %s, which is not there: %v", strings.TrimSpace(line[:min(len(line), 60)]), m[0], have[name])
			}
		}
	}
	if rows < 60 {
		t.Errorf("only %d tests are named", rows)
	}
}
