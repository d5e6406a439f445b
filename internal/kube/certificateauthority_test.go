package kube_test

import (
	"crypto/tls"
	"crypto/x509"
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
