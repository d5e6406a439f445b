//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package ownfile

import (
	"errors"
	"os"
)

// lockFile fails: these systems have no lock that ends with its process.
func lockFile(*os.File) error { return errors.ErrUnsupported }
