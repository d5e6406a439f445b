// Package acmetest is a certificate authority on loopback that speaks ACME, for nodes of a tailnet without internet.
// It fails closed: it signs a name only after the TXT record of that name has proved the control.
package acmetest

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Authority is a certificate authority that implements the part of RFC 8555 that Tailscale's client uses: one account
// key (ES256) per client, one name per order, DNS-01 only. It checks signatures, nonces, URLs, the TXT record and the
// certificate request. It stores no account data except the keys.
type Authority struct {
	url  string
	root *x509.Certificate
	key  *ecdsa.PrivateKey
	srv  *http.Server

	mu       sync.Mutex
	txt      map[string][]string
	nonces   map[string]bool
	accounts []*jwk
	orders   []*order
}

type order struct {
	account *jwk
	domain  string
	token   string
	valid   bool
	der     []byte
}

// jwk is the public key of an account. Its field order is that of RFC 7638.
type jwk struct {
	Crv string `json:"crv"`
	Kty string `json:"kty"`
	X   string `json:"x"`
	Y   string `json:"y"`
}

// Start creates an authority with its own root, which listens on 127.0.0.1 until Close.
func Start() (*Authority, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Tailplane testbed root"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &k.PublicKey, k)
	if err != nil {
		return nil, err
	}
	root, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	a := &Authority{url: "http://" + ln.Addr().String(), root: root, key: k, txt: map[string][]string{}, nonces: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /directory", func(w http.ResponseWriter, r *http.Request) {
		writeJSON(w, http.StatusOK, map[string]string{"newNonce": a.url + "/nonce", "newAccount": a.url + "/account",
			"newOrder": a.url + "/order", "revokeCert": a.url + "/revoke", "keyChange": a.url + "/key-change"})
	})
	mux.HandleFunc("GET /nonce", func(w http.ResponseWriter, r *http.Request) { a.nonce(w) })
	for pattern, h := range map[string]func(http.ResponseWriter, *signed) error{
		"POST /account":       a.newAccount,
		"POST /order":         a.newOrder,
		"POST /order/{id}":    a.showOrder,
		"POST /authz/{id}":    a.showAuthorization,
		"POST /chal/{id}":     a.challenge,
		"POST /finalize/{id}": a.finalize,
		"POST /cert/{id}":     a.certificate,
	} {
		mux.Handle(pattern, a.verified(h))
	}
	a.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go a.srv.Serve(ln)
	return a, nil
}

// Close stops the authority. Certificates that it signed stay valid.
func (a *Authority) Close() error { return a.srv.Close() }

// DirectoryURL returns the directory URL for ACME clients.
func (a *Authority) DirectoryURL() string { return a.url + "/directory" }

// RootPEM returns the root that clients must trust.
func (a *Authority) RootPEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw})
}

// SetTXT publishes a TXT record, in addition to the records of the name. The owner of the zone must call it; the
// authority sends no DNS queries.
func (a *Authority) SetTXT(name, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.txt[name] = append(a.txt[name], value)
}

// Issued returns the number of certificates that the authority has signed for a name.
func (a *Authority) Issued(name string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range a.orders {
		if o.domain == name && o.der != nil {
			n++
		}
	}
	return n
}

// signed is a request whose signature was checked.
type signed struct {
	payload []byte
	account *jwk   // nil before the account exists
	jwk     *jwk   // of a new account
	order   *order // named by the path
	id      int
}

// problem is an error in the form of RFC 8555.
type problem struct {
	status int
	kind   string
	detail string
}

func (p *problem) Error() string { return p.detail }

func refuse(kind, format string, args ...any) error {
	return &problem{http.StatusBadRequest, kind, fmt.Sprintf(format, args...)}
}

func (a *Authority) nonce(w http.ResponseWriter) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := rand.Text()
	a.nonces[n] = true
	w.Header().Set("Replay-Nonce", n)
	w.Header().Set("Cache-Control", "no-store")
}

