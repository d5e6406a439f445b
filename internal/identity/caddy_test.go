package identity

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/problem"
)

// caddyfile returns the headers that the example makes Caddy send, with the placeholders of their
// values.
func caddyfile(t *testing.T) (text string, headers map[string]string) {
	t.Helper()
	b, err := os.ReadFile("../../deploy/caddy/Caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	headers = map[string]string{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != "header_up" {
			continue
		}
		if len(f) != 3 || headers[f[1]] != "" {
			t.Errorf("%q does not set one header", line)
			continue
		}
		headers[f[1]] = f[2]
	}
	return string(b), headers
}

// The example for Caddy sets the headers that the mode reads, with values from tailscale_auth.
func TestCaddyfile(t *testing.T) {
	t.Parallel()
	text, headers := caddyfile(t)
	want := map[string]string{
		UserHeader:    "{http.auth.user.tailscale_user}", // the complete login; tailscale_login is cut at the @
		NameHeader:    "{http.auth.user.tailscale_name}",
		TailnetHeader: "{http.auth.user.tailscale_tailnet}",
		SecretHeader:  "{file./run/secrets/tailplane-proxy}",
	}
	if !maps.Equal(headers, want) {
		t.Errorf("the example sets %v", headers)
	}
	auth, proxy := strings.Index(text, "\n\ttailscale_auth\n"), strings.Index(text, "\n\treverse_proxy ")
	switch {
	case auth < 0:
		t.Errorf("requests reach the server before Caddy has identified the caller: auth = %v, want at least 0", auth)
	case proxy < auth:
		t.Errorf("requests reach the server before Caddy has identified the caller: proxy = %v, want at least %v", proxy, auth)
	case !strings.Contains(text, "order tailscale_auth before reverse_proxy"):
		t.Errorf("requests reach the server before Caddy has identified the caller: text = %q does not contain %q",
			text, "order tailscale_auth before reverse_proxy")
	}

	// The headers that Caddy sends for callers that tailscale_auth identifies.
	for _, tt := range []struct {
		why    string
		known  map[string]string
		login  string
		shared bool
		code   problem.Code
	}{
		{"alice", map[string]string{"tailscale_user": "alice@example.com", "tailscale_name": "Alice", "tailscale_tailnet": "example.ts.net"}, "alice@example.com", false, ""},
		{"a device that is shared in", map[string]string{"tailscale_user": "eve@other.com", "tailscale_name": "Eve"}, "eve@other.com", true, ""},
		{"nobody", nil, "", false, problem.NoIdentity},
	} {
		for _, over := range []string{"tcp", "unix"} {
			ln := tcp(t)
			if over == "unix" {
				ln = socket(t)
			}
			start(t, ln, Proxy{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Secret: secret(t), Tailnet: "example.ts.net"})
			var lines []string
			for name, placeholder := range headers {
				value := secretText
				if key, ok := strings.CutPrefix(strings.Trim(placeholder, "{}"), "http.auth.user."); ok {
					value = tt.known[key] // a placeholder without a value is empty, and the header is still sent
				}
				lines = append(lines, name+": "+value)
			}
			slices.Sort(lines)
			switch got := ask(t, ln.Addr(), append(lines, "X-Forwarded-For: 100.64.0.7")...); {
			case string(got.Login) != tt.login:
				t.Errorf("%s over: string(got.Login) = %q, want %q; over = %s", tt.why, string(got.Login), tt.login, over)
			case got.Shared != tt.shared:
				t.Errorf("%s over: got.Shared = %v, want %v; over = %s", tt.why, got.Shared, tt.shared, over)
			case got.Code != tt.code:
				t.Errorf("%s over: got.Code = %q, want %q; over = %s", tt.why, got.Code, tt.code, over)
			}
		}
	}
}
