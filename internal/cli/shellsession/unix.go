//go:build unix

package shellsession

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"syscall"
)

// Signals returns the signals that must not end a shell's parent. Otherwise its files and the sign-in would stay.
func Signals() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}
}

// forwarded reports whether the child gets a signal.
func forwarded(sig os.Signal) bool { return sig != syscall.SIGPIPE }

// EndsOperation reports whether a signal ends the present operation.
func EndsOperation(sig os.Signal) bool { return sig != syscall.SIGPIPE }

// EndsCleanup reports whether a signal ends the cleanup after a shell. A hang-up does not: a closed terminal is the usual reason for the
// cleanup, and its person cannot repeat it there.
func EndsCleanup(sig os.Signal) bool { return fromTerminal(sig) || sig == syscall.SIGTERM }

// fromTerminal reports whether a terminal sends sig to all processes in the foreground.
func fromTerminal(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGINT, syscall.SIGQUIT}, sig)
}

// killSignals returns the signals for a child that ignored the first one.
func killSignals() []os.Signal { return []os.Signal{syscall.SIGHUP, syscall.SIGKILL} }

// exitCode returns the exit code of a child as shells report it.
func exitCode(p *os.ProcessState) int {
	if ws, ok := p.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.ExitCode()
}

func pidExists(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// startGroup makes cmd start a process group. A terminal's signals do not reach it.
func startGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// signalGroup sends a signal to all processes of the group of p, which may have ended.
func signalGroup(p *os.Process, sig os.Signal) {
	if number, ok := sig.(syscall.Signal); ok {
		_ = syscall.Kill(-p.Pid, number)
	}
}
