//go:build unix

package subshell

import (
	"os"
	"slices"
	"syscall"
)

// Signals returns the signals that must not end a shell's parent. Otherwise its files and the sign-in would stay.
func Signals() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}
}

// forwarded reports whether the child gets a signal.
func forwarded(sig os.Signal) bool { return sig != syscall.SIGPIPE }

// Ends reports whether a signal ends the present operation.
func Ends(sig os.Signal) bool { return sig != syscall.SIGPIPE }

// fromTerminal reports whether a terminal sends sig to all processes in the foreground.
func fromTerminal(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGINT, syscall.SIGQUIT}, sig)
}

// lastSignals returns the signals for a child that ignored the first one.
func lastSignals() []os.Signal { return []os.Signal{syscall.SIGHUP, syscall.SIGKILL} }

// exitCodeOf returns the exit code of a child as shells report it.
func exitCodeOf(p *os.ProcessState) int {
	if ws, ok := p.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.ExitCode()
}
