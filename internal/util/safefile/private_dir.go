package safefile

import (
	"errors"
	"os"
	"path/filepath"
)

// EnsurePrivateDir returns an error unless dir is a folder of this user that other users cannot access. It removes access rights of other
// users.
func EnsurePrivateDir(dir string) error {
	err := checkPrivateDir(dir)
	if errors.Is(err, errOpenToOthers) {
		return os.Chmod(dir, 0o700)
	}
	return err
}

// checkPrivateDir returns an error unless dir is a folder of this user that other users cannot access.
func checkPrivateDir(dir string) error {
	st, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case st.Mode()&os.ModeSymlink != 0:
		return &Error{dir, "is a symbolic link, which is not followed"}
	case !st.IsDir():
		return &Error{dir, "is not a folder"}
	case !ownedByUser(st):
		return &Error{dir, "belongs to another user"}
	case openToOthers(st):
		return errors.Join(&Error{dir, "is accessible to other users"}, errOpenToOthers)
	}
	return nil
}

var errOpenToOthers = errors.New("other users have access")

// Create creates a new file in a private folder. It fails if the file exists.
func Create(path string, data []byte) error {
	if err := checkPrivateDir(filepath.Dir(path)); err != nil {
		if f, ok := errors.AsType[*Error](err); ok {
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
