//go:build !unix

package shellsession

import (
	"os"
	"os/exec"
	"syscall"
)

// Signals returns the signals that must not end a shell's parent.
func Signals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

func forwarded(os.Signal) bool { return true }

// EndsOperation reports whether a signal ends the present operation.
func EndsOperation(os.Signal) bool { return true }

// EndsCleanup reports whether a signal ends the cleanup after a shell.
func EndsCleanup(os.Signal) bool { return true }

// fromTerminal is true for an interrupt, which the console sends to every program.
func fromTerminal(sig os.Signal) bool { return sig == os.Interrupt }

func killSignals() []os.Signal { return []os.Signal{os.Kill} }

func exitCode(p *os.ProcessState) int { return p.ExitCode() }

func pidExists(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	p.Release()
	return true
}

func startGroup(*exec.Cmd) {}

// signalGroup ends p: there is no other signal.
func signalGroup(p *os.Process, _ os.Signal) { _ = p.Kill() }
