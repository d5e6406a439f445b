//go:build !unix

package cli

import (
	"os"
	"syscall"
)

func shellSignals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

func forwarded(os.Signal) bool { return true }

func endsSignIn(os.Signal) bool { return true }

// fromTerminal: the console tells every program of an interrupt.
func fromTerminal(sig os.Signal) bool { return sig == os.Interrupt }

func lastSignals() []os.Signal { return []os.Signal{os.Kill} }

func exitCodeOf(p *os.ProcessState) int { return p.ExitCode() }

func pidLives(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	p.Release()
	return true
}
