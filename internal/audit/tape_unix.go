//go:build unix

package audit

import (
	"os"
	"syscall"
)

// lock makes f this process's own until f is closed: two writers of one file
// would fork its chain.
func lock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
