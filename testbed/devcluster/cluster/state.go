package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// longestSocket is the maximum length of a Unix socket's path. The kernel allows 107 characters on Linux and 103 on
// macOS.
const longestSocket = 100

// ErrBusy is the error for a state directory that another process holds.
var ErrBusy = errors.New("another devcluster is running in this state directory")

// state is a cluster's directory. One process at a time can hold it.
type state struct {
	dir      string
	lock     *os.File
	pki      pki
	listener net.Listener
}

// openState locks the directory, and finds or creates the data that a cluster keeps over restarts: certificates, keys
// and port. So kubeconfigs and tokens of an earlier run stay valid.
func openState(ctx context.Context, dir, name string) (*state, error) {
	for _, s := range []string{"etcd.sock", "peer.sock"} {
		if p := filepath.Join(dir, s); len(p) > longestSocket {
			return nil, fmt.Errorf("the path of the state directory is too long for a Unix socket: %s has %d characters, more than %d; use a shorter -dir", p, len(p), longestSocket)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &state{dir: dir}
	var err error
	if s.lock, err = os.OpenFile(s.file("lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		s.lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", dir, ErrBusy)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	if s.pki, err = openPKI(dir, name); err != nil {
		s.close()
		return nil, err
	}
	if s.listener, err = s.listen(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *state) file(name string) string { return filepath.Join(s.dir, name) }

// listen opens the stored port, or a free one that it then stores. Another program may use the stored port for a
// short outgoing connection, so listen retries for a while.
func (s *state) listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	kept, err := os.ReadFile(s.file("port"))
	if errors.Is(err, os.ErrNotExist) {
		l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		return l, os.WriteFile(s.file("port"), []byte(strconv.Itoa(l.Addr().(*net.TCPAddr).Port)), 0o600)
	}
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", strings.TrimSpace(string(kept)))
	for end := time.Now().Add(15 * time.Second); ; {
		l, err := lc.Listen(ctx, "tcp", addr)
		if err == nil {
			return l, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) || time.Now().After(end) {
			return nil, fmt.Errorf("read the port in %s: %w", s.dir, err)
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (s *state) port() int { return s.listener.Addr().(*net.TCPAddr).Port }

func (s *state) server() string { return "https://" + s.listener.Addr().String() }

// close releases the directory. The API server has already closed the listener if it had it; closing it again is
// harmless.
func (s *state) close() {
	if s.listener != nil {
		s.listener.Close()
	}
	s.lock.Close()
}
