package config

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/util/secret"
)

const canary = "canary-token-1234567890"

// pair returns a certificate and its key in PEM.
func pair(t testing.TB) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

func kubeconfig(ca []byte, cluster, user string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: x}}]
clusters: [{name: k, cluster: {server: "https://10.1.0.1:6443", certificate-authority-data: %q%s}}]
users: [{name: u, user: {%s}}]
`, base64.StdEncoding.EncodeToString(ca), cluster, user)
}

func TestReadCredential(t *testing.T) {
	cert, key := pair(t)
	token := map[string][]byte{"server": []byte("https://10.1.0.1:6443\nhttps://10.1.0.2:6443\n"), "ca.crt": cert, "token": []byte(canary + "\n"), "namespace": []byte("x")}
	c, err := ReadCredential(token, false)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(c.Servers) != 2:
		t.Errorf("len(c.Servers) = %v, want 2", len(c.Servers))
	case c.Servers[1].Host != "10.1.0.2:6443":
		t.Errorf("c.Servers[1].Host = %q, want %q", c.Servers[1].Host, "10.1.0.2:6443")
	case c.Token.Reveal() != canary:
		t.Errorf("c.Token.Reveal() = %q, want %q", c.Token.Reveal(), canary)
	}
	c, err = ReadCredential(map[string][]byte{"server": []byte("https://10.1.0.1"), "ca.crt": cert, "tls.crt": cert, "tls.key": key, "tls-server-name": []byte("api.east\n")}, false)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case !bytes.Equal(c.Certificate, cert):
		t.Errorf("c.Certificate = %q, want %q", c.Certificate, cert)
	case c.Key.Reveal() != string(key):
		t.Errorf("c.Key.Reveal() = %q, want %q", c.Key.Reveal(), string(key))
	case c.TLSServerName != "api.east":
		t.Errorf("c.TLSServerName = %q, want %q", c.TLSServerName, "api.east")
	}
	c, err = ReadCredential(map[string][]byte{"kubeconfig": []byte(kubeconfig(cert, ", tls-server-name: api.east", "token: "+canary))}, false)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(c.Servers) != 1:
		t.Errorf("len(c.Servers) = %v, want 1", len(c.Servers))
	case c.Servers[0].Host != "10.1.0.1:6443":
		t.Errorf("c.Servers[0].Host = %q, want %q", c.Servers[0].Host, "10.1.0.1:6443")
	case c.Token.Reveal() != canary:
		t.Errorf("c.Token.Reveal() = %q, want %q", c.Token.Reveal(), canary)
	case c.TLSServerName != "api.east":
		t.Errorf("c.TLSServerName = %q, want %q", c.TLSServerName, "api.east")
	case !bytes.Equal(c.CA, cert):
		t.Errorf("c.CA = %q, want %q", c.CA, cert)
	}
	data := fmt.Sprintf("client-certificate-data: %q, client-key-data: %q", base64.StdEncoding.EncodeToString(cert), base64.StdEncoding.EncodeToString(key))
	if c, err = ReadCredential(map[string][]byte{"kubeconfig": []byte(kubeconfig(cert, ", insecure-skip-tls-verify: false", data))}, false); err != nil || c.Key.Reveal() != string(key) {
		t.Errorf("read as %v: %v", c, err)
	}
}

// AD-08: no field of a Secret can run a program, read a file or send the credential elsewhere. No error
// contains data of the Secret.
func TestCredentialRefused(t *testing.T) {
	cert, key := pair(t)
	other, _ := pair(t)
	files := func(change map[string]string) map[string][]byte {
		f := map[string][]byte{"server": []byte("https://10.1.0.1:6443"), "ca.crt": cert, "token": []byte(canary)}
		for k, v := range change {
			if f[k] = []byte(v); v == "" {
				delete(f, k)
			}
		}
		return f
	}
	for _, tt := range []struct {
		change map[string]string
		says   string
	}{
		{map[string]string{"server": ""}, "no server"},
		{map[string]string{"server": "https://u:" + canary + "@10.1.0.1"}, "user name or password"},
		{map[string]string{"server": "https://10.1.0.1 https://169.254.169.254"}, "link-local"},
		{map[string]string{"server": "https://127.0.0.1"}, "this machine"},
		{map[string]string{"ca.crt": ""}, "no certificate to verify"},
		{map[string]string{"token": ""}, "neither a token nor"},
		{map[string]string{"token": canary + " " + canary}, "not valid in a token"},
		{map[string]string{"tls.crt": string(cert), "tls.key": string(key)}, "a token and a client certificate"},
		{map[string]string{"token": "", "tls.crt": string(other), "tls.key": string(key)}, "are not a certificate with its key"},
		{map[string]string{"tls-server-name": "a b"}, "tls-server-name"},
		{map[string]string{"exec": "x"}, `the key "exec"`},
		{map[string]string{"kubeconfig": "x"}, "a kubeconfig and other keys"},
	} {
		_, err := ReadCredential(files(tt.change), false)
		switch {
		case err == nil:
			t.Error("no error")
		case !strings.Contains(err.Error(), tt.says):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), tt.says)
		case strings.Contains(err.Error(), canary):
			t.Errorf("err.Error() = %q contains %q", err.Error(), canary)
		}
	}
	for _, tt := range []struct{ cluster, user, says string }{
		{"", "exec: {command: x}", "exec is refused: the adapter runs no program"},
		{"", "auth-provider: {name: x}", "auth-provider is refused"},
		{"", "tokenFile: /etc/x", "tokenFile is refused: a credential must be the content of its Secret"},
		{"", "client-certificate: /x", "client-certificate is refused"},
		{"", "client-key: /x", "client-key is refused"},
		{"", "username: a, password: " + canary, "password is refused"},
		{"", "token: a, as: system:masters", "as is refused"},
		{"", "token: a, as-groups: [x]", "as-groups is refused"},
		{"", canary + ": a", "a field here that is not allowed"},
		{"", "token: [" + canary + "]", "token is not a string"},
		{"", "token: " + canary + ", token: a", "token twice"},
		{", insecure-skip-tls-verify: true", "token: a", "insecure-skip-tls-verify is refused"},
		{", proxy-url: http://x", "token: a", "proxy-url is refused"},
		{", certificate-authority: /x", "token: a", "certificate-authority is refused"},
		{"", "client-key-data: '" + canary + "!'", "not base64"},
		{"", "}, x: {", "the user has"},
	} {
		b := kubeconfig(cert, tt.cluster, tt.user)
		_, err := ReadCredential(map[string][]byte{"kubeconfig": []byte(b)}, false)
		switch {
		case err == nil:
			t.Errorf("no error; %s; %s", tt.cluster, tt.user)
		case !strings.Contains(err.Error(), tt.says):
			t.Errorf("err.Error() = %q does not contain %q; %s; %s", err.Error(), tt.says, tt.cluster, tt.user)
		case strings.Contains(err.Error(), canary):
			t.Errorf("err.Error() = %q contains %q; %s; %s", err.Error(), canary, tt.cluster, tt.user)
		}
	}
	whole := kubeconfig(cert, "", "token: "+canary)
	for _, tt := range []struct{ old, new, says string }{
		{"current-context: c", "current-context: d", "not one of its contexts"},
		{"cluster: k,", "cluster: other,", "has a cluster or user"},
		{"kind: Config", "kind: Other", "kind Config"},
		{"server: \"https://10.1.0.1:6443\"", "server: \"https://[::ffff:169.254.169.254]\"", "link-local"},
		{"apiVersion: v1", "a: *" + canary, "cannot be read"},
		{"apiVersion: v1", canary, "cannot be read"},
		{"users:", "users: [{name: u, user: {exec: {}}}]\nusers:", "users twice"},
	} {
		_, err := ReadCredential(map[string][]byte{"kubeconfig": []byte(change(t, whole, tt.old, tt.new))}, false)
		switch {
		case err == nil:
			t.Errorf("no error; %s", tt.new)
		case !strings.Contains(err.Error(), tt.says):
			t.Errorf("err.Error() = %q does not contain %q; %s", err.Error(), tt.says, tt.new)
		case strings.Contains(err.Error(), canary):
			t.Errorf("err.Error() = %q contains %q; %s", err.Error(), canary, tt.new)
		}
	}
	// A forbidden field is also refused in a user that no context names.
	second := change(t, whole, "users: [", "users: [{name: v, user: {exec: {command: x}}}, ")
	if _, err := ReadCredential(map[string][]byte{"kubeconfig": []byte(second)}, false); err == nil || !strings.Contains(err.Error(), "exec is refused") {
		t.Errorf("a second user may run a program: %v", err)
	}
}

// Law 8: a credential cannot be printed.
func TestSecretsStayInside(t *testing.T) {
	c := &Credential{Token: secret.New(canary), Key: secret.New(canary)}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", c.Token, "credential", c)
	j, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]string{"%v": fmt.Sprintf("%v %+v %#v %s %q %x", c, c, c, c.Token, c.Token, c.Token), "log": log.String(), "JSON": string(j)} {
		if strings.Contains(s, canary) || strings.Contains(s, fmt.Sprintf("%x", canary)) {
			t.Errorf("%s shows it: %s", what, s)
		}
	}
}

func jwt(claims string) secret.Text {
	return secret.New("e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln")
}

// TestCheckAudience checks that a token that is valid for home is not sent to another cluster.
func TestCheckAudience(t *testing.T) {
	home := jwt(`{"aud":["https://kubernetes.default.svc","a"]}`)
	for _, tt := range []struct {
		token secret.Text
		ok    bool
	}{
		{jwt(`{"aud":["west"]}`), true},
		{jwt(`{"aud":"west"}`), true},
		{jwt(`{"aud":["west","a"]}`), false},
		{jwt(`{"aud":"https://kubernetes.default.svc"}`), false},
		{jwt(`{}`), false}, {jwt(`{"aud":[]}`), false}, {jwt(`{"aud":1}`), false}, {secret.New("opaque"), false}, {secret.New("a.!.c"), false}, {home, false},
	} {
		if err := CheckAudience(tt.token, home); (err == nil) != tt.ok {
			t.Errorf("%s: %v, want ok %v", tt.token.Reveal(), err, tt.ok)
		}
	}
	if err := CheckAudience(jwt(`{"aud":"west"}`), secret.New("opaque")); err == nil {
		t.Error("a home token with an unknown audience counts as different")
	}
}

func FuzzReadCredential(f *testing.F) {
	cert, _ := pair(f)
	f.Add([]byte(kubeconfig(cert, "", "token: a")))
	f.Add([]byte("users: [{name: a, user: {exec: {}}}]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ReadCredential(map[string][]byte{"kubeconfig": b}, false)
		if err != nil {
			return
		}
		switch {
		case len(c.Servers) != 1:
			t.Fatalf("accepted: len(c.Servers) = %v, want 1", len(c.Servers))
		case c.Servers[0].Scheme != "https":
			t.Fatalf("accepted: c.Servers[0].Scheme = %q, want %q", c.Servers[0].Scheme, "https")
		case c.Token.IsZero() == (len(c.Certificate) == 0):
			t.Fatalf("accepted: c.Token.IsZero() = %v, the same as (len(c.Certificate) == 0)", c.Token.IsZero())
		}
	})
}
