package forge

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"time"
)

// GitHub takes an App's JWT for ten minutes at most, and none from the future. Clocks
// differ, so it begins a minute back and ends a minute early.
const (
	back = time.Minute
	life = 9 * time.Minute
)

// An appKey is an App's private key.
type appKey struct {
	app string
	key *rsa.PrivateKey
}

var appForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// parseKey reads the key of an App, which is known by its number or its client id. What
// is wrong is said without repeating any of it.
func parseKey(app, text string) (*appKey, error) {
	if !appForm.MatchString(app) {
		return nil, errors.New("github_app_id is not the number of an App")
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("github_app_private_key is not in PEM form")
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, errors.New("github_app_private_key cannot be read")
		}
		own, ok := parsed.(*rsa.PrivateKey)
		if !ok {
			return nil, errors.New("github_app_private_key is not an RSA key")
		}
		key = own
	}
	if key.N.BitLen() < 2048 {
		return nil, errors.New("github_app_private_key is shorter than 2048 bits")
	}
	return &appKey{app, key}, nil
}

// App is the number or the client id of the App.
func (k *appKey) App() string { return k.app }

// Format implements [fmt.Formatter], without the key.
func (k *appKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, "App ", k.app) }

// Sign returns the JWT by which GitHub knows the App; it is a secret.
func (k *appKey) Sign(now time.Time) (string, error) {
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-back).Unix(), "exp": now.Add(life).Unix(), "iss": k.app})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, k.key, crypto.SHA256, sum[:])
	if err != nil {
		return "", errors.New("the App's key does not sign")
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}
