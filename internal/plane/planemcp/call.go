package planemcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// A tool is one thing that an assistant may ask for.
type tool struct {
	name, title, doc string
	set              Toolset     // "": of all
	verb             access.Verb // of the operation behind it
	input, output    *jsonschema.Schema
	readOnly         bool
	destructive      bool
	idempotent       bool
	call             func(ctx context.Context, c door.Client, arguments json.RawMessage, maxBytes int) (*mcp.CallToolResult, error)
}

// A view is a tool that shows what an operation answers.
type view[Req, Resp, Data any] struct {
	tool
	op      door.Op[Req, Resp]
	open    func(Resp) plane.Envelope[Data]
	summary func(Data, plane.Meta) string
	rows    func(Data) table // nil: there is no more than the summary
	// What is too large is asked for again with fewer on a page, if there are pages;
	// else something is left out, which the data says.
	fewer  func(*Req, int)
	length func(Data) int
	shrink func(*Data) bool
}

// An output is the structure of an answer.
type output[Data any] struct {
	Kind string     `json:"kind"`
	Data Data       `json:"data"`
	Meta plane.Meta `json:"meta"`
}

// reading is v as a tool that changes nothing.
func reading[Req, Resp, Data any](v view[Req, Resp, Data]) tool {
	t := v.tool
	args := arguments[Req]()
	schema, err := jsonschema.For[output[Data]](nil)
	if err != nil {
		panic(fmt.Sprintf("planemcp: %s: %v", t.name, err)) // a type of ours that has no JSON
	}
	t.doc, t.input, t.output, t.readOnly, t.idempotent = cmp.Or(t.doc, v.op.Doc), inputSchema(args), schema, true, true
	t.call = func(ctx context.Context, c door.Client, given json.RawMessage, maxBytes int) (*mcp.CallToolResult, error) {
		req, err := parse[Req](args, given)
		if err != nil {
			return nil, problem.New(problem.BadRequest, fmt.Sprintf("The arguments of %s are wrong: %v.", t.name, err))
		}
		for {
			resp, err := again(ctx, func() (Resp, error) { return v.op.Call(ctx, c, req) })
			if err != nil {
				return nil, err
			}
			res, n, err := v.result(v.open(resp), maxBytes)
			if err != nil || res != nil {
				return res, err
			}
			if v.fewer == nil || n <= 1 {
				return nil, tooLarge(maxBytes)
			}
			v.fewer(&req, n/2)
		}
	}
	return t
}

func tooLarge(maxBytes int) error {
	return problem.New(problem.TooLarge, fmt.Sprintf("The answer has more than the %d bytes that one may have.", maxBytes), "Ask for less, or have the person raise --max-bytes.")
}

// result makes the answer of a tool. It is nil if that would be too large and there
// are pages, of which this one has n.
func (v view[Req, Resp, Data]) result(e plane.Envelope[Data], maxBytes int) (res *mcp.CallToolResult, n int, err error) {
	for {
		out, structure, err := cleaned(output[Data]{e.Kind, e.Data, e.Meta})
		if err != nil {
			return nil, 0, err
		}
		var rows table
		if v.rows != nil {
			rows = v.rows(out.Data)
		}
		text := compose(v.summary(out.Data, out.Meta), rows, out.Meta.Sources)
		switch {
		case len(text)+len(structure) <= maxBytes:
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, StructuredContent: json.RawMessage(structure)}, 0, nil
		case v.fewer != nil:
			return nil, v.length(out.Data), nil
		case v.shrink == nil || len(rows.cells) == 0 || !v.shrink(&e.Data):
			return nil, 0, tooLarge(maxBytes)
		}
	}
}

