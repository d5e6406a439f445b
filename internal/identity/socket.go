package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// socketMode admits the current user and root only.
const socketMode fs.FileMode = 0o600

// ListenUnix listens on a Unix socket that only the current user and root can ever connect to. It
// replaces a socket that an earlier process left. It does not replace a socket that is in use, or
// any other file.
func ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := clearSocket(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// On Linux, bind creates the file with the mode of the socket.
		return errors.Join(c.Control(func(fd uintptr) { err = restrictSocket(fd) }), err)
	}}
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, socketMode); err != nil {
		ln.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return ln, nil
}

// clearSocket removes a socket that no process serves.
func clearSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("the file exists and is not a socket")
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		c.Close()
		return errors.New("another process serves it")
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(path)
}

// checkSocket returns an error if other users can connect to the Unix socket. It returns nil for
// other listeners.
func checkSocket(at net.Addr) error {
	if at == nil || at.Network() != "unix" {
		return nil
	}
	info, err := os.Lstat(at.String())
	if err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	if info.Mode().Type() != fs.ModeSocket || info.Mode().Perm()&^socketMode != 0 {
		return fmt.Errorf("identity: %s has the mode %s; only its owner may connect (%s)", at, info.Mode(), fs.ModeSocket|socketMode)
	}
	return nil
}
