// Package fault defines the error of a tka command: a sentence, advice and the exit code. It keeps the law that an error says once what was
// being done, and never shows a stack trace.
package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/problem"
)

// Exit codes. The table for people is in exitcodes.go.
const (
	Done        = 0
	Failed      = 1
	Misused     = 2
	Refused     = 3
	NotReady    = 4
	Unreachable = 5
	Interrupted = 130 // 128 + SIGINT, as in shells
)

// A Fault is the error of a command. It holds a sentence that says what was being done and why it failed, advice on what to try, and the
// exit code.
type Fault struct {
	Code    int
	Message string
	Advice  []string
	AuditID string // as the server reported it
	Cause   error
}

// Error returns the sentence.
func (f *Fault) Error() string { return f.Message }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

// New returns a fault with a code and a sentence.
func New(code int, format string, args ...any) *Fault {
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}

// As returns the fault in err, or a new one with the text of err.
func As(err error) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f
	}
	return New(Failed, "%v", err).Because(err)
}

// Usage returns a fault for a mistake in the command line.
func Usage(format string, args ...any) *Fault { return New(Misused, format, args...) }

// Try adds a line of advice.
func (f *Fault) Try(format string, args ...any) *Fault {
	f.Advice = append(f.Advice, fmt.Sprintf(format, args...))
	return f
}

// Because sets the cause, for errors.As.
func (f *Fault) Because(err error) *Fault {
	f.Cause = err
	return f
}

// CodeOf returns the exit code of an error; 0 for nil.
func CodeOf(err error) int {
	if err == nil {
		return Done
	}
	if code, ok := errors.AsType[Child](err); ok {
		return int(code)
	}
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.Code
	}
	return Failed
}

// A Child is the exit code of a program that tka ran, which becomes tka's exit code. tka prints nothing more, because that program has
// reported its own errors.
type Child int

// Error names the code.
func (c Child) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// MaxAdvice bounds how many lines of advice a server can make tka print.
const MaxAdvice = 8

// Of returns the fault for a server's refusal, with the server's own text.
func Of(p *problem.Error) *Fault {
	f := &Fault{Code: CodeOfRefusal(p.Code), Message: p.Message, AuditID: p.AuditID, Cause: p}
	for _, c := range p.Choices {
		where := "in the whole cluster"
		if len(c.Namespaces) > 0 {
			where = "in " + strings.Join(c.Namespaces, ", ")
		}
		f.Try("tka login --role %s   (%s, %s)", screen.Word(c.Role), where, c.Period)
	}
	f.Advice = append(f.Advice, p.Advice...)
	f.Advice = f.Advice[:min(len(f.Advice), MaxAdvice)]
	return f
}

// CodeOfRefusal returns tka's exit code for a refusal with c.
func CodeOfRefusal(c problem.Code) int {
	switch c {
	case problem.NotReady, problem.Ending, problem.Conflict, problem.RateLimited:
		return NotReady
	case problem.Unavailable, problem.IdentityUnavailable:
		return Unreachable
	case problem.BadRequest, problem.NotFound, problem.MethodNotAllowed, problem.TooLarge, problem.MediaType,
		problem.AuditUnavailable, problem.Internal:
		return Failed
	}
	return Refused
}
