//go:build !linux

package identity

import (
	"errors"
	"net/netip"
)

func restrictSocket(uintptr) error { return nil } // the mode is set after the file exists

var errNoUsers = errors.New("identity serve: this system cannot report the process at the other end of a connection; use a Unix socket")

func checkUserLookup() error { return errNoUsers }

func userOf(_, _ netip.AddrPort) (uint32, error) { return 0, errNoUsers }
