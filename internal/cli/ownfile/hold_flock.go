//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package ownfile

import (
	"errors"
	"os"
	"syscall"
)

// lockFile locks f for this process; the system unlocks it when f is closed, by
// the end of the process too.
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
