package acmetest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tailscale.com/tempfork/acme"
)

const name = "tka.tiny.ts.net"

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func start(t testing.TB) *Authority {
	t.Helper()
	a, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// acmeClient is Tailscale's own ACME client, with an account at the authority.
type acmeClient struct {
	*acme.Client
	t      testing.TB
	change func(jws map[string]string) // changes its requests in transit; may be nil
}

func join(t testing.TB, a *Authority) *acmeClient {
	t.Helper()
	m := &acmeClient{t: t}
	m.Client = &acme.Client{Key: newKey(t), DirectoryURL: a.DirectoryURL(), HTTPClient: &http.Client{Transport: m},
		RetryBackoff: func(int, *http.Request, *http.Response) time.Duration { return 0 }}
	if _, err := m.Register(within(t), &acme.Account{}, acme.AcceptTOS); err != nil {
		t.Fatal(err)
	}
	return m
}

// RoundTrip sends the client's signed request after the change.
func (m *acmeClient) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.change != nil && r.Method == http.MethodPost {
		var jws map[string]string
		if err := json.NewDecoder(r.Body).Decode(&jws); err != nil {
			return nil, err
		}
		m.change(jws)
		b, err := json.Marshal(jws)
		if err != nil {
			return nil, err
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// order requests a certificate and returns the order and its only challenge.
func (m *acmeClient) order(domain string) (*acme.Order, *acme.Challenge) {
	m.t.Helper()
	o, err := m.AuthorizeOrder(within(m.t), acme.DomainIDs(domain))
	if err != nil {
		m.t.Fatal(err)
	}
	auth, err := m.GetAuthorization(within(m.t), o.AuthzURLs[0])
	if err != nil {
		m.t.Fatal(err)
	}
	switch {
	case len(auth.Challenges) != 1:
		m.t.Fatalf("authorization: len(auth.Challenges) = %v, want 1", len(auth.Challenges))
	case auth.Challenges[0].Type != "dns-01":
		m.t.Fatalf("authorization: auth.Challenges[0].Type = %q, want %q", auth.Challenges[0].Type, "dns-01")
	case auth.Identifier.Value != domain:
		m.t.Fatalf("authorization: auth.Identifier.Value = %q, want %q", auth.Identifier.Value, domain)
	case auth.Status != acme.StatusPending:
		m.t.Fatalf("authorization: auth.Status = %q, want %q", auth.Status, acme.StatusPending)
	}
	return o, auth.Challenges[0]
}

func (m *acmeClient) record(c *acme.Challenge) string {
	m.t.Helper()
	s, err := m.DNS01ChallengeRecord(c.Token)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

func request(t testing.TB, domain string) []byte {
	t.Helper()
	b, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{domain}}, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// kind returns the type of the authority's error, after "urn:ietf:params:acme:error:".
func kind(err error) string {
	e, ok := errors.AsType[*acme.Error](err)
	if !ok {
		return ""
	}
	return strings.TrimPrefix(e.ProblemType, "urn:ietf:params:acme:error:")
}

// TB-04: Tailscale's own client gets a certificate for the name that it proved, and for no other.
func TestCertificate(t *testing.T) {
	t.Parallel()
	a := start(t)
	m := join(t, a)
	o, chal := m.order(name)

	if _, _, err := m.CreateOrderCert(within(t), o.FinalizeURL, request(t, name), true); kind(err) != "orderNotReady" {
		t.Errorf("a name without a validation: %v", err)
	}
	a.SetTXT("_acme-challenge."+name, "another challenge's")
	a.SetTXT("_acme-challenge.other.ts.net", m.record(chal))
	if _, err := m.Accept(within(t), chal); kind(err) != "dns" {
		t.Errorf("without the TXT record: %v", err)
	}
	a.SetTXT("_acme-challenge."+name, m.record(chal))
	if _, err := m.Accept(within(t), chal); err != nil {
		t.Fatal(err)
	}
	if _, err := m.WaitOrder(within(t), o.URI); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.CreateOrderCert(within(t), o.FinalizeURL, request(t, "other.ts.net"), true); kind(err) != "badCSR" {
		t.Errorf("a request for another name: %v", err)
	}
	if _, _, err := m.CreateOrderCert(within(t), o.FinalizeURL, []byte("no request"), true); kind(err) != "badCSR" {
		t.Errorf("no request: %v", err)
	}
	chain, _, err := m.CreateOrderCert(within(t), o.FinalizeURL, request(t, name), true)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.RootPEM()) || len(chain) != 2 {
		t.Fatalf("%d certificates, and a root %s", len(chain), a.RootPEM())
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
		t.Error(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "other.ts.net"}); err == nil || cert.IsCA {
		t.Error("the certificate is good for more than the name")
	}
}

// An order belongs to its account: another account can neither see nor use it.
func TestAccounts(t *testing.T) {
	t.Parallel()
	a := start(t)
	alice, eve := join(t, a), join(t, a)
	o, chal := alice.order(name)
	a.SetTXT("_acme-challenge."+name, alice.record(chal))
	if _, err := alice.Accept(within(t), chal); err != nil {
		t.Fatal(err)
	}
	if _, err := eve.GetOrder(within(t), o.URI); kind(err) != "malformed" {
		t.Errorf("another account sees the order: %v", err)
	}
	if _, _, err := eve.CreateOrderCert(within(t), o.FinalizeURL, request(t, name), true); kind(err) != "malformed" {
		t.Errorf("another account uses the order: %v", err)
	}
	if _, err := eve.GetOrder(within(t), strings.TrimSuffix(o.URI, "0")+"99"); kind(err) != "malformed" {
		t.Errorf("an order that does not exist: %v", err)
	}
	// The TXT record for eve's order does not have the same value as the one for alice's.
	_, hers := eve.order(name)
	if _, err := eve.Accept(within(t), hers); kind(err) != "dns" {
		t.Errorf("another account's proof: %v", err)
	}
	if _, err := alice.AuthorizeOrder(within(t), acme.DomainIDs(name, "other.ts.net")); kind(err) != "unsupportedIdentifier" {
		t.Errorf("an order for two names: %v", err)
	}
	stranger := &acme.Client{Key: newKey(t), DirectoryURL: a.DirectoryURL()}
	if _, err := stranger.AuthorizeOrder(within(t), acme.DomainIDs(name)); kind(err) != "accountDoesNotExist" {
		t.Errorf("an order without an account: %v", err)
	}
}

// Only the signed request counts: a modified or repeated request is rejected.
func TestSignatures(t *testing.T) {
	t.Parallel()
	m := join(t, start(t))
	o, _ := m.order(name)
	var sent []byte
	m.change = func(jws map[string]string) {
		b, err := json.Marshal(jws)
		if err != nil {
			t.Fatal(err)
		}
		sent = b
	}
	if _, err := m.GetOrder(within(t), o.URI); err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	header := func(jws map[string]string, old, new string) {
		t.Helper()
		b, err := base64.RawURLEncoding.DecodeString(jws["protected"])
		if err != nil || !bytes.Contains(b, []byte(old)) {
			t.Fatalf("no %s in %s: %v", old, b, err)
		}
		jws["protected"] = encode(bytes.Replace(b, []byte(old), []byte(new), 1))
	}
	for _, c := range []struct {
		why, want string
		change    func(jws map[string]string)
	}{
		{"unchanged", "", func(map[string]string) {}},
		{"another payload", "unauthorized", func(jws map[string]string) { jws["payload"] = encode([]byte("{}")) }},
		{"another signature", "unauthorized", func(jws map[string]string) { jws["signature"] = encode(make([]byte, 64)) }},
		{"no signature", "unauthorized", func(jws map[string]string) { jws["signature"] = "" }},
		{"signed for another address", "unauthorized", func(jws map[string]string) { header(jws, "/order/0", "/finalize/0") }},
		{"another account", "accountDoesNotExist", func(jws map[string]string) { header(jws, "/account/0", "/account/7") }},
		{"no algorithm", "badSignatureAlgorithm", func(jws map[string]string) { header(jws, "ES256", "none") }},
		{"an unknown nonce", "badNonce", func(jws map[string]string) { header(jws, `"nonce":"`, `"nonce":"x`) }},
		{"sent before", "badNonce", func(jws map[string]string) {
			if err := json.Unmarshal(sent, &jws); err != nil {
				t.Fatal(err)
			}
		}},
		{"no header", "malformed", func(jws map[string]string) { jws["protected"] = "e" }},
	} {
		m.change = c.change
		if _, err := m.GetOrder(within(t), o.URI); kind(err) != c.want || err == nil && c.want != "" {
			t.Errorf("%s: got %v, want %q", c.why, err, c.want)
		}
	}
}
