//go:build !linux

package testenv

import "syscall"

// diesWithParent can do nothing here: what Close does not end stays.
func diesWithParent() *syscall.SysProcAttr { return nil }
