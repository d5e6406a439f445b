package safefile

import (
	"context"
	"errors"
	"os"
	"time"
)

// A Flock is a file that belongs to one live process. The system releases it when that process ends for any reason.
type Flock struct{ f *os.File }

// TryFlock makes the file at path belong to this process until Release. It returns nil if a live process holds the file already. The file
// stays; only its holder may remove it.
func TryFlock(path string) (*Flock, error) {
	if err := Check(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|noFollow, 0o600)
	if err != nil {
		return nil, err
	}
	switch err := flock(f); {
	case errors.Is(err, errLocked):
		return nil, f.Close()
	case err != nil:
		f.Close()
		return nil, &Error{path, "cannot be locked: " + err.Error()}
	}
	// The previous holder may have removed the file meanwhile. Then the next caller would hold a different file.
	have, err := f.Stat()
	if there, lerr := os.Lstat(path); err != nil || lerr != nil || !os.SameFile(have, there) {
		return nil, f.Close()
	}
	return &Flock{f}, nil
}

var errLocked = errors.New("it is held")

// Release releases the file. It may be called on nil.
func (h *Flock) Release() {
	if h != nil {
		h.f.Close()
	}
}

// WaitFlock is TryFlock, but waits up to limit for the present holder. The error is an *Error if the file is locked for longer.
func WaitFlock(ctx context.Context, path string, limit time.Duration) (h *Flock, err error) {
	err = waitFor(ctx, path, limit, 2*time.Millisecond, func() (bool, error) {
		h, err = TryFlock(path)
		return h != nil, err
	})
	return h, err
}
