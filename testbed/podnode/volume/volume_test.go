package volume

import (
	"os"
	"path/filepath"
	"testing"
)

func TestExpand(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""}, {"a", "a"}, {"$(A)", "1"}, {"x$(A)y$(B)", "x1y2"}, {"$(C)", "$(C)"}, {"$$(A)", "$(A)"}, {"$", "$"}, {"$A", "$A"}, {"$(A", "$(A"}, {"$$$(A)", "$1"},
	} {
		if got := Expand(tt.in, map[string]string{"A": "1", "B": "2"}); got != tt.want {
			t.Errorf("%s becomes %s, want %s", tt.in, got, tt.want)
		}
	}
}

// A volume changes atomically, keeps unchanged files, and loses removed ones.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	write := func(files map[string]File) string {
		t.Helper()
		if err := Write(dir, files); err != nil {
			t.Fatal(err)
		}
		to, err := os.Readlink(filepath.Join(dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	first := write(map[string]File{"a": {[]byte("1"), 0o600}, "d/b": {[]byte("2"), 0o644}})
	if read("a") != "1" || read("d/b") != "2" {
		t.Errorf("it contains %q and %q", read("a"), read("d/b"))
	}
	if i, err := os.Stat(filepath.Join(dir, "a")); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", i, err)
	}
	if again := write(map[string]File{"a": {[]byte("1"), 0o600}, "d/b": {[]byte("2"), 0o644}}); again != first {
		t.Error("the same again was written again")
	}
	if next := write(map[string]File{"a": {[]byte("3"), 0o600}}); next == first || read("a") != "3" {
		t.Errorf("a change: %s, %q", next, read("a"))
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 3 {
		t.Errorf("left are %v, %v", entries, err)
	}
	for _, bad := range []string{"../x", "/x", "..x", ""} {
		if err := Write(dir, map[string]File{bad: {}}); err == nil {
			t.Errorf("%q was written", bad)
		}
	}
}
