package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// versions of the protocol that the server supports, newest first. 2025-03-26 is missing because it requires batches, and 2026-07-28
// because it has no sessions. The SDK reports the supported versions to clients of both.
var versions = []string{"2025-11-25", "2025-06-18", "2024-11-05"}

// methods that a client may call. The SDK's server has more (resources, prompts, completion, logging, subscriptions), which no tool needs.
var methods = []string{"initialize", "ping", "tools/list", "tools/call", "server/discover"}

// JSON-RPC error codes, besides those in strict.go.
const (
	codeNoMethod  = -32601
	codeBadParams = -32602
	codeInternal  = -32603
)

// server answers the messages of one caller. It has only the tools that the caller may use and does not know the others.
type server struct {
	options   Options
	tools     []tool
	clientFor backend
	log       *slog.Logger
	life      context.Context // calls end with it
	sdk       *mcp.Server
}

// backend returns the API client for one tool call.
type backend func(tool string) httpapi.Client

// newServer returns a server with the allowed tools. Its calls end with life, because the context from the SDK outlives the connection.
func newServer(life context.Context, o Options, all []tool, allowed func(access.Verb) bool, to backend, log *slog.Logger) *server {
	s := &server{options: o, clientFor: to, log: log, life: life}
	s.sdk = mcp.NewServer(
		&mcp.Implementation{Name: "tailplane", Title: "Tailplane operator plane", Version: cmp.Or(o.Version, "devel")},
		&mcp.ServerOptions{
			Instructions:              instructions,
			Logger:                    discardLogger(), // it would log what clients sent
			Capabilities:              &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
			SetCacheable:              setPrivateCache,
			SupportedProtocolVersions: versions,
		})
	for _, t := range all {
		if o.has(t) && allowed(t.verb) {
			s.tools = append(s.tools, t)
			named := &mcp.Tool{Name: t.name, InputSchema: &jsonschema.Schema{Type: "object"}} // list adds the rest
			s.sdk.AddTool(named, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return s.call(ctx, t, r.Params.Arguments), nil
			})
		}
	}
	s.sdk.AddReceivingMiddleware(s.list)
	return s
}

// setPrivateCache marks lists as private to their caller, so that caches do not share them.
func setPrivateCache(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" }

// discardLogger returns a logger that discards everything.
func discardLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

// list adds the descriptions to the SDK's list of tools, in the order of declaration. The SDK has only the names: it would encode the
// schemas again for each message, and sort the tools.
func (s *server) list(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, r)
		if list, ok := res.(*mcp.ListToolsResult); ok && err == nil {
			list.Tools = []*mcp.Tool{}
			for _, t := range s.tools {
				list.Tools = append(list.Tools, t.described())
			}
		}
		return res, err
	}
}

// describe sets the described function of all tools. Each description is made once, on first use. No tool reaches beyond the plane.
func describe(all []tool) []tool {
	for i, t := range all {
		all[i].described = sync.OnceValue(func() *mcp.Tool {
			hints := &mcp.ToolAnnotations{Title: t.title, ReadOnlyHint: t.readOnly, DestructiveHint: new(t.destructive), IdempotentHint: t.idempotent,
				OpenWorldHint: new(false)}
			return &mcp.Tool{Name: t.name, Title: t.title, Description: t.doc, InputSchema: encodeSchema(t.input), OutputSchema: encodeSchema(t.output()),
				Annotations: hints}
		})
	}
	return all
}

// encodeSchema returns a schema as JSON.
func encodeSchema(s *jsonschema.Schema) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic("mcp: " + err.Error()) // a programming error that every test would find
	}
	return b
}

// check returns a fault for a method or a tool that the caller does not have, before the SDK sees the message.
func (s *server) check(m message) *rpcError {
	if !slices.Contains(methods, m.method) {
		return &rpcError{code: codeNoMethod, text: "unknown method " + clip(sanitize(m.method), 60), id: m.id}
	}
	if m.method != "tools/call" {
		return nil
	}
	var p struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(m.params, &p) != nil {
		return &rpcError{code: codeBadParams, text: `"name" is not the name of a tool`, id: m.id}
	}
	if !slices.ContainsFunc(s.tools, func(t tool) bool { return t.name == p.Name }) {
		return &rpcError{code: codeBadParams, text: "unknown tool " + clip(sanitize(p.Name), 60), id: m.id}
	}
	return nil
}
