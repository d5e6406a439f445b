//go:build unix

package safefile

import (
	"io/fs"
	"os"
	"syscall"
)

const noFollow = syscall.O_NOFOLLOW

// openNoFollow opens a file for reading. It does not follow a symbolic link and does not block on a pipe.
func openNoFollow(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|noFollow|syscall.O_NONBLOCK, 0)
}

func ownedByUser(st fs.FileInfo) bool {
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}

func openToOthers(st fs.FileInfo) bool { return st.Mode().Perm()&0o077 != 0 }
