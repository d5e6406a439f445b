package output

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/problem"
)

// Exit codes. The table for people is in help.go of package cli.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitRefused     = 3
	ExitNotReady    = 4
	ExitUnreachable = 5
	ExitInterrupted = 130 // 128 + SIGINT, as in shells
)

// An Error is the error of a command. It holds a sentence that says what was being done and why it failed, advice on what to try, and the
// exit code.
type Error struct {
	Code    int
	Message string
	Advice  []string
	AuditID string // as the server reported it
	Cause   error
}

// Error returns the sentence.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Errorf returns an error with a code and a sentence.
func Errorf(code int, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// AsError returns the *Error in err, or a new one with the text of err.
func AsError(err error) *Error {
	if f, ok := errors.AsType[*Error](err); ok {
		return f
	}
	return Errorf(ExitFailed, "%v", err).Because(err)
}

// UsageErrorf returns an error for a mistake in the command line.
func UsageErrorf(format string, args ...any) *Error { return Errorf(ExitUsage, format, args...) }

// Try adds a line of advice.
func (e *Error) Try(format string, args ...any) *Error {
	e.Advice = append(e.Advice, fmt.Sprintf(format, args...))
	return e
}

// Because sets the cause, for errors.As.
func (e *Error) Because(err error) *Error {
	e.Cause = err
	return e
}

// ExitCode returns the exit code of an error; 0 for nil.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if code, ok := errors.AsType[SilentExit](err); ok {
		return int(code)
	}
	return AsError(err).Code
}

// A SilentExit is the exit code of a program that tka ran, which becomes tka's exit code. tka prints nothing more, because that program has
// reported its own errors.
type SilentExit int

// Error names the code.
func (c SilentExit) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// MaxAdvice bounds how many lines of advice a server can make tka print.
const MaxAdvice = 8

// FromProblem returns the error for a server's refusal, with the server's own text.
func FromProblem(p *problem.Error) *Error {
	f := &Error{Code: ProblemExitCode(p.Code), Message: p.Message, AuditID: p.AuditID, Cause: p}
	for _, c := range p.Choices {
		where := "in the whole cluster"
		if len(c.Namespaces) > 0 {
			where = "in " + strings.Join(c.Namespaces, ", ")
		}
		f.Try("tka login --role %s   (%s, %s)", ShellQuote(cmp.Or(c.Rule, c.Role)), cmp.Or(c.Where, where), c.Period)
	}
	f.Advice = append(f.Advice, p.Advice...)
	f.Advice = f.Advice[:min(len(f.Advice), MaxAdvice)]
	return f
}

// ProblemExitCode returns tka's exit code for a refusal with c.
func ProblemExitCode(c problem.Code) int {
	switch c {
	case problem.NotReady, problem.Ending, problem.Conflict, problem.RateLimited, problem.OperatorUnavailable:
		return ExitNotReady
	case problem.Unavailable, problem.IdentityUnavailable, problem.ClockSkew:
		return ExitUnreachable
	case problem.BadRequest, problem.NotFound, problem.MethodNotAllowed, problem.TooLarge, problem.MediaType,
		problem.AuditUnavailable, problem.Internal:
		return ExitFailed
	}
	return ExitRefused
}

// Suggest returns the most similar name among names, or "" if none is near.
func Suggest(name string, names []string) string {
	best, shortest := "", max(2, len(name)/3)+1
	for _, n := range names {
		if d := editDistance(name, n); d < shortest {
			best, shortest = n, d
		}
	}
	if best == "" && len(name) > 2 {
		if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) }); i >= 0 {
			return names[i]
		}
	}
	return best
}

// DidYouMean returns the end of a message that suggests the most similar name, such as `; did you mean "x"?`, or "" if none is near. format is
// that of the name.
func DidYouMean(format, name string, names []string) string {
	suggestion := Suggest(name, names)
	if suggestion == "" {
		return ""
	}
	return "; did you mean " + fmt.Sprintf(format, suggestion) + "?"
}

// editDistance returns the edit distance: the bytes to change, insert or delete between a and b.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return max(len(a), len(b))
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
