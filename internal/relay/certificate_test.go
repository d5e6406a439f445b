package relay

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeSecret simulates the Secret of one name and the CA that signs its certificates.
type fakeSecret struct {
	mu         sync.Mutex
	chain, key []byte
	asked      int   // requests to the CA
	written    int   // writes of the Secret
	refuse     error // error of the CA
}

func (s *fakeSecret) read(context.Context, string) (chain, key []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chain, s.key, nil
}

func (s *fakeSecret) write(_ context.Context, _ string, chain, key []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chain, s.key = chain, key
	s.written++
	return nil
}

func (s *fakeSecret) issue(_ context.Context, name string) (chain, key []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == nil || !errors.Is(s.refuse, ErrNotYet) {
		s.asked++
	}
	if s.refuse != nil {
		return nil, nil, s.refuse
	}
	return sign(name, time.Now().Add(90*24*time.Hour))
}

// empty removes the contents of the Secret and resets the counters.
func (s *fakeSecret) empty(refuse error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chain, s.key, s.asked, s.written, s.refuse = nil, nil, 0, 0, refuse
}

func (s *fakeSecret) counts() [2]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return [2]int{s.asked, s.written}
}

// sign creates a self-signed certificate for a name, and its key.
func sign(name string, until time.Time) (chain, key []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Minute), NotAfter: until, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		return nil, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), err
}

// runCertificates runs the certificates of a relay that needs the certificate of a name.
func runCertificates(t *testing.T, s *fakeSecret, name string, issues bool) *certificates {
	r := &Relay{ReadCertificate: s.read, WriteCertificate: s.write, Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	if issues {
		r.IssueCertificate = s.issue
	}
	r.certs.r = r
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	r.certs.setNames(map[string]bool{name: true})
	go func() { defer close(done); r.certs.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return &r.certs
}

// GTW-23: all relays of a group share one issuance, and one renewal when a third of the
// certificate's lifetime is left. If the Secret is emptied manually, it is filled again without a
// new issuance.
func TestCertificatesAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "grafana.tail1.ts.net"
		s := new(fakeSecret)
		first, second := runCertificates(t, s, name, true), runCertificates(t, s, name, false)
		same := func(when string, counts [2]int) {
			t.Helper()
			synctest.Wait()
			a, reason := first.get(name)
			b, _ := second.get(name)
			switch {
			case a == nil:
				t.Fatalf("%s: the relays: a is nil", when)
			case b == nil:
				t.Fatalf("%s: the relays: b is nil", when)
			case !bytes.Equal(a.Leaf.Raw, b.Leaf.Raw):
				t.Fatalf("%s: the relays: a.Leaf.Raw = %q, want %q", when, a.Leaf.Raw, b.Leaf.Raw)
			case reason != "":
				t.Fatalf("%s: the relays: reason = %q, want none", when, reason)
			}
			if now := s.counts(); now != counts {
				t.Errorf("%s: issued and written %v times", when, now)
			}
		}
		time.Sleep(2 * certificateCheckInterval)
		same("at first", [2]int{1, 1})
		was, _ := second.get(name)
		time.Sleep(59 * 24 * time.Hour)
		same("after 59 days", [2]int{1, 1})
		time.Sleep(2 * 24 * time.Hour)
		same("after 61 days", [2]int{2, 2})
		if is, _ := second.get(name); !is.Leaf.NotAfter.After(was.Leaf.NotAfter) {
			t.Error("the other relay has not seen the renewal")
		}
		s.empty(nil)
		time.Sleep(2 * renewalPause)
		same("after its Secret was emptied", [2]int{0, 1})
		first.setNames(nil)
		synctest.Wait()
		if pair, _ := first.get(name); pair != nil {
			t.Error("an unused certificate is kept")
		}
	})
}

// A CA that refuses is not called more often than its limits allow. While the tailnet does not
// allow a request, the CA is not called at all. A valid certificate stays in use, and an expired
// one is not used.
func TestCertificatesRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "grafana.tail1.ts.net"
		s := &fakeSecret{refuse: errors.New("too many certificates")}
		c := runCertificates(t, s, name, true)
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		switch pair, reason := c.get(name); {
		case pair != nil:
			t.Errorf("pair = %v, want nil", pair)
		case !strings.Contains(reason, "too many certificates"):
			t.Errorf("reason = %q does not contain %q", reason, "too many certificates")
		case s.counts()[0] > 20:
			t.Errorf("s.counts()[0] = %v, want at most 20", s.counts()[0])
		}
		s.empty(ErrNotYet)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if _, reason := c.get(name); reason != ErrNotYet.Error() || s.counts()[0] != 0 {
			t.Errorf("%d requests: %q", s.counts()[0], reason)
		}
		s.empty(nil)
		time.Sleep(2 * certificateCheckInterval)
		synctest.Wait()
		if pair, reason := c.get(name); pair == nil {
			t.Fatal("no certificate, although the CA signs again: ", reason)
		}
		s.empty(errors.New("away"))
		time.Sleep(80 * 24 * time.Hour)
		synctest.Wait()
		if pair, _ := c.get(name); pair == nil {
			t.Error("a certificate that is valid for ten more days is not used")
		}
		time.Sleep(11 * 24 * time.Hour)
		if pair, reason := c.get(name); pair != nil || !strings.Contains(reason, "away") {
			t.Errorf("an expired certificate is used: %q", reason)
		}
	})
}

