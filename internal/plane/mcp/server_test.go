package mcp_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/plane/mcp"
)

// MC-01: of the functions of the SDK's server, clients reach only the tools.
func TestMC01_OnlyMethodsOfTools(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	res, _ := of.post(t, "alice", hello)
	own := res.Header.Get("Mcp-Session-Id")
	p := of.pipe(t, "alice", mcp.Options{})
	p.do(t, hello)
	for _, m := range []string{`"resources/list"`, `"resources/templates/list"`, `"resources/read","params":{"uri":"file:///etc/passwd"}`,
		`"resources/subscribe","params":{"uri":"x:y"}`,
		`"prompts/list"`, `"prompts/get","params":{"name":"x"}`,
		`"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":""}}`,
		`"logging/setLevel","params":{"level":"debug"}`, `"subscriptions/listen","params":{}`, `"notifications/initialized"`, `"no/such"`} {
		message := `{"jsonrpc":"2.0","id":2,"method":` + m + `}`
		if r := p.do(t, message); r.Error == nil || r.Error.Code != -32601 {
			t.Errorf("lines: %s: %+v", m, r)
		}
		res, r := of.post(t, "alice", message, "Mcp-Session-Id", own)
		switch {
		case res.StatusCode != http.StatusOK:
			t.Errorf("HTTP: res.StatusCode = %v, want %v; %s", res.StatusCode, http.StatusOK, m)
		case r.Error == nil:
			t.Errorf("HTTP: r.Error is nil; %s", m)
		case r.Error.Code != -32601:
			t.Errorf("HTTP: r.Error.Code = %v, want -32601; %s", r.Error.Code, m)
		}
	}
}

// The protocol version for each version that a client requests.
func TestVersions(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	for requested, want := range map[string]string{"2025-11-25": "2025-11-25", "2025-06-18": "2025-06-18", "2024-11-05": "2024-11-05",
		"2025-03-26": "2025-11-25", "2026-07-28": "2025-11-25", "1999-01-01": "2025-11-25"} {
		message := strings.Replace(hello, "2025-06-18", requested, 1)
		_, over := of.post(t, "alice", message)
		for s, r := range map[string]reply{"HTTP": over, "lines": of.pipe(t, "alice", mcp.Options{}).do(t, message)} {
			var result struct {
				ProtocolVersion string
				Capabilities    json.RawMessage
			}
			if err := json.Unmarshal(r.Result, &result); err != nil {
				t.Fatalf("%s: %s: %v", s, requested, err)
			}
			if result.ProtocolVersion != want {
				t.Errorf("%s: asked for %s, speaks %s, want %s", s, requested, result.ProtocolVersion, want)
			}
			if string(result.Capabilities) != `{"tools":{}}` {
				t.Errorf("%s: capabilities are %s", s, result.Capabilities)
			}
		}
	}
}

// MC-05: no cache may store a caller's response for others.
func TestMC05_NothingIsCached(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	res, _ := of.post(t, "alice", hello)
	res, r := of.post(t, "alice", `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`, "Mcp-Session-Id", res.Header.Get("Mcp-Session-Id"))
	if got := res.Header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control is %q", got)
	}
	var list struct {
		CacheScope string
		TTLMs      int
	}
	if err := json.Unmarshal(r.Result, &list); err != nil {
		t.Fatal(err)
	}
	if list.CacheScope != "private" || list.TTLMs != 0 {
		t.Errorf("the list of tools is cached as %+v", list)
	}
}

// A call that a client cancels ends at the plane and has no response.
func TestCancelledCall(t *testing.T) {
	of := newEnv(t, mcp.Options{})
	held, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	of.intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		once.Do(func() {
			close(held)
			select {
			case <-r.Context().Done():
				close(ended)
			case <-time.After(waitLimit):
			}
		})
		return true
	})
	p := of.pipe(t, "alice", mcp.Options{})
	p.do(t, hello)
	if _, err := fmt.Fprintln(p.in, `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"whoami"}}`); err != nil {
		t.Fatal(err)
	}
	waitFor(t, held)
	if _, err := io.WriteString(p.in, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, ended)
	for id := range 3 {
		if r := p.do(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, id)); string(r.ID) != fmt.Sprint(id) {
			t.Errorf("the answer to %d has the id %s", id, r.ID)
		}
	}
}

func waitFor(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(waitLimit):
		t.Fatal("nothing happens")
	}
}
