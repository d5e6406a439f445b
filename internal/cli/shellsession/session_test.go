package shellsession_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/shellsession"
)

func openSession(t *testing.T, base string) *shellsession.Session {
	t.Helper()
	s, err := shellsession.Open(t.Context(), base)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeSession(t *testing.T, s *shellsession.Session) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(s.Dir); err == nil {
		t.Errorf("%s is left", s.Dir)
	}
}

// The files of a dead shell are removed; those of a live shell stay.
func TestStaleSessionsAreRemoved(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	dead := filepath.Join(base, "room-dead")
	if err := os.MkdirAll(filepath.Join(dead, "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"alive", "kubeconfig"} {
		if err := os.WriteFile(filepath.Join(dead, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	living := openSession(t, base)
	if _, err := os.Stat(dead); err == nil {
		t.Error("the directory of the dead shell still exists")
	}
	closeSession(t, openSession(t, base))
	if st, err := os.Stat(living.Dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory of a running shell: %v, %v", st, err)
	}
	closeSession(t, living)
}

// A directory that another user prepared is not used.
func TestForeignDir(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := shellsession.Open(t.Context(), filepath.Join(dir, "link")); err == nil {
		t.Error("a symbolic link was followed")
	}
	wide := filepath.Join(dir, "wide")
	if err := os.Mkdir(wide, 0o755); err != nil {
		t.Fatal(err)
	}
	s := openSession(t, wide)
	if st, err := os.Stat(wide); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	closeSession(t, s)
}
