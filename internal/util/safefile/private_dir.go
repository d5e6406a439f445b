package safefile

import (
	"errors"
	"os"
	"path/filepath"
)

// EnsurePrivateDir returns an error unless dir is a folder of this user that other users cannot access. It removes access rights of other
// users.
func EnsurePrivateDir(dir string) error {
	private, err := checkDir(dir)
	if err != nil || private {
		return err
	}
	return os.Chmod(dir, 0o700)
}

// checkDir returns an error unless dir is a folder of this user. private reports whether other users cannot access it.
func checkDir(dir string) (private bool, err error) {
	st, err := os.Lstat(dir)
	if err != nil {
		return false, err
	}
	return !openToOthers(st), checkOwned(dir, st, st.IsDir(), "is not a folder")
}

// Create creates a new file in a private folder. It fails if the file exists.
func Create(path string, data []byte) error {
	dir := filepath.Dir(path)
	if private, err := checkDir(dir); err != nil {
		return err
	} else if !private {
		return &Error{dir, "is accessible to other users"}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|noFollow, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
