package signin_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
)

func certificate(t *testing.T) (der, asPEM []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial}
	if der, err = x509.CreateCertificate(rand.Reader, template, template, public, private); err != nil {
		t.Fatal(err)
	}
	return der, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// The hash of a list of certificates does not depend on their order or on the white space between
// them.
func TestCAHash(t *testing.T) {
	d1, p1 := certificate(t)
	d2, p2 := certificate(t)
	if bytes.Compare(d1, d2) > 0 {
		d1, d2, p1, p2 = d2, d1, p2, p1
	}
	sum := sha256.Sum256(append(append([]byte{}, d1...), d2...))
	want := "sha256:" + hex.EncodeToString(sum[:])
	for why, list := range map[string][]byte{
		"sorted": append(append([]byte{}, p1...), p2...), "reversed": append(append([]byte{}, p2...), p1...),
		"with lines between": bytes.Join([][]byte{p2, p1, []byte("\n")}, []byte("\n\n")),
	} {
		if got, err := signin.CAHash(list); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", why, got, err, want)
		}
	}
	if got, _ := signin.CAHash(p1); got == want {
		t.Error("one certificate and two have one hash")
	}
	for why, list := range map[string][]byte{
		"empty": nil, "blank": []byte(" \n"), "no PEM": []byte("hello"), "something after it": append(append([]byte{}, p1...), "hello"...),
		"a key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: d1}), "a bad certificate": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d1[1:]}),
	} {
		if got, err := signin.CAHash(list); err == nil {
			t.Errorf("%s: %s", why, got)
		}
	}
}

// SGN-04: The four fields of existing clients keep their names. A server without the key sends no
// key.
func TestClusterInfoForm(t *testing.T) {
	b, err := json.Marshal(signin.ClusterInfo{ServerURL: "https://k8s.example:6443", CAData: []byte("PEM"), Labels: map[string]string{"env": "prod"}, Name: "prod-eu", ID: "5e0c", CAHash: "sha256:00", Version: "v1"})
	const want = `{"server_url":"https://k8s.example:6443","insecure_skip_tls_verify":false,"ca_data":"UEVN","labels":{"env":"prod"},"name":"prod-eu","id":"5e0c","ca_hash":"sha256:00","version":"v1"}`
	if err != nil || string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	k, err := httpapi.NewKey(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = json.Marshal(signin.ClusterInfo{Key: k.Public()}); err != nil || !strings.Contains(string(b), `"key":"`+k.Public().String()+`"`) {
		t.Errorf("%s, %v", b, err)
	}
	var back signin.ClusterInfo
	if err := json.Unmarshal(b, &back); err != nil || back.Key != k.Public() {
		t.Errorf("read back %v, %v", back.Key, err)
	}
}
