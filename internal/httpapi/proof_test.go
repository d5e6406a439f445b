package httpapi_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

func key(t testing.TB, seed string) httpapi.Key {
	t.Helper()
	sum := sha256.Sum256([]byte(seed))
	k, err := httpapi.NewKey(sum[:])
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// SGN-24: Every operation proves which cluster answers, and so do refusals from row 7 on. A caller
// that is not admitted gets no signature.
func TestProof(t *testing.T) {
	h := newEnv(t, httpapi.Limits{})
	k := key(t, "east")
	there := true
	h.server.Key = func() (httpapi.Key, bool) { return k, there }
	nonce := httpapi.NewNonce()
	own := h.Listener.Addr().String()
	const path = "/api/v1alpha1/login"
	for _, tt := range []struct {
		name   string
		caller access.Caller
		target string
		host   string
		code   problem.Code
		proven bool
	}{
		{"served", alice(view), path, own, "", true},
		{"by a name", alice(view), path, "TKA.tiny.ts.net.", "", true},
		{"row 9: no grant", alice(), path, own, problem.NoCapability, true},
		{"row 10: bad grant", alice(`{}`), path, own, problem.BadCapability, true},
		{"no such path", alice(), "/nothing", own, problem.NotFound, true},
		{"row 1: another name", alice(view), path, "evil.example", problem.WrongHost, false},
		{"row 3: Funnel", access.Caller{Via: access.ViaFunnel}, path, own, problem.FunnelRefused, false},
		{"row 4: no identity", access.Caller{Via: access.ViaTailnet}, path, own, problem.NoIdentity, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h.set(tt.caller, nil)
			_, hdr, body := raw(t, h, "GET", tt.target, tt.host, "", httpapi.NonceHeader+": "+nonce)
			var p problem.Error
			if err := json.Unmarshal([]byte(body), &p); err != nil || p.Code != tt.code {
				t.Fatalf("%v: %s", err, body)
			}
			proof := hdr.Get(httpapi.ProofHeader)
			if !tt.proven {
				if proof != "" {
					t.Errorf("proof %q for a caller without a right", proof)
				}
				return
			}
			check := k.Public().Check
			if err := check(nonce, tt.host, []byte(body), proof); err != nil {
				t.Errorf("%v: %q", err, proof)
			}
			for what, err := range map[string]error{
				"another nonce":  check(httpapi.NewNonce(), tt.host, []byte(body), proof),
				"another host":   check(nonce, "tka.other.ts.net", []byte(body), proof),
				"another body":   check(nonce, tt.host, []byte(body+" "), proof),
				"another key":    key(t, "west").Public().Check(nonce, tt.host, []byte(body), proof),
				"cut off":        check(nonce, tt.host, []byte(body), proof[:len(proof)-2]),
				"not base64":     check(nonce, tt.host, []byte(body), "!"+proof[1:]),
				"the zero key":   httpapi.PublicKey{}.Check(nonce, tt.host, []byte(body), proof),
				"a moved border": check(nonce[:len(nonce)-1], nonce[len(nonce)-1:]+tt.host, []byte(body), proof),
			} {
				if !errors.Is(err, httpapi.ErrBadProof) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if err := check(nonce, tt.host, []byte(body), ""); !errors.Is(err, httpapi.ErrNoProof) {
				t.Errorf("no proof: %v", err)
			}
		})
	}

	h.set(alice(view), nil)
	if _, hdr, _ := raw(t, h, "GET", path, "", ""); hdr.Get(httpapi.ProofHeader) != "" {
		t.Error("a proof without a request for one")
	}
	for name, header := range map[string]string{
		"short": base64.RawURLEncoding.EncodeToString(make([]byte, 15)), "long": base64.RawURLEncoding.EncodeToString(make([]byte, 65)),
		"padded": base64.URLEncoding.EncodeToString(make([]byte, 16)), "standard alphabet": strings.Repeat("+/", 20), "empty": "",
		"twice": nonce + "\r\n" + httpapi.NonceHeader + ": " + nonce,
	} {
		if status, hdr, _ := raw(t, h, "GET", path, "", "", httpapi.NonceHeader+": "+header); status != http.StatusBadRequest || hdr.Get(httpapi.ProofHeader) != "" {
			t.Errorf("nonce %s: %d %v", name, status, hdr)
		}
	}
	there = false
	if status, hdr, body := raw(t, h, "GET", path, "", "", httpapi.NonceHeader+": "+nonce); status != http.StatusServiceUnavailable || hdr.Get("Retry-After") == "" {
		t.Errorf("without a key: %d %v %s", status, hdr, body)
	}
	if status, _, _ := raw(t, h, "GET", path, "", ""); status != http.StatusOK {
		t.Errorf("without a key and without a request for a proof: %d", status)
	}
}

// The wire format with a fixed example, for other implementations.
func TestProofForm(t *testing.T) {
	k, err := httpapi.NewKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	const (
		public = "ed25519:6kpsY-KcUgq-9VB7Ey7F-ZVHdq6-vnuSQh7qaRRG0iw"
		nonce  = "AAECAwQFBgcICQoLDA0ODw"
	)
	if k.Public().String() != public {
		t.Errorf("public key %s", k.Public())
	}
	parsed, err := httpapi.ParsePublicKey(public)
	if err != nil || parsed != k.Public() {
		t.Errorf("parsed %v, %v", parsed, err)
	}
	// The signature as computed by OpenSSL.
	const proof = "qkWXFB-gdS9IMmfARSHSdzk47qFZqwF7AmzXsLVjTnB7YcbUeUboqy0rEs8uRaaHeLX4XsUxe5jo5D2lrnXTDQ"
	if got := k.Prove(nonce, "tka.tiny.ts.net", []byte("{}\n")); got != proof {
		t.Errorf("proof %s", got)
	}
	if err := parsed.Check(nonce, "tka.tiny.ts.net", []byte("{}\n"), proof); err != nil {
		t.Error(err)
	}
	b, err := json.Marshal(struct{ K httpapi.PublicKey }{parsed})
	if err != nil || string(b) != `{"K":"`+public+`"}` {
		t.Errorf("%s, %v", b, err)
	}
	for _, bad := range []string{"", "ed25519:", public[:20], public + "A", strings.Replace(public, "ed25519", "rsa", 1), "ed25519:" + strings.Repeat("A", 43), public[:50] + "\n"} {
		if got, err := httpapi.ParsePublicKey(bad); err == nil {
			t.Errorf("took %q as %v", bad, got)
		}
	}
}

// Law 8, SGN-25: The key cannot be printed.
func TestAKeyCannotBePrinted(t *testing.T) {
	k, err := httpapi.NewKey([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "key", k, "in", struct{ K httpapi.Key }{k})
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", k, "in", struct{ K httpapi.Key }{k})
	j, err := json.Marshal(map[string]any{"k": k})
	if err != nil {
		t.Fatal(err)
	}
	hidden := struct{ k httpapi.Key }{k}
	out := log.String() + string(j)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d", "%o", "%08b"} {
		out += fmt.Sprintf(verb, k) + fmt.Sprintf(verb, &k) + fmt.Sprintf(verb, hidden)
	}
	for _, secret := range []string{"0123456789abcdef", "30313233", "48 49 50 51", "MDEyMzQ1"} {
		if strings.Contains(strings.ToLower(out), strings.ToLower(secret)) {
			t.Errorf("printed: %s", out)
		}
	}
}
