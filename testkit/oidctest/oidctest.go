// Package oidctest runs an OIDC issuer like those of GitHub and GitLab: a server with a JSON Web Key Set, and
// tokens for jobs that it signs. It serves plain HTTP on loopback, so that programs need no certificate for it.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// keysPath is the path of the key set. Servers know it from their settings.
const keysPath = "/keys"

// An Issuer is an OIDC issuer.
type Issuer struct {
	URL    string // as in the claim iss
	Client *http.Client
	Keys   []byte // its JSON Web Key Set
	asked  atomic.Int32
	next   atomic.Int32
	key    *ecdsa.PrivateKey
	server *httptest.Server
}

// New starts an issuer that runs until the test ends.
func New(t testing.TB) *Issuer {
	t.Helper()
	i, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	return i
}

// Start starts an issuer that runs until Close.
func Start() (*Issuer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	i := &Issuer{key: key}
	public := jose.JSONWebKey{Key: &key.PublicKey, KeyID: "1", Use: "sig", Algorithm: string(jose.ES256)}
	if i.Keys, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}}); err != nil {
		return nil, err
	}
	i.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != keysPath {
			http.NotFound(w, r)
			return
		}
		i.asked.Add(1)
		w.Write(i.Keys)
	}))
	i.URL, i.Client = i.server.URL, i.server.Client()
	return i, nil
}

// Close stops the issuer.
func (i *Issuer) Close() { i.server.Close() }

// KeysURL returns the address of the key set.
func (i *Issuer) KeysURL() string { return i.URL + keysPath }

// Asked returns how often the key set was requested.
func (i *Issuer) Asked() int { return int(i.asked.Load()) }

// Claims returns the claims of a token that is issued now for a subject and an audience, with an ID of its own.
// Changes add claims; nil removes one.
func (i *Issuer) Claims(subject, audience string, changes map[string]any) map[string]any {
	now := time.Now().Unix()
	claims := map[string]any{"iss": i.URL, "sub": subject, "aud": audience, "exp": now + 300, "nbf": now, "iat": now}
	claims["jti"] = fmt.Sprint("job-", i.next.Add(1))
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	return claims
}

// Token returns a token with those claims.
func (i *Issuer) Token(t testing.TB, subject, audience string, changes map[string]any) string {
	t.Helper()
	return i.Sign(t, map[string]any{"alg": "ES256", "kid": "1", "typ": "JWT"}, i.Claims(subject, audience, changes))
}

// Sign signs any header and claims, as JSON objects, with the issuer's key by ES256, whatever algorithm the header names.
func (i *Issuer) Sign(t testing.TB, header, claims any) string {
	t.Helper()
	text := Unsigned(t, header, claims)
	sum := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64)
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature)
}

// Unsigned returns the text of a token that its signature covers.
func Unsigned(t testing.TB, header, claims any) string {
	t.Helper()
	var parts [2]string
	for n, part := range []any{header, claims} {
		b, err := json.Marshal(part)
		if err != nil {
			t.Fatal(err)
		}
		parts[n] = base64.RawURLEncoding.EncodeToString(b)
	}
	return parts[0] + "." + parts[1]
}
