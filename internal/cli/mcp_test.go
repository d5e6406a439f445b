package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/cli"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
)

// newPlane starts the operator plane's API on loopback, where every caller is alice.
func newPlane(t *testing.T) *httptest.Server {
	store := plane.NewStore(time.Now)
	store.Replace(plane.KindCluster, "kubernetes", []plane.Object{plane.Cluster{ID: "c1", Name: "prod-eu", Health: "Alive"}})
	store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusOK})
	service := &plane.Service{Store: store, Now: time.Now, Ready: func() bool { return true },
		RevokeSignin: func(context.Context, access.Permit, string, string, string, bool) (plane.Revocation, error) {
			return plane.Revocation{}, io.EOF
		},
		Exposures:    func() []plane.Exposure { return nil },
		AuditEntries: func(context.Context, func(plane.AuditEntry) bool) (int, error) { return 0, nil }}
	way := &httpapi.Server{Names: func() []string { return []string{"127.0.0.1"} }, Encoder: plane.EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Identify: func(*http.Request) (access.Caller, error) {
			return access.Caller{Login: "alice@example.com", UserID: "1", Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet,
				Rules: []json.RawMessage{json.RawMessage(`{"role":"operator","orgs":["*"]}`)}}, nil
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, now)
		},
		Record: func(audit.Entry) error { return nil }}
	srv := httptest.NewServer(way.Handler(service.Routes()...))
	t.Cleanup(srv.Close)
	return srv
}

// mcp runs tka mcp with the input of an assistant and returns its output.
func mcp(t *testing.T, config, in string, env map[string]string, args ...string) (code int, out, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code = cli.Program{Args: append([]string{"tka", "mcp", "--config", config}, args...), In: strings.NewReader(in), Out: &stdout, Err: &stderr,
		Getenv: func(name string) string { return env[name] }, Now: time.Now, Build: cli.Build{Version: "v0.0.0-test"}}.Run(ctx)
	return code, stdout.String(), stderr.String()
}

func settingsFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const conversation = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"tools/list"}
not a message
{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"list_clusters","arguments":{"query":"prod"}}}
`

// MC-06, PLANE-13: standard output has only messages of the protocol until the last response.
func TestMC06_OnlyMessagesOnStandardOutput(t *testing.T) {
	srv, notFound := newPlane(t), httptest.NewServer(http.NotFoundHandler())
	defer notFound.Close()
	for why, c := range map[string]struct {
		config, url string
		args        []string
		want        string
	}{
		"the plane answers":       {"", srv.URL, nil, "1 cluster."},
		"the URL is set":          {"plane.url: " + srv.URL, "", nil, "1 cluster."},
		"the plane is away":       {"", "http://127.0.0.1:1", nil, "Try: tailscale status"},
		"it is no plane":          {"", notFound.URL, nil, "check that the address is that of a Tailplane operator plane"},
		"it answers by redirects": {"", redirecting(t, srv.URL), nil, "redirect"},
		"another toolset":         {"", srv.URL, []string{"--toolsets", "audit"}, `unknown tool`},
	} {
		args := c.args
		if c.url != "" {
			args = append(args, "--url", c.url)
		}
		code, out, errs := mcp(t, settingsFile(t, c.config), conversation, nil, args...)
		if code != 0 {
			t.Errorf("%s: exit %d: %s", why, code, errs)
		}
		ids := map[string]bool{}
		lines := bufio.NewScanner(strings.NewReader(out))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var m struct {
				JSONRPC string
				ID      json.RawMessage
			}
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil || m.JSONRPC != "2.0" {
				t.Errorf("%s: %q is not a message", why, lines.Text())
			}
			ids[string(m.ID)] = true
		}
		switch {
		case !ids["1"]:
			t.Errorf(`%s: ids["1"] is false, %v`, why, ids)
		case !ids["2"]:
			t.Errorf(`%s: ids["2"] is false, %v`, why, ids)
		case !ids["3"]:
			t.Errorf(`%s: ids["3"] is false, %v`, why, ids)
		case !ids["null"]:
			t.Errorf(`%s: ids["null"] is false, %v`, why, ids)
		case len(ids) != 4:
			t.Errorf("%s: len(ids) = %v, want 4", why, len(ids))
		}
		if !strings.Contains(out, c.want) {
			t.Errorf("%s: %s", why, out)
		}
	}
}

// The help lists exactly the tools that declare a change.
func TestMCPHelpNamesWhatWrites(t *testing.T) {
	_, out, errs := mcp(t, settingsFile(t, ""), conversation, nil, "--url", newPlane(t).URL)
	var want strings.Builder
	for line := range strings.Lines(out) {
		var m struct {
			Result struct {
				Tools []struct {
					Name        string
					Annotations struct{ ReadOnlyHint bool }
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		for _, tool := range m.Result.Tools {
			if !tool.Annotations.ReadOnlyHint {
				want.WriteString("\n  " + tool.Name)
			}
		}
	}
	if want.Len() == 0 {
		t.Fatalf("no tool changes anything: %s%s", out, errs)
	}
	if _, help, _ := mcp(t, settingsFile(t, ""), "", nil, "--help"); !strings.Contains(help, "these, which change or propose something:\n"+want.String()+"\n\n") {
		t.Errorf("the help does not list%s\n%s", want.String(), help)
	}
}

func redirecting(t *testing.T, to string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to+r.URL.Path, http.StatusFound) }))
	t.Cleanup(srv.Close)
	return srv.URL
}

// MC-06: tka does not guess the address of the plane and sends no token by plain http.
func TestMC06_WhereThePlaneIs(t *testing.T) {
	for why, c := range map[string]struct {
		config string
		env    map[string]string
		args   []string
		want   string
	}{
		"nowhere":                   {want: "tka config plane.url https://"},
		"http in the tailnet":       {args: []string{"--url", "http://dashboard.tail1234.ts.net"}, want: "it needs https://"},
		"http elsewhere":            {args: []string{"--url", "http://example.com"}, want: "--url is"},
		"http, set":                 {config: "plane.url: http://dashboard", want: "plane.url is http://dashboard"},
		"localhost by name":         {args: []string{"--url", "http://localhost:1"}, want: "it needs https://"},
		"a token by http":           {args: []string{"--url", "http://127.0.0.1:1"}, env: map[string]string{"DASHBOARD_TOKEN": "canary"}, want: "tka sends a token only over https"},
		"a password in the URL":     {args: []string{"--url", "https://u:canary@dashboard"}, want: "--url is"},
		"two tokens":                {args: []string{"--url", "https://d", "--token-file", "x", "--token-command", "y"}, want: "cannot be combined"},
		"too few bytes":             {args: []string{"--url", "https://d", "--max-bytes", "10"}, want: "--max-bytes is 10"},
		"a toolset that is not":     {args: []string{"--url", "https://d", "--toolsets", "secrets"}, want: `"secrets" is not a toolset`},
		"no time":                   {args: []string{"--url", "https://d", "--timeout", "0s"}, want: "--timeout must be greater than zero (got 0s)"},
		"settings without a scheme": {config: "plane.url: ftp://x", want: "plane.url is"},
	} {
		code, out, errs := mcp(t, settingsFile(t, c.config), conversation, c.env, c.args...)
		switch {
		case code != 2:
			t.Errorf("%s: exit: code = %v, want 2", why, code)
		case out != "":
			t.Errorf("%s: exit: out = %q, want none", why, out)
		case !strings.Contains(errs, c.want):
			t.Errorf("%s: exit: errs = %q does not contain %q", why, errs, c.want)
		case strings.Contains(errs, "canary"):
			t.Errorf("%s: exit: errs = %q contains %q", why, errs, "canary")
		}
	}
}
