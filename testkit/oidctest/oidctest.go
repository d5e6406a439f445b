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
	Keys   []byte       // its JSON Web Key Set
	asked  atomic.Int32
	next   atomic.Int32
	signer jose.Signer
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
	i := &Issuer{}
	signing := jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}
	if i.signer, err = jose.NewSigner(signing, (&jose.SignerOptions{}).WithType("JWT")); err != nil {
		return nil, err
	}
	public := jose.JSONWebKey{Key: &key.PublicKey, KeyID: "1", Use: "sig", Algorithm: string(jose.ES256)}
	if i.Keys, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{public}}); err != nil {
		return nil, err
	}
	i.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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

// Token returns a token that was issued now for a subject and an audience, with an ID of its own. Changes
// add claims; nil removes one.
func (i *Issuer) Token(t testing.TB, subject, audience string, changes map[string]any) string {
	t.Helper()
	now := time.Now().Unix()
	claims := map[string]any{"iss": i.URL, "sub": subject, "aud": audience, "exp": now + 300, "nbf": now, "iat": now}
	claims["jti"] = fmt.Sprint("job-", i.next.Add(1))
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
