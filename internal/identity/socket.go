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

// socketMode lets in our own user, and root.
const socketMode fs.FileMode = 0o600

// ListenUnix listens on a Unix socket that nobody but our own user, and root, can
// connect to from its first moment on. A socket that a former process left is
// replaced; one that is served, or any other file, is not.
func ListenUnix(ctx context.Context, path string) (net.Listener, error) {
	if err := clearSocket(ctx, path); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// On Linux the file that bind makes has the mode of the socket.
		return errors.Join(c.Control(func(fd uintptr) { err = limitSocket(fd) }), err)
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

// clearSocket removes a socket that nobody serves any more.
func clearSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file that is not a socket")
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

// checkSocket refuses a listener on a Unix socket that others can connect to. Of
// another listener it says nothing.
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
