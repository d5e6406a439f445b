package planemcp

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
)

// versions of the protocol that are spoken, the newest first. Between them and
// 2025-03-26 lies that one, which demands batches; the one after them, without
// conversations, is answered so that clients go back to the newest here.
var versions = []string{"2025-11-25", "2025-06-18", "2024-11-05"}

// Codes of the protocol, beside those for what is no message.
const (
	codeNoMethod  = -32601
	codeBadParams = -32602
	codeVersion   = -32022
)

// A server answers the messages of one caller. It has those of the tools that may be
// there: what is not among them is not known to it, whoever names it.
type server struct {
	o     Options
	tools []tool
	to    backend
	log   *slog.Logger
}

func newServer(o Options, all []tool, allowed func(access.Verb) bool, to backend, log *slog.Logger) *server {
	s := &server{o: o, to: to, log: log}
	for _, t := range all {
		if o.has(t) && allowed(t.verb) {
			s.tools = append(s.tools, t)
		}
	}
	return s
}

// A backend is where the operations are: it returns the way to them for one call
// of a tool.
type backend func(tool string) door.Client

// content is one part of what a tool answers.
type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// A result is what a tool answers.
type result struct {
	Content   []content       `json:"content"`
	Structure json.RawMessage `json:"structuredContent,omitempty"`
	IsError   bool            `json:"isError,omitempty"`
}

// described is a tool for clients.
type described struct {
	Name         string      `json:"name"`
	Title        string      `json:"title"`
	Description  string      `json:"description"`
	InputSchema  *schema     `json:"inputSchema"`
	OutputSchema *schema     `json:"outputSchema"`
	Annotations  annotations `json:"annotations"`
}

// annotations are hints for clients. No tool reaches beyond the plane.
type annotations struct {
	Title       string `json:"title"`
	ReadOnly    bool   `json:"readOnlyHint"`
	Destructive bool   `json:"destructiveHint"`
	Idempotent  bool   `json:"idempotentHint"`
	OpenWorld   bool   `json:"openWorldHint"`
}

// answer is what is to be sent for m; nil: nothing is.
func (s *server) answer(ctx context.Context, m message) []byte {
	if m.id == nil || m.method == "" { // a notification, or an answer to what nobody asked
		return nil
	}
	v, f := s.do(ctx, m)
	if f != nil {
		f.id = m.id
		return f.response()
	}
	b, err := json.Marshal(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{"2.0", m.id, v})
	if err != nil {
		s.log.Error("an answer cannot be written", "method", m.method, "err", err)
		return (&fault{code: -32603, text: "internal error", id: m.id}).response()
	}
	return b
}

func (s *server) do(ctx context.Context, m message) (any, *fault) {
	switch m.method {
	case "initialize":
		return s.initialize(m.params)
	case "ping":
		return struct{}{}, nil
	case "tools/list":
		list := struct {
			Tools []described `json:"tools"`
		}{[]described{}}
		for _, t := range s.tools {
			list.Tools = append(list.Tools, described{t.name, t.title, t.doc, t.input, t.output(), annotations{t.title, t.readOnly, t.destructive, t.idempotent, false}})
		}
		return list, nil
	case "tools/call":
		var p struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		}
		if json.Unmarshal(m.params, &p) != nil {
			return nil, &fault{code: codeBadParams, text: `"name" is not the name of a tool`}
		}
		i := slices.IndexFunc(s.tools, func(t tool) bool { return t.name == p.Name })
		if i < 0 {
			return nil, &fault{code: codeBadParams, text: "unknown tool " + clip(plain(p.Name), 60)}
		}
		return s.call(ctx, s.tools[i], p.Arguments), nil
	case "server/discover":
		f := &fault{code: codeVersion, text: "the protocol is spoken with a conversation: begin with initialize"}
		f.data = map[string]any{"supported": versions, "requested": sessionless}
		return nil, f
	}
	return nil, &fault{code: codeNoMethod, text: "there is no method " + clip(plain(m.method), 60)}
}

func (s *server) initialize(params json.RawMessage) (any, *fault) {
	var p struct {
		Version string `json:"protocolVersion"`
	}
	if json.Unmarshal(params, &p) != nil || p.Version == "" {
		return nil, &fault{code: codeBadParams, text: `"protocolVersion" is missing`}
	}
	if !slices.Contains(versions, p.Version) {
		p.Version = versions[0]
	}
	return map[string]any{"protocolVersion": p.Version, "capabilities": map[string]any{"tools": struct{}{}},
		"serverInfo": map[string]string{"name": "tailplane", "title": "Tailplane operator plane", "version": cmp.Or(s.o.Version, "devel")}, "instructions": instructions}, nil
}
