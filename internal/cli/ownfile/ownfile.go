// Package ownfile reads and writes files of our own in places that other
// programs and other users reach too. It keeps the rule that a file is the old
// one or the new one, whatever happens, and readable by its owner only; what
// somebody else set up there, by a symbolic link or as its owner, is not
// followed.
package ownfile

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

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Bounds of working with files that others use at the same time.
const (
	maxSize   = 8 << 20          // bytes of a file that is read
	lockWait  = 5 * time.Second  // for another program to be done
	lockStale = 60 * time.Second // no program works that long: it died
)

// A Fault says why a file is left alone.
type Fault struct {
	Path string
	Why  string // as the rest of a sentence that begins with the path
}

func (e *Fault) Error() string { return e.Path + " " + e.Why }

// IsLock reports whether the trouble is with the lock of a file.
func (e *Fault) IsLock() bool { return filepath.Ext(e.Path) == lockSuffix }

const lockSuffix = ".lock"

// Read reads a regular file of our own. A file that is not there is nil.
// Symbolic links and files of other owners are not followed: what they lead to
// is not what whoever set them up says it is.
func Read(path string) ([]byte, error) {
	if err := Check(path); err != nil {
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
	return ReadAll(f, path)
}

// ReadAll reads what is open as path, up to a bound.
func ReadAll(f io.Reader, path string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxSize:
		return nil, &Fault{path, fmt.Sprintf("is larger than %d bytes", maxSize)}
	case b == nil:
		b = []byte{}
	}
	return b, nil
}

// Check returns an error for a path at which there is something else than a
// regular file of our own, or nothing.
func Check(path string) error {
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
		return &Fault{path, "is a symbolic link, which is not followed"}
	case !st.Mode().IsRegular():
		return &Fault{path, "is not a regular file"}
	case !ownedByUs(st):
		return &Fault{path, "belongs to another user"}
	}
	return nil
}

// A Lock is held on some files, as kubectl does it: a file beside each, made by
// one program only.
type Lock struct{ held []string }

// LockAll locks all of paths, in an order in which nobody waits in a circle.
func LockAll(ctx context.Context, paths []string) (*Lock, error) {
	l := &Lock{}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		if err := MakeFolder(p); err != nil {
			l.Release()
			return nil, err
		}
		if err := l.take(ctx, p+lockSuffix); err != nil {
			l.Release()
			return nil, err
		}
	}
	return l, nil
}

// StaleLock is the lock of a file, if a program that died left it, or "".
func StaleLock(path string) string {
	st, err := os.Lstat(path + lockSuffix)
	if err != nil || time.Since(st.ModTime()) <= lockStale {
		return ""
	}
	return path + lockSuffix
}

func (l *Lock) take(ctx context.Context, name string) error {
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
				return &Fault{name, fmt.Sprintf("has been there for %v: the program that made it is gone", age.Truncate(time.Second))}
			}
		}
		if retry.Sleep(wait, again) != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &Fault{name, fmt.Sprintf("is held by another program; waited %v", lockWait)}
		}
	}
}

// Release lets the files go.
func (l *Lock) Release() {
	for _, name := range l.held {
		os.Remove(name)
	}
	l.held = nil
}

// A Staged file is written and safe on disk, but not yet in its place.
type Staged struct{ temp, path string }

// Stage writes data beside path, readable by its owner only whatever the umask.
func Stage(path string, data []byte) (s Staged, err error) {
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
	return Staged{f.Name(), path}, err
}

// Commit puts the file in its place, all of it or nothing.
func (s Staged) Commit() error {
	err := Check(s.path)
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

// Path is where the file goes.
func (s Staged) Path() string { return s.path }

// Drop removes a staged file that is not wanted any more.
func (s Staged) Drop() { os.Remove(s.temp) }

// Write replaces one file of our own.
func Write(path string, data []byte) error {
	if err := MakeFolder(path); err != nil {
		return err
	}
	s, err := Stage(path, data)
	if err != nil {
		return err
	}
	return s.Commit()
}

// MakeFolder makes the folder of file, for its owner only.
func MakeFolder(file string) error { return os.MkdirAll(filepath.Dir(file), 0o700) }

// syncFolder makes a rename last through a power failure, where the system can.
func syncFolder(dir string) {
	if d, err := os.Open(dir); err == nil {
		d.Sync() // not every file system can; the file itself is whole either way
		d.Close()
	}
}
