package ownfile

import (
	"errors"
	"os"
	"path/filepath"
)

// CheckFolder returns an error unless dir is a folder of this user that other users cannot access. It removes access rights of other users.
func CheckFolder(dir string) error {
	err := CheckPrivate(dir)
	if errors.Is(err, errOthersMay) {
		return os.Chmod(dir, 0o700)
	}
	return err
}

// CheckPrivate returns an error unless dir is a folder of this user that other users cannot access.
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

// Create creates a new file in a private folder. It fails if the file exists.
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
