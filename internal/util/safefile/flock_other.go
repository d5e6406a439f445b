//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package safefile

import (
	"errors"
	"os"
)

// flock fails: these systems have no lock that ends with its process.
func flock(*os.File) error { return errors.ErrUnsupported }
