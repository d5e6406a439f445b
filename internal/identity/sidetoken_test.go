package identity

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// sideVerifier returns a verifier for the tokens of i.
func (i *issuer) sideVerifier(t testing.TB, audience string) *TokenVerifier {
	t.Helper()
	v, err := NewTokenVerifier([]TokenIssuer{{URL: i.url, KeysURL: i.url + jwksPath, Audience: audience}}, i.client, i.clock)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestSideToken(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	v := i.sideVerifier(t, "")
	raw := i.token(t, map[string]any{"repository": "acme/shop", "run_id": 7, "admin": true})
	got, err := v.Verify(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	want := access.Token{Issuer: i.url, Subject: "userid:7", Audience: audience, ID: "a", Expires: i.clock().Add(330 * time.Second).Local(), Claims: map[string]string{
		"iss": i.url, "aud": audience, "sub": "userid:7", "jti": "a", "key": "nodekey:00", "node": "alice-laptop.example.ts.net.", "tailnet": "example.ts.net.",
		"email": "alice@example.com", "username": "alice", "repository": "acme/shop"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("token (-want +got):\n%s", diff)
	}
}

// Tokens that are refused, one row each. No refusal contains a text of the token.
func TestSideTokenRefused(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	now := i.clock().Unix()
	claim := func(name string, value any) string { return i.token(t, map[string]any{name: value}) }
	good, err := json.Marshal(i.claims(nil))
	if err != nil {
		t.Fatal(err)
	}
	payload := base64.RawURLEncoding.EncodeToString(good)
	public, err := x509.MarshalPKIXPublicKey(&rsaKeys()[0].PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	hs256 := part(t, map[string]any{"alg": "HS256", "typ": "JWT", "kid": "1"}) + "." + payload
	mac := hmac.New(sha256.New, public)
	mac.Write([]byte(hs256))
	with := func(header map[string]any) string { return sign(t, rsaKeys()[0], header, good) }
	for _, tt := range []struct{ why, token, says string }{
		{"empty", "", "not a JSON Web Token"},
		{"no signature", part(t, head("1")) + "." + payload + ".", "signature is wrong"},
		{"alg none", part(t, map[string]any{"alg": "none"}) + "." + payload + ".", "accepted algorithm"},
		{"HS256 with the public key", hs256 + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), "accepted algorithm"},
		{"another key under the same ID", sign(t, rsaKeys()[1], head("1"), good), "signature is wrong"},
		{"unknown key", with(head("2")), "no such key"},
		{"no key ID", with(map[string]any{"alg": "RS256", "typ": "JWT"}), "no such key"},
		{"another algorithm than the key's", with(map[string]any{"alg": "RS512", "typ": "JWT", "kid": "1"}), "no such key"},
		{"access token", with(map[string]any{"alg": "RS256", "typ": "at+jwt", "kid": "1"}), "type is not JWT"},
		{"keys in the header", with(map[string]any{"alg": "RS256", "kid": "9", "jku": "https://evil.example/keys"}), "no such key"},
		{"another issuer", claim("iss", "https://evil.example"), "does not accept its issuer"},
		{"no issuer", claim("iss", nil), "does not accept its issuer"},
		{"two audiences", claim("aud", []string{audience, "evil"}), "exactly one audience"},
		{"no audience", claim("aud", nil), "exactly one audience"},
		{"expired", claim("exp", now-31), "expired"},
		{"no end", claim("exp", nil), "exp and iat"},
		{"no issue time", claim("iat", nil), "exp and iat"},
		{"too long", claim("exp", now+25*3600), "more than 24h"},
		{"not valid yet", claim("nbf", now+60), "not valid yet"},
		{"issued in the future", claim("iat", now+60), "not valid yet"},
		{"no subject", claim("sub", nil), "claim sub"},
		{"no ID", claim("jti", nil), "claim jti"},
		{"line break in the subject", claim("sub", "a\nb"), "claim sub"},
		{"large", claim("email", strings.Repeat("x", 9<<10)), "more than 8192"},
	} {
		_, err := i.sideVerifier(t, "").Verify(t.Context(), tt.token)
		if code := problem.CodeOf(err); code != problem.TokenRefused {
			t.Errorf("%s: %v", tt.why, err)
			continue
		}
		if text := fmt.Sprintf("%v %+v", err, err); !strings.Contains(text, tt.says) || strings.Contains(text, "evil") {
			t.Errorf("%s: %q, want %q and no text of the token", tt.why, text, tt.says)
		}
	}
	if _, err := i.sideVerifier(t, "other").Verify(t.Context(), i.token(t, nil)); problem.CodeOf(err) != problem.TokenRefused {
		t.Errorf("the audience of the settings is not required: %v", err)
	}
}

// A storm of unknown key IDs causes one request to the issuer a minute, and does not lock out tokens with known keys.
func TestSideTokenUnknownKeys(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	v, good := i.sideVerifier(t, ""), i.token(t, map[string]any{"exp": i.clock().Add(time.Hour).Unix()})
	for n := range 180 { // a request each second for 3 minutes
		body, _ := json.Marshal(i.claims(nil))
		if _, err := v.Verify(t.Context(), sign(t, rsaKeys()[0], head(fmt.Sprint("unknown", n)), body)); err == nil {
			t.Fatal("a token with an unknown key is accepted")
		}
		if _, err := v.Verify(t.Context(), good); err != nil {
			t.Fatalf("after %d s: %v", n, err)
		}
		i.change(func() { i.now = i.now.Add(time.Second) })
	}
	if i.asked > 3 {
		t.Errorf("%d requests in 3 minutes", i.asked)
	}
}

// Without the issuer no token is accepted, and the refusal asks for another try.
func TestSideTokenIssuerDown(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	i.wrap = badGateway
	if _, err := i.sideVerifier(t, "").Verify(t.Context(), i.token(t, nil)); problem.CodeOf(err) != problem.IdentityUnavailable {
		t.Errorf("%v", err)
	}
	redirect := func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Location", "https://evil.example/")
		w.WriteHeader(http.StatusFound)
		return true
	}
	i.change(func() { i.wrap = redirect })
	if _, err := i.sideVerifier(t, "").Verify(t.Context(), i.token(t, nil)); problem.CodeOf(err) != problem.IdentityUnavailable {
		t.Errorf("redirect: %v", err)
	}
}

// Keys from a file, with an elliptic curve: each curve verifies its own algorithm only.
func TestSideTokenKeysFile(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "ec", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "keys.json")
	if err := os.WriteFile(path, set, 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := NewTokenVerifier([]TokenIssuer{{URL: i.url, KeysFile: path}}, i.client, i.clock)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "ec"}}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := json.Marshal(i.claims(nil))
	signed, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(context.Background(), raw); err != nil {
		t.Error(err)
	}
	if _, err := v.Verify(context.Background(), i.token(t, nil)); problem.CodeOf(err) != problem.TokenRefused {
		t.Errorf("a token with a key that the file lacks: %v", err)
	}
	if i.asked > 0 {
		t.Errorf("%d requests to the issuer", i.asked)
	}
	// The verifier reads the file again: a removed key counts no more, and a new one does.
	if set, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &rsaKeys()[0].PublicKey, KeyID: "1", Use: "sig"}}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, set, 0o600); err != nil {
		t.Fatal(err)
	}
	i.change(func() { i.now = i.now.Add(keysFresh) })
	if _, err := v.Verify(context.Background(), i.token(t, nil)); err != nil {
		t.Errorf("a token with a key that the file has now: %v", err)
	}
	if _, err := v.Verify(context.Background(), raw); problem.CodeOf(err) != problem.TokenRefused {
		t.Errorf("a token with a key that the file had: %v", err)
	}
}

