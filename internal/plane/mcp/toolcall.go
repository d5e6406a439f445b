package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/redact"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// tool is one MCP tool.
type tool struct {
	name, title, doc string
	set              Toolset     // "": every toolset
	verb             access.Verb // of its operation
	pattern          string      // of its operation
	maxResponse      int64       // maximum response size in bytes
	args             []argument
	input            *jsonschema.Schema
	output           func() *jsonschema.Schema // built on first use; the help of tka does not need it
	described        func() *mcp.Tool          // set by describe
	readOnly         bool
	destructive      bool
	idempotent       bool
	view             view
}

// view shows the response of an operation as a tool result. It has no type parameters, so it is compiled once for all tools. It holds the
// operation's declaration but not the operation, because the linker keeps everything that generic code refers to, and a client needs no
// server code (see httpapi.Client.Do).
type view struct {
	request      func() any                                              // returns a new request, or new arguments if ask is set
	buildRequest func(args any) (pattern string, request any, err error) // optional: makes the request from arguments
	response     func() answer                                           // returns a new output
	summary      func(data any, m plane.Meta) string
	rows         func(data any) table // nil: the result has only the summary
	adjust       func(data any)       // optional: changes the data of a response
	// If the result is too large, the call requests a smaller page of a list whose length is known. Otherwise shrink drops some data, and the
	// data says so.
	length func(data any) int
	shrink func(data any) bool
}

// answer is an output without its type parameter. parts returns a pointer to its data, and its meta.
type answer interface {
	parts() (data any, m plane.Meta)
}

// output is the structured content of a result: the envelope of a response without its version and error.
type output[Data any] struct {
	Kind string     `json:"kind"`
	Data Data       `json:"data"`
	Meta plane.Meta `json:"meta"`
}

func (o *output[Data]) parts() (any, plane.Meta) { return &o.Data, o.Meta }

// outputOf returns the schema of an output.
func outputOf[Data any]() func() *jsonschema.Schema {
	return sync.OnceValue(func() *jsonschema.Schema { return schemaOf(reflect.TypeFor[output[Data]]()) })
}

// readTool returns t as a read-only tool. Req and Resp are the types of its operation, and Data is the type in the envelope.
func readTool[Req, Data any](t tool, summary func(Data, plane.Meta) string, rows func(Data) table) tool {
	t.args, t.output = arguments(reflect.TypeFor[Req]()), outputOf[Data]()
	t.input, t.readOnly, t.idempotent = inputSchema(t.args), true, true
	v := &t.view
	v.request = func() any { return new(Req) }
	v.response = func() answer { return new(output[Data]) }
	v.summary = func(data any, m plane.Meta) string { return summary(*data.(*Data), m) }
	if rows != nil {
		v.rows = func(data any) table { return rows(*data.(*Data)) }
	}
	return t
}

// listTool returns the tool of a list with pages. A request of type Req, or the request that buildRequest makes, must be a [pageRequest].
func listTool[Req, T any](t tool, noun string, rows func([]T) table) tool {
	t = readTool[Req](t, func(all []T, m plane.Meta) string { return pageSummary(len(all), noun, m) }, rows)
	t.view.length = func(all any) int { return len(*all.(*[]T)) }
	return t
}

// pageRequest is a request with a maximum number of entries.
type pageRequest interface{ SetLimit(n int) }

// requestTool returns a tool whose arguments differ from the request of its operation.
func requestTool[Args, T any](t tool, do func(*Args) (pattern string, request any, err error), summary func(T, plane.Meta) string, rows func(T) table) tool {
	return readTool[Args](t, summary, rows).building(func(args any) (string, any, error) { return do(args.(*Args)) })
}

// building returns the tool with a function that makes the request from the arguments.
func (t tool) building(request func(args any) (pattern string, request any, err error)) tool {
	t.view.buildRequest = request
	return t
}

// writeTool returns the tool with the hints of one that changes something.
func writeTool(t tool, destructive, idempotent bool) tool {
	t.readOnly, t.destructive, t.idempotent = false, destructive, idempotent
	return t
}

// operationTool returns a tool with the verb, the description, the path and the response limit of an operation.
func operationTool[Req, Resp any](op httpapi.Op[Req, Resp], name, title string, set Toolset) tool {
	return tool{name: name, title: title, set: set, verb: op.Verb, doc: op.Doc, pattern: op.Pattern, maxResponse: op.MaxResponse}
}

// withDoc returns the tool with another description than that of its operation.
func (t tool) withDoc(doc string) tool {
	t.doc = doc
	return t
}

// call sends the request and asks for smaller pages until the result fits.
func (t tool) call(ctx context.Context, c httpapi.Client, given json.RawMessage, maxBytes int) (*mcp.CallToolResult, error) {
	req := t.view.request()
	if err := parseArguments(t.args, given, req); err != nil {
		return nil, problem.New(problem.BadRequest, fmt.Sprintf("The arguments of %s are not valid: %v.", t.name, err))
	}
	pattern := t.pattern
	if t.view.buildRequest != nil {
		var err error
		if pattern, req, err = t.view.buildRequest(req); err != nil {
			return nil, err
		}
	}
	tries := retries
	if !t.readOnly {
		tries = 0
	}
	for {
		var out answer
		err := repeat(ctx, tries, func() error {
			out = t.view.response() // drop data of a failed attempt
			return c.Do(ctx, pattern, t.maxResponse, req, out)
		})
		if err != nil {
			return nil, err
		}
		if t.view.adjust != nil {
			data, _ := out.parts()
			t.view.adjust(data)
		}
		res, n, err := t.view.result(out, maxBytes)
		if err != nil || res != nil {
			return res, err
		}
		if n <= 1 {
			return nil, tooLarge(maxBytes)
		}
		req.(pageRequest).SetLimit(n / 2)
	}
}

