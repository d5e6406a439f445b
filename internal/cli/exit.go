package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/cli/spelling"
)

// report prints err for a person and returns the exit code.
func (t *tka) report(ctx context.Context, err error) int {
	if code, ok := errors.AsType[fault.Child](err); ok {
		return int(code)
	}
	f := fault.As(err)
	if ctx.Err() != nil && f.Code != fault.Done { // ended by a signal, not by the time limit
		f = &fault.Fault{Code: fault.Interrupted, Message: "interrupted", Advice: f.Advice}
	}
	fmt.Fprintln(t.Err, t.paint(t.Err, screen.Red, "error:"), screen.Safe(f.Message))
	for _, line := range f.Advice {
		fmt.Fprintln(t.Err, "try:", screen.Safe(line))
	}
	if f.AuditID != "" {
		fmt.Fprintln(t.Err, "audit id:", screen.Safe(f.AuditID))
	}
	return f.Code
}

// flagError describes an invalid flag and suggests the nearest valid one.
func (t *tka) flagError(cmd *cobra.Command, err error) error {
	if name, ok := unknownCommand(cmd, t.Args[1:]); ok {
		return t.noCommand(cmd, []string{name})
	}
	f := fault.Usage("%v", err).Because(err)
	if name, ok := unknownFlag(err); ok {
		f = fault.Usage("%s has no flag %s", cmd.CommandPath(), name)
		if near := spelling.Nearest(name, flagNames(cmd)); near != "" {
			f = fault.Usage("%s has no flag %s; did you mean %s?", cmd.CommandPath(), name, near)
		}
	}
	return f.Try("%s --help", cmd.CommandPath())
}

// noCommand rejects arguments to a command that takes only subcommands.
func (t *tka) noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	f := fault.Usage("%s has no command %q", cmd.CommandPath(), args[0])
	if near := spelling.Nearest(args[0], commandNames(cmd)); near != "" {
		f = fault.Usage("%s has no command %q; did you mean %q?", cmd.CommandPath(), args[0], near)
	}
	return f.Try("%s --help", cmd.CommandPath())
}

// arguments rejects fewer than least or more than most arguments.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > most && most == 0:
			return fault.Usage("%s takes no arguments, and %q was given", cmd.CommandPath(), args[0]).Try("%s --help", cmd.CommandPath())
		case len(args) > most:
			return fault.Usage("%s takes %s, and %q is one too many", cmd.CommandPath(), what, args[most]).Try("%s --help", cmd.CommandPath())
		case len(args) < least:
			return fault.Usage("%s needs %s", cmd.CommandPath(), what).Try("%s --help", cmd.CommandPath())
		}
		return nil
	}
}
