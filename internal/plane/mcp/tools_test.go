package mcp_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/mcp"
)

var update = flag.Bool("update", false, "write the tools of each role into testdata")

// PLANE-04, for tools: which tools each persona sees, and the result of a call of each, over HTTP and over lines. Both agree with the role
// matrix of the API.
func TestToolsOfRoles(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	everything := names(listed(t, of.overHTTP(t, "pat")))
	var b strings.Builder
	for _, who := range []string{"vic", "oda", "val", "alice", "pat"} {
		http, lines := of.overHTTP(t, who), of.overLines(t, who, mcp.Options{})
		reported := names(listed(t, http))
		if all := names(listed(t, lines)); !slices.Equal(all, everything) {
			t.Errorf("%s over lines: %v", who, all)
		}
		for _, name := range everything {
			res, text := call(t, lines, name, argumentsOf(name))
			outcome := "answered"
			if res.IsError {
				outcome, _, _ = strings.Cut(text, ":")
			}
			if !slices.Contains(reported, name) {
				if _, err := http.CallTool(t.Context(), params(name)); err == nil || !strings.Contains(err.Error(), "unknown tool") {
					t.Errorf("%s calls %s, which is hidden, over HTTP: %v", who, name, err)
				}
				fmt.Fprintf(&b, "%s %s: hidden over HTTP, %s over lines\n", who, name, outcome)
				continue
			}
			over, _ := call(t, http, name, argumentsOf(name))
			if over.IsError != res.IsError {
				t.Errorf("%s calls %s: HTTP and lines differ", who, name)
			}
			fmt.Fprintf(&b, "%s %s: %s\n", who, name, outcome)
		}
	}
	golden(t, "roles.txt", b.String())
}

// The descriptions of the tools: names, hints and closed schemas that every result matches.
func TestToolsDescribeThemselves(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	s := of.overHTTP(t, "pat")
	var b strings.Builder
	all := listed(t, s)
	for _, name := range names(all) {
		tool := all[name]
		in, err := json.Marshal(tool.InputSchema)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: %s readOnly=%v destructive=%v idempotent=%v\n  %s\n", name, tool.Description, tool.Annotations.ReadOnlyHint, *tool.Annotations.DestructiveHint, tool.Annotations.IdempotentHint, in)
		for which, schema := range map[string]any{"input": tool.InputSchema, "output": tool.OutputSchema} {
			closed(t, name+" "+which, schema)
		}
		res, text := call(t, s, name, argumentsOf(name))
		if res.IsError {
			t.Fatalf("%s: %s", name, text)
		}
		var schema jsonschema.Schema
		raw, _ := json.Marshal(tool.OutputSchema)
		if err := json.Unmarshal(raw, &schema); err != nil {
			t.Fatal(err)
		}
		resolved, err := schema.Resolve(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := resolved.Validate(res.StructuredContent); err != nil {
			t.Errorf("%s: the answer does not fit its schema: %v", name, err)
		}
	}
	golden(t, "tools.txt", b.String())
}

// closed checks that an object with properties allows no others.
func closed(t *testing.T, where string, schema any) {
	t.Helper()
	m, ok := schema.(map[string]any)
	if !ok {
		return
	}
	if _, object := m["properties"]; object {
		if not, _ := m["additionalProperties"].(map[string]any); m["additionalProperties"] != false && not["not"] == nil {
			t.Errorf("%s: additionalProperties is %v", where, m["additionalProperties"])
		}
	}
	for name, part := range m {
		switch part := part.(type) {
		case map[string]any:
			closed(t, where+"."+name, part)
		case []any:
			for _, p := range part {
				closed(t, where+"."+name, p)
			}
		}
	}
}

// PLANE-06, for tools: a source that is down comes first in the text. Unknown is not shown as none.
func TestToolsReportSources(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	of.store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusDown, Message: "no connection `rm -rf`"})
	for name, s := range map[string]sessions{"HTTP": of.overHTTP(t, "alice"), "lines": of.overLines(t, "alice", mcp.Options{})} {
		res, text := call(t, s, "list_clusters", nil)
		if first, _, _ := strings.Cut(text, "\n"); !strings.HasPrefix(first, "Source kubernetes is down since ") || !strings.Contains(first, "2 clusters.") {
			t.Errorf("%s: the summary is %q", name, first)
		}
		if strings.Count(text, "`") != 6 {
			t.Errorf("%s: the fence is broken: %s", name, text)
		}
		var out struct{ Meta plane.Meta }
		structure(t, res.StructuredContent, &out)
		if len(out.Meta.Sources) != 1 || out.Meta.Sources[0].Status != plane.StatusDown {
			t.Errorf("%s: sources are %+v", name, out.Meta.Sources)
		}
	}
}