func TestTokenIssuerCheck(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none.json")
	if err := os.WriteFile(none, []byte(`{"keys":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		issuer TokenIssuer
		ok     bool
	}{
		{TokenIssuer{URL: "https://a.example", KeysURL: "https://b.example/keys"}, true},
		{TokenIssuer{URL: "http://127.0.0.1:1", KeysURL: "http://127.0.0.1:1/keys"}, true},
		{TokenIssuer{URL: "https://a.example"}, false},
		{TokenIssuer{URL: "https://a.example", KeysURL: "https://a.example", KeysFile: "/x"}, false},
		{TokenIssuer{URL: "https://a.example", KeysURL: "http://a.example/keys"}, false},
		{TokenIssuer{URL: "https://a.example", KeysURL: "https://u:p@a.example/keys"}, false},
		{TokenIssuer{URL: "a.example", KeysURL: "https://a.example/keys"}, false},
		{TokenIssuer{URL: "https://a.example?x", KeysURL: "https://a.example/keys"}, false},
		{TokenIssuer{URL: "https://a.example", KeysFile: "/does/not/exist"}, false},
		{TokenIssuer{URL: "https://a.example", KeysFile: none}, false},
	} {
		if _, err := NewTokenVerifier([]TokenIssuer{tt.issuer}, http.DefaultClient, time.Now); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.issuer, err)
		}
	}
}
