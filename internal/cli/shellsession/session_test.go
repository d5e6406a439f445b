package shellsession_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/cli/shellsession"
)

func openSession(t *testing.T, base, server string) *shellsession.Session {
	t.Helper()
	s, err := shellsession.Open(t.Context(), base, server)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeSession(t *testing.T, s *shellsession.Session, others, began bool, why string) {
	t.Helper()
	o, b, err := s.Close(t.Context())
	switch {
	case o != others:
		t.Errorf("others: o = %v, want %v; %s", o, others, why)
	case b != began:
		t.Errorf("others: b = %v, want %v; %s", b, began, why)
	case err != nil:
		t.Errorf("others: %v; %s", err, why)
	}
	if _, err := os.Stat(s.Dir); err == nil {
		t.Errorf("%s is left", s.Dir)
	}
}

// SGN-21: the last shell of a server ends what the first one began.
func TestLastShellEndsTheSignin(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	a, b := openSession(t, base, "https://tka"), openSession(t, base, "https://tka")
	other := openSession(t, base, "https://other")
	if err := a.MarkSignin(); err != nil {
		t.Fatal(err)
	}
	closeSession(t, a, true, true, "b is there")
	closeSession(t, other, false, false, "of another server")
	closeSession(t, b, false, true, "b is the last one, and a began it")
	closeSession(t, openSession(t, base, "https://tka"), false, false, "nobody began it now")
}

// After a login by hand, the sign-in belongs to the person.
func TestKeepSignin(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	a := openSession(t, base, "https://tka")
	if err := a.MarkSignin(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := shellsession.KeepSignin(base, "https://tka"); err != nil {
			t.Fatal(err)
		}
	}
	closeSession(t, a, false, false, "kept")
}

// The files and the marker of a dead shell are removed; the session of a live shell stays.
func TestStaleSessionsAreRemoved(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	dead := filepath.Join(base, "room-dead")
	if err := os.MkdirAll(filepath.Join(dead, "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"alive", "server", "kubeconfig"} {
		if err := os.WriteFile(filepath.Join(dead, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	living := openSession(t, base, "https://tka")
	if _, err := os.Stat(dead); err == nil {
		t.Error("the directory of the dead shell still exists")
	}
	if err := living.MarkSignin(); err != nil {
		t.Fatal(err)
	}
	closeSession(t, openSession(t, base, "https://tka"), true, true, "the first is alive, and so is its claim")
	if _, err := os.Stat(living.Dir); err != nil {
		t.Error("the directory of a running shell is missing")
	}
	if st, err := os.Stat(living.Dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	closeSession(t, living, false, true, "the last one")
}

// Only one shell of a server signs in or out at a time.
func TestLock(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	a, b, c := openSession(t, base, "https://tka"), openSession(t, base, "https://tka"), openSession(t, base, "https://other")
	done, err := a.Lock(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Lock(t.Context(), 10*time.Millisecond); err == nil {
		t.Error("two at once")
	}
	if free, err := c.Lock(t.Context(), time.Second); err != nil {
		t.Error(err)
	} else {
		free()
	}
	done()
	if done, err = b.Lock(t.Context(), time.Second); err != nil {
		t.Error(err)
	} else {
		done()
	}
}

// A directory that another user prepared is not used.
func TestForeignDir(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := shellsession.Open(t.Context(), filepath.Join(dir, "link"), "s"); err == nil {
		t.Error("a symbolic link was followed")
	}
	wide := filepath.Join(dir, "wide")
	if err := os.Mkdir(wide, 0o755); err != nil {
		t.Fatal(err)
	}
	s := openSession(t, wide, "s")
	if st, err := os.Stat(wide); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	closeSession(t, s, false, false, "")
}
