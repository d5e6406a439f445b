package plane

import (
	"net/http"
	"testing"
	"time"
)

// With identity mode whois, a request may also carry a token. The token must be valid and belong to the same person,
// and gives no rights.
func TestTokensBesideTheConnection(t *testing.T) {
	r := start(t)
	alice, mallory := person(t, r, "alice-tool", "alice@example.com"), person(t, r, "mallory-tool", "mallory@example.com")
	now := time.Now().Unix()
	for _, x := range []struct {
		why, token string
		status     int
		code       string
	}{
		{"none", "", 200, ""},
		{"her own", token(t, "alice@example.com", nil), 200, ""},
		{"of another person", token(t, "pat@platform.dev", nil), 401, "identity_mismatch"},
		{"of another client", token(t, "alice@example.com", map[string]any{"aud": "grafana"}), 401, "invalid_token"},
		{"over", token(t, "alice@example.com", map[string]any{"exp": now - 31}), 401, "invalid_token"},
		{"of another tailnet", token(t, "alice@example.com", map[string]any{"tailnet": "evil.ts.net"}), 401, "invalid_token"},
		{"unsigned", token(t, "alice@example.com", map[string]any{"alg": "none"}), 401, "invalid_token"},
		{"opaque", "5f3a9c1e7b2d4860a1b2c3d4e5f60718", 401, "invalid_token"},
	} {
		a, err := ask(t, r, alice, "GET", "/api/v1/me", "", bearer(x.token))
		if a = must(t, a, err); a.status != x.status || a.code() != x.code {
			t.Errorf("%s: %d %s, want %d %s", x.why, a.status, a.body, x.status, x.code)
		}
	}
	a, err := ask(t, r, mallory, "GET", "/api/v1/me", "", bearer(token(t, "alice@example.com", nil)))
	if a = must(t, a, err); a.code() != "identity_mismatch" {
		t.Errorf("alice's token from mallory's device: %d %s", a.status, a.body)
	}
	if a, err = ask(t, r, mallory, "GET", "/api/v1/me", "", bearer(token(t, "mallory@example.com", nil))); must(t, a, err).code() != "not_authorized_user" {
		t.Errorf("mallory's own token: %d %s", a.status, a.body)
	}
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) {
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
	}
}

// token returns a token of the issuer that the plane trusts.
func token(t *testing.T, login string, changes map[string]any) string {
	t.Helper()
	text, err := system.issuer.Token(login, changes)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
