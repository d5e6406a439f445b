// Package oidctest runs an OIDC issuer like those of GitHub and GitLab: an HTTPS server with a JSON Web Key
// Set, and tokens for jobs that it signs.
package oidctest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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
	URL    string       // as in the claim iss
	Client *http.Client // trusts the certificate of the issuer
	asked  atomic.Int32
	next   atomic.Int32
	signer jose.Signer
}

// New starts an issuer that runs until the test ends.
func New(t testing.TB) *Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{}
	if i.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, (&jose.SignerOptions{}).WithType("JWT")); err != nil {
		t.Fatal(err)
	}
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "1", Use: "sig", Algorithm: string(jose.ES256)}}}
	srv := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != keysPath {
			http.NotFound(w, r)
			return
		}
		i.asked.Add(1)
		json.NewEncoder(w).Encode(set)
	}))
	t.Cleanup(srv.Close)
	i.URL, i.Client = srv.URL, srv.Client()
	return i
}

// KeysURL returns the address of the key set.
func (i *Issuer) KeysURL() string { return i.URL + keysPath }

// Asked returns how often the key set was requested.
func (i *Issuer) Asked() int { return int(i.asked.Load()) }

// Token returns a token that was issued now for a subject and an audience, with an ID of its own. Changes
// add claims; nil removes one.
func (i *Issuer) Token(t testing.TB, subject, audience string, changes map[string]any) string {
	t.Helper()
	now := time.Now().Unix()
	claims := map[string]any{"iss": i.URL, "sub": subject, "aud": audience, "exp": now + 300, "nbf": now, "iat": now, "jti": fmt.Sprint("job-", i.next.Add(1))}
	maps.Copy(claims, changes)
	maps.DeleteFunc(claims, func(_ string, v any) bool { return v == nil })
	body, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := i.signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}
