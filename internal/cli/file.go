package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Bounds of working with files that others use at the same time.
const (
	maxFile   = 8 << 20          // bytes of a file that is read
	lockWait  = 5 * time.Second  // for another program to be done
	lockStale = 60 * time.Second // no program works that long: it died
)

// A fileFault says why a file is left alone.
type fileFault struct {
	path, why string
}

func (e *fileFault) Error() string { return e.path + " " + e.why }

// readOwn reads a regular file of our own. A file that is not there is nil.
// Symbolic links and files of other owners are not followed: what they lead to
// is not what whoever set them up says it is.
func readOwn(path string) ([]byte, error) {
	if err := checkOwn(path); err != nil {
		return nil, err
	}
	f, err := openNoFollow(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkStat(path, st); err != nil { // once more, of what was really opened
		return nil, err
	}
	return readAll(f, path)
}

func readAll(f io.Reader, path string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxFile:
		return nil, &fileFault{path, fmt.Sprintf("is larger than %d bytes", maxFile)}
	case b == nil:
		b = []byte{}
	}
	return b, nil
}

func checkOwn(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return checkStat(path, st)
}

func checkStat(path string, st fs.FileInfo) error {
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		return &fileFault{path, "is a symbolic link, which is not followed"}
	case !st.Mode().IsRegular():
		return &fileFault{path, "is not a regular file"}
	case !ownedByUs(st):
		return &fileFault{path, "belongs to another user"}
	}
	return nil
}

// A lock is held on some files, as kubectl does it: a file beside each, made by
// one program only.
type lock struct{ held []string }

// lockFiles locks all of paths, in an order in which nobody waits in a circle.
func lockFiles(ctx context.Context, paths []string) (*lock, error) {
	l := &lock{}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		if err := makeFolder(p); err != nil {
			l.release()
			return nil, err
		}
		if err := l.take(ctx, p+".lock"); err != nil {
			l.release()
			return nil, err
		}
	}
	return l, nil
}

func (l *lock) take(ctx context.Context, name string) error {
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	for again := 5 * time.Millisecond; ; again = min(2*again, 100*time.Millisecond) {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			l.held = append(l.held, name)
			return f.Close()
		}
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		st, serr := os.Lstat(name)
		if serr == nil {
			if age := time.Since(st.ModTime()); age > lockStale {
				return &fileFault{name, fmt.Sprintf("has been there for %s: the program that made it is gone", short(age))}
			}
		}
		if pause(wait, again) != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &fileFault{name, fmt.Sprintf("is held by another program; waited %v", lockWait)}
		}
	}
}

func (l *lock) release() {
	for _, name := range l.held {
		os.Remove(name)
	}
	l.held = nil
}

// A staged file is written and safe on disk, but not yet in its place.
type staged struct{ temp, path string }

// stage writes data beside path, readable by its owner only whatever the umask.
func stage(path string, data []byte) (s staged, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tka-*") // mode 0600
	if err != nil {
		return s, err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return staged{f.Name(), path}, err
}

// commit puts the file in its place, all of it or nothing.
func (s staged) commit() error {
	err := checkOwn(s.path)
	if err == nil {
		err = os.Rename(s.temp, s.path)
	}
	if err != nil {
		os.Remove(s.temp)
		return err
	}
	syncFolder(filepath.Dir(s.path))
	return nil
}

// drop removes a staged file that is not wanted any more.
func (s staged) drop() { os.Remove(s.temp) }

// writeOwn replaces one file of our own.
func writeOwn(path string, data []byte) error {
	if err := makeFolder(path); err != nil {
		return err
	}
	s, err := stage(path, data)
	if err != nil {
		return err
	}
	return s.commit()
}

// syncFolder makes a rename last through a power failure, where the system can.
func syncFolder(dir string) {
	if d, err := os.Open(dir); err == nil {
		d.Sync() // not every file system can; the file itself is whole either way
		d.Close()
	}
}

// pause waits for d or for the end of ctx, which is the error.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
