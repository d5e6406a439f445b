package tailnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"tailscale.com/ipn"
	"tailscale.com/ipn/store/kubestore"
)

// Tailplane's files in the state directory.
const (
	lockFile  = "tailplane.lock"
	probeFile = "tailplane.probe"
)

// probeSize is roughly the size of one node's state and certificates.
const probeSize = 64 << 10

// claimState locks dir for this process and checks that it is writable. A node that joins and
// cannot write its state would become a new node at each restart. The lock ends with release or
// with the process.
func claimState(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, stateError(dir, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, stateError(dir, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("the state directory %s is in use by another process: two processes must not share the state of one node; use a separate directory and host name for each", dir)
		}
		return nil, fmt.Errorf("lock the state directory %s: %w", dir, err)
	}
	if err := probeState(dir); err != nil {
		lock.Close()
		return nil, stateError(dir, err)
	}
	return func() { lock.Close() }, nil
}

// probeState writes, syncs and renames a file, as the node's state store does.
func probeState(dir string) (err error) {
	path := filepath.Join(dir, probeFile)
	defer func() {
		for _, p := range []string{path, path + ".new"} {
			if rerr := os.Remove(p); rerr != nil && err == nil && !errors.Is(rerr, fs.ErrNotExist) {
				err = rerr
			}
		}
	}()
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeSize))
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// stateError adds advice to an error about the state directory.
func stateError(dir string, err error) error {
	todo := "it cannot be used; use a directory that the node can write to"
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		todo = "it is full; free some space, or the node cannot store its key"
	case errors.Is(err, syscall.EROFS):
		todo = "it is on a read-only file system; mount a writable volume"
	case errors.Is(err, fs.ErrPermission):
		todo = fmt.Sprintf("user %d may not write to it; change its owner to that user (in a pod: securityContext.fsGroup)", os.Geteuid())
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		todo = "it is not a directory; use a directory"
	}
	return fmt.Errorf("the state directory %s: %s: %w", dir, todo, err)
}

// probeKey is written to a state Secret and removed again.
const probeKey ipn.StateKey = "tailplane-probe"

// openSecret returns a state store in a Secret of the pod's namespace, and checks that it is
// writable. There is no lock against other processes: each replica must have a separate Secret.
func openSecret(name string, logf func(string, ...any)) (ipn.StateStore, error) {
	st, err := kubestore.New(logf, name)
	if err == nil {
		err = st.WriteState(probeKey, []byte("probe"))
	}
	if err == nil {
		err = st.WriteState(probeKey, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("the Secret %s cannot store the node's state: it must exist, and this account needs get, update and patch on it: %w", name, err)
	}
	return st, nil
}
