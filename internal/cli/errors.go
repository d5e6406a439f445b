package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/problem"
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
	if format := t.errorFormat(); format == output.JSON || format == output.YAML {
		if text, err := output.Encode(errorInfoOf(f), format); err == nil {
			_, _ = t.Err.Write(text)
			return f.Code
		}
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

// errorFormat returns the output format, also if another flag is invalid, so that the command line was not parsed to its end.
func (t *tka) errorFormat() string {
	if t.output != "" {
		return t.output
	}
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true
	f.SetOutput(io.Discard)
	format := f.StringP("output", "o", "", "")
	if err := f.Parse(t.Args[1:]); err != nil {
		return ""
	}
	return *format
}

// errorInfo is an error in the formats json and yaml. tka writes it to standard error.
type errorInfo struct {
	meta
	Code     problem.Code     `json:"code,omitempty"` // of the server's refusal
	ExitCode int              `json:"exitCode"`
	Message  string           `json:"message"`
	Advice   []string         `json:"advice"`
	AuditID  string           `json:"auditId,omitempty"`
	Choices  []problem.Choice `json:"choices,omitempty"`
}

func errorInfoOf(f *output.Error) errorInfo {
	info := errorInfo{meta: newMeta("Error"), ExitCode: f.Code, Message: f.Message, Advice: nonNil(f.Advice), AuditID: f.AuditID}
	if p, ok := errors.AsType[*problem.Error](f.Cause); ok {
		info.Code, info.Choices = p.Code, p.Choices
	}
	return info
}

// flagError describes an invalid flag and suggests the nearest valid one.
func (t *tka) flagError(cmd *cobra.Command, err error) error {
	if name, ok := unknownCommand(cmd, t.Args[1:]); ok {
		return t.rejectArguments(cmd, []string{name})
	}
	f := output.UsageErrorf("%v", err).Because(err)
	if name, ok := unknownFlag(err); ok {
		f = output.UsageErrorf("%s has no flag %s%s", cmd.CommandPath(), name, output.DidYouMean("%s", name, flagNames(cmd)))
	}
	return f.Try("%s --help", cmd.CommandPath())
}

// rejectArguments rejects arguments to a command that takes only subcommands.
func (t *tka) rejectArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return output.UsageErrorf("%s has no command %q%s", cmd.CommandPath(), args[0], output.DidYouMean("%q", args[0], commandNames(cmd))).
		Try("%s --help", cmd.CommandPath())
}

// arguments rejects fewer than minimum or more than maximum arguments; what describes the accepted ones.
func arguments(minimum, maximum int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		var f *output.Error
		switch {
		case len(args) > maximum && maximum == 0:
			f = output.UsageErrorf("%s takes no arguments (got %q)", cmd.CommandPath(), args[0])
		case len(args) > maximum:
			f = output.UsageErrorf("%s takes %s; %q is one argument too many", cmd.CommandPath(), what, args[maximum])
		case len(args) < minimum:
			f = output.UsageErrorf("%s needs %s", cmd.CommandPath(), what)
		default:
			return nil
		}
		return f.Try("%s --help", cmd.CommandPath())
	}
}

// checkOneOf returns an error for a value that is not among values, and suggests the nearest one.
func checkOneOf(what, value string, values []string) error {
	if slices.Contains(values, value) {
		return nil
	}
	if suggestion := output.Suggest(value, values); suggestion != "" {
		return output.UsageErrorf("%s is %q; did you mean %q?", what, value, suggestion)
	}
	return output.UsageErrorf("%s is %q; it must be one of %s", what, value, strings.Join(values, ", "))
}

func unknownFlag(err error) (string, bool) {
	missing, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return "", false
	}
	if missing.GetSpecifiedShortnames() != "" {
		return "-" + missing.GetSpecifiedName(), true
	}
	return "--" + missing.GetSpecifiedName(), true
}

func flagNames(cmd *cobra.Command) []string {
	var names []string
	each := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	}
	cmd.Flags().VisitAll(each)
	cmd.InheritedFlags().VisitAll(each)
	return names
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if !c.Hidden {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return names
}

// unknownCommand returns the argument that was meant as a subcommand of cmd but is none. It is for the case that parsing failed at a flag
// after it.
func unknownCommand(cmd *cobra.Command, args []string) (string, bool) {
	if !cmd.HasSubCommands() {
		return "", false
	}
	for i := 0; i < len(args); i++ {
		word := args[i]
		if !strings.HasPrefix(word, "-") {
			if found, _, err := cmd.Root().Find([]string{word}); err == nil && found != cmd.Root() {
				continue // a parent command or cmd itself
			}
			return word, true
		}
		if name, _, glued := strings.Cut(strings.TrimLeft(word, "-"), "="); !glued {
			f := cmd.Root().PersistentFlags().Lookup(name)
			if f == nil && len(name) == 1 {
				f = cmd.Root().PersistentFlags().ShorthandLookup(name)
			}
			if f != nil && f.NoOptDefVal == "" {
				i++ // skip its value
			}
		}
	}
	return "", false
}
