package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
)

// printError prints err for a person and returns the exit code.
func (t *tka) printError(ctx context.Context, err error) int {
	if code, ok := errors.AsType[output.SilentExit](err); ok {
		return int(code)
	}
	f := output.AsError(err)
	if ctx.Err() != nil && f.Code != output.ExitOK { // ended by a signal, not by the time limit
		f = &output.Error{Code: output.ExitInterrupted, Message: "interrupted", Advice: f.Advice}
	}
	fmt.Fprintln(t.Err, t.paint(t.Err, output.Red, "error:"), output.Escape(f.Message))
	for _, line := range f.Advice {
		fmt.Fprintln(t.Err, "try:", output.Escape(line))
	}
	if f.AuditID != "" {
		fmt.Fprintln(t.Err, "audit id:", output.Escape(f.AuditID))
	}
	return f.Code
}

// flagError describes an invalid flag and suggests the nearest valid one.
func (t *tka) flagError(cmd *cobra.Command, err error) error {
	if name, ok := unknownCommand(cmd, t.Args[1:]); ok {
		return t.rejectArguments(cmd, []string{name})
	}
	f := output.UsageErrorf("%v", err).Because(err)
	if name, ok := unknownFlag(err); ok {
		f = output.UsageErrorf("%s has no flag %s", cmd.CommandPath(), name)
		if suggestion := output.Suggest(name, flagNames(cmd)); suggestion != "" {
			f = output.UsageErrorf("%s has no flag %s; did you mean %s?", cmd.CommandPath(), name, suggestion)
		}
	}
	return f.Try("%s --help", cmd.CommandPath())
}

// rejectArguments rejects arguments to a command that takes only subcommands.
func (t *tka) rejectArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	f := output.UsageErrorf("%s has no command %q", cmd.CommandPath(), args[0])
	if suggestion := output.Suggest(args[0], commandNames(cmd)); suggestion != "" {
		f = output.UsageErrorf("%s has no command %q; did you mean %q?", cmd.CommandPath(), args[0], suggestion)
	}
	return f.Try("%s --help", cmd.CommandPath())
}

// arguments rejects fewer than least or more than most arguments.
func arguments(minimum, maximum int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > maximum && maximum == 0:
			return output.UsageErrorf("%s takes no arguments (got %q)", cmd.CommandPath(), args[0]).Try("%s --help", cmd.CommandPath())
		case len(args) > maximum:
			return output.UsageErrorf("%s takes %s; %q is one argument too many", cmd.CommandPath(), what, args[maximum]).Try("%s --help", cmd.CommandPath())
		case len(args) < minimum:
			return output.UsageErrorf("%s needs %s", cmd.CommandPath(), what).Try("%s --help", cmd.CommandPath())
		}
		return nil
	}
}
