package forge

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"
)

func inPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func TestKey(t *testing.T) {
	own, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, text := range []string{inPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(own)), inPEM("PRIVATE KEY", der)} {
		k, err := parseKey("Iv23.abc", text)
		if err != nil {
			t.Fatal(err)
		}
		jwt, err := k.Sign(now)
		parts := strings.Split(jwt, ".")
		if err != nil || len(parts) != 3 {
			t.Fatal(jwt, err)
		}
		sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
		sig, err := base64.RawURLEncoding.DecodeString(parts[2])
		if err != nil || rsa.VerifyPKCS1v15(&own.PublicKey, crypto.SHA256, sum[:], sig) != nil {
			t.Error("the signature is not the key's")
		}
		raw, err := base64.RawURLEncoding.DecodeString(parts[1])
		var claims struct {
			Iat, Exp int64
			Iss      string
		}
		switch {
		case err != nil:
			t.Error(err)
		case json.Unmarshal(raw, &claims) != nil:
			t.Errorf("json.Unmarshal(raw, &claims) is not nil; %s", raw)
		case claims.Iss != "Iv23.abc":
			t.Errorf("claims.Iss = %q, want %q", claims.Iss, "Iv23.abc")
		case claims.Iat > now.Unix()-30:
			t.Errorf("claims.Iat = %v, want at most %v", claims.Iat, now.Unix()-30)
		case claims.Exp-now.Unix() < 300:
			t.Errorf("claims.Exp-now.Unix() = %v, want at least 300", claims.Exp-now.Unix())
		case claims.Exp-claims.Iat > 600:
			t.Errorf("claims.Exp-claims.Iat = %v, want at most 600", claims.Exp-claims.Iat)
		}
		// FL-03: the key does not print.
		printed := fmt.Sprintf("%v %+v %#v %s", k, k, *k, struct{ K *appKey }{k})
		switch {
		case strings.Contains(printed, own.D.String()):
			t.Errorf("printed = %q contains %q", printed, own.D.String())
		case strings.Contains(printed, own.N.String()):
			t.Errorf("printed = %q contains %q", printed, own.N.String())
		case k.app != "Iv23.abc":
			t.Errorf("k.app = %q, want %q", k.app, "Iv23.abc")
		}
	}
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.MarshalPKCS8PrivateKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "canary", inPEM("RSA PRIVATE KEY", []byte("canary")), inPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(short)), inPEM("PRIVATE KEY", other),
		inPEM("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&own.PublicKey))} {
		if _, err := parseKey("1", text); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%.30q: %v", text, err)
		}
	}
	for _, app := range []string{"", "1/2", "a b", strings.Repeat("1", 65), "1\n"} {
		if _, err := parseKey(app, inPEM("PRIVATE KEY", der)); err == nil {
			t.Errorf("App %q is taken", app)
		}
	}
}
