// Package shellsession runs the shells that tka starts and generates code for shells. Each shell has a private directory, and the package
// records which of them began the sign-in of this device. It keeps law 9: the next shell cleans up after a killed one, because only files
// that a live process holds are in use. It keeps law 10: a shell reads every quoted word as that word and runs no part of it.
package shellsession

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/safefile"
)

// baseLockWait bounds how long a shell waits while another one inspects the directories.
const baseLockWait = 10 * time.Second

// A Session is the private directory of one running shell.
type Session struct {
	Dir string // for this shell only, mode 0700

	base   string
	server string
	flock  *safefile.Flock
}

// File names. A session is a directory "room-…"; a server is named by its digest.
const (
	sessionPattern = "room-*"
	aliveName      = "alive"
	serverName     = "server"
	baseLockName   = "gate"
)

// Open creates the session of a shell that is about to sign in at server, in the directory base. It removes what dead shells left there.
func Open(ctx context.Context, base, server string) (_ *Session, err error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	if err := safefile.EnsurePrivateDir(base); err != nil {
		return nil, err
	}
	s := &Session{base: base, server: digestOf(server)}
	baseLock, err := s.lockBase(ctx)
	if err != nil {
		return nil, err
	}
	defer baseLock.Release()
	if err := s.removeStale(); err != nil {
		return nil, err
	}
	if s.Dir, err = os.MkdirTemp(base, sessionPattern); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(s.Dir)
		}
	}()
	if s.flock, err = safefile.TryFlock(filepath.Join(s.Dir, aliveName)); err != nil {
		return nil, err
	}
	if s.flock == nil {
		return nil, errors.New("another program holds the new file")
	}
	return s, os.WriteFile(filepath.Join(s.Dir, serverName), []byte(s.server), 0o600)
}

func digestOf(server string) string {
	sum := sha256.Sum256([]byte(server))
	return hex.EncodeToString(sum[:16])
}

// lockBase prevents other shells from inspecting the directories at the same time.
func (s *Session) lockBase(ctx context.Context) (*safefile.Flock, error) {
	return safefile.WaitFlock(ctx, filepath.Join(s.base, baseLockName), baseLockWait)
}

// Lock prevents the other shells of the same server from signing in or out until the caller calls the returned function. It returns an
// error if it cannot get its turn within limit.
func (s *Session) Lock(ctx context.Context, limit time.Duration) (done func(), err error) {
	flock, err := safefile.WaitFlock(ctx, filepath.Join(s.base, "turn-"+s.server), limit)
	return flock.Release, err
}

// removeStale removes the sessions of dead shells, and the markers of servers at which no shell is signed in.
func (s *Session) removeStale() error {
	dirs, err := filepath.Glob(filepath.Join(s.base, sessionPattern))
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, dir := range dirs {
		flock, err := safefile.TryFlock(filepath.Join(dir, aliveName))
		if err == nil && flock == nil {
			if server, err := safefile.Read(filepath.Join(dir, serverName)); err == nil {
				live[string(server)] = true
			}
			continue
		}
		if flock != nil { // the owner is dead; a session with an unknown owner stays
			os.RemoveAll(dir) // if this fails, the next shell tries again
			flock.Release()
		}
	}
	markers, err := filepath.Glob(filepath.Join(s.base, markerPattern))
	for _, m := range markers {
		if !live[filepath.Base(m)[len(markerPattern)-1:]] {
			os.Remove(m)
		}
	}
	return err
}

const markerPattern = "began-*"

func (s *Session) markerPath() string { return filepath.Join(s.base, "began-"+s.server) }

// MarkSignin records that a shell began the sign-in at the server. The last shell there ends it.
func (s *Session) MarkSignin() error { return safefile.Write(s.markerPath(), nil) }

// KeepSignin records that the person wants the sign-in at a server to outlive the shells.
func KeepSignin(base, server string) error {
	if err := os.Remove((&Session{base: base, server: digestOf(server)}).markerPath()); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close removes the session. It reports whether other shells use the same server and whether a shell began the sign-in there. While there
// are others, the last one of them gets the same report.
func (s *Session) Close(ctx context.Context) (others, began bool, err error) {
	baseLock, err := s.lockBase(ctx)
	defer baseLock.Release() // continue without the lock, which is better than leaving a directory behind
	dirs, gerr := filepath.Glob(filepath.Join(s.base, sessionPattern))
	for _, dir := range dirs {
		server, rerr := safefile.Read(filepath.Join(dir, serverName))
		if dir == s.Dir || rerr != nil || string(server) != s.server {
			continue
		}
		flock, herr := safefile.TryFlock(filepath.Join(dir, aliveName))
		others = others || herr == nil && flock == nil
		flock.Release()
	}
	_, merr := os.Lstat(s.markerPath())
	began = merr == nil
	if began && !others {
		os.Remove(s.markerPath())
	}
	rerr := os.RemoveAll(s.Dir)
	s.flock.Release()
	return others, began, errors.Join(err, gerr, rerr)
}

// killWait is the time between one signal and the next, stronger one.
const killWait = 5 * time.Second

// Run runs child until it ends and returns its exit code, or 128 plus the number of the signal that ended it. It forwards this program's
// signals to the child. On a terminal it does not forward the signals of the terminal, because the child receives them directly. If the
// child ignores a signal to end, Run sends stronger ones.
func Run(child *exec.Cmd, signals <-chan os.Signal, onTerminal bool) (code int, err error) {
	if err := child.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	var escalate <-chan time.Time
	signalsLeft := killSignals()
	for {
		select {
		case err := <-ended:
			if child.ProcessState == nil {
				return 0, err
			}
			return exitCode(child.ProcessState), nil
		case sig := <-signals:
			switch {
			case !forwarded(sig), fromTerminal(sig) && onTerminal: // the terminal has sent it to the child too
				continue
			case !fromTerminal(sig):
				escalate = time.After(killWait) // an interactive shell ignores some signals
			}
			child.Process.Signal(sig) // it may have ended already
		case <-escalate:
			if len(signalsLeft) > 0 {
				child.Process.Signal(signalsLeft[0])
				signalsLeft, escalate = signalsLeft[1:], time.After(killWait)
			}
		}
	}
}

// ProcessID returns a unique name of a process: its number and, if the system reports it, its start time.
func ProcessID(pid int) string {
	start := ""
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// The program's name, in parentheses, may contain any characters.
		if fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]); len(fields) > 19 {
			start = string(fields[19])
		}
	}
	return fmt.Sprintf("%d-%s", pid, start)
}

// ProcessExists reports whether the process with an id still exists; true if that is unknown.
func ProcessExists(id string) bool {
	number, start, _ := strings.Cut(id, "-")
	pid, err := strconv.Atoi(number)
	switch {
	case err != nil || pid <= 0:
		return false
	case start != "":
		return ProcessID(pid) == id
	}
	return pidExists(pid)
}