// verified checks the JSON web signature and runs h under the lock.
func (a *Authority) verified(h func(http.ResponseWriter, *signed) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.nonce(w)
		a.mu.Lock()
		defer a.mu.Unlock()
		s, err := a.verify(r)
		if err == nil {
			err = h(w, s)
		}
		if err == nil {
			return
		}
		p, ok := errors.AsType[*problem](err)
		if !ok {
			p = &problem{http.StatusInternalServerError, "serverInternal", err.Error()}
		}
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(p.status)
		json.NewEncoder(w).Encode(map[string]any{"type": "urn:ietf:params:acme:error:" + p.kind, "detail": p.detail, "status": p.status})
	})
}

func (a *Authority) verify(r *http.Request) (*signed, error) {
	var jws struct{ Protected, Payload, Signature string }
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&jws); err != nil {
		return nil, refuse("malformed", "no JWS: %v", err)
	}
	head, err1 := base64.RawURLEncoding.DecodeString(jws.Protected)
	payload, err2 := base64.RawURLEncoding.DecodeString(jws.Payload)
	sig, err3 := base64.RawURLEncoding.DecodeString(jws.Signature)
	var protected struct {
		Alg, Kid, Nonce, URL string
		JWK                  *jwk
	}
	if err := errors.Join(err1, err2, err3, json.Unmarshal(head, &protected)); err != nil {
		return nil, refuse("malformed", "JWS: %v", err)
	}
	s := &signed{payload: payload, jwk: protected.JWK}
	key := protected.JWK
	if key == nil {
		for i, k := range a.accounts {
			if protected.Kid == a.accountURL(i) {
				key, s.account = k, k
			}
		}
	}
	switch {
	case protected.Alg != "ES256":
		return nil, refuse("badSignatureAlgorithm", "ES256 only, not %q", protected.Alg)
	case key == nil:
		return nil, refuse("accountDoesNotExist", "no account %q", protected.Kid)
	case protected.URL != a.url+r.URL.Path:
		return nil, refuse("unauthorized", "signed for %q", protected.URL)
	case !a.nonces[protected.Nonce]:
		return nil, refuse("badNonce", "unknown nonce")
	case !key.verify(jws.Protected+"."+jws.Payload, sig):
		return nil, refuse("unauthorized", "the signature is wrong")
	}
	delete(a.nonces, protected.Nonce)
	if id := r.PathValue("id"); id != "" {
		i, err := strconv.Atoi(id)
		if err != nil || i < 0 || i >= len(a.orders) || a.orders[i].account != s.account {
			return nil, &problem{http.StatusNotFound, "malformed", "no such order"}
		}
		s.order, s.id = a.orders[i], i
	} else if s.account == nil && r.URL.Path != "/account" {
		return nil, refuse("accountDoesNotExist", "no account")
	}
	return s, nil
}

func (k *jwk) verify(text string, sig []byte) bool {
	x, err1 := base64.RawURLEncoding.DecodeString(k.X)
	y, err2 := base64.RawURLEncoding.DecodeString(k.Y)
	if errors.Join(err1, err2) != nil || k.Kty != "EC" || k.Crv != "P-256" || len(x) != 32 || len(y) != 32 || len(sig) != 64 {
		return false
	}
	pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), slices.Concat([]byte{4}, x, y))
	if err != nil {
		return false
	}
	sum := sha256.Sum256([]byte(text))
	return ecdsa.Verify(pub, sum[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:]))
}

