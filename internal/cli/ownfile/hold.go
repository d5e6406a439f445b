package ownfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Held file belongs to one living process: whatever ends that process, lets go
// of it.
type Held struct{ f *os.File }

// Hold makes the file at path belong to this process until Release, and returns
// nil if it belongs to a living one already. The file stays: removing it is for
// whoever holds it.
func Hold(path string) (*Held, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	switch err := lockFile(f); {
	case errors.Is(err, errHeld):
		return nil, f.Close()
	case err != nil:
		f.Close()
		return nil, &Fault{path, "cannot be locked: " + err.Error()}
	}
	// Whoever held it before may have removed it meanwhile: then it is another
	// file that the next one will hold.
	have, err := f.Stat()
	if there, lerr := os.Lstat(path); err != nil || lerr != nil || !os.SameFile(have, there) {
		return nil, f.Close()
	}
	return &Held{f}, nil
}

var errHeld = errors.New("it is held")

// Release lets go of the file. Releasing nothing is nothing.
func (h *Held) Release() {
	if h != nil {
		h.f.Close()
	}
}

// HoldWithin is Hold that waits, up to limit, for who holds the file now. The
// error of one that is held for longer is a *Fault.
func HoldWithin(ctx context.Context, path string, limit time.Duration) (*Held, error) {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for again := 2 * time.Millisecond; ; again = min(2*again, 50*time.Millisecond) {
		h, err := Hold(path)
		if h != nil || err != nil {
			return h, err
		}
		if retry.Sleep(wait, again) != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, &Fault{path, fmt.Sprintf("is held by another program; waited %v", limit)}
		}
	}
}
