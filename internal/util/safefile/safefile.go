// Package safefile reads and writes this user's files in places that other programs and other users can reach too. A write leaves either
// the old or the new content, whatever happens, and the file is readable only by its owner. The package does not follow symbolic links and
// does not use files of other users.
package safefile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// Limits for files that other programs use at the same time.
const (
	maxSize   = 8 << 20          // maximum bytes of a file that is read
	lockWait  = 5 * time.Second  // maximum wait for another program
	lockStale = 60 * time.Second // no program holds a lock that long, so its owner died
)

// An Error is why a file was not read or written.
type Error struct {
	Path   string
	Reason string // the rest of a sentence that begins with the path
}

func (e *Error) Error() string { return e.Path + " " + e.Reason }

// IsLock reports whether the error is about a lock file.
func (e *Error) IsLock() bool { return filepath.Ext(e.Path) == lockSuffix }

const lockSuffix = ".lock"

// Read reads a regular file of this user. For a missing file it returns nil and no error. It rejects symbolic links and files of other
// owners, because another user could choose their content.
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
	if err := checkStat(path, st); err != nil { // check again, on the file that was opened
		return nil, err
	}
	return ReadAll(f, path)
}

// ReadAll reads f, which is open at path, up to a limit.
func ReadAll(f io.Reader, path string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxSize:
		return nil, &Error{path, fmt.Sprintf("is larger than %d bytes", maxSize)}
	case b == nil:
		b = []byte{}
	}
	return b, nil
}

// Check returns an error if there is anything at path other than a regular file of this user. A missing file is no error.
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
	return checkOwned(path, st, st.Mode().IsRegular(), "is not a regular file")
}

// checkOwned returns an error unless st, the state of path, is of this user and of the expected kind.
func checkOwned(path string, st fs.FileInfo, expected bool, otherwise string) error {
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		return &Error{path, "is a symbolic link, which is not followed"}
	case !expected:
		return &Error{path, otherwise}
	case !ownedByUser(st):
		return &Error{path, "belongs to another user"}
	}
	return nil
}

// LockFiles locks several files in the way of kubectl: next to each file it creates a lock file exclusively.
type LockFiles struct{ paths []string }

// LockAll locks all of paths, in sorted order so that programs cannot deadlock.
func LockAll(ctx context.Context, paths []string) (*LockFiles, error) {
	l := &LockFiles{}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(paths))) {
		err := makeParentDir(p)
		if err == nil {
			err = l.acquire(ctx, p+lockSuffix)
		}
		if err != nil {
			l.Release()
			return nil, err
		}
	}
	return l, nil
}

// StaleLockFile returns the lock file of path if a dead program left it, or "".
func StaleLockFile(path string) string {
	st, err := os.Lstat(path + lockSuffix)
	if err != nil || time.Since(st.ModTime()) <= lockStale {
		return ""
	}
	return path + lockSuffix
}

func (l *LockFiles) acquire(ctx context.Context, name string) error {
	return waitFor(ctx, name, lockWait, 5*time.Millisecond, func() (bool, error) {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err == nil {
			l.paths = append(l.paths, name)
			return true, f.Close()
		}
		if !errors.Is(err, fs.ErrExist) {
			return false, err
		}
		if st, statErr := os.Lstat(name); statErr == nil {
			if age := time.Since(st.ModTime()); age > lockStale {
				return false, &Error{
					name,
					fmt.Sprintf("has existed for %v: the program that created it is gone", age.Truncate(time.Second)),
				}
			}
		}
		return false, nil
	})
}

// waitFor calls try until it is done or fails, for at most limit. The pauses between the calls grow from delay to twenty times that.
func waitFor(ctx context.Context, path string, limit, delay time.Duration, try func() (done bool, err error)) error {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for most := 20 * delay; ; delay = min(2*delay, most) {
		if done, err := try(); done || err != nil {
			return err
		}
		if retry.Sleep(wait, delay) != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return &Error{path, fmt.Sprintf("is held by another program; waited %v", limit)}
		}
	}
}

// Release removes the locks.
func (l *LockFiles) Release() {
	for _, name := range l.paths {
		os.Remove(name)
	}
	l.paths = nil
}

// A Staged file is written and synced to disk, but not yet in its place.
type Staged struct{ temp, path string }

// stagedAge is the age from which no live program can be writing a temporary file: a write takes milliseconds.
const stagedAge = time.Minute

// stagedPattern matches the names of temporary files of [Stage]: a dot, the name of the file, and random digits.
var stagedPattern = regexp.MustCompile(`^\.(.+)\.tka-[0-9]+$`)

// SweepStaged removes the temporary files in dir that killed programs left there. It leaves those that another program may be writing, and
// files that are not of this package and of this user.
func SweepStaged(dir string) error { return removeStaged(dir, "", stagedAge) }

// RemoveStaged removes all temporary files of path, also those that another program is writing: that program then does not replace path.
func RemoveStaged(path string) error { return removeStaged(filepath.Dir(path), filepath.Base(path), 0) }

// removeStaged removes the temporary files in dir of at least an age. of limits them to those of one file; "": all files.
func removeStaged(dir, of string, age time.Duration) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, e := range entries {
		m := stagedPattern.FindStringSubmatch(e.Name())
		if m == nil || of != "" && m[1] != of {
			continue
		}
		st, err := e.Info()
		if err != nil || time.Since(st.ModTime()) < age || checkStat(e.Name(), st) != nil {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Stage writes data to a temporary file next to path. The file is readable only by its owner, whatever the umask is. Stage
// first removes the temporary files of path that killed programs left.
func Stage(path string, data []byte) (s Staged, err error) {
	_ = removeStaged(filepath.Dir(path), filepath.Base(path), stagedAge)          // a leftover does not prevent a write
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
	err = cmp.Or(err, f.Close())
	return Staged{f.Name(), path}, err
}

// Commit moves the file to its path atomically.
func (s Staged) Commit() error {
	err := Check(s.path)
	if err == nil {
		err = os.Rename(s.temp, s.path)
	}
	if err != nil {
		os.Remove(s.temp)
		return err
	}
	syncDir(filepath.Dir(s.path))
	return nil
}

// Path returns the destination of the file.
func (s Staged) Path() string { return s.path }

// Discard removes a staged file that is no longer needed.
func (s Staged) Discard() { os.Remove(s.temp) }

// Write replaces one file of this user.
func Write(path string, data []byte) error {
	if err := makeParentDir(path); err != nil {
		return err
	}
	s, err := Stage(path, data)
	if err != nil {
		return err
	}
	return s.Commit()
}

// makeParentDir creates the folder of file, for its owner only.
func makeParentDir(file string) error { return os.MkdirAll(filepath.Dir(file), 0o700) }

// syncDir makes a rename survive a power failure, if the system supports that.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		d.Sync() // not every file system supports it; the file is complete in any case
		d.Close()
	}
}
