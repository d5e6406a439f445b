//go:build !unix

package subshell

import (
	"os"
	"syscall"
)

// Signals returns the signals that must not end a shell's parent.
func Signals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

func forwarded(os.Signal) bool { return true }

// Ends reports whether a signal ends the present operation.
func Ends(os.Signal) bool { return true }

// fromTerminal is true for an interrupt, which the console sends to every program.
func fromTerminal(sig os.Signal) bool { return sig == os.Interrupt }

func lastSignals() []os.Signal { return []os.Signal{os.Kill} }

func exitCodeOf(p *os.ProcessState) int { return p.ExitCode() }
