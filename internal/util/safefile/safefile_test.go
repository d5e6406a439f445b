package safefile

import (
	"os"
	"path/filepath"
	"testing"
)

// SGN-19: a program that dies between writing and renaming leaves the old file.
func TestCrashBetweenWriteAndRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Stage(path, []byte("new"))
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
		t.Errorf("before the rename: %q, %v", b, err)
	}
	if st, err := os.Stat(s.temp); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("temporary file: %v, %v", st, err)
	}
	// a link that has replaced the file meanwhile is not followed
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".moved", path); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(); err == nil {
		t.Error("a symbolic link was replaced")
	}
	if b, err := os.ReadFile(path + ".moved"); err != nil || string(b) != "old" {
		t.Errorf("after the refusal: %q, %v", b, err)
	}
	if _, err := os.Stat(s.temp); err == nil {
		t.Error("the temporary file was left")
	}
}
