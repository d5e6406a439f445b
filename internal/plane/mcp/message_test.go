package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
)

// encoding/json decodes every message that read accepts to the same values, in spite of its case folding.
func FuzzRead(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{"name":"whoami","arguments":{}}}`,
		`{"jsonrpc":"2.0","method":"a","method":"b"}`, `{"jsonrpc":"2.0","Method":"a"}`, `[]`, `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":1}}`, "{} {}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, refused := parseMessage(b)
		if refused != nil {
			var r struct {
				JSONRPC string
				Error   struct{ Code int }
			}
			switch err := json.Unmarshal(refused.response(), &r); {
			case err != nil:
				t.Fatalf("the refusal: %v; %s", err, refused.response())
			case r.JSONRPC != "2.0":
				t.Fatalf("the refusal: r.JSONRPC = %q, want %q; %s", r.JSONRPC, "2.0", refused.response())
			case r.Error.Code == 0:
				t.Fatalf("the refusal: r.Error.Code = %v; %s", r.Error.Code, refused.response())
			}
			return
		}
		var folded struct {
			JSONRPC string
			ID      json.RawMessage
			Method  string
		}
		if err := json.Unmarshal(b, &folded); err != nil {
			t.Fatalf("taken, and not JSON: %v: %q", err, b)
		}
		switch {
		case folded.JSONRPC != "2.0":
			t.Errorf("two meanings: folded.JSONRPC = %q, want %q; %q", folded.JSONRPC, "2.0", b)
		case folded.Method != m.method:
			t.Errorf("two meanings: folded.Method = %q, want %q; %q", folded.Method, m.method, b)
		case string(folded.ID) != string(m.id):
			t.Errorf("two meanings: string(folded.ID) = %q, want %q; %q", string(folded.ID), string(m.id), b)
		}
	})
}

// The arguments of a call become a request with the same content, or an error.
func FuzzArguments(f *testing.F) {
	for _, s := range []string{`{}`, `{"query":"x","limit":5}`, `{"limit":501}`, `{"since":"2026-01-02T03:04:05Z"}`, `{"cursor":"x"}`, `null`, `[]`, `{"limit":1e2}`} {
		f.Add([]byte(s))
	}
	args := arguments(reflect.TypeFor[plane.HistoryRequest]())
	b, err := json.Marshal(inputSchema(args))
	if err != nil {
		f.Fatal(err)
	}
	var described jsonschema.Schema
	if err := json.Unmarshal(b, &described); err != nil {
		f.Fatal(err)
	}
	schema, err := described.Resolve(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var req plane.HistoryRequest
		if _, refused := parseMessage([]byte(`{"jsonrpc":"2.0","method":"x","params":{"arguments":` + string(b) + `}}`)); refused != nil {
			return
		}
		b = bytes.TrimSpace(b)
		if parseArguments(args, b, &req) != nil || string(b) == "null" {
			return
		}
		var given any
		if err := json.Unmarshal(b, &given); err != nil {
			t.Fatalf("taken, and not JSON: %q", b)
		}
		if err := schema.Validate(given); err != nil {
			t.Errorf("taken against the schema: %v: %q", err, b)
		}
		if n := int(req.Limit); n < 0 || n > 500 {
			t.Errorf("the limit is %d of %q", n, b)
		}
	})
}

// Law 10: the result of plain is printable, on one line, bounded, and cannot end a fence.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"", "name", "a\x1b[31mb", "\x1b]0;t\x07x", "\u009b1m", "ghp_0123456789abcdef0123", "token=abcdefgh", "\u202e", "line\r\nline", "\xff", "\x1b\x1b[[mm"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		out := sanitize(s)
		for _, r := range out {
			if !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r) {
				t.Errorf("%q holds %U", out, r)
			}
		}
		if len([]rune(out)) > maxText {
			t.Errorf("%d characters", len([]rune(out)))
		}
		if strings.Contains(cell(out), "`") {
			t.Errorf("%q ends a fence", cell(out))
		}
	})
}