// thumbprint returns the JWK thumbprint of RFC 7638.
func (k *jwk) thumbprint() string {
	b, _ := json.Marshal(k) // cannot fail: only strings
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func (a *Authority) accountURL(i int) string { return fmt.Sprintf("%s/account/%d", a.url, i) }

func (a *Authority) newAccount(w http.ResponseWriter, s *signed) error {
	if s.jwk == nil {
		return refuse("malformed", "a new account needs a jwk")
	}
	var req struct{ OnlyReturnExisting bool }
	if err := json.Unmarshal(s.payload, &req); err != nil {
		return refuse("malformed", "%v", err)
	}
	i := slices.IndexFunc(a.accounts, func(k *jwk) bool { return *k == *s.jwk })
	code := http.StatusOK
	if i < 0 {
		if req.OnlyReturnExisting {
			return refuse("accountDoesNotExist", "no account has this key")
		}
		i, code = len(a.accounts), http.StatusCreated
		a.accounts = append(a.accounts, s.jwk)
	}
	w.Header().Set("Location", a.accountURL(i))
	writeJSON(w, code, map[string]string{"status": "valid"})
	return nil
}

func (a *Authority) newOrder(w http.ResponseWriter, s *signed) error {
	var req struct {
		Identifiers []struct{ Type, Value string }
	}
	if err := json.Unmarshal(s.payload, &req); err != nil || len(req.Identifiers) != 1 || req.Identifiers[0].Type != "dns" {
		return refuse("unsupportedIdentifier", "an order is for one DNS name")
	}
	a.orders = append(a.orders, &order{account: s.account, domain: req.Identifiers[0].Value, token: rand.Text()})
	return a.writeOrder(w, http.StatusCreated, len(a.orders)-1)
}

func (a *Authority) writeOrder(w http.ResponseWriter, code, id int) error {
	o := a.orders[id]
	at := func(what string) string { return fmt.Sprintf("%s/%s/%d", a.url, what, id) }
	m := map[string]any{"status": "pending", "identifiers": []any{map[string]string{"type": "dns", "value": o.domain}},
		"authorizations": []string{at("authz")}, "finalize": at("finalize")}
	if o.valid {
		m["status"] = "ready"
	}
	if o.der != nil {
		m["status"], m["certificate"] = "valid", at("cert")
	}
	w.Header().Set("Location", at("order"))
	writeJSON(w, code, m)
	return nil
}

func (a *Authority) showOrder(w http.ResponseWriter, s *signed) error {
	return a.writeOrder(w, http.StatusOK, s.id)
}

func (o *order) status() string {
	if o.valid {
		return "valid"
	}
	return "pending"
}

func (a *Authority) challengeOf(s *signed) map[string]any {
	return map[string]any{"type": "dns-01", "url": fmt.Sprintf("%s/chal/%d", a.url, s.id), "token": s.order.token, "status": s.order.status()}
}

func (a *Authority) showAuthorization(w http.ResponseWriter, s *signed) error {
	writeJSON(w, http.StatusOK, map[string]any{"status": s.order.status(),
		"identifier": map[string]string{"type": "dns", "value": s.order.domain}, "challenges": []any{a.challengeOf(s)}})
	return nil
}

func (a *Authority) challenge(w http.ResponseWriter, s *signed) error {
	if len(bytes.TrimSpace(s.payload)) > 0 { // empty: the client only reads the challenge
		sum := sha256.Sum256([]byte(s.order.token + "." + s.account.thumbprint()))
		want := base64.RawURLEncoding.EncodeToString(sum[:])
		if !slices.Contains(a.txt["_acme-challenge."+s.order.domain], want) {
			return &problem{http.StatusForbidden, "dns", "no TXT record answers the challenge"}
		}
		s.order.valid = true
	}
	writeJSON(w, http.StatusOK, a.challengeOf(s))
	return nil
}

func (a *Authority) finalize(w http.ResponseWriter, s *signed) error {
	if !s.order.valid {
		return &problem{http.StatusForbidden, "orderNotReady", "the name is not validated"}
	}
	var req struct{ CSR string }
	err := json.Unmarshal(s.payload, &req)
	der, err2 := base64.RawURLEncoding.DecodeString(req.CSR)
	csr, err3 := x509.ParseCertificateRequest(der)
	if err := errors.Join(err, err2, err3); err != nil {
		return refuse("badCSR", "%v", err)
	}
	if err := csr.CheckSignature(); err != nil || !slices.Equal(csr.DNSNames, []string{s.order.domain}) {
		return refuse("badCSR", "the request is for %v, the order for %s: %v", csr.DNSNames, s.order.domain, err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: csr.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	if s.order.der, err = x509.CreateCertificate(rand.Reader, t, a.root, csr.PublicKey, a.key); err != nil {
		return err
	}
	return a.writeOrder(w, http.StatusOK, s.id)
}

func (a *Authority) certificate(w http.ResponseWriter, s *signed) error {
	if s.order.der == nil {
		return &problem{http.StatusNotFound, "malformed", "no certificate yet"}
	}
	w.Header().Set("Content-Type", "application/pem-certificate-chain")
	pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: s.order.der})
	pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: a.root.Raw})
	return nil
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v)
}
