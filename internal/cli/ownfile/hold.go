package ownfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// A Held file belongs to one live process. The system releases it when that process ends for any reason.
type Held struct{ f *os.File }

// Hold makes the file at path belong to this process until Release. It returns nil if a live process holds the file already. The file
// stays; only its holder may remove it.
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
	// The previous holder may have removed the file meanwhile. Then the next caller would hold a different file.
	have, err := f.Stat()
	if there, lerr := os.Lstat(path); err != nil || lerr != nil || !os.SameFile(have, there) {
		return nil, f.Close()
	}
	return &Held{f}, nil
}

var errHeld = errors.New("it is held")

// Release releases the file. It may be called on nil.
func (h *Held) Release() {
	if h != nil {
		h.f.Close()
	}
}

// HoldWithin is Hold, but waits up to limit for the present holder. The error is a *Fault if the file is held for longer.
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