// The contents of the Secret are validated before use.
func TestCertificateFor(t *testing.T) {
	t.Parallel()
	const name = "grafana.tail1.ts.net"
	now := time.Now()
	chain, key, err := sign(name, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	_, other, err := sign(name, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name       string
		chain, key []byte
		at         time.Time
		why        string
	}{
		{name, chain, key, now, ""},
		{name, nil, nil, now, "no certificate was issued yet"},
		{name, chain, nil, now, "no certificate was issued yet"},
		{name, chain, other, now, "no valid certificate and key"},
		{name, []byte("x"), key, now, "no valid certificate and key"},
		{"other.tail1.ts.net", chain, key, now, "with another name"},
		{name, chain, key, now.Add(2 * time.Hour), "expired on"},
		{name, chain, key, now.Add(-2 * time.Hour), "not valid before"},
	} {
		pair, reason := certificateFor(tt.name, tt.chain, tt.key, tt.at)
		switch {
		case (pair == nil) != (tt.why != ""):
			t.Errorf(`(pair == nil) != (tt.why != ""); %v, reason = %q, %q`, pair != nil, reason, tt.why)
		case !strings.Contains(reason, tt.why):
			t.Errorf("reason = %q does not contain %q; %v", reason, tt.why, pair != nil)
		case strings.Contains(reason, string(tt.key)) && len(tt.key) > 0:
			t.Errorf("strings.Contains(reason, string(tt.key)) && len(tt.key) > 0; %v, reason = %q, %q", pair != nil, reason, tt.why)
		}
	}
}

// GTW-23: the relay terminates TLS with the certificate of the service's name only. The backend
// receives the decrypted data after the header. A client whose handshake fails reaches no backend.
func TestTerminate(t *testing.T) {
	t.Parallel()
	const name = "g.tail1.ts.net"
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { backend.Close() })
	got := make(chan string, 10)
	go func() {
		for {
			c, err := backend.Accept()
			if err != nil {
				return
			}
			b, _ := io.ReadAll(c)
			got <- string(b)
			_, _ = io.WriteString(c, "answer")
			c.Close()
		}
	}()
	s := new(fakeSecret)
	b := newEnv(t)
	b.ReadCertificate, b.WriteCertificate = s.read, s.write
	b.run(t)
	st := b.apply(t, "", fmt.Sprintf(`{"ingress":{"g":{"vip":"svc:g","domain":%q,"proxyProtocol":true,"ready":true,"ports":[{"protocol":"tcp","port":443,"backend":%q,"terminate":true},{"protocol":"tcp","port":444,"backend":%q,"terminate":true,"h2":true}]}}}`,
		name, backend.Addr(), backend.Addr()))
	if e := st.Exposed["g"]; e.Uncertified == "" || len(e.Ports) != 2 { // the tailnet gives certificates only to approved nodes
		t.Errorf("without a certificate: %+v", e)
	}
	roots := x509.NewCertPool()
	say := func(port uint16, to string, protocols ...string) (string, error) {
		c, err := tls.Dial("tcp", b.port(port), &tls.Config{ServerName: to, RootCAs: roots, NextProtos: protocols})
		if err != nil {
			return "", err
		}
		defer c.Close()
		_, err = io.WriteString(c, strings.Repeat("hello", 20_000))
		if err := errors.Join(err, c.CloseWrite()); err != nil {
			return "", err
		}
		handle, err := io.ReadAll(c)
		return c.ConnectionState().NegotiatedProtocol + string(handle), err
	}
	if _, err := say(443, name); err == nil {
		t.Error("TLS without a certificate")
	}
	chain, key, err := sign(name, time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	roots.AppendCertsFromPEM(chain)
	if err := s.write(t.Context(), name, chain, key); err != nil {
		t.Fatal(err)
	}
	for end := time.After(time.Minute); ; {
		changed := b.Changed()
		if st, _ := b.Status(); st.Exposed["g"].Uncertified == "" {
			break
		}
		select {
		case <-changed:
		case <-end:
			t.Fatal("the certificate is not seen")
		}
	}
	for port, want := range map[uint16]string{443: "answer", 444: "h2answer"} {
		if handle, err := say(port, name, "h2"); err != nil || handle != want {
			t.Errorf("port %d: %q %v", port, handle, err)
		}
		switch text := <-got; {
		case !strings.HasPrefix(text, signature):
			t.Errorf("the backend: text = %q does not start with %q", text, signature)
		case !strings.HasSuffix(text, "hello"):
			t.Errorf("the backend: text = %q does not end with %q", text, "hello")
		case len(text) != 28+100_000:
			t.Errorf("the backend: len(text) = %v, want %v", len(text), 28+100_000)
		}
	}
	if _, err := say(443, "other.tail1.ts.net"); err == nil {
		t.Error("a client that requests another name gets an answer")
	}
	if text, err := exchange(b.port(443), "GET / HTTP/1.1\r\n\r\n"); strings.Contains(text, "answer") {
		t.Errorf("a client without TLS gets an answer: %q %v", text, err)
	}
	if len(got) != 0 {
		t.Errorf("an unauthenticated client reached the backend: %q", <-got)
	}
}
