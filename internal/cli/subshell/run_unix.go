//go:build unix

package subshell

import (
	"os"
	"slices"
	"syscall"
)

// Signals are the signals that a shell's parent must not die of, or its
// files and the sign-in would stay.
func Signals() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE}
}

// forwarded reports whether the child is told of a signal.
func forwarded(sig os.Signal) bool { return sig != syscall.SIGPIPE }

// Ends reports whether a signal ends what is under way.
func Ends(sig os.Signal) bool { return sig != syscall.SIGPIPE }

// fromTerminal reports whether sig is one that a terminal sends to everybody in
// the foreground.
func fromTerminal(sig os.Signal) bool {
	return slices.Contains([]os.Signal{syscall.SIGINT, syscall.SIGQUIT}, sig)
}

// lastSignals are for a child that took no notice of the first one.
func lastSignals() []os.Signal { return []os.Signal{syscall.SIGHUP, syscall.SIGKILL} }

// exitCodeOf is the code of a child as shells have it.
func exitCodeOf(p *os.ProcessState) int {
	if ws, ok := p.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.ExitCode()
}
