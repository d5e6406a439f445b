// Package fault is how a command of tka fails: a sentence, what to try, and the
// code to exit with. It keeps the law that an error says what was being done,
// once, and never shows a stack.
package fault

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/problem"
)

// Exit codes. The table of people is in exitcodes.go.
const (
	Done        = 0
	Failed      = 1
	Misused     = 2
	Refused     = 3
	NotReady    = 4
	Unreachable = 5
	Interrupted = 130 // 128 + SIGINT, as shells have it
)

// A Fault is how a command fails: what was being done and why it failed in one
// sentence, what to try, and the code to exit with.
type Fault struct {
	Code    int
	Message string
	Advice  []string
	AuditID string // that a server told
	Cause   error
}

// Error is the sentence.
func (f *Fault) Error() string { return f.Message }

// Unwrap is what the fault comes from.
func (f *Fault) Unwrap() error { return f.Cause }

// New returns a fault with a sentence.
func New(code int, format string, args ...any) *Fault {
	return &Fault{Code: code, Message: fmt.Sprintf(format, args...)}
}

// As is the fault that err holds, or one that says err.
func As(err error) *Fault {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f
	}
	return New(Failed, "%v", err).Because(err)
}

// Usage is a mistake of whoever typed.
func Usage(format string, args ...any) *Fault { return New(Misused, format, args...) }

// Try adds a line of advice.
func (f *Fault) Try(format string, args ...any) *Fault {
	f.Advice = append(f.Advice, fmt.Sprintf(format, args...))
	return f
}

// Because keeps what the fault comes from, for errors.As.
func (f *Fault) Because(err error) *Fault {
	f.Cause = err
	return f
}

// CodeOf is the code of an error.
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

// A Child is the code of a program that was run for somebody, which is ours
// then. What there was to say, it has said.
type Child int

// Error names the code.
func (c Child) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// MaxAdvice bounds how many lines of advice a server can put on the screen.
const MaxAdvice = 8

// Of is the fault of a server's refusal, in the server's own words.
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

// CodeOfRefusal is how tka exits when a server refuses with c.
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
