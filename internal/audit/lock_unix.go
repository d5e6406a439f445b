//go:build unix

package audit

import (
	"os"
	"syscall"
)

// lock takes an exclusive lock on f until f is closed. Two writers of one file would fork its hash
// chain.
func lock(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}
