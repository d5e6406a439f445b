package planemcp

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
	"github.com/tailplane/tailplane/internal/door"
)

// versions of the protocol that the server speaks, the newest first. 2025-03-26 is
// left out because it demands batches, 2026-07-28 because it has no conversations:
// the SDK tells clients of both which versions there are.
var versions = []string{"2025-11-25", "2025-06-18", "2024-11-05"}

// methods that a client may call. The SDK's server answers more (resources, prompts,
// completion, logging, subscriptions), which no tool needs.
var methods = []string{"initialize", "ping", "tools/list", "tools/call", "server/discover"}

// Codes of the protocol, beside those for what is no message.
const (
	codeNoMethod  = -32601
	codeBadParams = -32602
	codeInternal  = -32603
)

// A server answers the messages of one caller. It has only the tools that the caller
// may use: it does not know the others, by whatever name a client asks for them.
type server struct {
	o     Options
	tools []tool
	to    backend
	log   *slog.Logger
	life  context.Context // calls end with it
	sdk   *mcp.Server
}

// A backend is where the operations are: it returns the way to them for one call
// of a tool.
type backend func(tool string) door.Client

// newServer makes a server of the tools that are allowed. Its calls end with life, as
// the SDK gives them a context that outlives the connection.
func newServer(life context.Context, o Options, all []tool, allowed func(access.Verb) bool, to backend, log *slog.Logger) *server {
	s := &server{o: o, to: to, log: log, life: life}
	s.sdk = mcp.NewServer(
		&mcp.Implementation{Name: "tailplane", Title: "Tailplane operator plane", Version: cmp.Or(o.Version, "devel")},
		&mcp.ServerOptions{
			Instructions:              instructions,
			Logger:                    quiet(), // it repeats what clients sent
			Capabilities:              &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
			SetCacheable:              private,
			SupportedProtocolVersions: versions,
		})
	for _, t := range all {
		if o.has(t) && allowed(t.verb) {
			s.tools = append(s.tools, t)
			named := &mcp.Tool{Name: t.name, InputSchema: &jsonschema.Schema{Type: "object"}} // list has the rest
			s.sdk.AddTool(named, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return s.call(ctx, t, r.Params.Arguments), nil
			})
		}
	}
	s.sdk.AddReceivingMiddleware(s.list)
	return s
}

// private says that what is listed is for its caller, and to no cache.
func private(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" }

// quiet is a log that keeps nothing.
func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// list puts the descriptions of the tools into the SDK's list, in the order in which
// they are declared. The SDK itself has only names: it would write the schemas anew for
// each message, and sort the tools.
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

// describe gives all their descriptions, each of which is made once, when it is first
// asked for. No tool reaches beyond the plane.
func describe(all []tool) []tool {
	for i, t := range all {
		all[i].described = sync.OnceValue(func() *mcp.Tool {
			hints := &mcp.ToolAnnotations{Title: t.title, ReadOnlyHint: t.readOnly, DestructiveHint: new(t.destructive), IdempotentHint: t.idempotent,
				OpenWorldHint: new(false)}
			return &mcp.Tool{Name: t.name, Title: t.title, Description: t.doc, InputSchema: written(t.input), OutputSchema: written(t.output()),
				Annotations: hints}
		})
	}
	return all
}

// written is a schema as JSON.
func written(s *jsonschema.Schema) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic("planemcp: " + err.Error()) // a mistake of the program, which every test would meet
	}
	return b
}

// check refuses a request for a method or a tool that the caller does not have, before
// the SDK sees it.
func (s *server) check(m message) *fault {
	if !slices.Contains(methods, m.method) {
		return &fault{code: codeNoMethod, text: "there is no method " + clip(plain(m.method), 60), id: m.id}
	}
	if m.method != "tools/call" {
		return nil
	}
	var p struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(m.params, &p) != nil {
		return &fault{code: codeBadParams, text: `"name" is not the name of a tool`, id: m.id}
	}
	if !slices.ContainsFunc(s.tools, func(t tool) bool { return t.name == p.Name }) {
		return &fault{code: codeBadParams, text: "unknown tool " + clip(plain(p.Name), 60), id: m.id}
	}
	return nil
}
