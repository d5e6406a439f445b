package tailnet

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestStateDirUnusable(t *testing.T) {
	check := func(t *testing.T, dir string, is error, want ...string) {
		t.Helper()
		_, err := claimState(dir)
		if !errors.Is(err, is) {
			t.Errorf("error %v, want %v", err, is)
			return
		}
		for _, w := range append(want, dir) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not contain %q", err, w)
			}
		}
	}
	t.Run("a file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		check(t, file, syscall.ENOTDIR, "it is not a directory")
		check(t, filepath.Join(file, "below"), syscall.ENOTDIR, "it is not a directory")
	})
	t.Run("somebody else's", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			check(t, dir, syscall.EACCES, "may not write to it", "fsGroup")
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() { // root can write everywhere, so one thread changes its user
			if err := becomeNobody(); err != nil {
				t.Log("SKIP another user's directory as root:", err)
				return
			}
			check(t, dir, syscall.EACCES, "may not write to it", "fsGroup")
		})
		wg.Wait()
	})
	t.Run("full", func(t *testing.T) {
		dir := mountTmpfs(t, "size=8k")
		check(t, dir, syscall.ENOSPC, "it is full")
		if left, err := os.ReadDir(dir); err != nil || len(left) > 1 {
			t.Errorf("the probe left %v %v", left, err)
		}
	})
	t.Run("no room for another file", func(t *testing.T) {
		check(t, mountTmpfs(t, "nr_inodes=1"), syscall.ENOSPC, "it is full")
	})
	t.Run("read-only", func(t *testing.T) {
		check(t, mountTmpfs(t, "ro"), syscall.EROFS, "read-only")
	})
}

// becomeNobody changes the file system user of this goroutine's thread. The thread is never
// unlocked, so it ends with the goroutine.
func becomeNobody() error {
	runtime.LockOSThread()
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETFSUID, 65534, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

func mountTmpfs(t *testing.T, options string) string {
	dir := t.TempDir()
	flags := uintptr(0)
	if options == "ro" {
		options, flags = "", syscall.MS_RDONLY
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Skipf("SKIP state on a tmpfs with %q: mounting one needs privileges: %v", options, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}
