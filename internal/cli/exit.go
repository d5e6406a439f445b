package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/problem"
)

// Exit codes. The table of people is in exitcodes.go.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitRefused     = 3
	exitNotReady    = 4
	exitUnreachable = 5
	exitInterrupted = 130 // 128 + SIGINT, as shells have it
)

// A fault is how a command fails: what was being done and why it failed in one
// sentence, what to try, and the code to exit with.
type fault struct {
	code    int
	message string
	advice  []string
	audit   string
	cause   error
}

func (f *fault) Error() string { return f.message }
func (f *fault) Unwrap() error { return f.cause }

func fail(code int, format string, args ...any) *fault {
	return &fault{code: code, message: fmt.Sprintf(format, args...)}
}

func usage(format string, args ...any) *fault { return fail(exitUsage, format, args...) }

// try adds a line of advice.
func (f *fault) try(format string, args ...any) *fault {
	f.advice = append(f.advice, fmt.Sprintf(format, args...))
	return f
}

// because keeps what the fault comes from, for errors.As.
func (f *fault) because(err error) *fault {
	f.cause = err
	return f
}

// exitCode is the code of an error.
func exitCode(err error) int {
	if err == nil {
		return exitDone
	}
	if code, ok := errors.AsType[childCode](err); ok {
		return int(code)
	}
	if f, ok := errors.AsType[*fault](err); ok {
		return f.code
	}
	return exitFailed
}

// A childCode is the code of a program that was run for somebody, which is ours
// then. What there was to say, it has said.
type childCode int

func (c childCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// report writes err for a person and returns the code to exit with.
func (t *tka) report(ctx context.Context, err error) int {
	if code, ok := errors.AsType[childCode](err); ok {
		return int(code)
	}
	f, ok := errors.AsType[*fault](err)
	if !ok {
		f = &fault{code: exitFailed, message: err.Error()}
	}
	if ctx.Err() != nil && f.code != exitDone { // a signal, not our own time limit
		f = &fault{code: exitInterrupted, message: "interrupted", advice: f.advice}
	}
	fmt.Fprintln(t.Err, t.paint(t.Err, red, "error:"), safe(f.message))
	for _, line := range f.advice {
		fmt.Fprintln(t.Err, "try:", safe(line))
	}
	if f.audit != "" {
		fmt.Fprintln(t.Err, "audit id:", safe(f.audit))
	}
	return f.code
}

// maxAdvice bounds how many lines a server can put on the screen.
const maxAdvice = 8

// refusal is the fault of a server's refusal, in the server's own words.
func refusal(p *problem.Error) *fault {
	f := &fault{code: refusalCode(p.Code), message: p.Message, audit: p.AuditID, cause: p}
	for _, c := range p.Choices {
		where := "in the whole cluster"
		if len(c.Namespaces) > 0 {
			where = "in " + strings.Join(c.Namespaces, ", ")
		}
		f.try("tka login --role %s   (%s, %s)", word(c.Role), where, c.Period)
	}
	f.advice = append(f.advice, p.Advice...)
	f.advice = f.advice[:min(len(f.advice), maxAdvice)]
	return f
}

// refusalCode is how tka exits when a server refuses with c.
func refusalCode(c problem.Code) int {
	switch c {
	case problem.NotReady, problem.Ending, problem.Conflict, problem.RateLimited:
		return exitNotReady
	case problem.Unavailable, problem.IdentityUnavailable:
		return exitUnreachable
	case problem.BadRequest, problem.NotFound, problem.MethodNotAllowed, problem.TooLarge, problem.MediaType,
		problem.AuditUnavailable, problem.Internal:
		return exitFailed
	}
	return exitRefused
}

// flagError says what is wrong with a flag, and what is nearest to it.
func (t *tka) flagError(cmd *cobra.Command, err error) error {
	if name, ok := unknownCommand(cmd, t.Args[1:]); ok {
		return t.noCommand(cmd, []string{name})
	}
	f := usage("%v", err).because(err)
	if name, ok := unknownFlag(err); ok {
		f = usage("%s has no flag %s", cmd.CommandPath(), name)
		if near := nearest(name, flagNames(cmd)); near != "" {
			f = usage("%s has no flag %s; did you mean %s?", cmd.CommandPath(), name, near)
		}
	}
	return f.try("%s --help", cmd.CommandPath())
}

// noCommand refuses words behind a command that takes only subcommands.
func (t *tka) noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	f := usage("%s has no command %q", cmd.CommandPath(), args[0])
	if near := nearest(args[0], commandNames(cmd)); near != "" {
		f = usage("%s has no command %q; did you mean %q?", cmd.CommandPath(), args[0], near)
	}
	return f.try("%s --help", cmd.CommandPath())
}

// arguments refuses fewer than least and more than most arguments.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > most && most == 0:
			return usage("%s takes no arguments, and %q was given", cmd.CommandPath(), args[0]).try("%s --help", cmd.CommandPath())
		case len(args) > most:
			return usage("%s takes %s, and %q is one too many", cmd.CommandPath(), what, args[most]).try("%s --help", cmd.CommandPath())
		case len(args) < least:
			return usage("%s needs %s", cmd.CommandPath(), what).try("%s --help", cmd.CommandPath())
		}
		return nil
	}
}
