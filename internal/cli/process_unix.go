//go:build unix

package cli

import (
	"errors"
	"syscall"
)

func pidLives(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
