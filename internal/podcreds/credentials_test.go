package podcreds

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func openTest(t *testing.T, dir string) *Credentials {
	t.Helper()
	f, err := Open(dir, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// AD-09: a restarted container shows the same CA and token.
func TestStateSurvivesRestart(t *testing.T) {
	state, shown := t.TempDir(), t.TempDir()
	first := openTest(t, state)
	if err := first.WriteFiles(shown, "shop"); err != nil {
		t.Fatal(err)
	}
	before := map[string]os.FileInfo{}
	for _, name := range []string{"namespace", "ca.crt", "token"} {
		i, err := os.Stat(filepath.Join(shown, name))
		if err != nil {
			t.Fatal(err)
		}
		if i.Mode().Perm() != 0o644 {
			t.Errorf("%s has the mode %v", name, i.Mode())
		}
		before[name] = i
	}
	second := openTest(t, state)
	if err := second.WriteFiles(shown, "shop"); err != nil {
		t.Fatal(err)
	}
	for name, was := range before {
		if is, err := os.Stat(filepath.Join(shown, name)); err != nil || !os.SameFile(was, is) {
			t.Errorf("%s was written again: %v", name, err)
		}
	}
	if string(first.CACertificate()) != string(second.CACertificate()) {
		t.Error("another authority")
	}
	token, err := os.ReadFile(filepath.Join(shown, "token"))
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case !second.ValidToken(string(token)):
		t.Error("only the shown token must be accepted: second.ValidToken(string(token)) is false")
	case second.ValidToken(""):
		t.Error(`only the shown token must be accepted: second.ValidToken("") is true`)
	case second.ValidToken(string(token) + "x"):
		t.Error(`only the shown token must be accepted: second.ValidToken(string(token)+"x") is true`)
	case second.ValidToken(string(token)[1:]):
		t.Error("only the shown token must be accepted: second.ValidToken(string(token)[1:]) is true")
	}
	if raw, err := base64.RawURLEncoding.DecodeString(string(token)); err != nil || len(raw) != 32 {
		t.Errorf("a token of %d bytes: %v", len(raw), err)
	}
	if openTest(t, t.TempDir()).ValidToken(string(token)) {
		t.Error("another pod's adapter also accepts it")
	}
	if ns, err := os.ReadFile(filepath.Join(shown, "namespace")); err != nil || string(ns) != "shop" {
		t.Errorf("namespace %q: %v", ns, err)
	}
}

// AD-03: the key is stored only with the adapter, readable only by its user.
func TestKeyIsNotWritten(t *testing.T) {
	state, shown := t.TempDir(), t.TempDir()
	f := openTest(t, state)
	if err := f.WriteFiles(shown, "shop"); err != nil {
		t.Fatal(err)
	}
	i, err := os.Stat(filepath.Join(state, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	if i.Mode().Perm() != 0o600 {
		t.Errorf("the state has the mode %v", i.Mode())
	}
	var names []string
	err = filepath.WalkDir(shown, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		names = append(names, d.Name())
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), keyBlock) {
			t.Errorf("%s holds the key", d.Name())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(names); !slices.Equal(names, []string{"ca.crt", "namespace", "token"}) {
		t.Errorf("the pod sees %q", names)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", f.token)
	for _, printed := range []string{log.String(), fmt.Sprint(f.token), fmt.Sprintf("%+v %#v %s %q", f.token, f.token, f.token, f.token)} {
		if strings.Contains(printed, f.token.Reveal()) {
			t.Errorf("the token was printed: %s", printed)
		}
	}
}

// TestDamagedStateIsRefused checks that a damaged state is refused and not replaced, so that it can be
// examined.
func TestDamagedStateIsRefused(t *testing.T) {
	whole := func() []byte {
		b, err := newState(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	one, other := string(whole()), string(whole())
	cut := func(s, from, to string) string {
		i, j := strings.Index(s, from), strings.Index(s, to)
		return s[:i] + s[j:]
	}
	key := func(s string) string {
		return s[strings.Index(s, "-----BEGIN "+keyBlock):strings.Index(s, "-----BEGIN "+tokenBlock)]
	}
	for name, content := range map[string]string{
		"empty":         "",
		"not PEM":       "hello",
		"half":          one[:len(one)/2],
		"no key":        cut(one, "-----BEGIN "+keyBlock, "-----BEGIN "+tokenBlock),
		"no token":      one[:strings.Index(one, "-----BEGIN "+tokenBlock)],
		"twice":         one + other,
		"another's key": strings.Replace(one, key(one), key(other), 1),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, stateFile)
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, time.Now); err == nil {
				t.Fatal("it was accepted")
			}
			if b, err := os.ReadFile(path); err != nil || string(b) != content {
				t.Errorf("it was changed: %v", err)
			}
		})
	}
}

// TestClientsTrustTheCertificate checks the certificate for each name, over both protocols, with a client
// that trusts only ca.crt.
func TestClientsTrustTheCertificate(t *testing.T) {
	f := openTest(t, t.TempDir())
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(f.CACertificate())
	ln, err := tls.Listen("tcp", "127.0.0.1:0", f.TLSConfig())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.(*tls.Conn).Handshake()
			}()
		}
	}()
	for _, name := range Hosts() {
		for _, proto := range []string{"h2", "http/1.1"} {
			c, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{RootCAs: pool, ServerName: name, NextProtos: []string{proto}})
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if got := c.ConnectionState().NegotiatedProtocol; got != proto {
				t.Errorf("%s: %q instead of %q", name, got, proto)
			}
			c.Close()
		}
	}
	if c, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "example.com"}); err == nil {
		c.Close()
		t.Error("it is valid for another name")
	}
}