// Pages continue with the cursor. A result that is too large comes in smaller pages, complete.
func TestToolsPage(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	var many []plane.Object
	for i := range 100 {
		many = append(many, plane.Adapter{ID: fmt.Sprintf("ns/pod-%03d", i), Namespace: "ns", Pod: fmt.Sprintf("pod-%03d", i), Message: strings.Repeat("long ", 20)})
	}
	of.store.Replace(plane.KindAdapter, "kubernetes", many)
	s := of.overLines(t, "alice", mcp.Options{MaxBytes: 8 << 10})
	seen := map[string]bool{}
	args := map[string]any{}
	for pages := 1; ; pages++ {
		res, text := call(t, s, "list_adapters", args)
		if res.IsError {
			t.Fatal(text)
		}
		var out struct {
			Data []plane.Adapter
			Meta plane.Meta
		}
		n := structure(t, res.StructuredContent, &out)
		if n+len(text) > 8<<10 {
			t.Errorf("an answer has %d bytes", n+len(text))
		}
		for _, a := range out.Data {
			seen[a.ID] = true
		}
		if out.Meta.Page.Next == "" {
			break
		}
		if pages > 100 {
			t.Fatal("the pages do not end")
		}
		args["cursor"] = out.Meta.Page.Next
	}
	if len(seen) != len(many) {
		t.Errorf("%d of %d were seen", len(seen), len(many))
	}
	res, text := call(t, of.overLines(t, "alice", mcp.Options{MaxBytes: 300}), "list_adapters", nil)
	if !res.IsError || !strings.HasPrefix(text, "413 too_large: ") {
		t.Errorf("an answer that does not fit: %s", text)
	}
}

func TestToolsetsAndHints(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	got := names(listed(t, of.overLines(t, "alice", mcp.Options{Toolsets: []mcp.Toolset{mcp.Audit}, ReadOnly: true, NoDestructive: true})))
	if want := []string{"list_audit", "whoami"}; !slices.Equal(got, want) {
		t.Errorf("tools are %v, want %v", got, want)
	}
	if _, err := mcp.ParseToolsets("infra,observe"); err == nil || !strings.Contains(err.Error(), "observe") {
		t.Errorf("an unknown toolset: %v", err)
	}
	if sets, err := mcp.ParseToolsets("infra, audit"); err != nil || len(sets) != 2 {
		t.Errorf("%v %v", sets, err)
	}
}

// Each tool call has an audit entry of its request, with the tool's name.
func TestToolsAreRecorded(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	s := of.overHTTP(t, "alice")
	call(t, s, "list_clusters", map[string]any{"query": "prod", "limit": 1})
	var tools []string
	for _, e := range of.auditEntries() {
		if e.Surface == "mcp" {
			tools = append(tools, fmt.Sprintf("%s %s %s %s", e.Tool, e.Verb, e.Actor.Login, e.Result))
		}
	}
	if want := []string{"list_clusters infra.read alice@example.com done"}; !slices.Equal(tools, want) {
		t.Errorf("entries are %q, want %q", tools, want)
	}
	if _, text := call(t, s, "list_audit", map[string]any{"actor": "alice@example.com", "since": time.Now().Add(-time.Hour).Format(time.RFC3339)}); !strings.Contains(text, "infra.read") {
		t.Errorf("the record: %s", text)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not what it was (-update writes it):\n%s", path, got)
	}
}
