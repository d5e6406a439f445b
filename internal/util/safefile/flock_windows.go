package safefile

import (
	"errors"
	"os"
	"syscall"
	"unsafe"
)

const (
	exclusively   = 2 // LOCKFILE_EXCLUSIVE_LOCK
	immediately   = 1 // LOCKFILE_FAIL_IMMEDIATELY
	lockViolation = syscall.Errno(33)
)

// flock locks f for this process. The system unlocks f when it is closed, also by the end of the process.
func flock(f *os.File) error {
	lock := syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")
	var at syscall.Overlapped
	done, _, err := lock.Call(f.Fd(), exclusively|immediately, 0, 1, 0, uintptr(unsafe.Pointer(&at)))
	switch {
	case done != 0:
		return nil
	case errors.Is(err, lockViolation):
		return errLocked
	}
	return err
}