// TestCAIsConstrained checks the fields of the CA, and that it is useless for other names even with its
// key.
func TestCAIsConstrained(t *testing.T) {
	f := openTest(t, t.TempDir())
	ca := f.ca
	switch {
	case !ca.IsCA:
		t.Errorf("the authority: ca.IsCA is false; %+v", ca)
	case !ca.MaxPathLenZero:
		t.Errorf("the authority: ca.MaxPathLenZero is false; %+v", ca)
	case ca.MaxPathLen != 0:
		t.Errorf("the authority: ca.MaxPathLen = %v, want 0", ca.MaxPathLen)
	case !ca.PermittedDNSDomainsCritical:
		t.Errorf("the authority: ca.PermittedDNSDomainsCritical is false; %+v", ca)
	case len(ca.SubjectKeyId) == 0:
		t.Errorf("the authority: len(ca.SubjectKeyId) = %v", len(ca.SubjectKeyId))
	case ca.SerialNumber.BitLen() < 64:
		t.Errorf("the authority: ca.SerialNumber.BitLen() = %v, want at least 64", ca.SerialNumber.BitLen())
	case ca.NotBefore.After(time.Now().Add(-4 * time.Minute)):
		t.Errorf("the authority: ca.NotBefore.After(time.Now().Add(-4*time.Minute)) is true; %+v", ca)
	case ca.PublicKeyAlgorithm != x509.ECDSA:
		t.Errorf("the authority: ca.PublicKeyAlgorithm = %v, want %v", ca.PublicKeyAlgorithm, x509.ECDSA)
	}
	if reopened := openTest(t, t.TempDir()).ca; reopened.SerialNumber.Cmp(ca.SerialNumber) == 0 || reopened.Subject.String() == ca.Subject.String() {
		t.Error("two pods' authorities have one serial number or name")
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		ip   net.IP
	}{{name: "example.com"}, {name: "api.kubernetes.io"}, {name: "10.0.0.1", ip: net.IPv4(10, 0, 0, 1)}, {name: "127.0.0.2", ip: net.IPv4(127, 0, 0, 2)}} {
		forged := &x509.Certificate{SerialNumber: serial(), Subject: pkix.Name{CommonName: tt.name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		if forged.IPAddresses = []net.IP{tt.ip}; tt.ip == nil {
			forged.IPAddresses, forged.DNSNames = nil, []string{tt.name}
		}
		raw, err := x509.CreateCertificate(rand.Reader, forged, ca, &key.PublicKey, f.key)
		if err != nil {
			t.Fatal(err)
		}
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool, DNSName: tt.name}); err == nil {
			t.Errorf("it is valid for %s", tt.name)
		}
	}
}

// TestCertificateIsRenewed checks the renewal at two thirds of the certificate's life, and when the clock
// is set back before its start.
func TestCertificateIsRenewed(t *testing.T) {
	now := time.Now()
	f, err := Open(t.TempDir(), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	get := func() *x509.Certificate {
		t.Helper()
		c, err := f.Certificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if now.Before(c.Leaf.NotBefore) || now.After(c.Leaf.NotAfter) {
			t.Errorf("at %v it is not valid", now)
		}
		return c.Leaf
	}
	first := get()
	now = now.Add(leafLifetime*2/3 - time.Minute)
	if !get().Equal(first) {
		t.Error("renewed too early")
	}
	now = now.Add(2 * time.Minute)
	second := get()
	if second.Equal(first) {
		t.Error("not renewed")
	}
	now = now.Add(-leafLifetime)
	if get().Equal(second) {
		t.Error("after the clock moved back, the certificate is not valid yet")
	}
}
