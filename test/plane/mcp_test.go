package plane

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// PLANE-04, MC-03, for tools: tka mcp as an assistant starts it, and the plane's own endpoint. Both identify each
// person by the tailnet alone.
func TestTools(t *testing.T) {
	r := start(t)
	for _, x := range []struct {
		name, login string
		sees        bool // objects without an organisation
	}{{"alice-desk", "alice@example.com", true}, {"vic-desk", "vic@example.com", false}} {
		p := person(t, r, x.name, x.login)
		http := session(t, &mcp.StreamableClientTransport{Endpoint: r.Dashboard() + "/mcp", HTTPClient: p.HTTP(), MaxRetries: -1})
		lines := session(t, &mcp.CommandTransport{Command: command(t, r, p)})
		for way, s := range map[string]*mcp.ClientSession{"HTTP": http, "tka": lines} {
			switch text, failed := tool(t, s, "whoami"); {
			case failed:
				t.Errorf("failed is true; %s, %s, text = %s", x.login, way, text)
			case !strings.HasPrefix(text, "You are "+x.login+" on "):
				t.Errorf("text = %q does not start with %q; %s", text, "You are "+x.login+" on ", way)
			case !strings.Contains(text, "via tailnet"):
				t.Errorf("text = %q does not contain %q; %s", text, "via tailnet", way)
			}
		}
		if text, failed := tool(t, lines, "list_clusters"); failed == x.sees || !x.sees && !strings.Contains(text, "Needed: infra.read on all organisations. Held: viewer@acme.") {
			t.Errorf("%s by tka, list_clusters: %s", x.login, text)
		}
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		all, err := http.ListTools(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		if told := slices.ContainsFunc(all.Tools, func(tool *mcp.Tool) bool { return tool.Name == "list_clusters" }); told != x.sees {
			t.Errorf("%s by HTTP sees list_clusters: %v", x.login, told)
		}
	}
	recorded := false
	_, err := plane.AuditLog{Path: r.PlaneAuditFile()}.ReadNewest(t.Context(), func(e plane.AuditEntry) bool {
		recorded = e.Surface == "mcp" && e.Tool == "whoami" && e.Actor.Login == "vic@example.com"
		return !recorded
	})
	if err != nil || !recorded {
		t.Errorf("the audit log does not name the tool: %v", err)
	}
}

// command returns tka mcp as this person's assistant starts it.
func command(t *testing.T, r *testenv.Env, p *testenv.Person) *exec.Cmd {
	t.Helper()
	path, err := buildcache.Lookup("tka")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "mcp", "--url", r.Dashboard())
	cmd.Env, cmd.Dir = p.Env(), p.Home
	return cmd
}

func session(t *testing.T, way mcp.Transport) *mcp.ClientSession {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, way, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// tool calls a tool. failed reports that the answer is an error.
func tool(t *testing.T, s *mcp.ClientSession, name string) (text string, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return res.Content[0].(*mcp.TextContent).Text, res.IsError
}
