//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package ownfile

import (
	"errors"
	"os"
	"syscall"
)

// lockFile locks f for this process. The system unlocks f when it is closed, also by the end of the process.
func lockFile(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EWOULDBLOCK):
			return errHeld
		}
		return err
	}
}
