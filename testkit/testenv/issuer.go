package testenv

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"time"
)

// Issuer signs tokens as tsidp does. testbed/tailnet runs tsidp itself.
type Issuer struct {
	srv *httptest.Server
	key *rsa.PrivateKey
}

// NewIssuer starts an issuer on loopback. Close stops it.
func NewIssuer() (*Issuer, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	i := &Issuer{key: key}
	b64 := base64.RawURLEncoding.EncodeToString
	i.srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			fmt.Fprintf(w, `{"issuer": %q, "jwks_uri": %q}`, i.srv.URL, i.srv.URL+"/keys")
		case "/keys":
			fmt.Fprintf(w, `{"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "1", "n": %q, "e": %q}]}`, b64(key.N.Bytes()), b64(big.NewInt(int64(key.E)).Bytes()))
		default:
			http.NotFound(w, r)
		}
	}))
	return i, nil
}

// Close stops the issuer.
func (i *Issuer) Close() { i.srv.Close() }

// Settings returns the settings of a plane that trusts this issuer.
func (i *Issuer) Settings() string {
	return fmt.Sprintf("{issuer: %q, audience: tailplane, tailnet: example.ts.net}", i.srv.URL)
}

// Token returns a token for login with changed claims. The key "alg" in changes sets the algorithm in the token's
// header.
func (i *Issuer) Token(login string, changes map[string]any) (string, error) {
	now := time.Now().Unix()
	claims := map[string]any{"iss": i.srv.URL, "aud": "tailplane", "sub": "userid:7", "exp": now + 300, "nbf": now, "iat": now, "nid": 42, "node": "laptop.example.ts.net.", "tailnet": "example.ts.net.", "email": login, "uid": 7}
	maps.Copy(claims, changes)
	alg := "RS256"
	if a, ok := claims["alg"].(string); ok {
		alg = a
		delete(claims, "alg")
	}
	head, err := json.Marshal(map[string]string{"alg": alg, "typ": "JWT", "kid": "1"})
	if err != nil {
		return "", err
	}
	said, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	b64 := base64.RawURLEncoding.EncodeToString
	text := b64(head) + "." + b64(said)
	if alg == "none" {
		return text + ".", nil
	}
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(nil, i.key, crypto.SHA256, sum[:])
	if alg == "HS256" { // signed with the public key: a verifier that trusts the header would accept it
		mac := hmac.New(sha256.New, x509.MarshalPKCS1PublicKey(&i.key.PublicKey))
		mac.Write([]byte(text))
		sig = mac.Sum(nil)
	}
	return text + "." + b64(sig), err
}