func tooLarge(maxBytes int) error {
	return problem.New(problem.TooLarge, fmt.Sprintf("The answer is larger than the limit of %d bytes.", maxBytes), "Request less, or ask the person to raise --max-bytes.")
}

// result makes the tool result. If it is too large and the operation has pages, it returns nil and the length n of this page.
func (v view) result(answered answer, maxBytes int) (res *mcp.CallToolResult, n int, err error) {
	for {
		data, meta := answered.parts()
		out := v.response()
		structure, err := sanitizedJSON(answered, meta.Page, out)
		if err != nil {
			return nil, 0, err
		}
		shown, meta := out.parts()
		var rows table
		if v.rows != nil {
			rows = v.rows(shown)
		}
		text := compose(v.summary(shown, meta), rows, meta.Sources)
		switch {
		case len(text)+len(structure) <= maxBytes:
			return &mcp.CallToolResult{Content: textContent(text), StructuredContent: json.RawMessage(structure)}, 0, nil
		case v.length != nil:
			return nil, v.length(shown), nil
		case v.shrink == nil || len(rows.cells) == 0 || !v.shrink(data):
			return nil, 0, tooLarge(maxBytes)
		}
	}
}

// sanitizedJSON returns a response as JSON with all foreign text sanitised, and decodes it into out.
func sanitizedJSON(from any, page *plane.Page, out any) (structure []byte, err error) {
	b, err := json.Marshal(from)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return nil, err
	}
	tree = sanitizeJSON(tree)
	if page != nil && page.Next != "" { // the cursor is the plane's own and must stay unchanged
		at, _ := tree.(map[string]any)["meta"].(map[string]any)["page"].(map[string]any)
		at["next"] = page.Next
	}
	if structure, err = json.Marshal(tree); err != nil {
		return nil, err
	}
	return structure, json.Unmarshal(structure, out)
}

// The number of retries, and the maximum wait before one.
const (
	retries   = 2
	retryWait = 2 * time.Second
)

// repeat calls do again, up to more times, after a temporary error. It is for reads only.
func repeat(ctx context.Context, more int, do func() error) error {
	for tries := 0; ; tries++ {
		err := do()
		wait := 200 * time.Millisecond << tries
		if p, ok := errors.AsType[*problem.Error](err); ok {
			switch p.Code {
			case problem.Unavailable, problem.IdentityUnavailable, problem.RateLimited:
			default:
				return err
			}
			wait = max(wait, p.RetryAfter)
		}
		if err == nil || tries == more || wait > retryWait || retry.Sleep(ctx, wait) != nil {
			return err
		}
	}
}

// call calls a tool. An error, and also a panic, becomes a sanitised result for the assistant, so a panic does not end the session.
func (s *server) call(ctx context.Context, t tool, arguments json.RawMessage) (res *mcp.CallToolResult) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.options.Timeout, DefaultTimeout))
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("MCP tool panicked", "tool", t.name, "panic", redact.Text(fmt.Sprint(p)), "stack", string(debug.Stack()))
			res = errorResult(problem.From(errors.New("panic")))
		}
	}()
	res, err := t.call(ctx, s.clientFor(t.name), arguments, cmp.Or(s.options.MaxBytes, DefaultBytes))
	if err != nil {
		if _, refused := errors.AsType[*problem.Error](err); !refused {
			s.log.Warn("MCP tool failed", "tool", t.name, "err", redact.Text(err.Error()))
		}
		return errorResult(err)
	}
	return res
}

// textContent returns text as the content of a result.
func textContent(text string) []mcp.Content { return []mcp.Content{&mcp.TextContent{Text: text}} }

// errorResult returns the result for an error.
func errorResult(err error) *mcp.CallToolResult {
	var text strings.Builder
	p, refused := errors.AsType[*problem.Error](err)
	switch {
	case refused:
		fmt.Fprintf(&text, "%d %s: %s\n", p.Code.Status(), p.Code, sanitize(p.Message))
		if p.Needed != nil {
			fmt.Fprintf(&text, "Needed: %s on %s. Held: %s.\n", sanitize(p.Needed.Verb), sanitize(cmp.Or(p.Needed.Org, "all organisations")), sanitize(cmp.Or(strings.Join(p.Have, ", "), "no role")))
		}
		if c := p.Confirm; c != nil {
			about := "unknown"
			if c.Targets != nil {
				about = fmt.Sprint(*c.Targets)
			}
			fmt.Fprintf(&text, "Affected workloads: %s. Confirm before %s.\n", about, formatTime(c.Until))
		}
		if p.Seen != nil {
			fmt.Fprintf(&text, "Seen as %s on %s, via %s.\n", sanitize(cmp.Or(p.Seen.Login, "no login")), sanitize(p.Seen.Node), sanitize(p.Seen.Via))
		}
		for _, a := range p.Advice[:min(len(p.Advice), 8)] {
			fmt.Fprintf(&text, "Try: %s\n", sanitize(a))
		}
		if p.AuditID != "" {
			fmt.Fprintf(&text, "Audit id: %s\n", sanitize(p.AuditID))
		}
	default:
		fmt.Fprintf(&text, "The operator plane did not respond: %s\nTry: tailscale status\n", sanitize(err.Error()))
	}
	return &mcp.CallToolResult{IsError: true, Content: textContent(strings.TrimSpace(text.String()))}
}
