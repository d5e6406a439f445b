package signin_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// webToken returns a text in the form of a JSON Web Token with these claims.
func webToken(claims string) string {
	return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2lnbmF0dXJl"
}

// tokenStore issues one token.
type tokenStore struct {
	*memoryStore
	token string
}

func (s tokenStore) IssueToken(_ context.Context, _ signin.Signin, life time.Duration) (secret.Text, time.Time, error) {
	return secret.New(s.token), time.Now().Add(life), nil
}

// The audit entry of an issued token has the token's ID in the text of Kubernetes' audit log, and no other part of the token.
func TestCredentialID(t *testing.T) {
	const id = "b5bd31a3-9e39-4e09-8a72-6a6a90a2a7a6"
	for _, tt := range []struct{ why, token, want string }{
		{"a token with an ID", webToken(`{"sub":"a","jti":"` + id + `"}`), "JTI=" + id},
		{"a token without an ID", webToken(`{"sub":"a"}`), ""},
		{"an empty ID", webToken(`{"jti":""}`), ""},
		{"an ID that is no text", webToken(`{"jti":7}`), ""},
		{"a long ID", webToken(`{"jti":"` + strings.Repeat("a", 129) + `"}`), ""},
		{"no JSON", webToken(`jti`), ""},
		{"no base64", "a.!.c", ""},
		{"two parts", "a.b", ""},
		{"an opaque token", "t0k3n", ""},
	} {
		store := tokenStore{newMemoryStore(), tt.token}
		h, _, entries := newHandler(store, func() (access.Caller, error) {
			return guarded("alice@example.com", "n1", eightHours), nil
		})
		if res := request(h, signin.Login.Declare(), signin.LoginRequest{}); res.Code >= 300 {
			t.Fatalf("%s: login: %d %s", tt.why, res.Code, res.Body)
		}
		*entries = nil
		if res := request(h, signin.GetKubeconfig.Declare(), nil); res.Code != http.StatusOK {
			t.Fatalf("%s: kubeconfig: %d %s", tt.why, res.Code, res.Body)
		}
		if len(*entries) != 1 {
			t.Fatalf("%s: %d entries, want 1", tt.why, len(*entries))
		}
		if got := (*entries)[0].CredentialID; got != tt.want {
			t.Errorf("%s: the entry has the credential %q, want %q", tt.why, got, tt.want)
		}
		stored, ok := (*entries)[0].Stored()
		if !ok || stored.CredentialID != tt.want {
			t.Errorf("%s: the audit log stores the credential %q, want %q", tt.why, stored.CredentialID, tt.want)
		}
	}
}
