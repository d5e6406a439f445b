//go:build unix

package shellsession

import (
	"errors"
	"syscall"
)

func pidExists(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