// MC-05: a read-only server does not know a writing tool, and one without destructive tools does not know those, even if a client names
// them.
func TestMC05_HiddenMeansRefused(t *testing.T) {
	var mu sync.Mutex
	called := map[string]bool{}
	tools := []tool{{name: "reads", readOnly: true}, {name: "writes"}, {name: "ends", destructive: true}}
	for i, one := range tools {
		tools[i].input, tools[i].output = inputSchema(nil), outputOf[plane.Me]()
		tools[i].view = view{request: func() any {
			mu.Lock()
			defer mu.Unlock()
			called[one.name] = true
			return new(plane.Empty)
		}, response: func() answer { return new(output[plane.Me]) }}
	}
	for _, c := range []struct {
		o    Options
		want string
	}{{Options{}, "ends reads writes"}, {Options{ReadOnly: true}, "reads"}, {Options{NoDestructive: true}, "reads writes"}} {
		in := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}` + "\n"
		for _, name := range []string{"reads", "writes", "ends"} {
			in += `{"jsonrpc":"2.0","id":"` + name + `","method":"tools/call","params":{"name":"` + name + `"}}` + "\n"
		}
		down := httpapi.Client{HTTP: &http.Client{Transport: failing{}}, Base: "http://127.0.0.1:1", Open: plane.ParseEnvelope}
		var out bytes.Buffer
		if err := serveTools(t.Context(), strings.NewReader(in), &out, down, c.o, tools, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		var got []string
		for _, name := range []string{"ends", "reads", "writes"} {
			if called[name] {
				got = append(got, name)
			}
		}
		clear(called)
		mu.Unlock()
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v were called, want %s", c.o, got, c.want)
		}
		if n := strings.Count(out.String(), "\n"); n != 4 {
			t.Errorf("%+v: %d answers:\n%s", c.o, n, &out)
		}
	}
}

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("there is no caller")
}

// MC-06: a panic in a tool ends only its call. The output stays valid messages, and the panic goes to the log.
func TestMC06_Panic(t *testing.T) {
	bad := tool{name: "bad", readOnly: true, input: inputSchema(nil), output: outputOf[plane.Me](), view: view{request: func() any { panic("token=hunter2hunter2") }}}
	var out, log bytes.Buffer
	in := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bad"}}` + "\n"
	if err := serveTools(t.Context(), strings.NewReader(in), &out, httpapi.Client{}, Options{}, []tool{bad}, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
		t.Fatal(err)
	}
	switch {
	case !strings.Contains(out.String(), `"isError":true`):
		t.Errorf("out: out.String() = %q does not contain %q", out.String(), `"isError":true`)
	case strings.Contains(out.String()+log.String(), "hunter2"):
		t.Errorf("out: out.String()+log.String() = %q contains %q", out.String()+log.String(), "hunter2")
	case !strings.Contains(log.String(), "panicked"):
		t.Errorf("out: log.String() = %q does not contain %q", log.String(), "panicked")
	}
}

// A temporary failure is retried twice. A refusal is not.
func TestAgain(t *testing.T) {
	tries := 0
	if err := repeat(t.Context(), retries, func() error { tries++; return io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) || tries != 3 {
		t.Errorf("%d tries: %v", tries, err)
	}
	tries = 0
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := repeat(ctx, retries, func() error { tries++; return io.ErrUnexpectedEOF }); err == nil || tries != 1 {
		t.Errorf("%d tries without time", tries)
	}
}

// A sealed session id is valid for one caller. A caller that differs in any field did not open the session.
func TestConversationSeal(t *testing.T) {
	h := &httpServer{sessionKey: []byte("0123456789abcdef")}
	who := access.Caller{Login: "a@example.com", Tailnet: "example.com", Device: access.Device{ID: "n1"}, Via: access.ViaTailnet}
	id := h.newSession(who)
	if !h.ownsSession(id, who) {
		t.Error("another process's")
	}
	for _, change := range []func(*access.Caller){
		func(c *access.Caller) { c.Login = "b@example.com" }, func(c *access.Caller) { c.Tailnet = "other.com" },
		func(c *access.Caller) { c.Device.ID = "n2" }, func(c *access.Caller) { c.Via = "proxy" },
	} {
		other := who
		change(&other)
		if h.ownsSession(id, other) {
			t.Errorf("%+v has opened it", other)
		}
	}
	if (&httpServer{sessionKey: []byte("another process.")}).ownsSession(id, who) {
		t.Error("another process takes it")
	}
}
