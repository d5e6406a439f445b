package subshell_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/cli/subshell"
)

func open(t *testing.T, base, server string) *subshell.Room {
	t.Helper()
	r, err := subshell.Open(t.Context(), base, server)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func leaves(t *testing.T, r *subshell.Room, others, began bool, why string) {
	t.Helper()
	o, b, err := r.Leave(t.Context())
	if o != others || b != began || err != nil {
		t.Errorf("others %v, began %v, %v; want %v, %v: %s", o, b, err, others, began, why)
	}
	if _, err := os.Stat(r.Folder); err == nil {
		t.Errorf("%s is left", r.Folder)
	}
}

// SGN-21: the last shell of a server ends what the first one began.
func TestTheLastOneEndsIt(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	a, b := open(t, base, "https://tka"), open(t, base, "https://tka")
	other := open(t, base, "https://other")
	if err := a.Began(); err != nil {
		t.Fatal(err)
	}
	leaves(t, a, true, true, "b is there")
	leaves(t, other, false, false, "of another server")
	leaves(t, b, false, true, "b is the last one, and a began it")
	leaves(t, open(t, base, "https://tka"), false, false, "nobody began it now")
}

// After a login by hand, the sign-in belongs to the person.
func TestKept(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	a := open(t, base, "https://tka")
	if err := a.Began(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := subshell.Kept(base, "https://tka"); err != nil {
			t.Fatal(err)
		}
	}
	leaves(t, a, false, false, "kept")
}

// The files and the mark of a dead shell are removed; the room of a live shell stays.
func TestTheDeadAreSwept(t *testing.T) {
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
	living := open(t, base, "https://tka")
	if _, err := os.Stat(dead); err == nil {
		t.Error("the dead shell's room is left")
	}
	if err := living.Began(); err != nil {
		t.Fatal(err)
	}
	leaves(t, open(t, base, "https://tka"), true, true, "the first is alive, and so is its claim")
	if _, err := os.Stat(living.Folder); err != nil {
		t.Error("a living shell's room is gone")
	}
	if st, err := os.Stat(living.Folder); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	leaves(t, living, false, true, "the last one")
}

// Only one shell of a server signs in or out at a time.
func TestTurns(t *testing.T) {
	base := filepath.Join(t.TempDir(), "shells")
	a, b, c := open(t, base, "https://tka"), open(t, base, "https://tka"), open(t, base, "https://other")
	done, err := a.Turn(t.Context(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Turn(t.Context(), 10*time.Millisecond); err == nil {
		t.Error("two at once")
	}
	if free, err := c.Turn(t.Context(), time.Second); err != nil {
		t.Error(err)
	} else {
		free()
	}
	done()
	if done, err = b.Turn(t.Context(), time.Second); err != nil {
		t.Error(err)
	} else {
		done()
	}
}

// A folder that another user prepared is not used.
func TestFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(t.TempDir(), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := subshell.Open(t.Context(), filepath.Join(dir, "link"), "s"); err == nil {
		t.Error("a symbolic link was followed")
	}
	wide := filepath.Join(dir, "wide")
	if err := os.Mkdir(wide, 0o755); err != nil {
		t.Fatal(err)
	}
	r := open(t, wide, "s")
	if st, err := os.Stat(wide); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	leaves(t, r, false, false, "")
}
