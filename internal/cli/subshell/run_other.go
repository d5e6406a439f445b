//go:build !unix

package subshell

import (
	"os"
	"syscall"
)

// Signals are the signals that a shell's parent must not die of.
func Signals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

func forwarded(os.Signal) bool { return true }

// Ends reports whether a signal ends what is under way.
func Ends(os.Signal) bool { return true }

// fromTerminal: the console tells every program of an interrupt.
func fromTerminal(sig os.Signal) bool { return sig == os.Interrupt }

func lastSignals() []os.Signal { return []os.Signal{os.Kill} }

func exitCodeOf(p *os.ProcessState) int { return p.ExitCode() }
