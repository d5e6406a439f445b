// Command tailplaned is Tailplane's server. Each of its roles runs with a separate ServiceAccount and has only that role's rights.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/tailplane/tailplane/internal/server"
)

func main() { os.Exit(run()) }

// run runs tailplaned with the arguments of the process, and returns its exit code.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := command().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "tailplaned:", err)
	}
	return exitCode(err)
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if _, usage := errors.AsType[server.UsageError](err); usage {
		return 2
	}
	if _, reached := errors.AsType[*server.CanaryReached](err); reached {
		return server.CanaryExitCode
	}
	return 1
}

func usageError(format string, args ...any) error {
	return server.UsageError{Cause: fmt.Errorf(format, args...)}
}