// cleaned is an answer with all that others have written made plain, as values and
// as JSON.
func cleaned[Data any](from output[Data]) (out output[Data], structure []byte, err error) {
	b, err := json.Marshal(from)
	if err != nil {
		return out, nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var tree any
	if err := d.Decode(&tree); err != nil {
		return out, nil, err
	}
	tree = clean(tree)
	if p := from.Meta.Page; p != nil && p.Next != "" { // it is ours, and must come back as it is
		page, _ := tree.(map[string]any)["meta"].(map[string]any)["page"].(map[string]any)
		page["next"] = p.Next
	}
	if structure, err = json.Marshal(tree); err != nil {
		return out, nil, err
	}
	return out, structure, json.Unmarshal(structure, &out)
}

// Of what may be asked again: how often more, and how long at most is waited before.
const (
	retries   = 2
	retryWait = 2 * time.Second
)

// again reads once more what a failure of the moment prevented: it is for reading only.
func again[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for tries := 0; ; tries++ {
		v, err := ask()
		wait := 200 * time.Millisecond << tries
		if p, ok := errors.AsType[*problem.Error](err); ok {
			switch p.Code {
			case problem.Unavailable, problem.IdentityUnavailable, problem.RateLimited:
			default:
				return v, err
			}
			wait = max(wait, p.RetryAfter)
		}
		if err == nil || tries == retries || wait > retryWait || ctx.Err() != nil {
			return v, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return v, err
		}
	}
}

// describe is the tool for clients.
func (t tool) describe() *mcp.Tool {
	return &mcp.Tool{Name: t.name, Title: t.title, Description: t.doc, InputSchema: t.input, OutputSchema: t.output, Annotations: &mcp.ToolAnnotations{
		Title: t.title, ReadOnlyHint: t.readOnly, DestructiveHint: &t.destructive, IdempotentHint: t.idempotent, OpenWorldHint: new(false)}}
}

// handler is the tool for the SDK. An error of it is an answer to the assistant: a
// refusal in our words, cleaned like all else. A panic is one too: it ends a call
// and no conversation.
func (t tool) handler(o Options, to backend, log *slog.Logger) mcp.ToolHandler {
	return func(ctx context.Context, r *mcp.CallToolRequest) (res *mcp.CallToolResult, _ error) {
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.Timeout, DefaultTimeout))
		defer cancel()
		defer func() {
			if p := recover(); p != nil {
				log.Error("a tool panicked", "tool", t.name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				res = failed(errors.New("internal error"))
			}
		}()
		c := to(t.name)
		res, err := t.call(ctx, c, r.Params.Arguments, cmp.Or(o.MaxBytes, DefaultBytes))
		if err != nil {
			if _, refused := errors.AsType[*problem.Error](err); !refused {
				log.Warn("a tool failed", "tool", t.name, "err", redact(err.Error()))
			}
			return failed(err), nil
		}
		return res, nil
	}
}

// failed is the answer when a tool has none.
func failed(err error) *mcp.CallToolResult {
	var text strings.Builder
	p, refused := errors.AsType[*problem.Error](err)
	switch {
	case refused:
		fmt.Fprintf(&text, "%d %s: %s\n", p.Code.Status(), p.Code, plain(p.Message))
		if p.Needed != nil {
			fmt.Fprintf(&text, "Needed: %s on %s. Held: %s.\n", plain(p.Needed.Verb), plain(cmp.Or(p.Needed.Org, "all organisations")), plain(cmp.Or(strings.Join(p.Have, ", "), "no role")))
		}
		if p.Seen != nil {
			fmt.Fprintf(&text, "Seen as %s on %s, via %s.\n", plain(cmp.Or(p.Seen.Login, "nobody")), plain(p.Seen.Node), plain(p.Seen.Via))
		}
		for _, a := range p.Advice[:min(len(p.Advice), 8)] {
			fmt.Fprintf(&text, "Try: %s\n", plain(a))
		}
		if p.AuditID != "" {
			fmt.Fprintf(&text, "Audit id: %s\n", plain(p.AuditID))
		}
	default:
		fmt.Fprintf(&text, "The operator plane did not answer: %s\nTry: tailscale status\n", plain(err.Error()))
	}
	return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: strings.TrimSpace(text.String())}}}
}
