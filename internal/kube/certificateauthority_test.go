package kube_test

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
)

func TestSign(t *testing.T) {
	now := time.Now()
	a, err := kube.NewCertificateAuthority("test", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	other, err := kube.NewCertificateAuthority("test", now, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := a.Sign(x509.ExtKeyUsageServerAuth, "a.example", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(by *kube.CertificateAuthority, name string, use x509.ExtKeyUsage, at time.Time) error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(by.PEM())
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: at})
		return err
	}
	for _, tt := range []struct {
		what string
		err  error
		ok   bool
	}{
		{"its name", verify(a, "a.example", x509.ExtKeyUsageServerAuth, now), true},
		{"its address", verify(a, "127.0.0.1", x509.ExtKeyUsageServerAuth, now), true},
		{"clocks apart", verify(a, "a.example", x509.ExtKeyUsageServerAuth, now.Add(-4*time.Minute)), true},
		{"another name", verify(a, "b.example", x509.ExtKeyUsageServerAuth, now), false},
		{"another use", verify(a, "a.example", x509.ExtKeyUsageClientAuth, now), false},
		{"later", verify(a, "a.example", x509.ExtKeyUsageServerAuth, now.Add(2*time.Hour)), false},
		{"another authority of the name", verify(other, "a.example", x509.ExtKeyUsageServerAuth, now), false},
	} {
		if (tt.err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.what, tt.err)
		}
	}
}

// An authority of a host vouches for its name only: not for a host of another cluster, not for an address, not for a
// client. Its key is no Ed25519 key, which browsers refuse.
func TestConstrainedAuthority(t *testing.T) {
	now := time.Now()
	authority := func() *kube.CertificateAuthority {
		a, err := kube.NewCertificateAuthority("tailplane east-api", now, time.Hour, "east-api.mesh.example")
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	a, other := authority(), authority()
	for _, tt := range []struct {
		why  string
		by   *kube.CertificateAuthority
		name string
		use  x509.ExtKeyUsage
		ok   bool
	}{
		{"its host", a, "east-api.mesh.example", x509.ExtKeyUsageServerAuth, true},
		{"another authority of the same host", other, "east-api.mesh.example", x509.ExtKeyUsageServerAuth, false},
		{"the host of another cluster", a, "west-api.mesh.example", x509.ExtKeyUsageServerAuth, false},
		{"the access server", a, "mesh.example", x509.ExtKeyUsageServerAuth, false},
		{"an IPv4 address", a, "100.64.0.1", x509.ExtKeyUsageServerAuth, false},
		{"an IPv6 address", a, "fd7a:115c:a1e0::1", x509.ExtKeyUsageServerAuth, false},
		{"a client", a, "east-api.mesh.example", x509.ExtKeyUsageClientAuth, false},
	} {
		certificate, _, err := a.Sign(tt.use, tt.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifyLeaf(tt.by.PEM(), certificate, tt.name, tt.use, now); (err == nil) != tt.ok {
			t.Errorf("%s: %v, want accepted: %v", tt.why, err, tt.ok)
		}
	}
	block, _ := pem.Decode(a.PEM())
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if key, ok := root.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve.Params().Name != "P-256" {
		t.Errorf("the key of the authority is %T", root.PublicKey)
	}
}
