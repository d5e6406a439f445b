// Package shellsession runs the shells that tka starts and generates code for shells. Each shell has a private directory. It keeps law 9: the next shell cleans up after a killed one, because only files
// that a live process holds are in use. It keeps law 10: a shell reads every quoted word as that word and runs no part of it.
package shellsession

import (
	"bytes"
	"context"
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

	flock *safefile.Flock
}

// File names. A session is a directory "room-…".
const (
	sessionPattern = "room-*"
	aliveName      = "alive"
	baseLockName   = "gate"
)

// Open creates the session of a shell in the directory base. It removes what dead shells left there.
func Open(ctx context.Context, base string) (_ *Session, err error) {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return nil, err
	}
	if err := safefile.EnsurePrivateDir(base); err != nil {
		return nil, err
	}
	baseLock, err := safefile.WaitFlock(ctx, filepath.Join(base, baseLockName), baseLockWait) // no other shell inspects the directories meanwhile
	if err != nil {
		return nil, err
	}
	defer baseLock.Release()
	if err := removeStale(base); err != nil {
		return nil, err
	}
	s := new(Session)
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
	return s, nil
}

// removeStale removes the sessions of dead shells.
func removeStale(base string) error {
	dirs, err := filepath.Glob(filepath.Join(base, sessionPattern))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if flock, _ := safefile.TryFlock(filepath.Join(dir, aliveName)); flock != nil { // the owner is dead; a session with an unknown owner stays
			os.RemoveAll(dir) // if this fails, the next shell tries again
			flock.Release()
		}
	}
	return nil
}

// Close removes the session.
func (s *Session) Close() error {
	err := os.RemoveAll(s.Dir)
	s.flock.Release()
	return err
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
