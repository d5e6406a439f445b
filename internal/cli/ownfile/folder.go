package ownfile

import (
	"errors"
	"os"
	"path/filepath"
)

// CheckFolder returns an error unless dir is a folder of our own that nobody
// else can look into; what others could is taken from them.
func CheckFolder(dir string) error {
	err := CheckPrivate(dir)
	if errors.Is(err, errOthersMay) {
		return os.Chmod(dir, 0o700)
	}
	return err
}

// CheckPrivate returns an error unless dir is a folder of our own that nobody
// else can look into.
func CheckPrivate(dir string) error {
	st, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case st.Mode()&os.ModeSymlink != 0:
		return &Fault{dir, "is a symbolic link, which is not followed"}
	case !st.IsDir():
		return &Fault{dir, "is not a folder"}
	case !ownedByUs(st):
		return &Fault{dir, "belongs to another user"}
	case othersMay(st):
		return errors.Join(&Fault{dir, "can be looked into by other users"}, errOthersMay)
	}
	return nil
}

var errOthersMay = errors.New("others may")

// Create makes a file that is not there yet, in a private folder.
func Create(path string, data []byte) error {
	if err := CheckPrivate(filepath.Dir(path)); err != nil {
		if f, ok := errors.AsType[*Fault](err); ok {
			return f
		}
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|noFollow, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
