//go:build !linux

package testenv

import "syscall"

// diesWithParent does nothing on this platform: processes that Close does not stop keep running.
func diesWithParent() *syscall.SysProcAttr { return nil }
