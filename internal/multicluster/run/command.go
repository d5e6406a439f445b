// Package run wires the adapter: the commands of mca, the process that serves a pod, and its admin server.
package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

// version is that of a release; "" otherwise.
var version string

// Exit codes.
const (
	exitError     = 1
	exitUsage     = 2
	exitRefused   = 3 // the input is invalid, or the request is not allowed
	exitNotReady  = 4
	exitUnreached = 5 // a query to a cluster failed
)

// Main runs mca and exits the process if a command fails. release is the version of a release, or "".
func Main(release string) {
	version = release
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := command().ExecuteContext(ctx)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "mca:", err)
	if e, ok := errors.AsType[exitCode](err); ok {
		os.Exit(e.code)
	}
	os.Exit(exitError)
}

// exitCode is an error with a specific exit code.
type exitCode struct {
	code int
	error
}

func (e exitCode) Unwrap() error { return e.error }

func usageError(err error) error { return exitCode{exitUsage, err} }

func command() *cobra.Command {
	root := &cobra.Command{
		Use: "mca", Short: "The Kubernetes API for the containers of a pod",
		Long:          "A sidecar that serves the Kubernetes API to its pod. It alone has the pod's credentials, and it decides which cluster serves a request.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError(err) })
	root.AddCommand(proxyCommand(), injectCommand(), validateCommand(), routeCommand(), versionCommand())
	return root
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(fmt.Errorf("unexpected argument %q", args[0]))
	}
	return nil
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of mca",
		Long:  "Shows the version of this program and of the Go toolchain that built it.",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(c.OutOrStdout(), "mca %s\n%s %s/%s\n", programVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

func programVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
