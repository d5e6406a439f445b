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

// GitHub accepts an App's JWT with a lifetime of at most ten minutes, and none that starts in the
// future. Clocks differ, so the JWT starts a minute in the past and ends a minute early.
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

// parseKey parses the key of an App. app is the App's ID or client ID. Errors never repeat any part
// of the input.
func parseKey(app, text string) (*appKey, error) {
	if !appForm.MatchString(app) {
		return nil, errors.New("github_app_id is not an App's ID")
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

// Format implements [fmt.Formatter]. It prints no part of the key.
func (k *appKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, "App ", k.app) }

// Sign returns the JWT that authenticates the App at GitHub. The JWT is a secret.
func (k *appKey) Sign(now time.Time) (string, error) {
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-back).Unix(), "exp": now.Add(life).Unix(), "iss": k.app})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, k.key, crypto.SHA256, sum[:])
	if err != nil {
		return "", errors.New("signing with the App's key failed")
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}
